"""The outbox's loop: takes effects that are due, has them delivered, records what came of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.backoff import luck
from semel.core.delivery import CallDeliverer, DeliveryEnding, DeliveryReport, RetryRules, deliver
from semel.core.flow import Flow, arun
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.outbox import RenewEffects, TakeEffects
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.records import Effect, Fence, Micros
from semel.errors import ConfigurationError
from semel.outbox.registry import Deliverer
from semel.runtime.event_catalogue import ERROR, NONE, WARNING
from semel.runtime.leases import new_fence
from semel.stores.base import AsyncStore
from semel.worker.calling import DelivererCalls
from semel.worker.rounds import Round

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")

_MICROSECOND: Final = timedelta(microseconds=1)
_GATHER: Final = 0.005
"""Seconds in which places that become free are filled together, with one operation."""
_REST: Final = 0.1
"""Seconds between two looks at least, when none of our own deliveries ended."""
_REPORT_EVERY: Final = 1.0
_LAST_WORDS: Final = 5.0
"""Seconds in which a cancelled round may still record what it knows."""


_LEVELS: Final = {
    DeliveryEnding.DELIVERED: NONE,
    DeliveryEnding.FAILED: WARNING,
    DeliveryEnding.DEAD: ERROR,
    DeliveryEnding.OVERTAKEN: WARNING,
    DeliveryEnding.UNRECORDED: WARNING,
}


class Deliveries:
    """Delivers what is in the outbox of ``guard``'s store.

    ``concurrency``: how many deliveries are under way at once. ``lease``: how long an effect is
    this worker's, renewed while it delivers; after a crash others wait that long. ``report`` is
    told about a long round while it goes on. ``luck`` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        concurrency: int = 16,
        lease: timedelta = timedelta(seconds=60),
        report: Callable[[Round], None] | None = None,
        luck: Callable[[], float] = luck,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError("concurrency= must be at least 1")
        if lease <= timedelta(0):
            raise ConfigurationError("lease= must be above zero")
        self._guard = guard
        self._concurrency = concurrency
        self._lease = lease
        self._report = report
        self._luck = luck
        self._stopping = False
        self._wake = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """The effects that the guard has deliverers for."""
        return tuple(self._guard.registry.deliverers)

    def wake(self) -> None:
        """There may be something new; also while a round is at work."""
        self._wake.set()

    def stop(self) -> None:
        """Take nothing more; what is under way is finished."""
        self._stopping = True
        self._wake.set()

    async def run_once(self) -> Round:
        """Deliver until nothing is due and nothing is under way.

        Effects that come up meanwhile are taken as soon as there is room: a slow provider does not
        keep others waiting.
        """
        if not self.names:
            return Round(0)
        crew = _Crew(self._guard, self._luck)
        renewing = asyncio.create_task(self._renew(crew))
        try:
            return await self._work(crew)
        finally:
            renewing.cancel()
            await crew.leave()

    async def _work(self, crew: _Crew) -> Round:
        told = time.monotonic()
        due_in = await self._fill(crew)
        while crew.tasks:
            await self._something(crew, due_in)
            if self._report is not None and time.monotonic() - told >= _REPORT_EVERY:
                told = time.monotonic()
                _tell(self._report, crew.account(0.0))
            due_in = await self._fill(crew)
        return crew.account(due_in)

    async def _fill(self, crew: _Crew) -> float | None:
        """Take what is due and there is room for; seconds until there will be more."""
        self._wake.clear()
        while not self._stopping and (room := self._concurrency - len(crew.tasks)) > 0:
            fence = new_fence()
            taken = await crew.store.perform(
                TakeEffects(fence, self.names, room, self._lease // _MICROSECOND, self._guard.name)
            )
            crew.start(taken.effects, fence)
            if len(taken.effects) < room:
                due = taken.next_due
                return None if due is None else max(0.0, (due - taken.now) / 1_000_000)
        return 0.0

    async def _something(self, crew: _Crew, due_in: float | None) -> None:
        """Until a delivery has ended, or there may be something to take and room for it."""
        room = len(crew.tasks) < self._concurrency and not self._stopping
        woken = asyncio.create_task(self._wake.wait())
        try:
            waits = {*crew.tasks, woken} if room else crew.tasks
            patience = max(due_in, _REST) if room and due_in is not None else None
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if crew.tasks and len(crew.tasks) < self._concurrency:
            await asyncio.wait(crew.tasks, timeout=_GATHER)

    async def _renew(self, crew: _Crew) -> None:
        """Keep what is under way ours. Should it fail, acknowledging shows whether it still is."""
        lease = self._lease // _MICROSECOND
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            for fence in list(crew.fences):
                try:
                    await crew.store.perform(RenewEffects(fence, lease))
                except Exception as error:  # whatever it is, the next one may be renewed
                    self._guard.events.emit(
                        "store.error", error=error, during="deliver", operation="RenewEffects"
                    )


class _Crew:
    """The deliveries under way in one round."""

    def __init__(self, guard: Guard, luck: Callable[[], float]) -> None:
        self.store: AsyncStore = guard.backend.awaited()
        self._events = guard.events
        self.tasks: set[asyncio.Task[None]] = set()
        self.fences: Counter[Fence] = Counter()
        self._deliverers = guard.registry.deliverers
        self._luck = luck
        self._calls = DelivererCalls()
        self._endings: Counter[DeliveryEnding] = Counter()

    def start(self, effects: tuple[Effect, ...], fence: Fence) -> None:
        for effect in effects:
            self.fences[fence] += 1
            task = asyncio.create_task(self._deliver(effect, fence))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def account(self, due_in: float | None) -> Round:
        """What was done since the last account."""
        endings, self._endings = self._endings, Counter()
        note = ", ".join(
            f"{ending} {endings[ending]}" for ending in DeliveryEnding if endings[ending]
        )
        return Round(endings.total(), due_in, note)

    async def leave(self) -> None:
        """Stop what is still under way; it has a moment to record that it was stopped."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_LAST_WORDS)

    async def _deliver(self, effect: Effect, fence: Fence) -> None:
        deliverer = self._deliverers[effect.name]
        flow = deliver(effect, _rules(deliverer), fence, self._luck())
        try:
            self._note(effect, await self._carry_through(flow, deliverer))
        except Exception as error:
            # A bug of a store or of ours; the lease passes, and it is tried again.
            self._note(effect, DeliveryReport(DeliveryEnding.UNRECORDED, "it broke off"), error)
        finally:
            self.fences[fence] -= 1
            self.fences += Counter()  # drops those with nothing under way

    async def _carry_through(
        self, flow: Flow[DeliveryReport], deliverer: Deliverer
    ) -> DeliveryReport:
        async def perform(op: FlowOperation[R]) -> R:
            reply: R = await self._perform(op, deliverer)
            return reply

        rest: list[Flow[DeliveryReport]] = []
        try:
            return await arun(flow, perform, rest.append)
        except asyncio.CancelledError:
            return await asyncio.shield(asyncio.ensure_future(arun(rest[0], perform)))

    async def _perform(self, op: FlowOperation[Any], deliverer: Deliverer) -> Any:
        match op:
            case CallDeliverer():
                return await self._calls.call(deliverer, op.delivery)
            case PauseBetweenLooks():
                return await asyncio.sleep(op.pause / 1_000_000)
            case StoreOperation():
                return await self.store.perform(op)
            case _:
                raise TypeError(f"not an operation of a delivery: {op!r}")

    def _note(self, effect: Effect, report: DeliveryReport, error: Exception | None = None) -> None:
        self._endings[report.ending] += 1
        self._events.emit(
            "delivery",
            level=_LEVELS[report.ending] if error is None else ERROR,
            error=error,
            effect=effect.name,
            ending=report.ending.value,
            tries=effect.tries,
            reason=report.error,
        )


def _rules(deliverer: Deliverer) -> RetryRules:
    def micros(duration: timedelta) -> Micros:
        return duration // _MICROSECOND

    return RetryRules(
        tries=deliverer.tries,
        first_pause=micros(deliverer.first_pause),
        longest_pause=micros(deliverer.longest_pause),
        keep=micros(deliverer.keep),
    )


def _tell(report: Callable[[Round], None], round_: Round) -> None:
    if round_.done:
        report(round_)
