"""Maintenance as a loop of the worker; and the threads that stand in every process.

Embedded in an application, every process has a thread for maintenance. The store elects one leader,
which does the work; the others stand by, and one of them takes over when the leader's lease is
past. Where a cap on the keys of a tenant is set, another thread counts them.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from semel.backoff import jitter
from semel.core import operations as ops
from semel.core.flow import Flow, Interrupted, ask
from semel.core.maintenance import (
    ONE_WRITER,
    PACE,
    CountedTenants,
    Pace,
    count_tenants,
    last_count,
    tend,
)
from semel.core.records import Micros
from semel.core.states import RecordEvent
from semel.errors import ConfigurationError, StoreError
from semel.log import log
from semel.runtime.events import DEBUG, ERROR, INFO
from semel.runtime.flow_runner import FlowRunner
from semel.runtime.leases import new_fence
from semel.runtime.limits import Limiter
from semel.runtime.pools import report_pools
from semel.worker.heartbeat import EMBEDDED, Heartbeat
from semel.worker.worker import Round, counts_note

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Backend

INTERVAL: Final = timedelta(seconds=60)
LEADER: Final = "maintenance"
_LEASES: Final = 3
"""How many intervals a leader may miss before another takes over."""
_SHORTEST_WAIT: Final = 0.05
"""Seconds to leave to the traffic between a round that was cut short and the next."""
_FIRST_COUNT: Final = 0.2
"""Seconds until tenants are first counted; until then a process knows its own keys only."""
_COUNT_LEASE: Final[Micros] = 600_000_000
"""How long a count may take before another process begins one too; two counts do no harm."""
_LAPSES: Final = (RecordEvent.LAPSE, RecordEvent.LAPSE_RELEASE, RecordEvent.LAPSE_REQUEUE)
"""What a lease that is past came to; of the first nobody knows what became of it."""
_MOST: Final = 10_000
"""Counting what waits ends there: a higher number would tell nobody more."""


def pace_for(backend: Backend) -> Pace:
    return ONE_WRITER if backend.capabilities.one_writer else PACE


class Maintenance:
    """One loop of the worker. Several may run at once: what one has locked the others skip."""

    def __init__(
        self, guard: Guard, *, interval: timedelta = INTERVAL, pace: Pace | None = None
    ) -> None:
        if interval <= timedelta(0):
            raise ConfigurationError("maintenance: interval= is above zero")
        self._guard = guard
        self._interval = interval.total_seconds()
        self._pace = pace or pace_for(guard.backend)
        self._runner = FlowRunner(guard)

    async def run_once(self) -> Round:
        """Run one round of everything."""
        return await self._runner.arun(self._round())

    def run_once_blocking(self, stopping: threading.Event) -> Round:
        """Run one round in a thread; ``stopping`` cuts it short."""
        return self._runner.run(self._round(), stopping)

    def _round(self) -> Flow[Round]:
        began, events = time.monotonic(), self._guard.events
        upkeep = yield from tend(self._pace)
        note, counts = counts_note(upkeep.counts), Counter(upkeep.counts)
        doubts, lapsed = counts[_LAPSES[0]], sum(counts[each] for each in _LAPSES)
        if lapsed:
            events.emit("lapse", count=lapsed, by="maintenance")
        if doubts:
            events.emit("doubt", count=doubts, why="lapsed")
        events.emit(
            "maintenance",
            level=INFO if note else DEBUG,
            note=note or "nothing to do",
            lapsed=lapsed,
            abandoned=counts[RecordEvent.ABANDON],
            expired=counts[RecordEvent.EXPIRE],
            forgotten=counts[RecordEvent.FORGET],
            effects=counts["effects"],
            events=counts["events"],
            more=upkeep.more,
            seconds=time.monotonic() - began,
        )
        # Counted for subscribers alone, and not in the middle of a long piece of work.
        if events.heard and not upkeep.more:
            depths = yield from survey(self._guard.backend.capabilities.outbox)
            events.emit("depths", level=None, error=None, **depths)
        wait = _SHORTEST_WAIT if upkeep.more else self._interval * jitter()
        return Round(counts.total(), wait, note)


def survey(outbox: bool) -> Flow[dict[str, int | None]]:
    """Count records and effects by what they wait for; no effects without an ``outbox``.

    It is done in rounds of maintenance, never on the way of a request.
    """
    found = yield from ask(ops.CountUnsettled(_MOST))
    effects = (yield from ask(ops.CountEffects(_MOST))) if outbox else None
    return {
        "pending": found.pending.count,
        "in_progress": found.in_progress.count,
        "unknown": min(found.unknown.count + found.dead.count, _MOST),
        "dead": found.dead.count,
        "waiting_effects": None if effects is None else effects.waiting.count,
        "dead_effects": None if effects is None else effects.dead.count,
    }


class _ThreadLoop:
    """A loop in a thread of its own, which stands in every process of the application.

    A forked child has no threads but its own, so it starts another.
    """

    _name: ClassVar[str]
    """In the thread's name, and in events of the store."""
    _loop: ClassVar[str]
    """In events of rounds that failed."""

    def __init__(self, guard: Guard, interval: timedelta) -> None:
        self._guard = guard
        self._interval = interval.total_seconds()
        self._started: dict[int, object] = {}
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread. Cheap where it runs already."""
        mine = object()
        if self._started.setdefault(os.getpid(), mine) is not mine:
            return  # setdefault is atomic: of several threads that come first, one starts it
        self._stopping = threading.Event()  # a fork may have copied one while its lock was held
        name = f"semel-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        if self._started.pop(os.getpid(), None) is None:
            return
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._end()

    def _end(self) -> None:
        """Called once after the thread has ended."""

    def _begin(self) -> float:
        """Called once in a new thread; returns the seconds until the first round."""
        raise NotImplementedError

    def _round(self) -> float:
        """Do a round; returns the seconds until the next."""
        raise NotImplementedError

    def _run(self) -> None:
        wait, events = self._begin(), self._guard.events
        while not self._stopping.wait(wait):
            wait = self._interval * jitter()
            try:
                wait = self._round()
            except Interrupted:
                return
            except StoreError as error:
                events.emit("store.error", error=error, during=self._name, operation="round")
            except Exception as error:
                events.emit("round.failed", level=ERROR, error=error, loop=self._loop)


class EmbeddedMaintenance(_ThreadLoop):
    """Maintenance in a thread of the application: one leader for each store does the work."""

    _name, _loop = "maintenance", "maintain"

    def __init__(self, guard: Guard, *, interval: timedelta = INTERVAL) -> None:
        super().__init__(guard, interval)
        self._maintenance = Maintenance(guard, interval=interval)
        self._fence = new_fence()
        self._heartbeat: Heartbeat | None = None
        self.leading = False
        """Whether this process did the last round."""

    def _end(self) -> None:
        """Say goodbye, and let another process lead."""
        if self._heartbeat is not None:
            with suppress(StoreError):
                self._guard.backend.blocking().perform(self._heartbeat.beat(last=True))
        if not self.leading:
            return
        self._tell_leading(False)
        try:
            self._guard.backend.blocking().perform(ops.Lead(LEADER, self._fence, 0))
        except StoreError as error:
            log.info("semel: maintenance is handed over when its lease is past: %s", error)

    def run_once(self) -> Round:
        """Lead, or stay leader, and do a round; else come again when the leader's time is up."""
        lease = int(self._interval * _LEASES * 1_000_000)
        store = self._guard.backend.blocking()
        led = store.perform(ops.Lead(LEADER, self._fence, lease))
        if led.leading != self.leading:
            self._tell_leading(led.leading)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._guard, EMBEDDED, ("maintain",), self._interval)
        with suppress(StoreError):  # what fails is told by the round itself
            store.perform(self._heartbeat.beat(leading=self.leading))
        if not led.leading:
            left = (led.until - led.now) / 1_000_000
            return Round(0, max(_SHORTEST_WAIT, left) + self._interval * (1 - jitter()))
        return self._maintenance.run_once_blocking(self._stopping)

    def _tell_leading(self, leading: bool) -> None:
        self.leading = leading
        self._guard.events.emit("leader", leading=leading)

    def _begin(self) -> float:
        self._fence, self.leading = new_fence(), False  # a forked child is not its parent
        self._heartbeat = None
        return self._interval * (1 - jitter())  # many processes start together

    def _round(self) -> float:
        report_pools(self._guard.backend, self._guard.events)
        return self.run_once().next_due_in or self._interval


