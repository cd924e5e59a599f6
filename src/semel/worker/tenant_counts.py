"""Counts the keys of each tenant, in a thread of each process, where a cap is set.

Every process reads the stored count once in an interval. The first one that finds it old takes the
lead and counts anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar, cast

from semel.backoff import jitter
from semel.core.flow import Interrupted, run
from semel.core.maintenance import CountedTenants, count_tenants, last_count
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Lead
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.records import Micros
from semel.errors import SemelError
from semel.runtime.leases import new_fence
from semel.runtime.limits import Limiter
from semel.runtime.threads import StandingThread

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")

INTERVAL: Final = timedelta(seconds=60)
_LEASE: Final[Micros] = 600_000_000
"""How long a count may take before another process begins one too; two counts do no harm."""
_FIRST: Final = 0.2
"""Seconds until the first look; until then a process knows its own keys only."""


class TenantCounter:
    """The thread that keeps a process's limiter informed."""

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
        """Read the stored count; count anew where it is old."""
        note = run(last_count(self._cap), self._perform)
        age = None if note.counted_at is None else (note.now - note.counted_at) / 1e6
        if age is None or age >= self._interval / 2:
            role, fence = f"census {self._cap}", new_fence()
            if self._perform(Lead(role, fence, _LEASE)).leading:
                try:
                    note = run(count_tenants(self._cap), self._perform)
                finally:
                    self._perform(Lead(role, fence, 0))
        self._limiter.count(note.active, self._interval)
        return note

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
