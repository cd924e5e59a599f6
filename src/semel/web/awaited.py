"""An exchange whose operations are awaited: for ASGI, views in event loops, and functions."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.core.answers import Answer
from semel.core.contract import Claimed, Operation, StoreOperation
from semel.core.flow import Flow, arun
from semel.core.model import Response
from semel.core.runner import Apart, Await, HandlerOutcome, Pause, Pursue, Render
from semel.core.settle import Flowing, end_stream, settle
from semel.errors import StoreUnavailable
from semel.process.jitter import pause_before
from semel.process.transact import AsyncTransact
from semel.web import accounts
from semel.web.exchange import WebExchange

if TYPE_CHECKING:
    from semel.core.model import Request
    from semel.core.policy import Policy
    from semel.core.runner import Drained
    from semel.guard import Guard
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
    """Somebody must: the event loop itself does not."""
    running.add(task)
    task.add_done_callback(running.discard)


class AsyncExchange(WebExchange):
    """One keyed request in an event loop."""

    __slots__ = ("_store", "_transact")

    def __init__(self, guard: Guard, request: Request, policy: Policy, label: str) -> None:
        super().__init__(guard, request, policy, label)
        self._store: AsyncStore = guard.backend.awaited()
        self._transact: AsyncTransact | None = None
        if policy.mode == "atomic":
            left, limit = guard.attendant.settled, policy.max_run.total_seconds()
            self._transact = AsyncTransact(guard.backend, left, limit)

    # ── the two halves ────────────────────────────────────────────────────────────────────────────

    async def claim(self) -> Claimed | Answer:
        """The first half, by the caller's own task; cancelled, it winds up without that."""
        try:
            return await arun(self.claiming(), self.perform, self._claim_alone)
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self.end()  # a surprise: at least nothing stays open
            raise

    def _claim_alone(self, rest: Flow[Claimed | Answer]) -> None:
        self.spawn(self._wind_up(rest))

    async def _wind_up(self, rest: Flow[Any]) -> None:
        try:
            await self.drive(rest)
        finally:
            await self.end()

    def began(self, entry: Claimed) -> bool:
        """`begin`, with the transaction that the claim has opened."""
        in_time = self.begin(entry)
        if self._transact is not None:
            self.run.transaction = self._transact.transaction
        return in_time

    def settling(self, outcome: HandlerOutcome) -> Flow[Answer | Flowing]:
        """The second half."""
        self.ended()
        return settle(self, outcome, self.run.course)

    def ending(self, stream: Flowing, drained: Drained) -> Flow[Answer]:
        """The second half of an answer whose body has flowed past."""
        return end_stream(self, stream, drained, self.run.course)

    async def drive(self, flow: Flow[T]) -> T:
        """Drive a half to its end in a task that is nobody's to cancel.

        At the end of an event loop it is cancelled all the same: then it is carried on here.
        """
        for _ in range(_CARRIED_ON):
            rest: list[Flow[T]] = []
            try:
                return await arun(flow, self.perform, rest.append)
            except asyncio.CancelledError:
                flow = rest[0]
        return await arun(flow, self.perform)

    async def end(self) -> None:
        """Nothing stays open or leased."""
        if self._transact is not None:
            await self._transact.end()
        self.let_go()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return start_task(work, self.guard.running)

    # ── its operations ────────────────────────────────────────────────────────────────────────────

    async def perform(self, op: Operation[R]) -> R:
        account = self.account
        if account is None:
            return await self._perform(op)
        asked = accounts.now()
        try:
            reply = await self._perform(op)
        except Exception as error:
            account.saw(op, error, asked)
            raise
        account.saw(op, reply, asked)
        return reply

    async def _perform(self, op: Operation[R]) -> R:
        asked = time.monotonic()
        try:
            if not isinstance(op, StoreOperation):
                answer: R = await self.attend(op)
                return answer
            self.before(op)
            reply: R = await (self._transact or self._store).perform(op)
        except StoreUnavailable:
            self.unheard(asked)
            raise
        self.heard(reply)
        if self._transact is None or self._transact.transaction is None:
            self.changed(op, reply)  # within a transaction nothing has changed yet
        return reply

    async def attend(self, op: Operation[Any]) -> Any:
        """What no store is asked."""
        match op:
            case Await(identity, fence, patience):
                return await self.guard.attendant.waiters.await_(identity, fence, patience)
            case Pause(attempt=attempt):
                await asyncio.sleep(pause_before(attempt))
                return self.held()
            case Pursue(write, claim, seen):
                return self.guard.attendant.pursue(write, claim, seen)
            case Render(response):
                return await self._render(response)
            case Apart(work):
                return await asyncio.to_thread(work)
            case _ if self._transact is not None:
                self.before(op)
                reply = await self._transact.perform(op)
                self.heard(reply)
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
