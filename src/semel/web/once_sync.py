"""The exchange of a function that runs `once`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.answers import Answer
from semel.core.exchange.settle import Flowing
from semel.core.operations.handler import Abandoned, HandlerOutcome, Raised, Returned
from semel.core.records import Response
from semel.errors import OutcomeUnknown
from semel.web.exchange_sync import BlockingExchange

if TYPE_CHECKING:
    from semel.core.policy import RoutePlan
    from semel.core.records import Request
    from semel.runtime.runtime import Runtime

_HEADERS: Final = ((b"content-type", b"application/json"),)


def returned(value: Any) -> HandlerOutcome:
    """The result of a function, as the answer of a handler."""
    try:
        body = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # It ran, and its result cannot be kept: nobody may run it again.
        doubt = OutcomeUnknown(f"the function's result is not JSON: {error}")
        doubt.__cause__ = error
        return Raised(doubt)
    return Returned(Response(200, _HEADERS, body))


def raised(error: BaseException) -> HandlerOutcome:
    return Raised(error) if isinstance(error, Exception) else Abandoned(error)


class FunctionExchange(BlockingExchange):
    """One call of a function in the place of an application."""

    __slots__ = ("_function",)

    def __init__(
        self, runtime: Runtime, plan: RoutePlan, request: Request, function: Callable[[], Any]
    ) -> None:
        super().__init__(runtime, plan, request)
        self._function = function

    def answered(self) -> Answer:
        """Claim, call the function, settle."""
        reached = self.serve()
        if isinstance(reached, Flowing):
            raise AssertionError("a function does not stream")
        return reached

    def call(self) -> HandlerOutcome:
        leave = self.run.enter()
        try:
            return returned(self._function())
        except BaseException as error:
            return raised(error)
        finally:
            leave()
