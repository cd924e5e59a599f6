"""Servers and files that mean no good: the check ends in a sentence, and tells no secret."""

from __future__ import annotations

import base64
import gzip
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from semel.check import CheckOptions, CheckReport, CheckVerdict, check
from semel.check.run import CheckedOperation, moment, other_bodies
from semel.check.wire import LONGEST_ANSWER, WireRequest
from semel.cli.commands import semel
from tests.check.test_zoo import PAYMENT
from tests.check.zoo.server import Got, Said, Shop, serving
from tests.check.zoo.wrong import DeclaresWhatItIgnores, IgnoresKeys, declaring
from tests.waiting import PATIENCE

BODY = '{"amount": 100, "currency": "EUR"}'
TOKEN = "sk_live_51HsemelSECRET/tok+en"
Handler = Callable[[socket.socket, threading.Event], None]


@contextmanager
def answering(handler: Handler) -> Iterator[str]:
    """The origin of a server that reads a request and leaves the rest to ``handler``."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            seen = b""
            while BODY.encode() not in seen and b"GET " not in seen:
                piece = connection.recv(65_536)
                if not piece:
                    return
                seen += piece
            handler(connection, over)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def run(origin: str, *arguments: str, data: str = BODY) -> Result:
    words = ["check", f"{origin}/payments", "--data", data, "--timeout", "0.5", *arguments]
    return CliRunner().invoke(semel, words)


def endless(first: bytes, piece: bytes) -> Handler:
    def handler(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(first)
        while not over.is_set():
            connection.sendall(piece)

    return handler


def dripping(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n")
    while not over.wait(0.05):
        connection.sendall(b"x")


def stalling(_: socket.socket, over: threading.Event) -> None:
    over.wait()


def saying(text: bytes) -> Handler:
    return lambda connection, _over: connection.sendall(text)


HEAD = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
NO_ANSWERS: dict[str, tuple[Handler, str]] = {
    "stalls": (stalling, "no whole answer in time"),
    "drips": (dripping, "no whole answer in time"),
    "sends without end": (endless(HEAD + b"\r\n", b"x" * 65_536), "has more than 4 MiB"),
    "sends chunks without end": (
        endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"4000\r\n" + b"x" * 16384 + b"\r\n"),
        "has more than 4 MiB",
    ),
    "goes on with 100": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "no whole answer in time"),
    "closes at once": (saying(b""), "closed the connection"),
    "closes in the head": (saying(b"HTTP/1.1 20"), "no HTTP"),
    "closes in the body": (saying(HEAD + b"Content-Length: 9\r\n\r\n{}"), "cut off"),
    "closes in a chunk": (
        saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
        "cut off",
    ),
    "has no number for a chunk": (
        saying(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab"),
        "cut off",
    ),
    "speaks another language": (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "no HTTP"),
    "has a line without end": (endless(b"HTTP/1.1 201 ", b"x" * 65_536), "line"),
    "has headers without end": (endless(b"HTTP/1.1 201 Created\r\n", b"A: b\r\n" * 9), "headers"),
    "announces more than it has": (
        endless(HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65_536),
        "has more than 4 MiB",
    ),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_is_said_in_a_sentence(name: str) -> None:
    handler, sentence = NO_ANSWERS[name]
    with answering(handler) as origin:
        done = run(origin, "--timeout", "3" if "MiB" in sentence else "0.5")
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    assert sentence in done.output
    assert "Not checked: POST /payments" in done.output


def test_nothing_is_sent_where_a_redirect_leads() -> None:
    with serving(Shop()) as elsewhere:
        answer = f"HTTP/1.1 307 x\r\nLocation: {elsewhere}/payments\r\nContent-Length: 0\r\n\r\n"
        with answering(saying(answer.encode())) as origin:
            done = run(origin, "--as", TOKEN)
            asked = run(elsewhere, "--effects", f"{origin}/count#$.n", "--as", TOKEN)
    assert done.exit_code == asked.exit_code == 1
    assert f"it leads to {elsewhere}/payments" in done.output
    assert "gave no count: 307" in asked.output


@pytest.mark.parametrize(
    "document",
    [
        {"data": None, "errors": [{"message": "no such field"}]},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "invalid"}},
        {"ok": False, "reason": "no"},
        {"success": False},
    ],
)
def test_an_error_under_a_200_is_no_success(document: dict[str, object]) -> None:
    class Failing(Shop):
        def answer(self, got: Got) -> Said:
            return Said(200, {**document, "trace": str(threading.get_ident())})

    with serving(Failing()) as origin:
        done = run(origin)
    assert done.exit_code == 1
    assert "got 200, with an error inside" in done.output


def test_who_must_be_known_is_asked_for_a_token() -> None:
    class Closed(Shop):
        def answer(self, got: Got) -> Said:
            return Said(401, {"error": "who are you?"})

    with serving(Closed()) as origin:
        done = run(origin)
    assert done.exit_code == 1
    assert "give a token with --as" in done.output
    assert "holds" not in done.output


def test_credentials_that_end_in_the_middle_prove_nothing() -> None:
    class Ending(Shop):
        asked = 0

        def guarded(self, got: Got) -> Said:
            self.asked += 1
            return super().guarded(got) if self.asked <= 4 else Said(401, {"error": "expired"})

    with serving(Ending()) as origin:
        report = check(CheckOptions(origin, [PAYMENT], token=TOKEN, only=["key.*", "replay.*"]))
    assert {each.verdict for each in report.results} <= {
        CheckVerdict.NOT_OBSERVABLE,
        CheckVerdict.SKIPPED,
    }
    assert not report.finished


def test_an_api_that_goes_away_is_not_broken_but_gone() -> None:
    class Leaving(Shop):
        asked = 0

        def serve(self, handler: object) -> None:
            self.asked += 1
            if self.asked <= 8:
                super().serve(handler)  # type: ignore[arg-type]

    with serving(Leaving()) as origin:
        done = run(origin)
    assert done.exit_code == 1
    assert "Not finished: the API stopped answering at " in done.output
    assert "broken" not in done.output


def test_the_other_caller_must_be_one_that_the_api_knows() -> None:
    class Choosy(Shop):
        def guarded(self, got: Got) -> Said:
            known = "alice" in got.headers.get("Authorization", "")
            return super().guarded(got) if known else Said(401, {"error": "who are you?"})

    with serving(Choosy()) as origin:
        options = CheckOptions(origin, [PAYMENT], token="alice", other_token="bob")
        (result,) = check(replaced(options, only=["tenant.own"])).results
    assert result.verdict is CheckVerdict.NOT_OBSERVABLE
    assert "401" in result.reason


def replaced(options: CheckOptions, **changes: object) -> CheckOptions:
    from dataclasses import replace

    return replace(options, **changes)  # type: ignore[arg-type]


def test_an_answer_that_nobody_asked_to_compress_is_compared_as_it_is() -> None:
    bomb = gzip.compress(b"0" * LONGEST_ANSWER)
    answer = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    with answering(saying(answer)) as origin:
        done = run(origin, "--only", "replay.equal")
    assert "all answers of this operation are equal" in done.output
    assert "Nothing was shown" in done.output
    assert done.exit_code == 1


# ── hostile text and secrets ──────────────────────────────────────────────────────────────────────

HOSTILE = "\x1b[2J\x07\u202e<script>alert(1)</script>]]>\x00\ud800|[x](javascript:x)![](http://x)`"


class Shouting(IgnoresKeys):
    """Hostile text in names, values and headers, and the caller's token in many coats."""

    def answer(self, got: Got) -> Said:
        said = super().answer(got)
        if got.method != "POST":
            return said
        token = got.headers.get("Authorization", "").removeprefix("Bearer ")
        coats = [
            token,
            base64.b64encode(f"user:{token}".encode()).decode(),
            token.encode().hex(),
            token.replace("/", "%2F"),
        ]
        named = {"client_secret": "made-by-the-server-1234", "note": "made-by-the-server-1234"}
        document = {**said.document, HOSTILE: said.document.get("id"), "coats": coats, **named}
        return Said(said.status, document, (("X-Note", "a\x1b[31m\x07 <b>"), ("X-Caller", token)))


