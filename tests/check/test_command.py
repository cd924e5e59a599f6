"""`semel check` as people and CI meet it: options, refusals, reports, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from semel.check import openapi
from semel.cli.commands import semel
from tests.check.zoo.server import Shop, serving
from tests.check.zoo.wrong import IgnoresTheBody, KeepsCookies, TakesEmptyKeys
from tests.waiting import PATIENCE

TOKEN = "sk_live_51HsemelSECRETtoken"
BODY = '{"amount": 100, "currency": "EUR"}'


@pytest.fixture
def origin() -> Iterator[str]:
    with serving(Shop()) as found:
        yield found


def run(origin: str, *arguments: str, data: str | None = BODY, path: str = "/payments") -> Result:
    given = () if data is None else ("--data", data)
    return CliRunner().invoke(semel, ["check", origin + path, *given, *arguments])


QUICK = ("--only", "replay.equal", "--only", "mismatch.body")


def test_a_line_for_each_probe_and_the_sum_at_the_end(origin: str) -> None:
    done = run(origin, *QUICK)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["holds", "replay.equal", "201,", "byte", "for", "byte"]
    assert lines[1].split()[:2] == ["holds", "mismatch.body"]
    assert lines[-1].startswith("2 holds; 10 requests in ")


def test_something_broken_is_exit_code_one() -> None:
    with serving(IgnoresTheBody()) as origin:
        done = run(origin, *QUICK)
    assert done.exit_code == 1
    assert "broken          mismatch.body" in done.output


def test_json_has_the_exchanges_and_no_secret(origin: str) -> None:
    done = run(origin, *QUICK, "--as", TOKEN, "--header", f"X-Note: {TOKEN}", "--json")
    document = json.loads(done.output)
    assert document["counts"]["holds"] == 2
    (first, *_) = document["results"][0]["evidence"]
    assert first["request"]["method"] == "POST"
    assert first["answer"]["status"] == 201
    assert ["Authorization", "[redacted]"] in first["request"]["headers"]
    assert TOKEN not in done.output


@pytest.mark.parametrize("form", ["json", "junit", "sarif", "html", "markdown"])
def test_no_report_has_a_secret(form: str, tmp_path: Path) -> None:
    class Echoing(KeepsCookies):
        """Tells the caller's own token, where it should not."""

        def replay(self, said: object) -> object:  # type: ignore[override]
            made = super().replay(said)  # type: ignore[arg-type]
            return made.plus(("X-Caller", TOKEN))

    target = tmp_path / "report"
    with serving(Echoing()) as origin:
        run(origin, "--only", "replay.*", "--as", TOKEN, "--report", f"{form}={target}")
    text = target.read_text("utf-8")
    assert TOKEN not in text
    assert "session=" not in text
    assert "replay.cookies" in text


def test_junit_counts_what_is_broken_and_what_was_passed_over(tmp_path: Path) -> None:
    target = tmp_path / "junit.xml"
    with serving(KeepsCookies()) as origin:
        run(origin, "--only", "replay.*", "--only", "tenant.own", "--report", f"junit={target}")
    suite = ElementTree.fromstring(target.read_text("utf-8"))
    assert suite.attrib["failures"] == "1"
    assert suite.attrib["skipped"] == str(len(suite.findall(".//skipped")))
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert failed.attrib["name"] == "replay.cookies"


def test_sarif_names_the_rule(tmp_path: Path) -> None:
    target = tmp_path / "found.sarif"
    with serving(KeepsCookies()) as origin:
        run(origin, "--only", "replay.*", "--report", f"sarif={target}")
    (made,) = json.loads(target.read_text("utf-8"))["runs"]
    assert [each["ruleId"] for each in made["results"]] == ["replay.cookies"]
    assert "replay.cookies" in {each["id"] for each in made["tool"]["driver"]["rules"]}


