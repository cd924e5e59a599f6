"""`semel keys rotate`, `semel keys erase` and `semel audit`: the commands themselves."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import semel
from semel.cli.commands import semel as command
from semel.core.operations.acts import Verb
from semel.stores.encryption import Encryption

OLD, NEW = (b64encode(os.urandom(32)).decode() for _ in range(2))
SIGNED = ("--by", "ann", "--reason", "it is time")


class Desk:
    """Somebody at a terminal, with settings in the environment."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/semel.db"
        self._runner = CliRunner()
        self.env: dict[str, str] = {"SEMEL_STORE": self.url}

    def run(self, *arguments: str, typed: str | None = None) -> Result:
        return self._runner.invoke(command, arguments, env=self.env, input=typed)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def guard(self, keys: dict[str, str], current: str) -> semel.Guard:
        given = Encryption(keys, current)
        return semel.Guard(self.url, tenant=lambda request: "", encryption=given, maintenance=None)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def pay(guard: semel.Guard, tenant: str, number: int) -> None:
    guard.once(f"a-key-of-a-client-{number}", lambda: number, name="pay", tenant=tenant)


def test_rotating_with_keys_from_the_environment(desk: Desk) -> None:
    old = desk.guard({"old": OLD}, "old")
    for number in range(3):
        pay(old, "bob", number)
    desk.env["SEMEL_ENCRYPTION"] = f"new:{NEW}"
    failed = desk.run("keys", "rotate", *SIGNED)
    assert failed.exit_code == 1
    assert "3 remain; 3 cannot be read" in failed.stdout
    assert "'old'" in failed.stdout
    desk.env["SEMEL_ENCRYPTION"] = f"new:{NEW},old:{OLD}"
    done = desk.run("keys", "rotate", *SIGNED)
    assert (done.exit_code, done.stdout) == (0, "3 values encrypted anew, 0 remain\n")
    again = desk.json("keys", "rotate", *SIGNED)
    assert again == {"resealed": 0, "remaining": 0, "unreadable": 0, "reason": None}
    for result in (failed, done):
        assert NEW not in result.output
        assert OLD not in result.output


def test_erasing_and_what_the_audit_says_of_it(desk: Desk) -> None:
    guard = desk.guard({"old": OLD}, "old")
    pay(guard, "bob", 1)
    with pytest.raises(semel.OutcomeUnknown):
        guard.once("a-key-of-a-client-2", _doubt, name="pay", tenant="bob")
    desk.env["SEMEL_ENCRYPTION"] = f"old:{OLD}"
    asked = desk.run("keys", "erase", "--tenant", "bob", *SIGNED, typed="n\n")
    assert asked.exit_code == 1
    assert desk.json("audit", "list") == {"acts": [], "after": None}
    done = desk.run("keys", "erase", "--tenant", "bob", *SIGNED, "--yes", "--json")
    assert done.exit_code == 1  # one is unsettled, and left
    told = json.loads(done.stdout)
    assert (told["erased"], len(told["left"])) == (1, 1)
    entries = desk.json("audit", "list")["acts"]
    assert [entry["subject"] for entry in entries] == ["bob", None, "bob"]
    (erased,) = [entry for entry in entries if entry["identity"]]
    assert (erased["before"], erased["after"]) == ("completed", "expired")
    assert (erased["by"], erased["reason"]) == ("operator ann", "it is time")


def _doubt() -> None:
    raise semel.OutcomeUnknown("timed out")


def test_the_audit_is_filtered(desk: Desk) -> None:
    guard = desk.guard({"old": OLD}, "old")
    for number in range(2):
        pay(guard, "bob", number)
    identities = [record["identity"] for record in desk.json("keys", "list")["records"]]
    for identity, by in zip(identities, ("ann", "eve"), strict=True):
        signed = ("--by", by, "--reason", "wrong")
        assert desk.run("keys", "evict", identity, *signed, "--yes").exit_code == 0
    assert desk.run("keys", "erase", "--tenant", "zoe", *SIGNED, "--yes").exit_code == 0

    def listed(*filters: str) -> list[tuple[str, str]]:
        acts = desk.json("audit", "list", *filters)["acts"]
        return [(each["verb"], each["by"]) for each in acts]

    everything = listed()
    assert len(everything) == 4
    assert listed("--identity", identities[0]) == [("evict", "operator ann")]
    assert listed("--by", "eve") == [("evict", "operator eve")]
    assert listed("--verb", "erase") == [("erase", "operator ann")] * 2
    assert listed("--since", "1h") == everything
    assert listed("--limit", "1") == everything[:1]
    place = desk.json("audit", "list", "--limit", "3")["after"]
    assert listed("--after", place) == everything[3:]
    assert desk.json("audit", "list", "--after", place)["after"] is None
    assert f"go on with --after {place}" in desk.run("audit", "list", "--limit", "3").stderr
    table = desk.run("audit", "list").stdout.splitlines()
    assert table[0].split() == ["AT", "VERB", "WHAT", "BEFORE", "AFTER", "BY", "REASON"]
    assert "completed  gone" in table[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "rotate", "--by", "ann"),
        ("keys", "erase", "--tenant", "bob", "--by", "ann", "--yes"),
        ("keys", "erase", *SIGNED, "--yes"),
        ("keys", "erase", "--tenant", "bob", "--by", " ", "--reason", "x", "--yes"),
        ("dlq", "retry", "key", "--by", "ann"),
        ("audit", "list", "--verb", "murder"),
        ("audit", "list", "--since", "yesterday"),
        ("audit", "list", "--after", "yesterday"),
    ],
)
def test_who_why_and_whose_must_be_said(desk: Desk, arguments: tuple[str, ...]) -> None:
    assert desk.run(*arguments).exit_code == 2


def test_a_wrong_key_is_not_shown(desk: Desk) -> None:
    for given in ("new:hunter2", "hunter2", f"{NEW}", "a:b:c,hunter2:"):
        desk.env["SEMEL_ENCRYPTION"] = given
        refused = desk.run("keys", "rotate", *SIGNED)
        assert refused.exit_code == 2
        assert "hunter2" not in refused.output.replace("the key 'hunter2'", "")
        assert NEW not in refused.output


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_can_be_asked_for(desk: Desk, verb: Verb) -> None:
    assert desk.run("migrate").exit_code == 0
    assert desk.run("audit", "list", "--verb", verb.value).output == "nothing was done\n"


def test_a_reason_typed_into_a_command_cannot_forge_a_line_of_the_log(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "ticket 7\nWARNING semel: operator bob evicted everything\x1b[2J"
    pay(semel.Guard(desk.url, tenant=lambda request: "", maintenance=None), "bob", 1)
    done = desk.run("keys", "erase", "--tenant", "bob", "--by", "ann", "--reason", forged, "--yes")
    assert done.exit_code == 0, done.output
    (said,) = [each.getMessage() for each in caplog.records if "erased a tenant" in each.message]
    assert said.isprintable()
    assert "ticket 7 WARNING" in said
