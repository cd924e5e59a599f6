"""`semel demo` as a newcomer meets it: a real process with real servers below it.

The demo waits for leases and time-outs as long as it must, and no longer: a machine that stands
still for two seconds would spoil its scenes. Here it has ample time, and what ought to run out does
so in its turn (`staging/sitecustomize.py`); `make proof` plays it by its own clock too.
"""

import codecs
import http.client
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from examples.demo.printer import Printer, SceneResult
from examples.demo.roll_out import REPORT
from examples.demo.scenes import SCENES, provider_times_out
from examples.demo.servers import ROOT
from tests.cli.commandline import run
from tests.docs.story import curl
from tests.forms import in_proof
from tests.waiting import PATIENCE, until

STAGING = Path(__file__).parent / "staging"
TIMES_OUT = 1 + [scene.play for scene in SCENES].index(provider_times_out)
AMPLE = {
    "PYTHONPATH": str(STAGING),
    "SEMEL_TEST_AMPLE": str(PATIENCE),
    "SEMEL_TEST_TIMES_OUT": f"order-{TIMES_OUT}",
}
STANDING = {**AMPLE, "SEMEL_TEST_STAND": "in the first scene"}
COMMAND = [sys.executable, "-m", "semel", "demo"]
ROW = re.compile(r"^ (\S.*?) +(\d+) +(\d+) +(\w+) *$", re.MULTILINE)
PROCESS = re.compile(r"process (\d+)")


def environment(**changes: str) -> dict[str, str]:
    forced = {"FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"}
    return {k: v for k, v in os.environ.items() if k not in forced} | changes


