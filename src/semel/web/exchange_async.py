"""An exchange whose operations are awaited: for ASGI, views in event loops, and functions."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from semel.backoff import pause_before
from semel.core import operations as ops
from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim
from semel.core.exchange.settle import Flowing, settle
from semel.core.flow import Flow, interrupted
from semel.errors import OutcomeUnknown, StoreUnavailable
from semel.runtime.transactions import AsyncTransact
from semel.web import request_events
from semel.web.exchange import ASKS_FOR_A_LEASE, WebExchange, outcome_of, returned, too_late

if TYPE_CHECKING:
    from semel.core.policy import RoutePlan
    from semel.core.records import Request
    from semel.runtime.runtime import Runtime
    from semel.stores.base import AsyncStore


R = TypeVar("R")
T = TypeVar("T")

_CARRIED_ON: Final = 3
"""How often a task may be cancelled that settles a record, before it gives way."""


def start_task(work: Coroutine[Any, Any, T], running: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """A task that goes on without its caller: ``running`` holds it until it ends.

    The event loop itself keeps only weak references to tasks.
    """
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


class AsyncExchange(WebExchange):
    """One keyed request in an event loop."""

    __slots__ = ("_store", "transact")

    def __init__(self, runtime: Runtime, plan: RoutePlan, request: Request) -> None:
        super().__init__(runtime, plan, request)
        self._store: AsyncStore = runtime.backend.awaited()
        self.transact: AsyncTransact | None = None
        if plan.policy.mode == "atomic":
            left, limit = runtime.keeper.settled, plan.policy.max_run_seconds
            self.transact = AsyncTransact(runtime.backend, left, limit)

    # ── the two halves ────────────────────────────────────────────────────────────────────────────

    async def serve(self) -> Answer | Flowing:
        """Claim, call the application, settle. The last two are one task, which goes on alone."""
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        task = self.spawn(self._run(self.start_run(entry)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self.left)
            raise

    def left(self, task: asyncio.Task[Answer | Flowing]) -> None:
        """The caller has left, and the task has ended after that."""

    async def _run(self, in_time: bool) -> Answer | Flowing:
        outcome = await self.call() if in_time else too_late()
        reached: Answer | Flowing | None = None
        try:
            self.ended()
            reached = await self.drive(settle(self, outcome, self.run))
            if isinstance(reached, Answer):
                self.tell(reached)
            return reached
        finally:
            if not isinstance(reached, Flowing):
                await self.end()

    async def call(self) -> ops.HandlerOutcome:
        """Call the application; whatever it raises is an outcome."""
        raise NotImplementedError

    def claim(self) -> Coroutine[Any, Any, ops.Claimed | Answer]:
        """The first half, by the caller's own task; cancelled, it winds up without that."""
        plain = self.worker is None and self.plan.enrolled
        flow = claim(self) if plain else self.claiming()
        return self.follow(flow, lambda rest: self.spawn(self._wind_up(rest)))

    async def _wind_up(self, rest: Flow[Any]) -> None:
        try:
            await self.drive(rest)
        finally:
            await self.end()

    async def follow(self, flow: Flow[T], left: Callable[[Flow[T]], object] | None = None) -> T:
        """Drive a half to its end: `arun`, with what most operations take done right here.

        Cancelled, it leaves the flow where it stands; ``left`` gets what is left of it.
        """
        feed: Callable[[Any], ops.FlowOperation[Any]] = flow.send
        value: Any = None
        quiet, store = self.quiet, self._store
        runtime = self.runtime
        breaker, watched = runtime.breaker, runtime.keeper.waiters.watches
        while True:
            try:
                op = feed(value)
            except StopIteration as done:
                result: T = done.value
                return result
            except BaseException:
                await self.end()  # a surprise: at least nothing stays open
                raise
            asked = time.monotonic()
            try:
                if quiet and isinstance(op, ops.StoreOperation):
                    if type(op) in ASKS_FOR_A_LEASE:
                        self.before(op)
                    value, feed = await store.perform(op), flow.send
                    if watched or breaker.failures or breaker.is_open:
                        self.heard(op, value)
                else:
                    value, feed = await self.perform(op), flow.send
            except Exception as error:
                value, feed = error, flow.throw
                if isinstance(error, StoreUnavailable):
                    runtime.breaker.failed(asked)
            except BaseException:
                if left is not None:
                    left(interrupted(flow, op))
                raise

    async def drive(self, flow: Flow[T]) -> T:
        """Drive a half to its end in a task that is nobody's to cancel.

        At the end of an event loop it is cancelled all the same: then it is carried on here.
        """
        for _ in range(_CARRIED_ON):
            rest: list[Flow[T]] = []
            try:
                return await self.follow(flow, rest.append)
            except asyncio.CancelledError:
                if not rest:
                    raise  # the flow has ended, and failed
                flow = rest[0]
        return await self.follow(flow)

    async def end(self) -> None:
        """Nothing stays open or leased."""
        if self.transact is not None:
            await self.transact.end()
        self.let_go()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return start_task(work, self.runtime.running)

    def transaction(self) -> Any:
        return None if self.transact is None else self.transact.transaction

    # ── its operations ────────────────────────────────────────────────────────────────────────────

    async def perform(self, op: ops.FlowOperation[R]) -> R:
        """One operation of either half, where somebody listens, counts or has a transaction."""
        account = self.account
        began = 0.0 if account is None else request_events.now()
        try:
            if not isinstance(op, ops.StoreOperation):
                reply: R = await self.attend(op)
            else:
                if self.charge is not None or type(op) in ASKS_FOR_A_LEASE:
                    self.before(op)
                reply = await (self.transact or self._store).perform(op)
                runtime = self.runtime
                breaker, watched = runtime.breaker, runtime.keeper.waiters.watches
                if self.heedful or breaker.failures or breaker.is_open or watched:
                    self.heard(op, reply)
        except Exception as error:
            if account is not None:
                account.saw(op, error, began)
            raise
        if account is not None:
            account.saw(op, reply, began)
        return reply

    async def attend(self, op: ops.FlowOperation[Any]) -> Any:
        """What no store is asked."""
        match op:
            case ops.Await(identity, fence, patience):
                return await self.runtime.keeper.waiters.await_(identity, fence, patience)
            case ops.Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self.held()
            case ops.Pursue(write, before, seen):
                return self.runtime.keeper.pursue(write, before, seen)
            case ops.Render(response):
                on_replay = self.policy.on_replay
                shown = response if on_replay is None else on_replay(self.request, response)
                return await shown if inspect.isawaitable(shown) else shown
            case ops.Apart(work):
                return await asyncio.to_thread(work)
            case _ if self.transact is not None:
                self.before(op)
                reply = await self.transact.perform(op)
                self.heard(op, reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")


class AsyncFunctionExchange(AsyncExchange):
    """One call of a coroutine function, by `once`, in the place of an application."""

    __slots__ = ("function",)

    function: Callable[[], Awaitable[Any]]

    async def call(self) -> ops.HandlerOutcome:
        self.run.occupy()
        try:
            made = self.function()
            if not hasattr(made, "__await__"):
                # It has run, and no result was awaited that could be kept.
                raise OutcomeUnknown(_PLAIN.format(type(made).__name__))
            return returned(await made)
        except BaseException as error:
            return outcome_of(error)


_PLAIN: Final = "guard.aonce() takes a coroutine function; this one ran at once and returned {}"


class Promise(Generic[T]):
    """A value that will be there; whoever stops waiting for it takes nothing from the others.

    A plain future is cancelled with the one who awaits it, and shielding one costs two more.
    """

    __slots__ = ("_value", "_waiting", "kept")

    def __init__(self) -> None:
        self.kept = False
        self._waiting: list[asyncio.Future[T]] = []

    def keep(self, value: T) -> None:
        """The first value counts."""
        if self.kept:
            return
        self.kept, self._value = True, value
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(value)

    def wait(self) -> asyncio.Future[T]:
        """A future of the caller's own, for the value."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.kept:
            waiter.set_result(self._value)
        else:
            self._waiting.append(waiter)
        return waiter
