"""Atomic mode with several requests in one process: who is busy, who waits, who is told what."""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.handler import Begin, Begun, Occupied, RollBack
from semel.core.operations.requests import Found, NoRecord, Read
from semel.core.records import Identity
from semel.runtime.transactions import AsyncTransact, Transact
from semel.runtime.waiters import Waiters
from semel.stores.base import AsyncTransaction, Transaction
from semel.stores.open_transactions import HeldIdentities
from semel.stores.sqlite import SqliteBackend
from tests.waiting import PATIENCE, auntil, until
from tests.web.bank import NOTHING, PAID, STORES, Bank, Ledger, Says, Step, Wait, bank, opened, pay
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, call
from tests.web.hurry import overrun

LONG = timedelta(seconds=PATIENCE)


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened(request.param, tmp_path, request.getfixturevalue) as one:
        yield one


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, logger="semel"):
        yield


class Slow:
    """Pays, says so, and waits to be let go."""

    def __init__(self, says: Says | None = None) -> None:
        self.paid, self.go = threading.Event(), threading.Event()
        self._says = says

    def __call__(self) -> Generator[Step, Any, Says]:
        said = yield from pay(says=self._says)()
        self.paid.set()
        yield Wait(self.go)
        return said


Together = Callable[[Bank, Slow, int], list[Reply]]


def threads(one: Bank, slow: Slow, count: int) -> list[Reply]:
    """A slow request and its duplicates, each in a thread; the slow one's answer comes first."""
    with ThreadPoolExecutor(count + 1) as pool:
        leader = pool.submit(one.send)
        assert slow.paid.wait(PATIENCE)
        others = [pool.submit(one.send) for _ in range(count)]
        _let_go(one, slow, others)
        return [future.result() for future in (leader, *others)]


def _let_go(one: Bank, slow: Slow, others: list[Future[Reply]]) -> None:
    if one.guard.policy.patience_micros:
        waiters = one.guard.runtime.keeper.waiters
        until(lambda: _threads_waiting(waiters) == len(others))
    else:
        until(lambda: all(future.done() for future in others))
    slow.go.set()


def _threads_waiting(waiters: Waiters) -> int:
    watches = list(waiters.watches.values())
    return sum(not slot.done() for watch in watches for slot in watch.threads)


async def tasks(one: Bank, slow: Slow, count: int) -> list[Reply]:
    """The same in an event loop."""
    leader = asyncio.ensure_future(call(one.app, Ask()))
    await auntil(slow.paid.is_set)
    others = [asyncio.ensure_future(call(one.app, Ask())) for _ in range(count)]
    waiters = one.guard.runtime.keeper.waiters
    if one.guard.policy.patience_micros:
        await auntil(
            lambda: (
                sum(map(len, waiters.watches[identity(one)].tasks.values())) == count
                if waiters.watches
                else False
            )
        )
    else:
        await asyncio.wait(others)
    slow.go.set()
    return [(await task)[0] for task in (leader, *others)]


def identity(one: Bank) -> Identity:
    (only,) = one.guard.runtime.keeper.waiters.watches
    return only


@pytest.fixture(params=["asgi", "wsgi"])
def together(
    request: pytest.FixtureRequest, ledger: Ledger, make_guard: MakeGuard, runner: asyncio.Runner
) -> Callable[..., tuple[Bank, list[Reply]]]:
    def run(slow: Slow, count: int, **options: Any) -> tuple[Bank, list[Reply]]:
        policy = semel.ietf(mode="atomic", **options)
        guard = make_guard(ledger.store, policy=policy, max_waiters=64)
        one = bank(request.param, guard, ledger, runner, slow)
        if request.param == "asgi":
            return one, runner.run(tasks(one, slow, count))
        return one, threads(one, slow, count)

    return run


def test_duplicates_in_one_process_are_busy_at_once(together: Any) -> None:
    """Before the slow one is let go; also on SQLite, whose write lock it holds."""
    one, (first, *others) = together(Slow(), 10)
    assert first.status == 201
    assert {(reply.code, reply.one("retry-after")) for reply in others} == {("in-flight", "1")}
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


def test_those_who_wait_get_the_answer(together: Any) -> None:
    one, (first, *others) = together(Slow(), 10, in_flight="wait", wait=LONG)
    assert (first.status, first.replayed) == (201, False)
    assert {(reply.status, reply.body, reply.replayed) for reply in others} == {
        (201, first.body, True)
    }
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


def test_those_who_wait_for_a_failure_are_told_to_come_again(together: Any) -> None:
    one, (first, *others) = together(Slow(Says(500)), 10, in_flight="wait", wait=LONG)
    assert first.status == 500
    assert {reply.code for reply in others} == {"in-flight"}
    assert (one.ledger.all(), one.script.runs) == (NOTHING, 1)
    one.plays(pay())
    assert one.send().status == 201


