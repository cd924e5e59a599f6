"""Maintenance as a loop of the worker, and embedded in the application.

Embedded, every process has a thread for it. The store elects one leader, which does the work; the
others stand by, and one of them takes over when the leader's lease is past.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar, cast

from semel.backoff import jitter
from semel.core.flow import Flow, Interrupted, ask, run
from semel.core.maintenance import ONE_WRITER, PACE, MaintenanceReport, Pace, tend
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Lead, Scan
from semel.core.operations.outbox import BrowseEffects, Shelf
from semel.core.operations.requests import FlowOperation
from semel.core.records import Identity, State
from semel.core.states import RecordEvent as StateEvent
from semel.errors import ConfigurationError, StoreError
from semel.log import log
from semel.runtime.event_catalogue import DEBUG, ERROR, INFO
from semel.runtime.leases import new_fence
from semel.runtime.threads import StandingThread
from semel.worker.flow_runner import FlowRunner
from semel.worker.worker import Round, counts_note

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Backend

R = TypeVar("R")

INTERVAL: Final = timedelta(seconds=60)
LEADER: Final = "maintenance"
_LEASES: Final = 3
"""How many intervals a leader may miss before another takes over."""
_SHORTEST_WAIT: Final = 0.05
"""Seconds to leave to the traffic between a round that was cut short and the next."""


_LAPSES: Final = (StateEvent.LAPSE, StateEvent.LAPSE_RELEASE, StateEvent.LAPSE_REQUEUE)
"""What a lease that is past came to; of the first nobody knows what became of it."""


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

        def perform(op: FlowOperation[R]) -> R:
            if not isinstance(op, PauseBetweenLooks):
                return self._runner.perform(op)
            if stopping.wait(op.pause / 1_000_000):
                raise Interrupted
            return cast("R", None)

        return run(self._round(), perform)

    def _round(self) -> Flow[Round]:
        began = time.monotonic()
        upkeep = yield from tend(self._pace)
        round_ = self._report(upkeep, began)
        # Counted for subscribers alone, and not in the middle of a long piece of work.
        if self._guard.events.heard and not upkeep.more:
            depths = yield from survey(self._guard.backend.capabilities.outbox)
            self._guard.events.emit(
                "depths",
                pending=depths["pending"],
                in_progress=depths["in_progress"],
                unknown=depths["unknown"],
                dead=depths["dead"],
                waiting_effects=depths["waiting_effects"],
                dead_effects=depths["dead_effects"],
            )
        return round_

    def _report(self, upkeep: MaintenanceReport, began: float) -> Round:
        note, counts = counts_note(upkeep.counts), Counter(upkeep.counts)
        doubts, lapsed = counts[_LAPSES[0]], sum(counts[each] for each in _LAPSES)
        events = self._guard.events
        if lapsed:
            events.emit("lapse", count=lapsed, by="maintenance")
        if doubts:
            events.emit("doubt", count=doubts, why="lapsed")
        events.emit(
            "maintenance",
            level=INFO if note else DEBUG,
            note=note or "nothing to do",
            lapsed=lapsed,
            abandoned=counts[StateEvent.ABANDON],
            expired=counts[StateEvent.EXPIRE],
            forgotten=counts[StateEvent.FORGET],
            effects=counts["effects"],
            events=counts["events"],
            more=upkeep.more,
            seconds=time.monotonic() - began,
        )
        wait = _SHORTEST_WAIT if upkeep.more else self._interval * jitter()
        return Round(sum(upkeep.counts.values()), wait, note)


class EmbeddedMaintenance:
    """Maintenance in a thread of the application: one leader for each store does the work."""

    def __init__(self, guard: Guard, *, interval: timedelta = INTERVAL) -> None:
        self._guard = guard
        self._interval = interval.total_seconds()
        self._maintenance = Maintenance(guard, interval=interval)
        self._fence = new_fence()
        self._led = False
        self._thread = StandingThread(self._run, "semel-maintenance")

    @property
    def leading(self) -> bool:
        """Whether this process did the last round."""
        return self._led

    def start(self) -> None:
        """Start the thread; again in a forked child, which has none. Cheap when it runs."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it is doing, and let another process lead."""
        if self._thread.stop() and self._led:
            self._tell_leading(False)
            self._resign()

    def run_once(self) -> Round:
        """Lead, or stay leader, and do a round; else come again when the leader's time is up."""
        lease = int(self._interval * _LEASES * 1_000_000)
        led = self._guard.backend.blocking().perform(Lead(LEADER, self._fence, lease))
        if led.leading != self._led:
            self._tell_leading(led.leading)
        if not led.leading:
            left = (led.until - led.now) / 1_000_000
            return Round(0, max(_SHORTEST_WAIT, left) + self._interval * (1 - jitter()))
        return self._maintenance.run_once_blocking(self._thread.stopping)

    def _tell_leading(self, leading: bool) -> None:
        self._led = leading
        self._guard.events.emit("leader", leading=leading)

    def _run(self) -> None:
        self._fence, self._led = new_fence(), False  # a forked child is not its parent
        wait = self._interval * (1 - jitter())  # many processes start together
        while not self._thread.stopping.wait(wait):
            try:
                wait = self.run_once().next_due_in or self._interval
            except Exception as error:
                self._failed(error)
                wait = self._interval * jitter()

    def _failed(self, error: Exception) -> None:
        events = self._guard.events
        if isinstance(error, StoreError):
            events.emit("store.error", error=error, during="maintenance", operation="round")
        else:
            events.emit("round.failed", level=ERROR, error=error, loop="maintain")

    def _resign(self) -> None:
        try:
            self._guard.backend.blocking().perform(Lead(LEADER, self._fence, 0))
        except StoreError as error:
            log.info("semel: maintenance is handed over when its lease is past: %s", error)


# ── how much waits: counted in rounds of maintenance, never on the way of a request ───────────────

_PAGE: Final = 500
_PAGES: Final = 20
"""Counting ends after so many pages: a higher number would tell nobody more."""

_STATES: Final = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)


def survey(outbox: bool) -> Flow[dict[str, int | None]]:
    """Count records and effects by what they wait for; no effects without an ``outbox``."""
    counts: Counter[str] = Counter()
    after: Identity | None = None
    for _ in range(_PAGES):
        page = yield from ask(Scan(_STATES, _PAGE, after))
        for glimpse in page.glimpses:
            counts[glimpse.state.value] += 1
            counts["dead"] += glimpse.state is State.UNKNOWN and glimpse.due_at is None
        after = page.until
        if after is None:
            break
    depths: dict[str, int | None] = {state.value: counts[state.value] for state in _STATES}
    depths["dead"] = counts["dead"]
    depths["waiting_effects"] = (yield from _count_effects(Shelf.WAITING)) if outbox else None
    depths["dead_effects"] = (yield from _count_effects(Shelf.DEAD)) if outbox else None
    return depths


def _count_effects(shelf: Shelf) -> Flow[int]:
    count, after = 0, None
    for _ in range(_PAGES):
        page = yield from ask(BrowseEffects(shelf, _PAGE, after))
        count += len(page.effects)
        if len(page.effects) < _PAGE:
            break
        after = page.effects[-1].key
    return count
