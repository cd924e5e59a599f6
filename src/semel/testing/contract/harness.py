"""A store under test: one way to ask, to race and to travel in time, whatever its colour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from semel.core.operations.requests import Found, NoRecord, Read, StoreOperation
from semel.core.records import Identity, Micros, Record
from semel.stores.base import AsyncStore, Backend
from semel.testing.contract.event_loop_thread import PATIENCE, EventLoopThread

R = TypeVar("R")

RACERS = 32
MOST_PAGES = 50


class Kept(NamedTuple):
    """How whoever looks after a record finds it: what a reply says of it is worked out anew."""

    duty: str
    due_at: Micros | None
    renewals_move_it: bool
    """Or else the sweeper catches up with them."""


class Harness:
    """One store in one colour, ``"sync"`` or ``"async"``.

    ``travel``: how time passes for the store, in microseconds: its clock is moved, or what it keeps
    into the past. ``slack``: how far times may be off where the clock is the store's own.
    ``kept``, ``clear``: of use to semel's own stores.
    """

    def __init__(
        self,
        backend: Backend,
        travel: Callable[[Micros], None],
        slack: Micros,
        colour: str,
        kept: Callable[[Identity], Kept | None] = lambda _: None,
        clear: Callable[[], None] | None = None,
    ) -> None:
        self.backend = backend
        self._travel = travel
        self.clear = clear
        """Forget everything, so that another test may begin anew; None: nobody can."""
        self.slack = slack
        """How far times may be off, where the clock is not ours."""
        self.kept = kept
        """None: there is no record, or the store has no index that could be wrong."""
        self._portal = EventLoopThread() if colour == "async" else None
        self._store: AsyncStore | None = None

    def travel(self, duration: Micros) -> None:
        """Later, by so much. Who goes nowhere moves nothing: that takes its time on servers."""
        if duration:
            self._travel(duration)

    def perform(self, op: StoreOperation[R]) -> R:
        if self._portal is not None:
            return self._portal.call(self._awaited([op]))[0]
        reply: R = self.backend.blocking().perform(op)
        return reply

    def race(self, ops: Sequence[StoreOperation[R]]) -> list[R]:
        """All at once: threads at a barrier, or tasks of one loop."""
        if self._portal is not None:
            return self._portal.call(self._awaited(ops))
        barrier = threading.Barrier(len(ops))

        def run(op: StoreOperation[R]) -> R:
            barrier.wait(PATIENCE)
            return self.perform(op)

        with ThreadPoolExecutor(len(ops)) as pool:
            return list(pool.map(run, ops))

    def pages(self, ask: Callable[[Any], StoreOperation[R]]) -> Iterator[R]:
        """The pages of a list, to its end. ``ask`` makes the operation for a place to go on."""
        place: Any = None
        for _ in range(MOST_PAGES):
            page: Any = self.perform(ask(place))
            yield page
            place = page.until
            if place is None:
                return
        raise AssertionError("the list does not end")

    async def _awaited(self, ops: Sequence[StoreOperation[R]]) -> list[R]:
        """All asked at once, within the loop: a store may answer with futures."""
        store = self._store = self._store or self.backend.awaited()
        return await asyncio.gather(*(store.perform(op) for op in ops))

    def record(self, identity: Identity) -> Record | None:
        match self.perform(Read(identity)):
            case Found(record):
                return record
            case NoRecord():
                return None

    def close(self) -> None:
        if self._portal is not None:
            self._portal.call(self.backend.aclose())
            self._portal.close()
        self.backend.close()
