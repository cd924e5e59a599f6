"""Operations asked of a store, one or many at once: by tasks, by threads, by processes."""

import asyncio
import multiprocessing
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import Applied, Claim, Claimed, Complete, Renew, StoreOperation
from semel.core.records import Fence, Identity, Origin
from semel.stores import open_backend
from semel.stores.base import AsyncStore, Store
from semel.stores.sql.batcher_sync import KindBatcher
from semel.testing.contract.records import MINUTE, SNAPSHOT
from tests.waiting import PATIENCE, until

DAY = 24 * 60 * MINUTE
SOON = 0.3
"""Seconds that a test can afford to see pass: the time limit of what is never answered."""
MANY = 100
"""More than one batch holds."""


def claim(number: int = 0) -> Claim:
    """Of a key of its own; ``number`` is in everything else, to tell rows apart."""
    return Claim(
        identity=Identity(secrets.token_bytes(32)),
        fence=Fence(secrets.token_bytes(16)),
        fingerprint=f"v1:{number}",
        fields=number.to_bytes(4, "big"),
        origin=Origin(f"tenant-{number}", "POST", f"/payments/{number}", "a-key-of-the-client"),
        lease=MINUTE + number,
    )


def rival(op: Claim) -> Claim:
    return replace(op, fence=Fence(secrets.token_bytes(16)))


def complete(op: Claim, snapshot: bytes = SNAPSHOT, resource: str | None = None) -> Complete:
    return Complete(
        op.identity, op.fence, snapshot, retention=DAY, tombstone=DAY, resource=resource
    )


def renew(op: Claim) -> Renew:
    """For an hour, and a time of its own beyond."""
    return Renew(op.identity, op.fence, op.lease + 60 * MINUTE)


@contextmanager
def hurried(*batcher: Any) -> Iterator[None]:
    """What is asked in the meantime has little time: only what is never answered may be asked."""
    pools = [each.pool for each in batcher]
    patience = [each._timeout for each in pools]
    for each in pools:
        each._timeout = SOON
    try:
        yield
    finally:
        for each, seconds in zip(pools, patience, strict=True):
            each._timeout = seconds


def never_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, no statement is passed by: each waits for the one before it, and
    so the number of statements is the same on every machine."""
    for module in ("batches", "batcher_async", "batcher_sync"):
        monkeypatch.setattr(f"semel.stores.sql.{module}.SLOW_AFTER", PATIENCE)


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def awaited(url: str, **options: Any) -> AsyncIterator[AsyncStore]:
    """The store in an event loop, with its schema, and with time enough."""
    backend = open_backend(url, **{"timeout": PATIENCE} | options)
    await asyncio.to_thread(backend.migrate)
    try:
        yield backend.awaited()
    finally:
        await backend.aclose()


async def together(store: AsyncStore, ops: Sequence[StoreOperation[Any]]) -> list[Any]:
    return await asyncio.gather(*map(store.perform, ops))


async def outcomes(store: AsyncStore, ops: Sequence[StoreOperation[Any]]) -> list[Any]:
    return await asyncio.gather(*map(store.perform, ops), return_exceptions=True)


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


class Threads:
    """A store, asked by many threads at once."""

    def __init__(self, backend: Any, pool: ThreadPoolExecutor) -> None:
        self.store: Store = backend.blocking()
        self._backend = backend
        self._pool = pool

    @property
    def batcher(self) -> Any:
        return self._backend.batcher()

    def kind_batcher(self, kind: type[StoreOperation[Any]]) -> KindBatcher:
        found: KindBatcher = self.batcher._batchers[kind]
        return found

    def start(self, op: StoreOperation[Any]) -> Future[Any]:
        return self._pool.submit(self.store.perform, op)

    def held(self, ops: Sequence[StoreOperation[Any]]) -> list[Future[Any]]:
        """All of them asked while something else of their kind is under way: none goes alone."""
        kind_batcher, blocker = self.kind_batcher(type(ops[0])), object()
        with kind_batcher._lock:
            kind_batcher._in_flight[blocker] = float("inf")  # type: ignore[index]
            kind_batcher._batching = True
        futures = [self.start(op) for op in ops]
        until(lambda: len(kind_batcher._queue._jobs) == len(ops))
        kind_batcher._finish(blocker)  # type: ignore[arg-type]
        return futures

    def outcomes(self, ops: Sequence[StoreOperation[Any]]) -> list[Any]:
        return [future.exception() or future.result() for future in self.held(ops)]


@contextmanager
def threaded(url: str, **options: Any) -> Iterator[Threads]:
    backend = open_backend(url, **{"timeout": PATIENCE} | options)
    backend.migrate()
    with ThreadPoolExecutor(MANY) as pool:
        yield Threads(backend, pool)
    backend.close()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


def raced(url: str, *orders: Sequence[Claim], colours: Sequence[str] = ()) -> list[bytes]:
    """What processes have won that each claim all of an order; once for every winner.

    In an event loop, unless ``colours`` says "sync" of one.
    """
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(len(orders)), context.Queue()
    racers = [
        context.Process(target=_race, args=(url, colour, each, start, told))
        for each, colour in zip(orders, colours or ["async"] * len(orders), strict=True)
    ]
    for racer in racers:
        racer.start()
    won: list[list[bytes]] = [told.get(True, PATIENCE) for _ in racers]
    for racer in racers:
        racer.join(PATIENCE)
    assert [racer.exitcode for racer in racers] == [0] * len(racers)
    return [each for some in won for each in some]


def _race(url: str, colour: str, ops: Sequence[Claim], start: Any, told: Any) -> None:
    """In a process of its own: claim fifty at once, in the order given; tell who won."""
    told.put(
        _race_alone(url, ops, start) if colour == "sync" else asyncio.run(_arace(url, ops, start))
    )


def _race_alone(url: str, ops: Sequence[Claim], start: Any) -> list[bytes]:
    backend = open_backend(url, timeout=PATIENCE)
    perform, won = backend.blocking().perform, list[bytes]()
    perform(claim())
    start.wait(PATIENCE)
    for op in map(rival, ops):
        if isinstance(perform(op), Claimed):
            assert isinstance(perform(complete(op)), Applied)
            won.append(op.identity)
    backend.close()
    return won


async def _arace(url: str, ops: Sequence[Claim], start: Any) -> list[bytes]:
    backend = open_backend(url, timeout=PATIENCE)
    store = backend.awaited()
    await store.perform(claim())
    await asyncio.to_thread(start.wait, PATIENCE)
    won: list[bytes] = []
    for at in range(0, len(ops), 50):
        mine = [rival(op) for op in ops[at : at + 50]]
        replies = await together(store, mine)
        claimed = [op for op, r in zip(mine, replies, strict=True) if type(r) is Claimed]
        done = await together(store, [complete(op) for op in claimed])
        assert {type(reply) for reply in done} <= {Applied}
        won += [op.identity for op in claimed]
    await backend.aclose()
    return won


def forked(child: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> int:
    """The exit code of ``child``, run in a forked process, with ``meanwhile`` in this one."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    meanwhile()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
