"""The exchange of a coroutine function that is done `once`: see `functions`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from semel.core.exchange.answers import Answer
from semel.core.exchange.settle import Flowing
from semel.core.operations.handler import HandlerOutcome
from semel.web.exchange import too_late
from semel.web.exchange_async import AsyncExchange
from semel.web.once_sync import raised, returned

if TYPE_CHECKING:
    from semel.core.policy import RoutePlan
    from semel.core.records import Request
    from semel.runtime.runtime import Runtime


class AsyncFunctionExchange(AsyncExchange):
    """One call of a coroutine function in the place of an application."""

    __slots__ = ("_function",)

    def __init__(
        self,
        runtime: Runtime,
        plan: RoutePlan,
        request: Request,
        function: Callable[[], Awaitable[Any]],
    ) -> None:
        super().__init__(runtime, plan, request)
        self._function = function

    async def answered(self) -> Answer:
        """Both halves. The function and the write that settles its record are one task."""
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        in_time = self.began(entry)
        return await asyncio.shield(self.spawn(self._run(in_time)))

    async def _run(self, in_time: bool) -> Answer:
        outcome = await self._outcome() if in_time else too_late()
        try:
            reached = await self.drive(self.settling(outcome))
            if isinstance(reached, Flowing):
                raise AssertionError("a function does not stream")
            self.tell(reached)
            return reached
        finally:
            await self.end()

    async def _outcome(self) -> HandlerOutcome:
        self.run.enter()
        try:
            return returned(await self._function())
        except BaseException as error:
            return raised(error)
