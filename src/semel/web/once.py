"""The exchanges of functions that run `once`: in a thread, or awaited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from semel.core import operations as ops
from semel.core.exchange.answers import Answer
from semel.core.exchange.settle import Flowing
from semel.core.records import Response
from semel.errors import OutcomeUnknown
from semel.web.exchange import too_late
from semel.web.exchange_async import AsyncExchange
from semel.web.exchange_sync import BlockingExchange

_HEADERS: Final = ((b"content-type", b"application/json"),)


def _returned(value: Any) -> ops.HandlerOutcome:
    """The result of a function, as the answer of a handler."""
    try:
        body = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # It ran, and its result cannot be kept: nobody may run it again.
        doubt = OutcomeUnknown(f"the function's result is not JSON: {error}")
        doubt.__cause__ = error
        return ops.Raised(doubt)
    return ops.Returned(Response(200, _HEADERS, body))


def _raised(error: BaseException) -> ops.HandlerOutcome:
    return ops.Raised(error) if isinstance(error, Exception) else ops.Abandoned(error)


def _answer(reached: Answer | Flowing) -> Answer:
    if isinstance(reached, Flowing):
        raise AssertionError("a function does not stream")
    return reached


class FunctionExchange(BlockingExchange):
    """One call of a function in the place of an application."""

    __slots__ = ("_function",)

    def answered(self, function: Callable[[], Any]) -> Answer:
        """Claim, call the function, settle."""
        self._function = function
        return _answer(self.serve())

    def call(self) -> ops.HandlerOutcome:
        leave = self.run.enter()
        try:
            return _returned(self._function())
        except BaseException as error:
            return _raised(error)
        finally:
            leave()


class AsyncFunctionExchange(AsyncExchange):
    """One call of a coroutine function in the place of an application."""

    __slots__ = ()

    async def answered(self, function: Callable[[], Awaitable[Any]]) -> Answer:
        """Claim, call the function, settle. The last two are one task, carried through."""
        entry = await self.claim()
        if isinstance(entry, Answer):
            self.tell(entry)
            return entry
        in_time = self.start_run(entry)
        return await asyncio.shield(self.spawn(self._run(function, in_time)))

    async def _run(self, function: Callable[[], Awaitable[Any]], in_time: bool) -> Answer:
        outcome: ops.HandlerOutcome = too_late()
        if in_time:
            self.run.enter()
            try:
                outcome = _returned(await function())
            except BaseException as error:
                outcome = _raised(error)
        try:
            answer = _answer(await self.drive(self.settling(outcome)))
            self.tell(answer)
            return answer
        finally:
            await self.end()
