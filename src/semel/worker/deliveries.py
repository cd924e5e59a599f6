"""The outbox's loop: leases effects that are due, calls their deliverers, records the results.

Whatever a deliverer does ends as a value: it returned, it raised, or its time was up. What it
raises never reaches the worker, not even `SystemExit`. Why a delivery happens at least once, and
what makes it count once, is in `semel.worker`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.backoff import luck
from semel.core.delivery import (
    CallDeliverer,
    DelivererFailed,
    DelivererReturned,
    Delivery,
    DeliveryEnding,
    DeliveryReport,
    RetryRules,
    deliver,
)
from semel.core.flow import Flow, arun
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.outbox import RenewEffects, TakeEffects
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.records import Effect, Fence
from semel.errors import ConfigurationError
from semel.log import log
from semel.outbox.registry import Deliverer
from semel.runtime.event_catalogue import ERROR, NONE, WARNING
from semel.runtime.leases import new_fence
from semel.stores.base import AsyncStore
from semel.worker.calling import called
from semel.worker.worker import Round

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")

_MICROSECOND: Final = timedelta(microseconds=1)
_GATHER: Final = 0.005
"""Seconds to wait for more deliveries to end, so that one operation fills their places."""
_REST: Final = 0.1
"""Seconds between two looks at least, when none of our own deliveries ended."""
_REPORT_EVERY: Final = 1.0
_LAST_WORDS: Final = 5.0
"""Seconds that cancelled deliveries have to record that they were stopped."""
_GRACE: Final = 1.0
"""Seconds that a cancelled deliverer has to end; one that does not is left behind."""


_LEVELS: Final = {
    DeliveryEnding.DELIVERED: NONE,
    DeliveryEnding.FAILED: WARNING,
    DeliveryEnding.DEAD: ERROR,
    DeliveryEnding.OVERTAKEN: WARNING,
    DeliveryEnding.UNRECORDED: WARNING,
}


class Deliveries:
    """Delivers the effects in the outbox of ``guard``'s store.

    ``concurrency``: how many deliveries are under way at once. ``lease``: how long this worker
    holds an effect, renewed while it delivers; after a crash others wait that long. ``report`` gets
    a long round while it goes on. ``luck`` gives numbers from 0 to 1.
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
        """Look for new effects, also in the middle of a round."""
        self._wake.set()

    def stop(self) -> None:
        """Take no more effects; finish the deliveries under way."""
        self._stopping = True
        self._wake.set()

    async def run_once(self) -> Round:
        """Deliver until nothing is due and nothing is under way.

        Effects that become due meanwhile are taken as soon as there is room, so that a slow
        provider does not keep others waiting.
        """
        if not self.names:
            return Round(0)
        batch = _Batch(self._guard, self._luck)
        renewing = asyncio.create_task(self._renew(batch))
        try:
            return await self._work(batch)
        finally:
            renewing.cancel()
            await batch.cancel()

    async def _work(self, batch: _Batch) -> Round:
        reported = time.monotonic()
        due_in = await self._fill(batch)
        while batch.tasks:
            await self._wait(batch, due_in)
            if self._report is not None and time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                so_far = batch.round(0.0)
                if so_far.done:
                    self._report(so_far)
            due_in = await self._fill(batch)
        return batch.round(due_in)

    async def _fill(self, batch: _Batch) -> float | None:
        """Take due effects while there is room; returns the seconds until there are more."""
        self._wake.clear()
        while not self._stopping and (room := self._concurrency - len(batch.tasks)) > 0:
            fence = new_fence()
            taken = await batch.store.perform(
                TakeEffects(fence, self.names, room, self._lease // _MICROSECOND, self._guard.name)
            )
            batch.start(taken.effects, fence)
            if len(taken.effects) < room:
                due = taken.next_due
                return None if due is None else max(0.0, (due - taken.now) / 1_000_000)
        return 0.0

    async def _wait(self, batch: _Batch, due_in: float | None) -> None:
        """Wait until a delivery ends, or until there may be something to take and room for it."""
        room = len(batch.tasks) < self._concurrency and not self._stopping
        woken = asyncio.create_task(self._wake.wait())
        try:
            waits = {*batch.tasks, woken} if room else batch.tasks
            patience = max(due_in, _REST) if room and due_in is not None else None
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if batch.tasks and len(batch.tasks) < self._concurrency:
            await asyncio.wait(batch.tasks, timeout=_GATHER)

    async def _renew(self, batch: _Batch) -> None:
        """Renew the leases of what is under way. Where it fails, the record shows who has it."""
        lease = self._lease // _MICROSECOND
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            for fence in list(batch.fences):
                try:
                    await batch.store.perform(RenewEffects(fence, lease))
                except Exception as error:  # the next one may be renewed
                    self._guard.events.emit(
                        "store.error", error=error, during="deliver", operation="RenewEffects"
                    )


class _Batch:
    """The deliveries under way in one round."""

    def __init__(self, guard: Guard, luck: Callable[[], float]) -> None:
        self.store: AsyncStore = guard.backend.awaited()
        self._events = guard.events
        self.tasks: set[asyncio.Task[None]] = set()
        self.fences: Counter[Fence] = Counter()
        self._deliverers = guard.registry.deliverers
        self._luck = luck
        self._left_behind: set[asyncio.Task[Any]] = set()
        self._endings: Counter[DeliveryEnding] = Counter()

    def start(self, effects: tuple[Effect, ...], fence: Fence) -> None:
        for effect in effects:
            self.fences[fence] += 1
            task = asyncio.create_task(self._deliver(effect, fence))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def round(self, due_in: float | None) -> Round:
        """What was done since the last call."""
        endings, self._endings = self._endings, Counter()
        parts = [f"{ending} {endings[ending]}" for ending in DeliveryEnding if endings[ending]]
        return Round(endings.total(), due_in, ", ".join(parts))

    async def cancel(self) -> None:
        """Stop what is still under way; it has a moment to record that it was stopped."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_LAST_WORDS)

    async def _deliver(self, effect: Effect, fence: Fence) -> None:
        """Run the flow of one delivery to its end, also when this task is cancelled."""
        deliverer = self._deliverers[effect.name]

        async def perform(op: FlowOperation[R]) -> R:
            reply: R = await self._perform(op, deliverer)
            return reply

        rest: list[Flow[DeliveryReport]] = []
        try:
            flow = deliver(effect, _rules(deliverer), fence, self._luck())
            try:
                report = await arun(flow, perform, rest.append)
            except asyncio.CancelledError:
                report = await asyncio.shield(asyncio.ensure_future(arun(rest[0], perform)))
            self._emit(effect, report)
        except Exception as error:
            # A bug of a store or of ours; the lease passes, and it is tried again.
            self._emit(effect, DeliveryReport(DeliveryEnding.UNRECORDED, "it broke off"), error)
        finally:
            self.fences[fence] -= 1
            self.fences += Counter()  # drops those with nothing under way

    async def _perform(self, op: FlowOperation[Any], deliverer: Deliverer) -> Any:
        match op:
            case CallDeliverer():
                return await self._call(deliverer, op.delivery)
            case PauseBetweenLooks():
                return await asyncio.sleep(op.pause / 1_000_000)
            case StoreOperation():
                return await self.store.perform(op)
            case _:
                raise TypeError(f"not an operation of a delivery: {op!r}")

    async def _call(
        self, deliverer: Deliverer, delivery: Delivery
    ) -> DelivererReturned | DelivererFailed:
        """Call the deliverer, for as long as its ``timeout`` allows.

        A thread cannot be stopped: past the time-out it goes on, and the next try comes with the
        same downstream key.
        """
        task = asyncio.ensure_future(_outcome(deliverer, delivery))
        try:
            done, _ = await asyncio.wait({task}, timeout=deliverer.timeout.total_seconds())
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if done:
            return task.result()
        await self._stop(task)
        return DelivererFailed(TimeoutError(f"not delivered within {deliverer.timeout}"))

    async def _stop(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=_GRACE)
        if pending:
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)

    def _emit(self, effect: Effect, report: DeliveryReport, error: Exception | None = None) -> None:
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


async def _outcome(deliverer: Deliverer, delivery: Delivery) -> DelivererReturned | DelivererFailed:
    try:
        returned = await called(deliverer.function, delivery)
    except BaseException as error:
        # Cancelled by `_stop`, nobody reads this. Cancelled by itself, it is a failure. SystemExit
        # would otherwise end the worker.
        return DelivererFailed(error)
    if returned is None or isinstance(returned, str):
        return DelivererReturned(returned)
    # It was delivered: what it returned must not have it sent again.
    kind = type(returned).__name__
    text = "semel: the deliverer of %r returned %s, not the provider's id (text) or None"
    log.warning(text, deliverer.name, kind)
    return DelivererReturned(None)


def _rules(deliverer: Deliverer) -> RetryRules:
    return RetryRules(
        tries=deliverer.tries,
        first_pause=deliverer.first_pause // _MICROSECOND,
        longest_pause=deliverer.longest_pause // _MICROSECOND,
        keep=deliverer.keep // _MICROSECOND,
    )
