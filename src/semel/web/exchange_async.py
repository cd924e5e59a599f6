"""An exchange whose operations are awaited: for ASGI, views in event loops, and functions."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from semel.backoff import pause_before
from semel.core.exchange.answers import Answer
from semel.core.exchange.claim import claim
from semel.core.exchange.settle import Flowing, end_stream, settle
from semel.core.flow import Flow, interrupted
from semel.core.operations.handler import Apart, Await, HandlerOutcome, Pause, Pursue, Render
from semel.core.operations.requests import Claimed, FlowOperation, StoreOperation
from semel.core.records import Response
from semel.errors import StoreUnavailable
from semel.runtime.transactions import AsyncTransact
from semel.web import request_events
from semel.web.exchange import ASKS_FOR_A_LEASE, WebExchange

if TYPE_CHECKING:
    from semel.core.operations.handler import Drained
    from semel.core.policy import RoutePlan
    from semel.core.records import Request
    from semel.runtime.runtime import Runtime
    from semel.stores.base import AsyncStore


R = TypeVar("R")
T = TypeVar("T")

_CARRIED_ON: Final = 3
"""How often a task may be cancelled that settles a record, before it gives way."""


def start_task(work: Coroutine[Any, Any, T], running: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """A task that goes on without its caller: ``running`` holds it until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    hold_task(task, running)
    return task


def hold_task(task: asyncio.Task[Any], running: set[asyncio.Task[Any]]) -> None:
    """Keep a reference to a task until it ends: the event loop itself keeps only weak ones."""
    running.add(task)
    task.add_done_callback(running.discard)


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

    def claim(self) -> Coroutine[Any, Any, Claimed | Answer]:
        """The first half, by the caller's own task; cancelled, it winds up without that."""
        plain = self.worker is None and self.plan.enrolled
        return self.follow(claim(self) if plain else self.claiming(), self._claim_alone)

    def _claim_alone(self, rest: Flow[Claimed | Answer]) -> None:
        self.spawn(self._wind_up(rest))

    async def _wind_up(self, rest: Flow[Any]) -> None:
        try:
            await self.drive(rest)
        finally:
            await self.end()

    def start_run(self, entry: Claimed) -> bool:
        """`new_run`, with the transaction that the claim has opened."""
        in_time = self.new_run(entry)
        if self.transact is not None:
            self.run.transaction = self.transact.transaction
        return in_time

    def settling(self, outcome: HandlerOutcome) -> Flow[Answer | Flowing]:
        """The second half."""
        self.ended()
        return settle(self, outcome, self.run)

    def ending(self, stream: Flowing, drained: Drained) -> Flow[Answer]:
        """The second half of an answer whose body has flowed past."""
        return end_stream(self, stream, drained, self.run)

    async def follow(self, flow: Flow[T], left: Callable[[Flow[T]], object] | None = None) -> T:
        """Drive a half to its end: `arun`, with what most operations take done right here.

        Cancelled, it leaves the flow where it stands; ``left`` gets what is left of it.
        """
        feed: Callable[[Any], FlowOperation[Any]] = flow.send
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
                if quiet and isinstance(op, StoreOperation):
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
                    self.unheard(asked)
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

    def in_transaction(self) -> bool:
        return self.transact is not None and self.transact.transaction is not None

    # ── its operations ────────────────────────────────────────────────────────────────────────────

    async def perform(self, op: FlowOperation[R]) -> R:
        """One operation of either half, where somebody listens, counts or has a transaction."""
        account = self.account
        began = 0.0 if account is None else request_events.now()
        try:
            reply: R = await (self._ask(op) if isinstance(op, StoreOperation) else self.attend(op))
        except Exception as error:
            if account is not None:
                account.saw(op, error, began)
            raise
        if account is not None:
            account.saw(op, reply, began)
        return reply

    async def _ask(self, op: StoreOperation[R]) -> R:
        if self.charge is not None or type(op) in ASKS_FOR_A_LEASE:
            self.before(op)
        reply: R = await (self.transact or self._store).perform(op)
        runtime = self.runtime
        breaker, watched = runtime.breaker, runtime.keeper.waiters.watches
        if self.heedful or breaker.failures or breaker.is_open or watched:
            self.heard(op, reply)
        return reply

    async def attend(self, op: FlowOperation[Any]) -> Any:
        """What no store is asked."""
        match op:
            case Await(identity, fence, patience):
                return await self.runtime.keeper.waiters.await_(identity, fence, patience)
            case Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self.held()
            case Pursue(write, before, seen):
                return self.runtime.keeper.pursue(write, before, seen)
            case Render(response):
                return await self._render(response)
            case Apart(work):
                return await asyncio.to_thread(work)
            case _ if self.transact is not None:
                self.before(op)
                reply = await self.transact.perform(op)
                self.heard(op, reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    async def _render(self, response: Response) -> Response:
        on_replay = self.policy.on_replay
        if on_replay is None:
            return response
        rendered = on_replay(self.request, response)
        current_state: Response = await rendered if inspect.isawaitable(rendered) else rendered
        return current_state


# --- a value that several may wait for in an event loop


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
