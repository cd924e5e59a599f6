"""The exchange of one keyed request, awaited: for ASGI, views in event loops, and functions."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from semel.core.admission import Call, Ticket
from semel.core.contract import Operation, StoreOperation
from semel.core.flow import Step, Stops, arun, wind_up
from semel.core.model import Headers, Response
from semel.core.runner import (
    Apart,
    Await,
    Discard,
    Drain,
    Drained,
    HandlerOutcome,
    Invoke,
    Pause,
    Pursue,
    Render,
)
from semel.errors import StoreUnavailable
from semel.log import log
from semel.process.current import Run
from semel.process.jitter import pause_before
from semel.process.transact import AsyncTransact
from semel.stores.base import AsyncStore
from semel.web.desk import Performer, too_late
from semel.web.handler import start_task

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")


class AwaitedHandler(Protocol):
    """What runs under the lease: an ASGI application, a view, or a coroutine function."""

    async def outcome(self, run: Run, running: set[asyncio.Task[Any]]) -> HandlerOutcome: ...
    async def drain(self, headers: Headers) -> Drained: ...
    async def discard(self) -> None: ...
    def release(self) -> None: ...
    async def returned(self) -> None: ...
    def close(self) -> None: ...
    def raise_again(self) -> None: ...


class AwaitedExchange(Performer):
    """Performs the operations of one keyed request, awaited."""

    __slots__ = ("_store", "_transact", "handler")

    def __init__(
        self,
        guard: Guard,
        ticket: Ticket,
        call: Call,
        handler: AwaitedHandler,
        started: float | None = None,
    ) -> None:
        super().__init__(guard, ticket, call, started)
        self._store: AsyncStore = guard.backend.awaited()
        self._transact: AsyncTransact | None = None
        if call.policy.mode == "atomic":
            left = guard.attendant.settled
            self._transact = AsyncTransact(guard.backend, left, self._lease.max_run)
        self.handler = handler

    async def drive(self, step: Step, stops: Stops = ()) -> Any:
        """Run the exchange; when its caller is cancelled it is finished without one."""
        try:
            return await arun(step, self.perform, stops)
        except asyncio.CancelledError:
            self.spawn(self.finish_alone(step))
            raise
        except BaseException:
            self.end()  # a surprise: at least the lease must run out and the handler end
            self.handler.close()
            if self._transact is not None:
                self.spawn(self._transact.end())
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        start_task(work, self._guard.running)

    async def perform(self, op: Operation[R]) -> R:
        asked = time.monotonic()
        try:
            if not isinstance(op, StoreOperation):
                answer: R = await self._attend(op)
                return answer
            self._before(op)
            reply: R = await (self._transact or self._store).perform(op)
        except StoreUnavailable:
            self._unheard(asked)
            raise
        self._heard(reply)
        if self._transact is None or self._transact.transaction is None:
            self._tell(op, reply)  # within a transaction nothing has changed yet
        return reply

    async def _attend(self, op: Operation[Any]) -> Any:
        match op:
            case Invoke():
                run = self._begin(op)
                if run is None:
                    return too_late()
                if self._transact is not None:
                    run.transaction = self._transact.transaction
                return await self.handler.outcome(run, self._guard.running)
            case Drain(headers):
                return await self.handler.drain(headers)
            case Discard():
                return await self.handler.discard()
            case Await(identity, fence, patience):
                return await self._guard.attendant.waiters.await_(identity, fence, patience)
            case Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self._held()
            case Pursue(write, claim, seen):
                return self._guard.attendant.pursue(write, claim, seen)
            case Render(response):
                return await self._render(response)
            case Apart(work):
                return await asyncio.to_thread(work)
            case _ if self._transact is not None:
                self._before(op)
                reply = await self._transact.perform(op)
                self._heard(reply)
                return reply
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    async def _render(self, response: Response) -> Response:
        on_replay = self.call.policy.on_replay
        if on_replay is None:
            return response
        rendered = on_replay(self._request, response)
        current_state: Response = await rendered if inspect.isawaitable(rendered) else rendered
        return current_state

    def end(self) -> None:
        """The answer has left, or nobody waits for it."""
        self.let_go()
        self.handler.release()

    async def finish_alone(self, step: Step) -> None:
        """The client is gone: carry on to the end without it."""
        try:
            await wind_up(step, self.perform)
        finally:
            await self.see_off()

    async def see_off(self) -> None:
        """Let the application run out, though nobody is left to tell what it raises."""
        self.end()
        await self.handler.returned()
        self.handler.close()
        try:
            self.handler.raise_again()
        except Exception as error:
            log.error("semel: a handler failed after its client had left", exc_info=error)