def test_known_gaps_do_not_fail_and_new_ones_do(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    with serving(KeepsCookies()) as origin:
        assert run(origin, "--only", "replay.*", "--write-baseline", str(known)).exit_code == 0
        again = run(origin, "--only", "replay.*", "--baseline", str(known))
        assert again.exit_code == 0
        assert "1 known, 0 new" in again.output
    known.write_text('{"profile": "ietf-07", "broken": []}')
    with serving(KeepsCookies()) as origin:
        assert run(origin, "--only", "replay.*", "--baseline", str(known)).exit_code == 1


@pytest.mark.parametrize("text", ["", "[]", '{"broken": 1}', '{"broken": [1]}'])
def test_a_baseline_that_is_none_is_refused(origin: str, tmp_path: Path, text: str) -> None:
    known = tmp_path / "known.json"
    known.write_text(text)
    done = run(origin, *QUICK, "--baseline", str(known))
    assert done.exit_code == 2
    assert "is no baseline" in done.output


def test_the_badge(origin: str, tmp_path: Path) -> None:
    run(origin, *QUICK, "--badge", str(tmp_path / "badge.json"))
    badge = json.loads((tmp_path / "badge.json").read_text())
    assert (badge["message"], badge["color"]) == ("2 hold", "brightgreen")


def test_the_contract_is_found_out(origin: str) -> None:
    done = run(origin, "--discover", "--effects", f"{origin}/effects#$.count")
    assert done.exit_code == 0
    facts = dict(
        line.split("  ", 1)
        for line in done.output.partition("POST /payments")[2].splitlines()
        if "  " in line
    )
    said = {name.strip(): text.strip() for name, text in facts.items()}
    assert said["key required"] == "yes (400)"
    assert said["mismatch"] == "422"
    assert said["answers kept"] == "yes"
    assert said["body compared"] == "by its meaning"


# ── nothing is sent ───────────────────────────────────────────────────────────────────────────────


def test_an_oracle_that_cannot_count_is_told_before_anything_is_sent() -> None:
    shop = Shop()
    with serving(shop) as origin:
        done = run(origin, "--effects", f"{origin}/effects#$")
        gone = run(origin, "--effects", f"{origin}/effects#$.nothing")
    assert (done.exit_code, gone.exit_code) == (1, 1)
    assert "gave {'count': 0}, which is no whole number" in done.output
    assert "gave no count" in gone.output
    assert not shop.kept


def test_a_dry_run_sends_nothing() -> None:
    shop = Shop()
    with serving(shop) as origin:
        done = run(origin, "--dry-run")
    assert done.exit_code == 0
    assert "race.twenty" in done.output
    assert not shop.kept


@pytest.mark.parametrize("host", ["api.example.org", "192.0.2.7", "localhost.example.org"])
def test_another_machine_needs_a_word(host: str) -> None:
    done = run(f"https://{host}")
    assert done.exit_code == 2
    assert f"--i-may {host}" in done.output


def test_a_payment_provider_needs_more_than_a_word() -> None:
    assert "test mode" in run("https://api.stripe.com").output


def test_a_budget_is_kept() -> None:
    shop = Shop()
    with serving(shop) as origin:
        done = run(origin, "--budget", "5")
    assert "the budget of 5 requests is used up" in done.output
    assert shop.effects <= 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--profile", "none"), "there is no profile 'none'"),
        (("--only", "nothing"), "there is no probe 'nothing'"),
        (("--effects", "count"), "--effects: write"),
        (("--effects", "http://127.0.0.1:9/#$..x"), "is no path"),
        (("--provider", "port"), "write :PORT"),
        (("--header", "none"), "is no header"),
        (("--report", "pdf"), "there is no report 'pdf'"),
        (("--request", "missing.json"), "missing.json: No such file"),
    ],
)
def test_what_is_not_understood_is_refused(
    origin: str, arguments: tuple[str, ...], sentence: str
) -> None:
    done = run(origin, *arguments)
    assert done.exit_code == 2, done.output
    assert sentence in done.output


def test_an_address_without_http_is_told_how_it_begins() -> None:
    done = run("127.0.0.1:8000")
    assert done.exit_code == 2
    assert "begins with http://" in done.output


def test_an_empty_key_is_shown_as_one() -> None:
    with serving(TakesEmptyKeys()) as origin:
        done = run(origin, "--only", "key.empty")
    assert "key (empty): 201" in done.output


def test_credentials_in_the_url_are_refused() -> None:
    done = run("http://me:secret@127.0.0.1:9")
    assert done.exit_code == 2
    assert "give credentials with --as" in done.output


def test_without_a_body_it_asks_for_one(origin: str) -> None:
    done = run(origin, data=None)
    assert done.exit_code == 2
    assert "--data" in done.output


def test_an_operation_that_does_not_succeed_cannot_be_checked(origin: str) -> None:
    done = run(origin, data='{"currency": "EUR"}')
    assert done.exit_code == 1
    assert "must succeed to be checked, and got 400" in done.output


def test_nobody_there_is_said() -> None:
    done = run("http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "refused" in done.output


# ── where requests come from ──────────────────────────────────────────────────────────────────────

OPENAPI = {
    "openapi": "3.1.0",
    "paths": {
        "/payments": {
            "post": {
                "parameters": [{"$ref": "#/components/parameters/key"}],
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/P"}}}
                },
            },
            "get": {},
        },
        "/payments/{id}/refunds": {
            "post": {
                "parameters": [{"$ref": "#/components/parameters/key"}],
                "requestBody": {"content": {"application/json": {"example": {"amount": 1}}}},
            }
        },
        "/notes": {"post": {"requestBody": {"content": {"text/plain": {}}}}},
    },
    "components": {
        "parameters": {"key": {"name": "idempotency-key", "in": "header"}},
        "schemas": {
            "P": {
                "type": "object",
                "required": ["amount", "currency"],
                "properties": {
                    "amount": {"type": "integer", "minimum": 50},
                    "currency": {"enum": ["EUR", "CHF"]},
                    "note": {"type": "string"},
                },
            }
        },
    },
}


def test_the_operations_of_an_openapi_document_that_take_keys(origin: str, tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(OPENAPI))
    done = run(origin, *QUICK, "--openapi", str(document), "--json", data=None, path="")
    assert (
        "left out: POST /payments/{id}/refunds: the path needs id: give --path id=VALUE"
        in done.stderr
    )
    results = json.loads(done.stdout)["results"]
    assert {each["operation"] for each in results} == {"POST /payments"}
    sent = json.loads(results[0]["evidence"][0]["request"]["body"])
    assert sent == {"amount": 50, "currency": "EUR"}


def test_a_text_with_a_pattern_is_made_by_a_library(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openapi, "PATTERN_TIMEOUT", PATIENCE)
    document = json.loads(json.dumps(OPENAPI))
    currency = {"type": "string", "pattern": "^[A-Z]{3}$"}
    document["components"]["schemas"]["P"]["properties"]["currency"] = currency
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    done = run(origin, *QUICK, "--openapi", str(file), "--json", data=None, path="")
    sent = json.loads(json.loads(done.stdout)["results"][0]["evidence"][0]["request"]["body"])
    assert re.fullmatch("[A-Z]{3}", sent["currency"])


def test_a_request_from_a_file(origin: str, tmp_path: Path) -> None:
    file = tmp_path / "payment.json"
    file.write_text(json.dumps({"body": json.loads(BODY), "other_body": {"amount": 7}}))
    done = run(origin, *QUICK, "--request", str(file), data=None)
    assert done.exit_code == 0, done.output
    file.write_text('{"bodi": 1}')
    assert run(origin, "--request", str(file), data=None).exit_code == 2
