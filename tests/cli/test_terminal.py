"""Text that others wrote is shown on a terminal, never obeyed by it."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import semel
from semel.cli import commands
from semel.cli.output import visible
from semel.errors import GiveUp
from semel.worker.deliveries import Deliveries
from tests.waiting import PATIENCE

HOSTILE = (
    "mallory\nstate: completed\r\x1b]52;c;Y3VybA==\x07\x1b[1A\x1b[2K"
    "\x7f\x9b2K\u202egnp\u2066\u200b\u2028\U000e0041"
)
OWN_COLOURS = re.compile(r"\x1b\[(3[123]|0)m")
SOURCES = Path(commands.__file__).parent


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store in which everything that can come from outside is hostile."""
    path = tmp_path_factory.mktemp("hostile") / "semel.db"
    guard = semel.Guard(f"sqlite:///{path}", tenant=None, maintenance=None)

    @guard.delivers("mail")
    def deliver(delivery: semel.Delivery) -> None:
        raise GiveUp(HOSTILE)

    def doubtful() -> None:
        raise semel.OutcomeUnknown(HOSTILE)

    for number in (1, 2):
        key = f"key-of-the-completed-{number}"
        guard.once(key, lambda: HOSTILE, name="paid", tenant=HOSTILE)
    with pytest.raises(semel.OutcomeUnknown):
        guard.once("key-of-the-unknown-1", doubtful, name="pay", tenant=HOSTILE)
    connection = sqlite3.connect(path)
    guard.enqueue(connection, "mail", {"to": HOSTILE}, key="semel_mail")
    connection.commit()
    connection.close()
    asyncio.run(Deliveries(guard).run_once())
    guard.close()
    url = f"sqlite:///{path}"
    evicted = identities(url, "completed")[0]
    because = ("--by", HOSTILE, "--reason", HOSTILE, "--yes")
    assert command("keys", "evict", evicted, "--store", url, *because).exit_code == 0
    return url


def command(*arguments: str) -> Result:
    """A command as on a terminal: nothing is taken out of what it prints."""
    return CliRunner().invoke(commands.semel, arguments, color=True, env={"SEMEL_STORE": None})


def identities(store: str, state: str) -> list[str]:
    listed = command("keys", "list", "--store", store, "--state", state, "--json")
    return [each["identity"] for each in json.loads(listed.stdout)["records"]]


def harmless(printed: str) -> bool:
    return all(line.isprintable() for line in OWN_COLOURS.sub("", printed).split("\n"))


LISTS = {
    ("keys", "list"): 3,
    ("unknown", "list"): 2,
    ("dlq", "list"): 3,
    ("outbox", "list", "--state", "dead"): 2,
    ("audit", "list"): 2,
}
"""The lists of a store, and how many lines each has: a head, and a row for each thing."""


@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_list_has_a_line_for_each_thing_and_sends_nothing_a_terminal_obeys(
    store: str, arguments: tuple[str, ...]
) -> None:
    done = command(*arguments, "--store", store)
    assert done.exit_code == 0, done.output
    assert harmless(done.output)
    assert len(done.stdout.splitlines()) == LISTS[arguments]
    assert "mallory" in done.stdout


def test_json_tells_it_exactly_and_in_printable_letters(store: str) -> None:
    done = command("unknown", "list", "--store", store, "--json")
    assert all(line.isprintable() and line.isascii() for line in done.stdout.split("\n"))
    assert [each["tenant"] for each in json.loads(done.stdout)["records"]] == [HOSTILE]


def test_one_record_is_shown_line_by_line_with_its_answer(store: str) -> None:
    (identity,) = identities(store, "completed")
    for what in ("keys", "show", identity, "--body"), ("unknown", "show", identity):
        done = command(*what, "--store", store)
        assert done.exit_code == 0, done.output
        assert harmless(done.output)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line.startswith("state:")] == ["state: completed"]
        assert f"tenant: {visible(HOSTILE)}" in lines


def test_an_effect_is_shown_line_by_line_with_its_payload(store: str) -> None:
    done = command("outbox", "show", "semel_mail", "--store", store, "--body")
    assert harmless(done.output)
    assert "mallory" in done.stdout


def test_what_a_provider_lists_is_shown(store: str, tmp_path: Path) -> None:
    entries = tmp_path / "entries.jsonl"
    entries.write_text(json.dumps({"key": HOSTILE, "note": HOSTILE}))
    done = command("ledger", "--store", store, "--provider", str(entries), "--name", "charge")
    assert harmless(done.output)
    assert visible(HOSTILE) in done.stdout


def test_a_question_shows_what_it_is_about(store: str) -> None:
    (identity,) = identities(store, "unknown")
    verdict = ("--absent", "--final", "--reason", "none there")
    done = command("unknown", "settle", identity, "--store", store, *verdict)
    assert harmless(done.output)


def test_an_error_is_one_line(tmp_path: Path) -> None:
    done = command("keys", "list", "--store", f"sqlite:///{tmp_path}/{HOSTILE}.db")
    assert harmless(done.output)
    assert done.stderr.startswith("semel: ")
    assert done.stderr.count("\n") == 1


def test_a_traceback_and_a_log_line_of_nobodys_are_shown() -> None:
    """Both are printed by Python itself, where an application sets up no logging."""
    code = (
        "import logging, sys\n"
        "from semel.cli import commands, main\n"
        "def semel(**_):\n"
        f"    logging.getLogger('semel').warning('%s', {HOSTILE!r})\n"
        f"    raise ValueError({HOSTILE!r})\n"
        "commands.semel = semel\n"
        "main.main()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    printed = done.stderr.decode()
    assert done.returncode == 1
    assert "Traceback" in printed
    assert harmless(printed)
    assert printed.count("\\x1b]52;c;") == 2


def test_text_that_needs_no_escape_stays_as_it_is() -> None:
    assert visible("Café Müller, 東京, naïve ☕ a\\b") == "Café Müller, 東京, naïve ☕ a\\b"


def test_commands_print_in_one_place_only() -> None:
    """Whoever writes a command cannot forget it: nothing else in the folder prints."""
    printing = {"echo", "secho", "print", "style", "writelines"}
    for path in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "output.py":
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert name not in printing, f"{path.name}:{node.lineno}"