@pytest.mark.parametrize("form", ["json", "junit", "sarif", "html", "markdown"])
def test_no_report_obeys_the_server_or_tells_a_secret(form: str, tmp_path: Path) -> None:
    target = tmp_path / "report"
    card = '{"amount": 100, "card": {"number": "4242424242424242", "cvc": "987"}}'
    with serving(Shouting()) as origin:
        words = ("--as", TOKEN, "--header", "X-Api-Key: key-of-mine-77", "--report")
        done = run(f"{origin}", *words, f"{form}={target}", "--only", "replay.*", data=card)
    assert isinstance(done.exception, SystemExit), done.exception
    text = target.read_text("utf-8")
    for shown in (text, done.output):
        assert "replay.equal" in shown
        encoded = base64.b64encode(f"user:{TOKEN}".encode()).decode()
        for secret in (TOKEN, TOKEN.replace("/", "%2F"), TOKEN.encode().hex(), encoded[8:40]):
            assert secret not in shown
        for secret in ("key-of-mine-77", "made-by-the-server-1234", "4242424242424242"):
            assert secret not in shown
        assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(shown)
    if form == "junit":
        ElementTree.fromstring(text)
    if form in ("json", "sarif"):
        json.loads(text)
    if form == "html":
        assert "<script>" not in text
        assert "default-src 'none'" in text
    if form == "markdown":
        assert "![" not in text
        assert "](" not in text
        assert "<script" not in text.replace("\\<", "")


