"""What is particular to SQLite: processes, forks, group commit, durability, its own failures."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import STATE_NUMBERS, Identity, OnLapse, Origin, State
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores import open_backend
from semel.stores.base import AsyncStore
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract.records import ACT, claim, complete, new_fence, new_identity
from tests.stores.harness import FakeClock
from tests.stores.together import forked
from tests.waiting import PATIENCE

LEAN = """
import os, sys
from semel.core.operations.requests import Claim, Claimed
from semel.core.records import Fence, Identity, Origin
from semel.stores.sqlite import SqliteBackend

def opened(path):
    return SqliteBackend(f"sqlite:///{path}", timeout=120)

def claim(identity):
    origin = Origin("tenant", "POST", "/payments", "key")
    return Claim(Identity(identity), Fence(os.urandom(16)), "v1:abc", b"", origin, 60_000_000)

def held(backend):
    op = claim(os.urandom(32))
    assert isinstance(backend.blocking().perform(op), Claimed)
    return op
"""
"""What processes of their own begin with: to import the tests would take them a second."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "semel.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    opened = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    yield opened
    opened.close()


@contextmanager
def hurried(backend: SqliteBackend) -> Iterator[None]:
    """What is asked in the meantime has little time: only what meets a foreign lock may be."""
    writer = backend._writer
    assert writer is not None
    backend.timeout = writer.timeout = 0.05
    try:
        yield
    finally:
        backend.timeout = writer.timeout = PATIENCE


def ask(backend: SqliteBackend, op: ops.StoreOperation[Any]) -> Any:
    return backend.blocking().perform(op)


def held(backend: SqliteBackend) -> ops.Claim:
    op = claim(new_identity(), new_fence())
    assert isinstance(ask(backend, op), ops.Claimed)
    return op


@pytest.fixture
def other(path: Path, backend: SqliteBackend) -> Iterator[sqlite3.Connection]:
    """A connection of someone else to the same file, which exists."""
    held(backend)
    connection = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    yield connection
    connection.close()


# ── opening ───────────────────────────────────────────────────────────────────────────────────────


def test_making_a_backend_does_no_io(path: Path) -> None:
    SqliteBackend(f"sqlite:///{path}").blocking()
    assert not path.exists()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite://", "write sqlite:///relative.db"),
        ("sqlite://semel.db", "write sqlite:///relative.db"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///semel.db?journal=off", "unknown option 'journal' of a SQLite store"),
        ("sqlite:///semel.db?foreign_keys=maybe", "foreign_keys must be on or off, not 'maybe'"),
        ("sqlite:///semel.db?timeout=soon", "timeout must be a duration"),
        ("sqlite:///semel.db?timeout=0", "timeout must be a duration above 0"),
        ("sqlite:///semel.db?timeout=nan", "timeout must be a duration above 0"),
    ],
)
def test_a_wrong_url_is_refused_in_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        SqliteBackend(url)


def test_a_relative_path_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = SqliteBackend("sqlite:///some%20file.db?timeout=7")
    held(backend)
    backend.close()
    assert backend.timeout == 7
    assert (tmp_path / "some file.db").exists()


@pytest.mark.parametrize("url", ["mongodb://h:secret@x", "secret", "oracle://u:secret@h/d"])
def test_an_unknown_store_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ConfigurationError, match="known are memory://, sqlite:///") as refused:
        open_backend(url)
    assert "secret" not in str(refused.value)


def test_a_memory_store_takes_no_path() -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        open_backend("memory:///records")


def writers_connection(backend: SqliteBackend) -> sqlite3.Connection:
    writer = backend._writer
    assert writer is not None
    assert writer._connection is not None
    return writer._connection


