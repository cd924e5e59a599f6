"""Keeps a process's idea of how many keys each tenant has: a thread, where a cap is set.

Every process looks at the last note once in an interval. Whoever finds it old, and is the first to
say so, counts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar, cast

from semel.backoff import jitter
from semel.core.flow import Interrupted, run
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Lead
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.records import Fence, Micros
from semel.core.tenant_counts import CountedTenants, count, look_up
from semel.errors import SemelError
from semel.runtime.leases import new_fence
from semel.runtime.limits import Limiter
from semel.runtime.threads import StandingThread

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")

INTERVAL: Final = timedelta(seconds=60)
_LEASE: Final[Micros] = 600_000_000
"""How long a count may take before another process begins one too, which would be no harm."""
_FIRST: Final = 0.2
"""Seconds until the first look; until then a process knows of its own keys only."""


class TenantCounter:
    """One thread for each process."""

    def __init__(self, guard: Guard, limiter: Limiter, cap: int, interval: timedelta) -> None:
        self._guard = guard
        self._limiter = limiter
        self._cap = cap
        self._interval = interval.total_seconds()
        self._thread = StandingThread(self._run, "semel-census")

    def start(self) -> None:
        """Start the thread; again in a forked child, which has none. Cheap when it runs."""
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def run_once(self) -> CountedTenants:
        """Look at the note; where it is old, count."""
        note = run(look_up(self._cap), self._perform)
        if self._is_old(note) and (mine := self._lead()) is not None:
            try:
                note = run(count(self._cap), self._perform)
            finally:
                self._perform(Lead(self._office, mine, 0))
        self._limiter.count(note.active, self._interval)
        return note

    def _is_old(self, note: CountedTenants) -> bool:
        return note.counted_at is None or (note.now - note.counted_at) / 1e6 >= self._interval / 2

    def _lead(self) -> Fence | None:
        fence = new_fence()
        return fence if self._perform(Lead(self._office, fence, _LEASE)).leading else None

    @property
    def _office(self) -> str:
        return f"census {self._cap}"

    def _perform(self, op: FlowOperation[R]) -> R:
        if isinstance(op, StoreOperation):
            reply: R = self._guard.backend.blocking().perform(op)
            return reply
        if isinstance(op, PauseBetweenLooks) and self._thread.stopping.wait(op.pause / 1_000_000):
            raise Interrupted
        return cast("R", None)

    def _run(self) -> None:
        wait = _FIRST
        while not self._thread.stopping.wait(wait):
            try:
                self.run_once()
            except Interrupted:
                return
            except SemelError as error:
                events = self._guard.events
                events.emit("store.error", error=error, during="census", operation="round")
            except Exception as error:
                self._guard.events.emit("round.failed", error=error, loop="census")
            wait = self._interval * jitter()
