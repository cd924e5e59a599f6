"""The exchange of a coroutine function that runs `once`: see `once_sync`."""

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
        """Claim, call the function, settle. The last two are one task, carried through."""
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        in_time = self.began(entry)
        return await asyncio.shield(self.spawn(self._run(in_time)))

    async def _run(self, in_time: bool) -> Answer:
        outcome: HandlerOutcome = too_late()
        if in_time:
            self.run.enter()
            try:
                outcome = returned(await self._function())
            except BaseException as error:
                outcome = raised(error)
        try:
            reached = await self.drive(self.settling(outcome))
            if isinstance(reached, Flowing):
                raise AssertionError("a function does not stream")
            self.tell(reached)
            return reached
        finally:
            await self.end()