def test_commits_are_set_to_be_durable(backend: SqliteBackend) -> None:
    held(backend)
    connection = writers_connection(backend)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_new_file_has_small_pages_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as other:
        other.execute("CREATE TABLE theirs (id INTEGER)")
    for path, size in ((tmp_path / "new.db", 2048), (old, 4096)):
        backend = SqliteBackend(f"sqlite:///{path}")
        held(backend)
        assert writers_connection(backend).execute("PRAGMA page_size").fetchone() == (size,)
        backend.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_writer_syncs_every_commit(path: Path) -> None:
    """Counted by the kernel: each acknowledged claim, alone, has synced the log."""
    script = (
        LEAN
        + """
backend = opened(sys.argv[1])
held(backend)
print("opened", flush=True)
for _ in range(20): held(backend)
print("written", flush=True)
"""
    )
    traced = subprocess.run(
        ["strace", "-f", "-e", "trace=fdatasync,fsync,write", sys.executable, "-c", script, path],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    between = traced.stderr.partition('"opened')[2].partition('"written')[0]
    assert between.count("sync(") >= 20


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/nowhere/semel.db")
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        held(backend)
    (tmp_path / "nowhere").mkdir()
    held(backend)
    backend.close()


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    backend = SqliteBackend(f"sqlite:///{path}")
    with pytest.raises(ConfigurationError, match=r"semel\.db is not a SQLite database"):
        held(backend)
    backend.close()


def test_a_newer_schema_is_refused(path: Path, other: sqlite3.Connection) -> None:
    other.execute("INSERT INTO semel_schema VALUES (999, 'from the future', 999, 0)")
    backend = SqliteBackend(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"version 999.*upgrade semel"):
            held(backend)
    with pytest.raises(SchemaError):
        backend.migrate()
    backend.close()


def test_migrate_says_the_version(backend: SqliteBackend) -> None:
    assert backend.migrate() == backend.migrate() == 1


def test_closed_and_opened_again_nothing_is_lost(backend: SqliteBackend) -> None:
    op = held(backend)
    backend.close()
    backend.close()
    found = ask(backend, ops.Read(op.identity))
    assert isinstance(found, ops.Found)
    assert found.record.fence == op.fence


def test_closing_waits_for_what_is_queued(path: Path) -> None:
    backend = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    held(backend)
    given = [claim(new_identity(), new_fence()) for _ in range(64)]
    replies: list[object] = []
    threads = [
        threading.Thread(target=lambda op=op: replies.append(ask(backend, op))) for op in given
    ]
    for thread in threads:
        thread.start()
    backend.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(reply) for reply in replies] == [ops.Claimed] * 64
    assert all(isinstance(ask(backend, ops.Read(op.identity)), ops.Found) for op in given)
    backend.close()


# ── replays write nothing ─────────────────────────────────────────────────────────────────────────


