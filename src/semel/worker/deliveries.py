"""The outbox's loop: leases effects that are due, calls their deliverers, records the results.

Whatever a deliverer does ends as a value: it returned, it raised, or its time was up. What it
raises never reaches the worker, not even `SystemExit`. Why a delivery happens at least once, and
what makes it count once, is in `semel.worker`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from semel.backoff import luck
from semel.core import delivery
from semel.core import operations as ops
from semel.core.delivery import DelivererFailed, DelivererReturned, DeliveryEnding, DeliveryReport
from semel.core.flow import Flow, arun
from semel.core.records import Effect, Fence
from semel.errors import ConfigurationError
from semel.log import log
from semel.outbox.effects import Deliverer
from semel.runtime.events import ERROR, NONE, WARNING
from semel.runtime.flow_runner import FlowRunner, called, ends_in_time
from semel.runtime.leases import new_fence
from semel.worker.worker import ConcurrentLoop, Round

if TYPE_CHECKING:
    from semel.guard import Guard

_MICROSECOND: Final = timedelta(microseconds=1)
_GATHER: Final = 0.005
"""Seconds to wait for more deliveries to end, so that one operation fills their places."""
_GRACE: Final = 1.0
"""Seconds that a cancelled deliverer has to end; one that does not is left behind."""
_LEVELS: Final = {DeliveryEnding.DELIVERED: NONE, DeliveryEnding.DEAD: ERROR}
"""Of the event that tells how a delivery ended; a warning for all others."""


class Deliveries(ConcurrentLoop):
    """Delivers the effects in the outbox of ``guard``'s store.

    ``concurrency``: how many deliveries are under way at once. ``lease``: how long this worker
    holds an effect, renewed while it delivers; after a crash others wait that long. ``report`` gets
    a long round while it goes on. ``luck`` gives numbers from 0 to 1.
    """

    _last_words = 5.0
    _order = tuple(DeliveryEnding)

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
        super().__init__(concurrency, report)
        self._guard = guard
        self._lease = lease
        self._luck = luck
        self._runner = FlowRunner(guard)
        self._fences: Counter[Fence] = Counter()
        """The deliveries under way, by the fence that their effects were taken with."""

    @property
    def names(self) -> tuple[str, ...]:
        """The effects that the guard has deliverers for."""
        return tuple(self._guard.registry.deliverers)

    async def run_once(self) -> Round:
        """Deliver until nothing is due and nothing is under way."""
        if not self.names:
            return Round(0)
        renewing = asyncio.create_task(self._renew())
        try:
            return await super().run_once()
        finally:
            renewing.cancel()

    async def _fill(self) -> float | None:
        """Take due effects while there is room; returns the seconds until there are more."""
        lease = self._lease // _MICROSECOND
        while (room := self._room) > 0:
            fence = new_fence()
            taken = await self._runner.aperform(
                ops.TakeEffects(fence, self.names, room, lease, self._guard.name)
            )
            for effect in taken.effects:
                self._fences[fence] += 1
                self._start(self._deliver(effect, fence))
            if len(taken.effects) < room:
                due = taken.next_due
                return None if due is None else max(0.0, (due - taken.now) / 1_000_000)
        return 0.0

    async def _wait(self, due_in: float | None) -> None:
        await super()._wait(due_in)
        if self._tasks and len(self._tasks) < self._at_once:
            await asyncio.wait(self._tasks, timeout=_GATHER)

    async def _renew(self) -> None:
        """Renew the leases of what is under way. Where it fails, the record shows who has it."""
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            for fence in list(self._fences):
                try:
                    await self._runner.aperform(
                        ops.RenewEffects(fence, self._lease // _MICROSECOND)
                    )
                except Exception as error:  # the next one may be renewed
                    self._guard.events.emit(
                        "store.error", error=error, during="deliver", operation="RenewEffects"
                    )

    async def _deliver(self, effect: Effect, fence: Fence) -> str:
        """Run the flow of one delivery to its end, also when this task is cancelled."""
        deliverer = self._guard.registry.deliverers[effect.name]

        async def perform(op: ops.FlowOperation[Any]) -> Any:
            if isinstance(op, delivery.CallDeliverer):
                return await _call(deliverer, op.delivery)
            return await self._runner.aperform(op)

        rules = delivery.RetryRules(
            tries=deliverer.tries,
            first_pause=deliverer.first_pause // _MICROSECOND,
            longest_pause=deliverer.longest_pause // _MICROSECOND,
            keep=deliverer.keep // _MICROSECOND,
        )
        rest: list[Flow[DeliveryReport]] = []
        try:
            with self._guard.events.span("delivery", effect.identity):
                flow = delivery.deliver(effect, rules, fence, self._luck())
                try:
                    report = await arun(flow, perform, rest.append)
                except asyncio.CancelledError:
                    report = await asyncio.shield(asyncio.ensure_future(arun(rest[0], perform)))
                return self._emit(effect, report)
        except Exception as error:
            # A bug of a store or of ours; the lease passes, and it is tried again.
            broken = DeliveryReport(DeliveryEnding.UNRECORDED, "it broke off")
            return self._emit(effect, broken, error)
        finally:
            self._fences[fence] -= 1
            self._fences += Counter()  # drops those with nothing under way

    def _emit(self, effect: Effect, report: DeliveryReport, error: Exception | None = None) -> str:
        self._guard.events.emit(
            "delivery",
            level=_LEVELS.get(report.ending, WARNING) if error is None else ERROR,
            error=error,
            effect=effect.name,
            ending=report.ending.value,
            tries=effect.tries,
            reason=report.error,
        )
        return report.ending


async def _call(
    deliverer: Deliverer, given: delivery.Delivery
) -> DelivererReturned | DelivererFailed:
    """Call the deliverer, for as long as its ``timeout`` allows.

    A thread cannot be stopped: past the time-out it goes on, and the next try comes with the same
    downstream key.
    """

    async def outcome() -> DelivererReturned | DelivererFailed:
        try:
            returned = await called(deliverer.function, given)
        except BaseException as error:
            # Cancelled by us, nobody reads this. Cancelled by itself, it is a failure. SystemExit
            # would otherwise end the worker.
            return DelivererFailed(error)
        if returned is None or isinstance(returned, str):
            return DelivererReturned(returned)
        # It was delivered: what it returned must not have it sent again.
        text = "semel: the deliverer of %r returned %s, not the provider's id (text) or None"
        log.warning(text, deliverer.name, type(returned).__name__)
        return DelivererReturned(None)

    task = asyncio.ensure_future(outcome())
    if await ends_in_time(task, deliverer.timeout.total_seconds(), _GRACE):
        return task.result()
    return DelivererFailed(TimeoutError(f"not delivered within {deliverer.timeout}"))