def play(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """All of it, to its end: nobody is there to try the API afterwards."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**env),
        timeout=PATIENCE,
        check=False,
    )


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


BY_ITS_OWN_CLOCK: dict[str, str] = {}
CLOCKS = [pytest.param(AMPLE, id="ample"), *in_proof(BY_ITS_OWN_CLOCK)]


@pytest.fixture(scope="module", params=CLOCKS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    return play(TMPDIR=str(tmp_path_factory.mktemp("guarded")), **request.param)


def test_every_charge_is_made_as_often_as_it_was_meant(
    guarded: subprocess.CompletedProcess[str],
) -> None:
    assert guarded.returncode == 0, guarded.stdout + guarded.stderr
    rows = ROW.findall(guarded.stdout)
    assert [row[0] for row in rows] == [scene.title for scene in SCENES]
    assert all(meant == made and verdict == "ok" for _, meant, made, verdict in rows)
    assert "PASS" in guarded.stdout


def test_output_is_plain_when_it_is_not_a_terminals(
    guarded: subprocess.CompletedProcess[str],
) -> None:
    assert "\x1b" not in guarded.stdout
    assert guarded.stderr == ""


def test_the_scenes_show_what_they_promise(guarded: subprocess.CompletedProcess[str]) -> None:
    for shown in ("kill -9", "record: unknown", "409 Conflict  outcome-unknown", "19 × 201"):
        assert shown in guarded.stdout
    assert "422 Unprocessable" in guarded.stdout
    assert "differs in: amount" in guarded.stdout


def test_no_server_outlives_the_demo(guarded: subprocess.CompletedProcess[str]) -> None:
    pids = [int(pid) for pid in PROCESS.findall(guarded.stdout)]
    assert len(pids) == 3  # provider, API, and the API after its death
    assert not any(map(alive, pids))


@pytest.mark.parametrize("clock", CLOCKS)
def test_without_semel_charges_are_doubled_and_the_verdict_says_so(
    clock: dict[str, str], tmp_path: Path
) -> None:
    """The control: the same scenes must be able to fail, and the ledger must agree."""
    done = play("--unguarded", "--dir", str(tmp_path / "kept"), **clock)
    assert done.returncode == 1
    rows = ROW.findall(done.stdout)
    assert [row[3] for row in rows] == ["DOUBLED"] * len(SCENES)
    assert "FAIL" in done.stdout
    ledger = (tmp_path / "kept" / "ledger.jsonl").read_text().splitlines()
    assert sum(int(row[2]) for row in rows) == len(ledger)


@pytest.fixture(scope="module", params=CLOCKS)
def rolled_out(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    return play("--roll-out", TMPDIR=str(tmp_path_factory.mktemp("rolled out")), **request.param)


def test_a_roll_out_changes_nothing_in_shadow_and_charges_nothing_again_afterwards(
    rolled_out: subprocess.CompletedProcess[str],
) -> None:
    assert rolled_out.returncode == 0, rolled_out.stdout + rolled_out.stderr
    rows = ROW.findall(rolled_out.stdout)
    assert [(row[0], *row[2:]) for row in rows] == [
        ("In shadow", "9", "ok"),
        ("The report", "0", "ok"),
        ("The switch", "2", "ok"),
        ("Enforced", "1", "ok"),
    ]
    assert not any(map(alive, map(int, PROCESS.findall(rolled_out.stdout))))


def test_the_tutorial_shows_what_a_roll_out_prints(
    rolled_out: subprocess.CompletedProcess[str],
) -> None:
    key = re.compile(r"key [0-9a-f]{8}")
    page = (ROOT / "docs/tutorial/demo.md").read_text().partition("## A roll-out")[2]
    shown = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert REPORT in shown
    for block in shown:
        assert key.sub("key", block) in key.sub("key", rolled_out.stdout)


def test_a_roll_out_whose_keys_are_never_enforced_fails(tmp_path: Path) -> None:
    """The control: the scenes must be able to fail, and the verdict says with whose money."""
    done = play("--roll-out", TMPDIR=str(tmp_path), SEMEL_TEST_WATCH="1", **AMPLE)
    assert done.returncode == 1, done.stdout
    verdicts = {row[0]: row[3] for row in ROW.findall(done.stdout)}
    assert verdicts["In shadow"] == verdicts["The report"] == "ok"
    assert verdicts["The switch"] == verdicts["Enforced"] == "DOUBLED"


def test_a_roll_out_needs_a_guard() -> None:
    assert run("demo", "--roll-out", "--unguarded").returncode == 2


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    done = run("demo", "--exit", "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "must be new or empty" in done.stderr


@pytest.mark.parametrize(
    ("charges", "complaints", "verdict"),
    [
        ({"a": 1, "b": 1}, (), "ok"),
        ({"a": 2}, (), "DOUBLED"),
        ({"a": 0}, (), "LOST"),
        ({"a": 2, "b": 0}, (), "DOUBLED"),
        ({"a": 1}, ("expected 201, got 500",), "FAILED"),
        ({"twice": 2, "never": 0}, (), "ok"),
        ({"twice": 1}, (), "LOST"),
        ({"never": 1}, (), "DOUBLED"),
    ],
)
def test_a_verdict_judges_every_order(
    charges: dict[str, int], complaints: tuple[str, ...], verdict: str
) -> None:
    outcome = SceneResult("scene", charges, complaints, {"twice": 2, "never": 0})
    assert outcome.verdict == verdict
    assert bool(outcome.reason) is (verdict != "ok")


def test_an_ascii_terminal_gets_arrows_it_can_print() -> None:
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Printer(terminal).line("   → 20 × ✓")
    assert raw.getvalue() == b"   -> 20 x ok\n"


# ── on a terminal ─────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """The demo in a terminal of its own."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(TERM="xterm-256color", COLUMNS="300", **env),
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read_to(self, mark: str) -> str:
        while mark not in self.shown:
            assert select.select([self._master], [], [], PATIENCE)[0], self.shown
            piece = os.read(self._master, 65536)
            assert piece, self.shown
            # A piece may end within a character, or within the end of a line.
            self.shown = (self.shown + self._decoder.decode(piece)).replace("\r\n", "\n")
        return self.shown

    def read_to_end(self) -> str:
        with suppress(OSError):  # Linux reports the end of a terminal as an I/O error
            self.read_to("\0 never printed")
        return self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.read_to_end()
        self.process.wait(PATIENCE)
        os.close(self._master)


@contextmanager
def terminal(folder: Path, *arguments: str, **env: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments, TMPDIR=str(folder), **env)
    try:
        yield opened
    finally:
        opened.close()


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def curls(shown: str) -> list[str]:
    pasted = plain(shown).replace("\\\n", "")
    return [line for line in pasted.splitlines() if line.startswith("curl ")]


def shell(command: str) -> str:
    return curl(shlex.split(command)[1:])


def statuses(commands: list[str]) -> list[str]:
    return [shell(command).split()[1] for command in commands]


def records_in_console(shown: str) -> list[dict[str, str]]:
    """What the console's list has, for whoever opens the address that the demo printed."""
    address = re.search(r"http://(\S+)/login\?token=(\S+)", shown)
    assert address is not None, shown
    host, token = address.groups()
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    with closing(connection):
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{host}"}
        connection.request("POST", "/login", urlencode({"token": token}), form)
        entered = connection.getresponse()
        entered.read()
        cookie = (entered.headers["Set-Cookie"] or "").partition(";")[0]
        connection.request(
            "GET", "/records", headers={"Cookie": cookie, "Accept": "application/json"}
        )
        rows: list[dict[str, str]] = json.load(connection.getresponse())["rows"]
    return rows


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_api_stays_up_for_the_curl_lines_until_ctrl_c(
    clock: dict[str, str], tmp_path: Path
) -> None:
    with terminal(tmp_path, **clock) as demo:
        shown = demo.read_to("Ctrl-C ends the demo")
        assert "\x1b[" in shown
        lines = curls(shown)
        pay, *refused, _declined, silent, charged = lines
        assert "idempotent-replayed: false" in shell(pay)
        assert "idempotent-replayed: true" in shell(pay)
        assert statuses(refused) == ["422", "201", "400"]
        assert statuses([silent, silent]) == ["504", "409"]
        assert shell(charged).count('"id"') == 2  # one per merchant, however often it was sent
        states = [row["state"] for row in records_in_console(plain(shown))]
        assert sorted(set(states)) == ["completed", "unknown"]
        assert len(states) == 8 + 3  # of the scenes, and of the lines that were tried
        demo.process.send_signal(signal.SIGINT)
        assert "Traceback" not in demo.read_to_end()
        assert demo.process.wait(PATIENCE) == 0
        assert list(tmp_path.iterdir()) == []
        assert not any(alive(int(pid)) for pid in PROCESS.findall(plain(shown)))


def test_told_to_it_ends_after_the_scenes_on_a_terminal_too(tmp_path: Path) -> None:
    with terminal(tmp_path, "--exit", **AMPLE) as demo:
        assert "Ctrl-C" not in demo.read_to_end()
        assert demo.process.wait(PATIENCE) == 0


def test_ctrl_c_during_the_scenes_ends_cleanly_and_no_color_is_honoured(tmp_path: Path) -> None:
    with terminal(tmp_path, NO_COLOR="1", **STANDING) as demo:
        assert "\x1b" not in demo.read_to("before the answer came")
        demo.process.send_signal(signal.SIGINT)
        assert "Traceback" not in demo.read_to_end()
        assert demo.process.wait(PATIENCE) == 130
        assert list(tmp_path.iterdir()) == []


def test_a_killed_demo_takes_its_servers_with_it(tmp_path: Path) -> None:
    with terminal(tmp_path, **STANDING) as demo:
        shown = plain(demo.read_to("before the answer came"))
        pids = [int(pid) for pid in PROCESS.findall(shown)]
        assert len(pids) == 2
        demo.process.kill()
        until(lambda: not any(map(alive, pids)))
