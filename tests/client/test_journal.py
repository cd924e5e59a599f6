"""The journal: private, durable, shared by processes, bounded; and damage is never passed over."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client import CallJournal, JournaledCall
from semel.client.journal import VERSION, is_dead, this_process
from semel.client.model import LogicalCall
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreCorrupt, StoreUnavailable
from tests.client.answers import answer, call

PAID = answer(201, {"paid": 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


@pytest.fixture
def journal(path: Path) -> Iterator[CallJournal]:
    with CallJournal(path) as opened:
        yield opened


def begun(journal: CallJournal, **changes: Any) -> LogicalCall:
    made = journal.begin(call(**changes))
    assert isinstance(made, LogicalCall)
    return made


# ── what is written ───────────────────────────────────────────────────────────────────────────────


def test_a_call_comes_back_as_it_was_written(journal: CallJournal) -> None:
    made = begun(journal, private=(("Authorization", "Bearer hush"),), omitted=("authorization",))
    (entry,) = journal.pending()
    assert entry.held
    again = entry.call
    assert (again.key, again.name, again.method, again.url) == (
        made.key,
        made.name,
        made.method,
        made.url,
    )
    assert (again.headers, again.body, again.created_at) == (made.headers, made.body, 1_000.0)
    assert (again.omitted, again.private) == (("authorization",), ())


def test_only_headers_that_may_be_kept_reach_the_disk(journal: CallJournal, path: Path) -> None:
    begun(journal, private=(("Authorization", "Bearer hush"),), omitted=("authorization",))
    written = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"0198c0de" in written
    assert b"hush" not in written


def test_a_finished_call_keeps_its_answer_and_forgets_its_request(
    journal: CallJournal, path: Path
) -> None:
    journal.record_answer(begun(journal, body=b'{"card": "4242"}' * 1000), PAID)
    assert journal.pending() == []
    (entry,) = journal.finished()
    assert entry.answer is not None
    assert (entry.answer.status, entry.answer.body) == (201, PAID.body)
    assert (entry.call.body, entry.call.headers) == (b"", ())
    journal.close()  # SQLite moves the log into the file, and the old pages are wiped
    assert b"4242" not in path.read_bytes()


def test_of_a_large_answer_only_the_size_is_kept(path: Path) -> None:
    with CallJournal(path, keep_answers=3) as journal:
        journal.record_answer(begun(journal), PAID)
        (entry,) = journal.finished()
    assert entry.answer is not None
    assert (entry.answer.body, entry.answer.size) == (None, len(PAID.body))


def test_finished_calls_are_forgotten_in_time_and_pending_ones_never(path: Path) -> None:
    with CallJournal(path, keep=timedelta(microseconds=1)) as journal:
        begun(journal, key="pending-for-ever-0")
        for number in range(5):
            journal.record_answer(begun(journal, key=f"finished-number-{number}"), PAID)
        assert len(journal.finished()) == 1
        assert [entry.call.key for entry in journal.pending()] == ["pending-for-ever-0"]


def test_it_is_durable_before_begin_returns(journal: CallJournal) -> None:
    """WAL with FULL: each commit is on the disk; NORMAL would lose some in a power cut."""
    begun(journal)
    connection = journal._open().connection
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert not connection.in_transaction


# ── a key a second time ───────────────────────────────────────────────────────────────────────────


def test_the_same_key_finds_the_same_call(journal: CallJournal) -> None:
    """Written otherwise, JSON still means the same."""
    made = begun(journal)
    again = journal.begin(call(body=b'{ "amount":1.0 }', name="another name"))
    assert isinstance(again, JournaledCall)
    assert not again.is_other
    assert (again.call.row, again.call.body) == (made.row, made.body)


def test_the_same_key_for_something_else_is_noticed(journal: CallJournal) -> None:
    begun(journal)
    again = journal.begin(call(body=b'{"amount": 2}'))
    assert isinstance(again, JournaledCall)
    assert again.is_other


def test_a_key_counts_where_it_is_used(journal: CallJournal) -> None:
    rows = {begun(journal, url=f"https://api.example/{n}").row for n in range(2)}
    assert len(rows | {begun(journal, method="PATCH", url="https://api.example/0").row}) == 3


# ── holding ───────────────────────────────────────────────────────────────────────────────────────


def test_what_is_held_is_not_taken(journal: CallJournal) -> None:
    begun(journal)
    (entry,) = journal.pending()
    assert journal.take(entry) is None


def test_what_was_let_go_is_taken_once(journal: CallJournal) -> None:
    journal.release(begun(journal))
    (entry,) = journal.pending()
    assert not entry.held
    taken = journal.take(entry)
    assert taken is not None
    assert taken.resumed
    assert journal.take(entry) is None


def test_of_two_that_see_it_free_at_once_one_takes_it(path: Path) -> None:
    """The second takes it between the first one's look and its hold."""

    class Slow(CallJournal):
        def _find(self, call: LogicalCall) -> Any:
            found = super()._find(call)
            if self is first:
                won.append(second.take(entry))
            return found

    won: list[LogicalCall | None] = []
    with Slow(path) as first, CallJournal(path) as second:
        second.release(begun(second))
        (entry,) = second.pending()
        assert first.take(entry) is None
    assert len(won) == 1
    assert won[0] is not None