def test_on_sqlite_a_duplicate_in_another_process_is_busy_after_the_time_limit(
    request: pytest.FixtureRequest, tmp_path: Path, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """Another backend on the same file stands for the other process: they share nothing else.

    Its time limit is short only for what must meet it: for the lock that is held.
    """
    with opened("sqlite", tmp_path, request.getfixturevalue) as ledger:
        policy, slow = semel.ietf(mode="atomic"), Slow()
        here, there = (
            bank("wsgi", make_guard(ledger.store, policy=policy), ledger, runner, it)
            for it in (slow, pay())
        )
        there.guard.start()
        locks: Any = there.guard.backend
        with ThreadPoolExecutor(1) as pool:
            leader = pool.submit(here.send)
            assert slow.paid.wait(PATIENCE)
            locks._transactions._timeout = 0.1
            assert there.send().code == "in-flight"
            locks._transactions._timeout = PATIENCE
            slow.go.set()
            assert there.guard.backend is not here.guard.backend
            assert leader.result().status == 201
        assert (there.send().replayed, there.script.runs, ledger.all()) == (True, 0, PAID)


@pytest.mark.parametrize("ledger", ["postgres", "mariadb"], indirect=True)
def test_two_processes_that_ask_for_the_same_answer_do_not_refuse_each_other(
    ledger: Ledger, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """Who has never met the key looks under its lock; who finds that taken reads the record."""
    policy = semel.ietf(mode="atomic")
    first = bank("wsgi", make_guard(ledger.store, policy=policy), ledger, runner, pay())
    body = first.send().body
    stranger = bank("wsgi", make_guard(ledger.store, policy=policy), ledger, runner, pay())
    stranger.guard.start()
    backend = make_guard(ledger.store, policy=policy).backend
    ((name,),) = ledger.ask("SELECT identity FROM semel_record")
    begin: Any = backend
    asking = begin.begin(Identity(bytes(name)))
    try:
        reply = stranger.send()
    finally:
        asking.roll_back()
        backend.close()
    assert (reply.status, reply.replayed, reply.body) == (201, True, body)


# ── a handler that hangs ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("colour", ["asgi", "def", "wsgi"])
def test_a_handler_that_hangs_loses_its_key_after_max_run(
    colour: str, ledger: Ledger, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    slow = Slow()
    guard = make_guard(ledger.store, policy=semel.ietf(mode="atomic"))
    one = bank(colour, guard, ledger, runner, slow)
    if colour == "wsgi":
        with ThreadPoolExecutor(1) as pool:
            leader = pool.submit(one.send)
            assert slow.paid.wait(PATIENCE)
            one.plays(pay())
            until(overrun(guard))
            again = one.send()
            slow.go.set()
            first = leader.result()
    else:
        first, again = runner.run(_overtaken(one, slow))
    assert (first.status, first.code) == (503, "not-executed")
    assert (again.status, ledger.all()) == (201, PAID)
    assert one.send().replayed


async def _overtaken(one: Bank, slow: Slow) -> tuple[Reply, Reply]:
    leader = asyncio.ensure_future(call(one.app, Ask()))
    await auntil(slow.paid.is_set)
    one.plays(pay())
    await auntil(overrun(one.guard))
    again, _ = await call(one.app, Ask())
    slow.go.set()
    return (await leader)[0], again


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────

NAME = Identity(b"i" * 32)


class Locked(SqliteBackend):
    """Every lock is taken, by another process."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self.locked = True

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        return None if self.locked else super().begin(identity, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        return None if self.locked else await super().abegin(identity, limit)


def test_a_transaction_of_this_process_is_told_of_without_waiting(tmp_path: Path) -> None:
    backend = Locked(tmp_path / "one.db")
    backend.locked = False
    left: list[Identity] = []
    first, second = (Transact(backend, left.append) for _ in range(2))
    assert isinstance(first.perform(Begin(NAME)), Begun)
    assert isinstance(second.perform(Begin(NAME)), Occupied)
    assert left == []
    first.perform(RollBack())
    assert left == [NAME]
    assert isinstance(second.perform(Begin(NAME)), Begun)
    second.end()
    backend.close()


def test_one_who_was_refused_by_another_process_wakes_nobody(tmp_path: Path) -> None:
    """Or those who wait here would be told that the transaction has ended which goes on there."""
    left: list[Identity] = []
    transact = Transact(Locked(tmp_path / "one.db"), left.append)
    for _ in range(2):
        assert isinstance(transact.perform(Begin(NAME)), Occupied)
    transact.end()
    assert left == []


async def test_one_who_was_refused_by_another_process_wakes_nobody_in_a_loop(
    tmp_path: Path,
) -> None:
    left: list[Identity] = []
    transact = AsyncTransact(Locked(tmp_path / "one.db"), left.append)
    for _ in range(2):
        assert isinstance(await transact.perform(Begin(NAME)), Occupied)
    await transact.end()
    assert left == []


def test_a_forked_child_finds_no_key_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = HeldIdentities()
    parent = holds.take(NAME)
    assert parent is not None
    assert holds.take(NAME) is None
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert holds.take(NAME) is not None


@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_nobody_is_woken_before_the_commit(
    colour: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    make_guard: MakeGuard,
    runner: asyncio.Runner,
) -> None:
    """Who looked between completion and commit would find nothing, and take that for the end."""
    with opened("sqlite", tmp_path, request.getfixturevalue) as ledger:
        guard = make_guard(ledger.store, policy=semel.ietf(mode="atomic"))
        seen: list[bool] = []
        settled = guard.runtime.keeper.settled

        def look(identity: Identity) -> None:
            seen.append(isinstance(guard.backend.blocking().perform(Read(identity)), Found))
            settled(identity)

        guard.runtime.keeper.settled = look  # type: ignore[method-assign]
        one = bank(colour, guard, ledger, runner, pay())
        assert one.send().status == 201
        assert seen == [True]
        assert isinstance(guard.backend.blocking().perform(Read(NAME)), NoRecord)