def test_a_short_token_is_blotted_out_too() -> None:
    with serving(Shouting()) as origin:
        done = run(origin, "--as", "abc", "--json", "--only", "replay.equal")
    assert '"abc"' not in done.output
    assert "[redacted]" in done.output


def test_what_an_oracle_is_asked_with_is_not_told(tmp_path: Path) -> None:
    with serving(Shop()) as origin:
        for effects in (
            f"{origin}/nothing?token={TOKEN}#$.count",
            f"cmd:echo {TOKEN} >/dev/null; exit 3",
            f"sql:postgresql://me:{TOKEN}@127.0.0.1:9/x SELECT 1",
            f"sql:sqlite:///{tmp_path}/none.db SELECT '{TOKEN}'",
        ):
            done = run(origin, "--effects", effects)
            assert done.exit_code == 1, done.output
            assert TOKEN not in done.output


# ── oracles ───────────────────────────────────────────────────────────────────────────────────────


def counted(origin: str, effects: str, **more: object) -> CheckReport:
    options = CheckOptions(origin, [PAYMENT], token="alice", effects=effects, patience=1.0)
    return check(replaced(options, only=["effect.once", "hangup.*", "race.twenty"], **more))


def test_an_oracle_that_does_not_notice_proves_nothing() -> None:
    with serving(IgnoresKeys()) as origin:
        report = counted(origin, "cmd:echo 7")
    assert {each.verdict for each in report.results if each.name != "race.twenty"} == {
        CheckVerdict.NOT_OBSERVABLE
    }
    assert "does not count these requests" in report.results[0].reason


