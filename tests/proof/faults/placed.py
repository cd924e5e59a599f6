"""One fault, placed: it begins while a handler stands at a gate, and ends when it has been met.

Nothing is left to chance. Before it a key is served. Then a handler has had its effect, and stands
still; the fault begins; a rival that asks meanwhile is refused; the handler goes on, and its answer
waits, since it cannot be kept. Only then the fault ends, and all must come to their ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import semel
from semel.core.operations.requests import StoreOperation
from semel.errors import StoreUnavailable
from semel.stores.base import AsyncStore, Backend, BackendWrapper
from tests.proof.faults.books import Log
from tests.proof.faults.campaign import Scene
from tests.proof.faults.crowd import Crowd, through
from tests.proof.faults.jumps import Jumping
from tests.proof.faults.records import States
from tests.proof.faults.skew import HOURS
from tests.proof.faults.verdict import Verdict, audit
from tests.waiting import auntil
from tests.web.client import Reply, new_key

REFUSED = "store-unavailable"
WAITED = "answers that waited"
SOON = timedelta(seconds=0.2)
"""After which a store that failed is asked again."""


class Gated(Log):
    """Books whose handlers stand still after their entry, for as long as they are held."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.held = False
        self.standing: list[str] = []

    async def aenter(self, key: str) -> str:
        nonce = await super().aenter(key)
        self.standing.append(key)
        await auntil(lambda: not self.held)
        return nonce


class Noting(BackendWrapper):
    """The store within; which operations have failed is noted, by their names."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.failed: Counter[str] = Counter()

    def awaited(self) -> AsyncStore:
        return _Noted(self.inner.awaited(), self.failed)


class _Noted:
    def __init__(self, store: AsyncStore, failed: Counter[str]) -> None:
        self._store = store
        self._failed = failed

    async def perform(self, op: StoreOperation[Any], /) -> Any:
        try:
            return await self._store.perform(op)
        except StoreUnavailable:
            self._failed[type(op).__name__] += 1
            raise


@dataclass(frozen=True)
class Outage:
    """How a store is taken away, and given back."""

    begin: Callable[[], object]
    end: Callable[[], object]


def met(store: Backend, states: States, outage: Outage, folder: Path) -> Verdict:
    """What becomes of a key before the outage, of one under way, and of one that comes in it."""
    with asyncio.Runner() as runner:
        return runner.run(_met(Noting(store), states, outage, Gated(folder / "effects")))


async def _met(store: Noting, states: States, outage: Outage, books: Gated) -> Verdict:
    # No lease is renewed, and none ends, while somebody stands at a gate.
    policy = semel.ietf(lease=timedelta(minutes=15))
    guard = semel.Guard(store, tenant=None, policy=policy, breaker=SOON)
    scene = Scene(guard, books, states)
    crowd, faults = crowd_of(scene), Counter[str]()
    before, running, rival = (new_key() for _ in range(3))
    try:
        crowd.told[before] = [await crowd.insist(before)]
        books.held = True
        clients = [await standing(crowd, books, running)]
        await asyncio.to_thread(outage.begin)
        clients.append(asyncio.create_task(crowd.insist(rival)))
        await auntil(lambda: crowd.refusals[REFUSED] or rival in books.standing)
        books.held = False
        await auntil(lambda: store.failed["Complete"])
        faults[WAITED] += not clients[0].done()
        await asyncio.to_thread(outage.end)
        for key, client in zip((running, rival), clients, strict=True):
            crowd.told[key] = [await client]
        return await ended(scene, crowd, faults)
    finally:
        await guard.aclose()


def crowd_of(scene: Scene) -> Crowd:
    return Crowd(through("asgi", scene.guard, scene.books), patience=scene.patience)


async def standing(crowd: Crowd, books: Gated, key: str) -> asyncio.Task[Reply]:
    """A client whose handler has run, and stands at its gate."""
    client = asyncio.create_task(crowd.insist(key))
    await auntil(lambda: key in books.standing or client.done())
    return client


async def ended(scene: Scene, crowd: Crowd, faults: Counter[str]) -> Verdict:
    """Everybody asks once more, and the books are compared."""
    await crowd.come_back()
    verdict = audit(crowd.told, scene.books.entries(), scene.states())
    verdict.requests, verdict.refusals, verdict.faults = crowd.requests, crowd.refusals, faults
    return verdict


# ── a clock that is set ───────────────────────────────────────────────────────────────────────────

LAPSED = "jumps after which a held lease had lapsed"
UNDER_HANDLERS = (HOURS, -HOURS)


def set_ahead_and_back(
    scene: Scene, books: Gated, clock: Jumping, tend: Callable[[], str]
) -> Verdict:
    """Each time while a handler stands at its gate; then maintenance, and a twin of its client."""
    with asyncio.Runner() as runner:
        return runner.run(_set(scene, books, clock, tend))


async def _set(scene: Scene, books: Gated, clock: Jumping, tend: Callable[[], str]) -> Verdict:
    crowd = crowd_of(scene)
    try:
        for hours in UNDER_HANDLERS:
            key, books.held = new_key(), True
            first = await standing(crowd, books, key)
            clock.set(hours)
            clock.jumps[LAPSED] += "lapse" in await asyncio.to_thread(tend)
            twin = await heard(crowd, books, key)
            books.held = False
            crowd.told[key] = [await first, await twin]
        return await ended(scene, crowd, clock.jumps)
    finally:
        await scene.guard.aclose()


async def heard(crowd: Crowd, books: Gated, key: str) -> asyncio.Task[Reply]:
    """A twin that has been told something, or, where its key was free, stands at the gate too."""
    told, runs = crowd.refusals.total(), books.standing.count(key)
    twin = asyncio.create_task(crowd.insist(key))
    await auntil(
        lambda: twin.done() or crowd.refusals.total() > told or books.standing.count(key) > runs
    )
    return twin