def test_only_the_holder_lets_go(journal: CallJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(journal)
    monkeypatch.setattr("semel.client.journal.this_process", lambda: "somewhere 1 1")
    journal.release(made)
    (entry,) = journal.pending()
    assert entry.held


def test_a_hold_of_a_silent_process_ends_with_time(
    journal: CallJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be looked at from here: on another machine, in another container."""
    monkeypatch.setattr("semel.client.journal.this_process", lambda: "elsewhere 1 1")
    journal.extend_hold(begun(journal), 100.0)
    real = time.time()
    for later, held in ((0, True), (100, True), (200, False)):
        monkeypatch.setattr(time, "time", lambda later=later: real + later)
        (entry,) = journal.pending()
        assert entry.held is held


def test_a_hold_is_made_longer_in_time_however_short_the_pauses_are(
    journal: CallJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = begun(journal), time.time()
    for later in range(0, 200, 20):
        monkeypatch.setattr(time, "time", lambda later=later: real + later)
        (entry,) = journal.pending()
        assert entry.held
        journal.extend_hold(made, 20.0)


def test_a_process_that_ended_holds_nothing_before_its_parent_looks() -> None:
    script = "from semel.client.journal import this_process; print(this_process())"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        name = child.stdout.read().decode().strip()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(name)


def test_a_dead_process_holds_nothing() -> None:
    script = "from semel.client.journal import this_process; print(this_process())"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert is_dead(said.stdout.strip())
    assert not is_dead(this_process())


@pytest.mark.parametrize("name", ["", "x", "elsewhere 1 1", "- 1 abc", "a b c d"])
def test_of_a_process_that_cannot_be_seen_nobody_says_that_it_is_dead(name: str) -> None:
    assert not is_dead(name)


def test_another_process_with_the_same_number_is_another_one() -> None:
    place, pid, born = this_process().split(" ")
    assert is_dead(f"{place} {pid} {int(born) + 1}")


FORKED = """
import os, sys
from semel.client import CallJournal
from tests.client.answers import call
journal = CallJournal(sys.argv[1])
journal.begin(call(key="made-by-the-parent"))
if (child := os.fork()) == 0:
    journal.begin(call(key="made-by-the-child"))
    os._exit(0)
os.waitpid(child, 0)
journal.begin(call(key="made-by-the-parent-again"))
for entry in journal.pending():
    print(entry.call.key, entry.held)
"""


def test_a_forked_child_writes_by_a_connection_of_its_own(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "made-by-the-parent True",
        "made-by-the-child False",
        "made-by-the-parent-again True",
    ]


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def test_nobody_else_may_read_it(journal: CallJournal, path: Path) -> None:
    begun(journal)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {0o600}


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    with CallJournal(path) as journal, pytest.raises(ConfigurationError, match="chmod 600"):
        journal.pending()


def test_opening_does_not_touch_the_disk(path: Path) -> None:
    CallJournal(path).close()
    assert not path.exists()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with CallJournal(tmp_path / "no" / "calls.db") as journal, pytest.raises(ConfigurationError):
        journal.pending()


def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    path.chmod(0o600)
    with CallJournal(path) as journal, pytest.raises(ConfigurationError, match="no journal"):
        journal.begin(call())
    assert b"CREATE TABLE customers" in path.read_bytes()


def test_a_journal_of_another_version_is_refused(journal: CallJournal) -> None:
    begun(journal)
    journal._open().connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    journal.close()
    with pytest.raises(SchemaError):
        journal.pending()


def test_a_locked_journal_sends_nothing(path: Path) -> None:
    with CallJournal(path, timeout=0.05) as journal:
        begun(journal)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            journal.begin(call(key="while-it-is-locked"))
        other.execute("ROLLBACK")
        other.close()
        assert len(journal.pending()) == 1


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


class Written:
    """A journal's file with pending and finished calls, and what they are."""

    def __init__(
        self, octets: bytes, pending: list[JournaledCall], finished: list[JournaledCall]
    ) -> None:
        self.octets, self.pending, self.finished = octets, pending, finished


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("journal") / "calls.db"
    with CallJournal(path) as journal:
        for number in range(12):
            made = begun(journal, key=f"key-number-{number:04}", body=b"%d" % number * 300)
            if number % 3:
                journal.release(made)
            else:
                journal.record_answer(made, PAID)
        pending, finished = journal.pending(), journal.finished()
    return Written(path.read_bytes(), pending, finished)


@settings(max_examples=150)
@given(anywhere=st.integers(0, 1 << 20), octets=st.none() | st.binary(min_size=1, max_size=64))
def test_no_damage_loses_or_changes_a_call_in_silence(
    anywhere: int, octets: bytes | None, written: Written
) -> None:
    """Cut short, or with bytes overwritten: what is read is what was written, or it is refused."""
    whole, damaged = written.octets, bytearray(written.octets)
    at = anywhere % len(whole)
    if octets is None:
        damaged = damaged[: max(at, 1)]
    else:
        damaged[at : at + len(octets)] = octets[: len(whole) - at]
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "calls.db"
        path.touch(0o600)
        path.write_bytes(damaged)
        with CallJournal(path) as journal:
            try:
                read = journal.pending(), journal.finished()
            except SemelError:
                return
            assert [seen(entry) for entry in read[0]] == [seen(entry) for entry in written.pending]
            assert [seen(entry) for entry in read[1]] == [seen(entry) for entry in written.finished]
    finally:
        shutil.rmtree(folder)


def seen(entry: JournaledCall) -> tuple[object, ...]:
    """All that matters of a call. A hold or a status address only costs or saves a question."""
    made = entry.call
    parts = (made.key, made.name, made.method, made.url, made.headers, made.body, made.omitted)
    return *parts, made.created_at, entry.finished_at, entry.answer


@pytest.mark.parametrize("leaf", [0x0D, 0x0A])
def test_a_row_that_is_gone_is_missed(path: Path, written: Written, leaf: int) -> None:
    """Each leaf of the table, or of its indexes, has one cell less; what is left is whole."""
    page = 4096
    octets = bytearray(written.octets)
    leaves = [at for at in range(page, len(octets), page) if octets[at] == leaf]
    assert leaves
    for at in leaves:
        cells = int.from_bytes(octets[at + 3 : at + 5])
        octets[at + 3 : at + 5] = (cells - 1).to_bytes(2)
    path.touch(0o600)
    path.write_bytes(octets)
    with CallJournal(path) as journal, pytest.raises(StoreCorrupt, match="damaged"):
        journal.pending()


@pytest.mark.parametrize("octets", [b"heeders TEXT", b"hea\x8aers TEXT", b"headers INT "])
def test_a_schema_that_was_changed_is_damage(path: Path, written: Written, octets: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(written.octets.replace(b"headers TEXT", octets))
    with CallJournal(path) as journal, pytest.raises(StoreCorrupt, match="damaged"):
        journal.pending()


@pytest.mark.parametrize("column", ["body", "headers", "url", "created_at"])
def test_a_value_that_was_changed_is_not_sent(journal: CallJournal, column: str) -> None:
    """SQLite itself would not notice."""
    made = begun(journal)
    journal.release(made)
    (entry,) = journal.pending()
    changed = {"body": b'{"amount": 9}', "headers": json.dumps([]), "created_at": 2e9}
    journal._open().connection.execute(
        f"UPDATE call SET {column} = ?", (changed.get(column, "https://elsewhere.example/"),)
    )
    with pytest.raises(StoreCorrupt, match="by hand"):
        journal.pending()
    if column != "url":
        with pytest.raises(StoreCorrupt):
            journal.take(entry)


def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    """As SQLite leaves it when a process dies while making one."""
    path.touch(0o600)
    with CallJournal(path) as journal:
        assert journal.pending() == []
    assert path.stat().st_size > 0