def test_an_oracle_that_moves_by_itself_proves_nothing(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    counter.write_text("")
    with serving(Shop()) as origin:
        report = counted(origin, f"cmd:echo >> {counter}; wc -l < {counter}")
    assert report.count(CheckVerdict.NOT_OBSERVABLE) == len(report.results)
    assert "it changes by itself" in report.results[0].reason


@pytest.mark.parametrize(
    ("effects", "sentence"),
    [
        ("cmd:sleep 60 & wait", "did not end in 0.5 s"),
        ("cmd:printf '\\377'", "no whole number"),
        ("cmd:exit 4", "exit code 4"),
        ("cmd:echo 1.5", "no whole number"),
        ("http://192.0.2.1/count#$.n", "--i-may 192.0.2.1"),
        ("http://[::1/count", "no URL"),
        ("sql:oracle://x SELECT 1", "sql: takes"),
    ],
)
def test_an_oracle_that_fails_is_told_before_anything_is_sent(effects: str, sentence: str) -> None:
    shop = Shop()
    with serving(shop) as origin:
        done = run(origin, "--effects", effects)
    assert done.exit_code in (1, 2)
    assert sentence in done.output
    assert isinstance(done.exception, SystemExit)
    assert not shop.kept


def test_a_token_is_not_given_to_another_host_that_counts() -> None:
    heard: list[str] = []

    class Counting(Shop):
        def answer(self, got: Got) -> Said:
            heard.append(got.headers.get("Authorization", ""))
            return Said(200, {"n": 1})

    with serving(Shop()) as origin, serving(Counting()) as other:
        named = other.replace("127.0.0.1", "localhost")
        run(origin, "--effects", f"{named}/#$.n", "--as", TOKEN, "--only", "replay.equal")
    assert heard
    assert set(heard) == {""}


# ── the end of a run ──────────────────────────────────────────────────────────────────────────────


def test_a_budget_that_is_too_small_is_no_success(tmp_path: Path) -> None:
    with serving(Shop()) as origin:
        done = run(origin, "--budget", "12", "--badge", str(tmp_path / "badge.json"))
    assert done.exit_code == 1
    assert "Not finished: the budget of 12 requests is used up" in done.output
    assert json.loads((tmp_path / "badge.json").read_text())["color"] == "lightgrey"


def test_ctrl_c_leaves_what_was_found_so_far(tmp_path: Path) -> None:
    target = tmp_path / "report.json"

    def told(result: object) -> None:
        raise KeyboardInterrupt

    with serving(Shop()) as origin:
        report = check(CheckOptions(origin, [PAYMENT], token="alice"), told)
    assert report.interrupted
    assert len(report.results) == 1
    target.write_text(report.text("json"))
    assert "Not finished: it was interrupted" in json.loads(target.read_text())["headline"]


def test_ctrl_c_is_an_exit_code_and_a_report(tmp_path: Path) -> None:
    reached = threading.Event()

    class Stalling(Shop):
        over = threading.Event()

        def guarded(self, got: Got) -> Said:
            if len(self.kept) >= 4:
                reached.set()
                self.over.wait()
            return super().guarded(got)

    shop, target = Stalling(), tmp_path / "report.md"
    with serving(shop) as origin:
        words = ["check", f"{origin}/payments", "--data", BODY, "--timeout", "60"]
        words += ["--report", f"markdown={target}"]
        program = subprocess.Popen(
            [sys.executable, "-m", "semel", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert reached.wait(PATIENCE)
        program.send_signal(signal.SIGINT)
        said, _ = program.communicate(timeout=PATIENCE)
        shop.over.set()
    assert program.returncode == 130, said
    assert "Traceback" not in said
    assert "Not finished: it was interrupted" in said
    assert "interrupted" in target.read_text()


def test_one_operation_that_fails_does_not_hide_the_others() -> None:
    wrong = CheckedOperation(WireRequest("POST", "/nowhere", (), b"{}"), label="POST /nowhere")
    with serving(Shop()) as origin:
        options = CheckOptions(origin, [wrong, PAYMENT], token="alice", only=["replay.equal"])
        report = check(options)
    assert [each.operation for each in report.results] == ["POST /payments"]
    assert "404" in report.unchecked["POST /nowhere"]
    assert not report.finished


# ── declared and enforced ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["json", "html", "markdown", "junit", "sarif"])
def test_what_is_declared_and_not_enforced_comes_first(form: str) -> None:
    with serving(DeclaresWhatItIgnores()) as origin:
        report = check(CheckOptions(origin, [PAYMENT], token="alice", only=["contract.*"]))
    said = "Declared, not enforced: a repeated request is not answered from its record"
    assert report.first_lines()[0].startswith(said)
    text = report.text(form)
    assert said in text
    if form in ("json", "html", "markdown"):
        assert text.index(said) < text.index("not observable" if form != "html" else "What holds")
    assert report.badge()["message"] == "declared, not enforced"


def test_the_terminal_begins_and_ends_with_the_contract() -> None:
    with serving(DeclaresWhatItIgnores()) as origin:
        lines = run(origin).output.splitlines()
    assert lines[0].split()[:2] == ["broken", "contract.keys"]
    summary = lines[lines.index("") + 1 :]
    assert summary[0].startswith("Declared, not enforced: ")


@pytest.mark.parametrize(
    "other",
    [
        {"key": "yes", "mismatch": [], "in_flight": 4, "replay": "x", "lifetime": "long"},
        {"methods": "POST", "replay": {"header": 1}, "lifetime": -1, "mismatch": {"status": "x"}},
        {"path": "{a:path}" * 40 + "x"},
        {"path": "/payments/<int:id>", "method": "*"},
    ],
)
def test_a_contract_of_nonsense_stops_nothing(other: dict[str, object]) -> None:
    document = declaring()
    document["routes"] = [{**document["routes"][0], **other}, 7, {"method": "POST"}]

    class Odd(Shop):
        declares = document

    with serving(Odd()) as origin:
        report = check(CheckOptions(origin, [PAYMENT], token="alice", only=["contract.*"]))
    assert len(report.results) == 6


# ── what is given ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "\x00\xff",
        "[" * 100_000,
        '{"headers": []}',
        '{"headers": {"A\\r\\nB": "x"}, "body": {}}',
        '{"headers": {"A": "x\\r\\nB: y"}, "body": {}}',
        '{"method": "POST /x HTTP/1.1\\r\\nA: b", "body": {}}',
        '{"path": "http://192.0.2.1/", "body": {}}',
        '{"path": 7, "body": {}}',
        '{"body": null}',
    ],
)
def test_a_request_file_of_garbage_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(text, "latin-1")
    shop = Shop()
    with serving(shop) as origin:
        words = ["check", f"{origin}/payments", "--request", str(file)]
        done = CliRunner().invoke(semel, words)
    assert done.exit_code == 2, done.output
    assert not shop.kept


@pytest.mark.parametrize(
    "arguments",
    [
        ("--as", "tok\r\nX-Evil: 1"),
        ("--as", "snow-☃"),
        ("--header", "X-Bad: a\nb"),
        ("--only", "nothing.*"),
        ("--as", "one", "--other", "one"),
        ("--report", "html=/no/such/folder/x.html"),
        ("--badge", "/no/such/folder/badge.json"),
        ("--profile", "pyproject.toml"),
        ("--provider", ":99999"),
    ],
)
def test_what_cannot_be_sent_or_written_is_refused_before_anything_is_sent(
    arguments: tuple[str, ...],
) -> None:
    shop = Shop()
    with serving(shop) as origin:
        done = run(origin, *arguments)
    assert done.exit_code == 2, done.output
    assert not shop.kept


@pytest.mark.parametrize(
    "url", ["http://[::1/x", "http://127.0.0.1:99999/x", "ftp://127.0.0.1/x", "127.0.0.1:8000/x"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    done = CliRunner().invoke(semel, ["check", url, "--data", "{}"])
    assert done.exit_code == 2, done.output


def test_a_baseline_of_another_profile_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    shop = Shop()
    with serving(shop) as origin:
        for text in (
            '{"profile": "stripe", "broken": []}',
            '{"profile": "ietf-07", "broken": [{"operation": "x", "probe": "gone.probe"}]}',
            '{"broken": []}',
        ):
            known.write_text(text)
            assert run(origin, "--baseline", str(known)).exit_code == 2
    assert not shop.kept


def test_what_is_mended_is_told(tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    gap = {"operation": "POST /payments", "probe": "replay.equal"}
    known.write_text(json.dumps({"profile": "ietf-07", "broken": [gap]}))
    with serving(Shop()) as origin:
        done = run(origin, "--only", "replay.equal", "--baseline", str(known))
    assert done.exit_code == 0
    assert "mended: replay.equal" in done.output


@pytest.mark.parametrize("text", ["", "x", '"', "Mon, 99 Foo", "9" * 400, "2026-99-99", "\x00"])
def test_a_date_of_nonsense_is_none(text: str) -> None:
    assert moment(text) is None


def test_other_bodies_of_json_and_of_forms() -> None:
    assert b'{"a": true, "n": 2}' in other_bodies(b'{"a": true, "n": 1}')
    assert other_bodies(b"amount=100&currency=eur") == [b"amount=101&currency=eur"]
    assert other_bodies(b"\xff\xfe") == []
    assert other_bodies(b"[" * 100_000) == []