class TenantCounter(_ThreadLoop):
    """Counts the keys of each tenant, to keep a process's limiter informed.

    Every process reads the stored count once in an interval. The first one that finds it old takes
    the lead and counts anew.
    """

    _name, _loop = "census", "census"

    def __init__(self, guard: Guard, limiter: Limiter, cap: int, interval: timedelta) -> None:
        super().__init__(guard, interval)
        self._limiter = limiter
        self._cap = cap
        self._runner = FlowRunner(guard)

    def run_once(self) -> CountedTenants:
        """Read the stored count; count anew where it is old."""
        stopping = self._stopping
        note = self._runner.run(last_count(self._cap), stopping)
        age = None if note.counted_at is None else (note.now - note.counted_at) / 1e6
        if age is None or age >= self._interval / 2:
            role, fence = f"census {self._cap}", new_fence()
            if self._runner.perform(ops.Lead(role, fence, _COUNT_LEASE)).leading:
                try:
                    note = self._runner.run(count_tenants(self._cap), stopping)
                finally:
                    self._runner.perform(ops.Lead(role, fence, 0))
        self._limiter.count(note.active, self._interval)
        return note

    def _begin(self) -> float:
        return _FIRST_COUNT

    def _round(self) -> float:
        self.run_once()
        return self._interval * jitter()