def test_a_replay_writes_nothing(
    path: Path, backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    op = held(backend)
    ask(backend, complete(op.identity, op.fence))
    log = path.with_name(path.name + "-wal")
    version = other.execute("PRAGMA data_version").fetchone()
    before = (path.read_bytes(), log.read_bytes())
    for _ in range(10):
        assert isinstance(ask(backend, claim(op.identity, new_fence())), ops.Found)
    assert (path.read_bytes(), log.read_bytes()) == before
    assert other.execute("PRAGMA data_version").fetchone() == version


def test_a_look_does_not_wait_for_a_writer(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    op = held(backend)
    other.execute("BEGIN IMMEDIATE")
    assert isinstance(ask(backend, ops.Read(op.identity)), ops.Found)
    assert isinstance(ask(backend, ops.Read(new_identity())), ops.NoRecord)
    other.execute("ROLLBACK")


def test_a_claim_of_a_known_key_does_not_wait_for_a_writer_for_long(
    path: Path, backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    """The claim that meets the foreign lock may time out; the next is answered at once."""
    op = held(backend)
    stranger = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    assert isinstance(ask(stranger, ops.Read(op.identity)), ops.Found)
    other.execute("BEGIN IMMEDIATE")
    with hurried(stranger), pytest.raises(StoreUnavailable):
        ask(stranger, claim(new_identity(), new_fence()))
    assert isinstance(ask(stranger, claim(op.identity, new_fence())), ops.Found)
    other.execute("ROLLBACK")
    stranger.close()


def test_a_replay_that_this_process_never_met_writes_nothing(
    path: Path, backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    op = held(backend)
    stranger = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    log = path.with_name(path.name + "-wal")
    before = (path.read_bytes(), log.read_bytes())
    assert isinstance(ask(stranger, claim(op.identity, new_fence())), ops.Found)
    assert (path.read_bytes(), log.read_bytes()) == before
    stranger.close()


def test_a_look_says_what_the_plan_of_a_read_says(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    """In every state, of a large answer too, and of no record."""
    given = [held(backend) for _ in range(4)]
    ask(backend, complete(given[1].identity, given[1].fence))
    ask(backend, complete(given[2].identity, given[2].fence, bytes(100_000)))
    ask(backend, ops.Suspend(given[3].identity, given[3].fence, "why"))
    other.execute("BEGIN")
    for identity in (*[op.identity for op in given], new_identity()):
        by_plan = backend.on(other).perform(ops.Read(identity))
        for looked in (
            ask(backend, ops.Read(identity)),
            asyncio.run(awaited(backend, ops.Read(identity))),
        ):
            assert type(looked) is type(by_plan)
            assert getattr(looked, "record", None) == getattr(by_plan, "record", None)
    other.execute("ROLLBACK")


def test_a_look_holds_on_to_nothing(backend: SqliteBackend, other: sqlite3.Connection) -> None:
    """A reader that stayed at its row would see no later commit, and the log could not be reset."""
    op = held(backend)
    assert ask(backend, ops.Read(op.identity)).record.state is State.IN_PROGRESS
    ask(backend, complete(op.identity, op.fence))
    assert ask(backend, ops.Read(op.identity)).record.state is State.COMPLETED
    assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


def test_a_look_that_fails_is_told_to_whoever_awaits_it(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    op = held(backend)
    other.execute("PRAGMA ignore_check_constraints = ON")
    other.execute("UPDATE semel_record SET state = 9 WHERE identity = ?", (op.identity,))

    async def ask_twice() -> list[Any]:
        store = backend.awaited()
        asked = [store.perform(ops.Read(op.identity)), store.perform(ops.Read(new_identity()))]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    assert [type(reply) for reply in asyncio.run(ask_twice())] == [StoreCorrupt, ops.NoRecord]


def test_every_loop_has_a_store_of_its_own(backend: SqliteBackend) -> None:
    async def two() -> tuple[AsyncStore, AsyncStore]:
        return backend.awaited(), backend.awaited()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        mine, again = first.run(two())
        theirs, _ = second.run(two())
        assert mine is again
        assert mine is not theirs
        assert first.run(two())[0] is mine


# ── group commit ──────────────────────────────────────────────────────────────────────────────────


def together(
    backend: SqliteBackend, other: sqlite3.Connection, given: list[ops.StoreOperation[Any]]
) -> list[Any]:
    """The replies or errors of operations that are all queued before the first is begun."""

    async def gather() -> list[Any]:
        store = backend.awaited()
        tasks = [asyncio.ensure_future(store.perform(op)) for op in given]
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        replies: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        return replies

    other.execute("BEGIN IMMEDIATE")
    return asyncio.run(gather())


def test_a_batch_is_one_transaction(backend: SqliteBackend, other: sqlite3.Connection) -> None:
    before = int(other.execute("PRAGMA data_version").fetchone()[0])
    seen = [before]
    given: list[ops.StoreOperation[Any]] = [claim(new_identity(), new_fence()) for _ in range(100)]
    replies = together(backend, other, given)
    seen.append(int(other.execute("PRAGMA data_version").fetchone()[0]))
    assert [type(reply) for reply in replies] == [ops.Claimed] * 100
    assert seen[1] - seen[0] == 1


def test_an_operation_that_fails_does_not_spoil_the_others(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    given: list[ops.StoreOperation[Any]] = [claim(new_identity(), new_fence()) for _ in range(10)]
    given.insert(5, claim(Identity(b"too short"), new_fence()))
    replies = together(backend, other, given)
    assert isinstance(replies.pop(5), StoreCorrupt)
    assert [type(reply) for reply in replies] == [ops.Claimed] * 10


def test_an_operation_that_cannot_be_bound_does_not_spoil_the_others(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    open_ops = [held(backend) for _ in range(5)]
    given: list[ops.StoreOperation[Any]] = [complete(op.identity, op.fence) for op in open_ops]
    given[2] = ops.Complete(open_ops[2].identity, open_ops[2].fence, b"", 2**70, 1)
    replies = together(backend, other, given)
    assert isinstance(replies.pop(2), OverflowError)
    assert [type(reply) for reply in replies] == [ops.Applied] * 4


def test_an_operation_of_nonsense_does_not_stop_the_writer(backend: SqliteBackend) -> None:
    nonsense: Any = None
    for bad in (claim(nonsense, new_fence()), ops.Claim(*[nonsense] * 8), nonsense):
        with pytest.raises((StoreCorrupt, TypeError, AttributeError)):
            ask(backend, bad)
    held(backend)


def test_rivals_in_one_batch(backend: SqliteBackend, other: sqlite3.Connection) -> None:
    identity = new_identity()
    given: list[ops.StoreOperation[Any]] = [claim(identity, new_fence()) for _ in range(10)]
    given += [claim(new_identity(), new_fence()) for _ in range(10)]
    replies = together(backend, other, given)
    assert [type(reply) for reply in replies] == [ops.Claimed] + [ops.Found] * 9 + [
        ops.Claimed
    ] * 10


def test_keys_too_old_to_start_in_one_batch_with_others(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    ages = [1, None, 1, 2**62]
    given: list[ops.StoreOperation[Any]] = [
        claim(new_identity(), new_fence(), fresh_until=age) for age in ages
    ]
    replies = together(backend, other, given)
    assert [type(reply) for reply in replies] == [ops.Stale, ops.Claimed, ops.Stale, ops.Claimed]


def test_stale_and_fresh_fences_in_one_batch(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    claims = [held(backend) for _ in range(6)]
    given: list[ops.StoreOperation[Any]] = [complete(op.identity, op.fence) for op in claims]
    given[1] = complete(claims[1].identity, new_fence(), b"a zombie's")
    replies = together(backend, other, given)
    assert [isinstance(reply, ops.Applied) for reply in replies] == [True, False] + [True] * 4
    found = ask(backend, ops.Read(claims[1].identity))
    assert found.record.state is State.IN_PROGRESS


def test_what_took_effect_in_a_batch_is_told_so_whatever_became_of_it_in_the_batch(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    """A stale one sends all completions of its batch alone; the operator was queued before them."""
    good, stale = held(backend), held(backend)
    given: list[ops.StoreOperation[Any]] = [
        ops.Evict(good.identity, good.fence, ACT),
        complete(good.identity, good.fence),
        complete(stale.identity, new_fence()),
    ]
    evicted, completed, lost = together(backend, other, given)
    assert isinstance(completed, ops.Applied)
    assert isinstance(evicted, ops.Applied)
    assert isinstance(lost, ops.Lost)


def test_a_batch_leaves_the_rows_and_replies_of_its_operations_alone(tmp_path: Path) -> None:
    """Whatever they hold: each is done once by itself, and once beside the others."""
    odd = Origin("tenant\0", "POST", "/p\\x00/é", "k\ud800")
    some = claim(new_identity(), new_fence()).terms
    claims = [
        ops.Claim(new_identity(), new_fence(), "v1:é", b"", odd, 7, lapse, late, request, some)
        for lapse in OnLapse
        for late, request in ((None, None), (2**62, b"\0request"), (None, b""))
    ]
    resources = [None, "order/1", "order\0/é"] * 3
    given = [
        ops.Complete(op.identity, op.fence, b"\0" * number, 5 + number, number, resource)
        for number, (op, resource) in enumerate(zip(claims, resources, strict=True))
    ]
    alone, many = (
        SqliteBackend(f"sqlite:///{tmp_path}/{name}.db", timeout=PATIENCE, clock=FakeClock())
        for name in ("alone", "many")
    )

    async def gather(given: Sequence[ops.StoreOperation[Any]]) -> list[Any]:
        store = many.awaited()
        return list(await asyncio.gather(*[store.perform(op) for op in given]))

    def rows(backend: SqliteBackend) -> list[Any]:
        writer = writers_connection(backend)
        return writer.execute("SELECT * FROM semel_record ORDER BY identity").fetchall()

    for each in (claims, given):
        assert [ask(alone, op) for op in each] == asyncio.run(gather(each))
        assert rows(alone) == rows(many)
    alone.close()
    many.close()


TURNS = 5
"""Of the loop, until an operation is with the writer."""


def test_what_was_given_up_before_it_was_handed_over_is_never_done(path: Path) -> None:
    """Its caller is told that it was never begun, and that must stay so."""
    backend = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    op = claim(new_identity(), new_fence())

    async def give_up_first() -> None:
        store: Any = backend.awaited()
        asked = asyncio.ensure_future(store.perform(op))
        await asyncio.sleep(0)
        (job,) = store._leaving
        job.sent_at -= 2 * PATIENCE
        store._check_deadlines()
        with pytest.raises(StoreUnavailable) as told:
            await asked
        assert told.value.applied is False
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert isinstance(await store.perform(ops.Read(op.identity)), ops.NoRecord)
        await backend.aclose()

    asyncio.run(give_up_first())


def test_a_cancelled_caller_loses_only_the_answer(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    op = claim(new_identity(), new_fence())

    async def cancel() -> None:
        task = asyncio.ensure_future(backend.awaited().perform(op))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.execute("ROLLBACK")
        await backend.aclose()

    other.execute("BEGIN IMMEDIATE")
    asyncio.run(cancel())
    assert ask(backend, ops.Read(op.identity)).record.fence == op.fence


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


def test_a_lock_held_too_long_is_an_outage_and_nothing_happened(
    path: Path, other: sqlite3.Connection
) -> None:
    backend = SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE)
    held(backend)
    op = claim(new_identity(), new_fence())
    other.execute("BEGIN IMMEDIATE")
    with (
        hurried(backend),
        pytest.raises(StoreUnavailable, match="did not answer within") as refused,
    ):
        ask(backend, op)
    assert refused.value.applied is False
    with hurried(backend), pytest.raises(StoreUnavailable) as refused:
        asyncio.run(awaited(backend, op))
    assert refused.value.applied is False
    other.execute("ROLLBACK")
    backend.close()
    assert isinstance(ask(backend, ops.Read(op.identity)), ops.NoRecord)
    assert isinstance(ask(backend, op), ops.Claimed)
    backend.close()


async def awaited(backend: SqliteBackend, op: ops.StoreOperation[Any]) -> Any:
    return await backend.awaited().perform(op)


def limit_pages(backend: SqliteBackend, pages: int) -> None:
    """As if the disk held only so many pages."""
    writers_connection(backend).execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_an_outage_that_ends(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    big, small = held(backend), [held(backend) for _ in range(5)]
    pages = int(other.execute("PRAGMA page_count").fetchone()[0])
    limit_pages(backend, pages + 20)
    given: list[ops.StoreOperation[Any]] = [complete(op.identity, op.fence) for op in small]
    given.append(complete(big.identity, big.fence, bytes(1_000_000)))
    replies = together(backend, other, given)
    refused = replies.pop()
    assert isinstance(refused, StoreUnavailable)
    assert refused.applied is False
    assert [type(reply) for reply in replies] == [ops.Applied] * 5
    assert ask(backend, ops.Read(big.identity)).record.state is State.IN_PROGRESS
    limit_pages(backend, 1_000_000)
    assert isinstance(ask(backend, given[-1]), ops.Applied)


def test_an_error_that_undoes_the_whole_transaction_is_not_one_of_its_statement(
    backend: SqliteBackend, other: sqlite3.Connection
) -> None:
    """SQLite rolls back all of it when a write is interrupted, as on some I/O errors: those before
    in the batch are written again, and those after it not outside of a transaction."""
    claims = [held(backend) for _ in range(3)]
    interrupted = claims[1]
    given = [ops.Release(op.identity, op.fence, 60_000_000) for op in claims]
    writer = writers_connection(backend)

    def interrupt(statement: str) -> None:
        is_it = interrupted.fence.hex() in statement.lower()
        writer.set_progress_handler((lambda: 1) if is_it else None, 1)

    writer.set_trace_callback(interrupt)
    replies = together(backend, other, [*given])
    assert [type(reply) for reply in replies] == [ops.Applied, StoreUnavailable, ops.Applied]
    assert replies[1].applied is False
    writer.set_trace_callback(None)
    writer.set_progress_handler(None, 0)
    states = [ask(backend, ops.Read(op.identity)).record.state for op in given]
    assert states == [State.FAILED_RETRYABLE, State.IN_PROGRESS, State.FAILED_RETRYABLE]


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(
    path: Path, backend: SqliteBackend, replaced: bool
) -> None:
    op = held(backend)
    backup = path.with_suffix(".old")
    path.rename(backup)
    if replaced:
        shutil.copy(backup, path)
    with pytest.raises(StoreUnavailable, match="deleted or replaced") as refused:
        ask(backend, complete(op.identity, op.fence))
    assert refused.value.applied is False
    backup.rename(path)
    assert isinstance(ask(backend, complete(op.identity, op.fence)), ops.Applied)


@pytest.mark.parametrize("part", ["-wal", "-shm"])
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_nothing_is_acknowledged_into_a_log_that_is_gone(
    path: Path, backend: SqliteBackend, part: str, replaced: bool
) -> None:
    op = held(backend)
    log = path.with_name(path.name + part)
    backup = path.with_suffix(".old")
    log.rename(backup)
    if replaced:
        shutil.copy(backup, log)
    late: list[ops.StoreOperation[Any]] = [claim(new_identity(), new_fence())]
    late.append(complete(op.identity, op.fence))
    for each in late:
        with pytest.raises(StoreUnavailable, match=f"{part} was deleted or replaced") as refused:
            ask(backend, each)
        assert refused.value.applied is False
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        ask(backend, ops.Read(op.identity))  # also in a thread that has not looked before


def test_the_log_of_a_file_behind_a_link_is_watched(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(SqliteBackend(f"sqlite:///{link}", timeout=PATIENCE)) as backend:
        op = held(backend)
        path.with_name(path.name + "-wal").unlink()
        with pytest.raises(StoreUnavailable, match="-wal was deleted or replaced"):
            ask(backend, complete(op.identity, op.fence))


def test_what_a_deleted_log_held_is_saved_when_its_loss_is_noticed(
    path: Path, backend: SqliteBackend
) -> None:
    op = held(backend)
    for part in ("-wal", "-shm"):
        path.with_name(path.name + part).unlink()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        ask(backend, claim(new_identity(), new_fence()))
    with closing(SqliteBackend(backend.url)) as other:
        found = other.blocking().perform(ops.Read(op.identity))
        assert isinstance(found, ops.Found)
        assert found.record.fence == op.fence


def test_a_store_stays_the_same_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    backend = SqliteBackend("sqlite:///semel.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    op = held(backend)
    assert isinstance(ask(backend, ops.Read(op.identity)), ops.Found)
    backend.close()
    assert (tmp_path / "semel.db").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_loop_that_ended_is_not_kept_alive(backend: SqliteBackend) -> None:
    def use() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(awaited(backend, claim(new_identity(), new_fence())))
        loop.close()
        return weakref.ref(loop)

    ended = use()
    backend.close()
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize(
    "damage",
    [
        "state = 9",
        "fence = x'00'",
        "leased_until = NULL",
        "on_lapse = 4",
        "forget_at = 1",
    ],
)
def test_a_damaged_row_is_never_answered_from(
    backend: SqliteBackend, other: sqlite3.Connection, damage: str
) -> None:
    op = held(backend)
    other.execute("PRAGMA ignore_check_constraints = ON")
    other.execute(f"UPDATE semel_record SET {damage} WHERE identity = ?", (op.identity,))
    for asked in (claim(op.identity, new_fence()), ops.Read(op.identity)):
        with pytest.raises(StoreCorrupt):
            ask(backend, asked)
    with pytest.raises(StoreCorrupt):
        ask(backend, complete(op.identity, new_fence()))


def test_a_damaged_schema_is_called_so_though_nobody_can_read_it(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which is then no text: found by cutting the power."""
    url = f"sqlite:///{tmp_path}/damaged.db"
    backend = SqliteBackend(url)
    backend.migrate()
    backend.close()
    with closing(sqlite3.connect(tmp_path / "damaged.db")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET name = CAST(x'ef20' AS TEXT), sql = CAST(x'ef20' AS TEXT) "
            "WHERE name = 'semel_leader'"
        )
        connection.commit()
    with pytest.raises(StoreCorrupt, match="damaged"):
        SqliteBackend(url).blocking().perform(ops.Read(new_identity()))


@pytest.mark.parametrize(
    "change",
    [
        "forget_at = 1",
        "leased_until = NULL",
        "state = 3, duty = 5",
        "state = 5, duty = 4, forget_at = 1",
        "fingerprint = NULL",
        "state = 5, duty = 6",
        "duty = 5",
        "state = 3, duty = 5, snapshot = x'00'",
        "state = 3, duty = 1, snapshot = x'00', forget_at = 1",
        "state = 1, leased_until = NULL",
        "state = 9",
        "duty = 0",
        "on_lapse = 4",
        "identity = x'00'",
    ],
)
def test_the_database_itself_refuses_what_no_life_leads_to(
    backend: SqliteBackend, other: sqlite3.Connection, change: str
) -> None:
    op = held(backend)
    with pytest.raises(sqlite3.IntegrityError):
        other.execute(f"UPDATE semel_record SET {change} WHERE identity = ?", (op.identity,))


OTHERS = {
    State.PENDING: "duty = 3, request = x'00', patience = 1, abandon_at = 1",
    State.IN_PROGRESS: "duty = 2",
    State.COMPLETED: "duty = 5, snapshot = x'00', forget_at = 1",
    State.FAILED_RETRYABLE: "duty = 6",
    State.UNKNOWN: "duty = 4, on_lapse = 2",
    State.EXPIRED: "duty = 6, on_lapse = 3",
}


@pytest.mark.parametrize("state", State)
def test_the_database_takes_every_number_that_records_have(
    backend: SqliteBackend, other: sqlite3.Connection, state: State
) -> None:
    op = held(backend)
    change = f"state = {STATE_NUMBERS[state]}, {OTHERS[state]}"
    other.execute(f"UPDATE semel_record SET {change} WHERE identity = ?", (op.identity,))


def test_the_rules_of_a_record_need_no_temporary_tables(other: sqlite3.Connection) -> None:
    """SQLite would fill one for each list of a rule, again for every row that is written."""
    columns = other.execute("PRAGMA table_info(semel_record)").fetchall()
    values = ", ".join("1" * len(columns))
    program = other.execute(f"EXPLAIN INSERT INTO semel_record VALUES ({values})").fetchall()
    assert "OpenEphemeral" not in {step[1] for step in program}


# ── inside the caller's transaction ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_completion_joins_the_callers_transaction(
    backend: SqliteBackend, other: sqlite3.Connection, end: str
) -> None:
    op = held(backend)
    other.execute("CREATE TABLE payment (identity BLOB)")
    other.execute("BEGIN")
    other.execute("INSERT INTO payment VALUES (?)", (op.identity,))
    other.row_factory = sqlite3.Row
    joined = backend.on(other).perform(complete(op.identity, op.fence))
    assert isinstance(joined, ops.Applied)
    assert ask(backend, ops.Read(op.identity)).record.state is State.IN_PROGRESS
    other.execute(end)
    done = end == "COMMIT"
    expected = State.COMPLETED if done else State.IN_PROGRESS
    assert ask(backend, ops.Read(op.identity)).record.state is expected
    assert other.execute("SELECT count(*) FROM payment").fetchone()[0] == int(done)


def test_joining_needs_a_transaction(backend: SqliteBackend, other: sqlite3.Connection) -> None:
    with pytest.raises(ConfigurationError, match="BEGIN first"):
        backend.on(other).perform(ops.Read(new_identity()))


def test_joining_a_database_without_tables_says_what_to_run(backend: SqliteBackend) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(SchemaError, match="run `semel migrate`"):
        backend.on(connection).perform(ops.Read(new_identity()))
    connection.close()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


def test_a_forked_child_works_with_connections_of_its_own(
    path: Path, backend: SqliteBackend
) -> None:
    op = held(backend)
    born = claim(new_identity(), new_fence())

    def child() -> None:
        assert ask(backend, ops.Read(op.identity)).record.fence == op.fence
        assert isinstance(ask(backend, born), ops.Claimed)
        backend.close()

    assert forked(child) == 0
    assert ask(backend, ops.Read(born.identity)).record.fence == born.fence
    held(backend)


def test_a_childs_writes_survive_the_parents_closing(path: Path, backend: SqliteBackend) -> None:
    """Without locks of its own a child would go on in a log that the parent deleted."""
    held(backend)
    born = [claim(new_identity(), new_fence()) for _ in range(2)]
    (up, told), (down, tell) = os.pipe(), os.pipe()

    def child() -> None:
        assert isinstance(ask(backend, born[0]), ops.Claimed)
        os.write(told, b".")
        os.read(down, 1)
        assert isinstance(ask(backend, born[1]), ops.Claimed)
        os.kill(os.getpid(), signal.SIGKILL)

    def parent() -> None:
        os.read(up, 1)
        backend.close()
        os.write(tell, b".")

    thread = threading.Thread(target=parent)
    thread.start()
    assert forked(child) == -signal.SIGKILL
    thread.join(PATIENCE)
    for op in born:
        assert ask(backend, ops.Read(op.identity)).record.fence == op.fence
    for end in (up, told, down, tell):
        os.close(end)


def test_forking_while_writing_loses_nothing(backend: SqliteBackend) -> None:
    stop = threading.Event()
    acknowledged: list[ops.Claim] = []

    def write() -> None:
        while not stop.is_set():
            acknowledged.append(held(backend))

    def child() -> None:
        held(backend)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        codes = [forked(child) for _ in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert codes == [0] * 10
    assert all(isinstance(ask(backend, ops.Read(op.identity)), ops.Found) for op in acknowledged)


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


RACE = (
    LEAN
    + """
print("ready", flush=True)
for path in sys.argv[1:]:
    sys.stdin.readline()
    backend, won = opened(path), 0
    for number in range(50):
        reply = backend.blocking().perform(claim(number.to_bytes(32, "big")))
        won += isinstance(reply, Claimed)
    backend.close()
    print(won, flush=True)
"""
)


@pytest.mark.parametrize(
    ("processes", "files"), [(3, 2), pytest.param(6, 5, marks=pytest.mark.proof)]
)
def test_processes_on_one_new_file_share_out_its_keys(
    tmp_path: Path, processes: int, files: int
) -> None:
    """Also: many processes migrate the same new file at once."""
    paths = [tmp_path / f"{number}.db" for number in range(files)]
    children = [start(RACE, *map(str, paths)) for _ in range(processes)]
    lines = [child.stdout for child in children if child.stdout is not None]
    assert [line.readline() for line in lines] == ["ready\n"] * processes
    for path in paths:
        for child in children:
            print(file=child.stdin, flush=True)
        assert sum(int(line.readline()) for line in lines) == 50
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM semel_schema").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM semel_record").fetchone() == (50,)
        connection.close()
    for child in children:
        child.communicate(timeout=PATIENCE)
    assert [child.returncode for child in children] == [0] * processes


WRITE = (
    LEAN
    + """
backend = opened(sys.argv[1])
while True:
    print(held(backend).identity.hex(), flush=True)
"""
)


def test_a_killed_process_keeps_what_it_acknowledged(path: Path, backend: SqliteBackend) -> None:
    child = start(WRITE, str(path))
    assert child.stdout is not None
    acknowledged = [child.stdout.readline() for _ in range(50)]
    child.kill()
    acknowledged += child.communicate()[0].splitlines(keepends=True)
    whole = [line.strip() for line in acknowledged if line.endswith("\n")]
    assert len(whole) >= 50
    for line in whole:
        assert isinstance(ask(backend, ops.Read(Identity(bytes.fromhex(line)))), ops.Found)


EXIT = (
    LEAN
    + """
backend = opened(sys.argv[1])
held(backend)
print("done")
"""
)


def test_the_interpreter_ends_without_being_asked_to_close(path: Path) -> None:
    child = start(EXIT, str(path))
    assert child.communicate(timeout=PATIENCE)[0] == "done\n"
    assert child.returncode == 0
    assert not path.with_name(path.name + "-wal").exists()


def test_readers_of_threads_that_ended_are_closed(backend: SqliteBackend) -> None:
    held(backend)
    for _ in range(20):
        thread = threading.Thread(target=lambda: ask(backend, ops.Read(new_identity())))
        thread.start()
        thread.join(PATIENCE)
    writer = backend._writer
    assert writer is not None
    assert len(writer._readers) <= 1


@pytest.mark.parametrize(("option", "enforced"), [("", 0), ("?foreign_keys=on", 1)])
def test_foreign_keys_are_enforced_in_handlers_transactions_where_asked(
    tmp_path: Path, option: str, enforced: int
) -> None:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/records.db{option}")
    transaction = backend.begin(None)
    assert transaction is not None
    assert transaction.connection.execute("PRAGMA foreign_keys").fetchone() == (enforced,)
    transaction.roll_back()
    backend.close()
