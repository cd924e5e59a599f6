"""A gate before the endpoint: dependencies run for every request, the endpoint behind it once.

Frameworks authenticate callers and read arguments between their routers and their endpoints. So
the application is started first. What wraps its endpoint (`gated`) waits at the gate until the key
is claimed; where there is another answer it turns back, and what the application still says is
dropped. What it answers without coming to the gate, such as a 401, leaves as it is.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.runtime.operation import Run, fitting_operation, watched
from semel.web.exchange_async import Promise
from semel.web.tags import every_route


@frozen
class TurnedBack:
    """There is another answer, of this status: the endpoint is not run."""

    status: int


Verdict: TypeAlias = Run | TurnedBack | None
"""None: the request takes no part after all, and the endpoint runs as without a guard."""


class EndpointGate:
    """Where one request waits to be let through to its endpoint."""

    __slots__ = ("_loop", "app", "called", "in_thread", "reached", "verdict")

    def __init__(self, app: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.app = app
        self.called = False
        """The endpoint is a generator: it was called, and nothing of it has run."""
        self.in_thread = False
        """The endpoint waits in a thread of its framework's, of which there are few."""
        self.reached: Promise[None] = Promise()
        self.verdict: Promise[Verdict] = Promise()

    async def arrive(self) -> Verdict:
        self.reached.keep(None)
        return await self.verdict.wait()

    def arrive_from_thread(self) -> Verdict:
        self.in_thread = True
        return asyncio.run_coroutine_threadsafe(self.arrive(), self._loop).result()


_gate: ContextVar[EndpointGate | None] = ContextVar("semel_gate", default=None)


def at_gate(gate: EndpointGate | None) -> Callable[[], None]:
    """Make this the gate of the current context; the result undoes that."""
    before = _gate.set(gate)
    return lambda: _gate.reset(before)


def passed_by(dependant: Any) -> bool:
    """Whether FastAPI calls another endpoint than the one that was made to wait for its request.

    Of the same application: a dependency may ask another one, which has nothing to do with it.
    """
    gate = _gate.get()
    if gate is None or gate.called or gate.reached.kept or is_gated(dependant.call):
        return False
    return any(getattr(route, "dependant", None) is dependant for route in every_route(gate.app))


# ── the endpoint's side ───────────────────────────────────────────────────────────────────────────

_GATED = "__semel_gated__"


def is_gated(endpoint: Any) -> bool:
    return getattr(endpoint, _GATED, False) is True


def gated(endpoint: Callable[..., Any], turned_back: Callable[[int], Any]) -> Callable[..., Any]:
    """``endpoint``, waiting at the gate of its request; in a thread it waits there.

    ``turned_back`` makes an empty response of the framework's own.
    """
    kind = inspect.unwrap(_function(endpoint))
    if inspect.isasyncgenfunction(kind):
        wrapped = _gated_async_generator(endpoint)
    elif inspect.isgeneratorfunction(kind):
        wrapped = _gated_generator(endpoint)
    else:
        wrapped = _gated_function(endpoint, turned_back)
    wrapped = functools.wraps(endpoint)(wrapped)
    setattr(wrapped, _GATED, True)
    return wrapped


def _function(endpoint: Any) -> Any:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return endpoint  # pyright: ignore[reportUnknownVariableType]


def _gated_function(
    endpoint: Callable[..., Any], turned_back: Callable[[int], Any]
) -> Callable[..., Any]:
    async def awaited(
        gate: EndpointGate | None, given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> Any:
        verdict = None if gate is None else await gate.arrive()
        if isinstance(verdict, TurnedBack):
            return turned_back(verdict.status)
        arguments = _entered(verdict, named)
        with watched():
            result = endpoint(*given, **arguments)
            return await result if inspect.isawaitable(result) else result

    def called(*given: Any, **named: Any) -> Any:
        gate = _gate.get()
        if _in_event_loop():
            return awaited(gate, given, named)
        verdict = None if gate is None else gate.arrive_from_thread()
        if isinstance(verdict, TurnedBack):
            return turned_back(verdict.status)
        arguments = _entered(verdict, named)
        with watched():
            return endpoint(*given, **arguments)

    return called


def _gated_async_generator(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    async def items(gate: EndpointGate | None, named: Mapping[str, Any]) -> AsyncIterator[Any]:
        verdict = None if gate is None else await gate.arrive()
        if isinstance(verdict, TurnedBack):
            return
        async for item in endpoint(**_entered(verdict, named)):
            yield item

    def called(**named: Any) -> AsyncIterator[Any]:
        return items(_called(), named)

    return called


def _gated_generator(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    def items(gate: EndpointGate | None, named: Mapping[str, Any]) -> Iterator[Any]:
        # Each step may run in another thread, and each in a context of its own.
        verdict = None if gate is None else gate.arrive_from_thread()
        if isinstance(verdict, TurnedBack):
            return
        pieces = endpoint(**_entered(verdict, named))
        while True:
            leave = None if verdict is None else verdict.enter()
            try:
                item = next(pieces)
            except StopIteration:
                return
            finally:
                if leave is not None:
                    leave()
            yield item

    def called(**named: Any) -> Iterator[Any]:
        return items(_called(), named)

    return called


def _called() -> EndpointGate | None:
    gate = _gate.get()
    if gate is not None:
        gate.called = True
    return gate


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _entered(run: Run | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The context becomes the run's, and its arguments what they stand for."""
    if run is not None:
        run.occupy()
    return {name: real(value) for name, value in named.items()}


class StandIn:
    """Given to dependencies before there is a transaction; its endpoint gets the real one.

    Kept by a dependency for later, it hands on what is asked of it.
    """

    def __init__(self, what: str) -> None:
        self._semel_what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(real(self), name)


def real(value: Any) -> Any:
    """What ``value`` stands for, if it stands for anything."""
    if type(value) is not StandIn:
        return value
    try:
        operation = fitting_operation()
    except LookupError as error:
        raise ConfigurationError(
            f"the {value._semel_what} of a request opens when its key has been claimed: use it in "  # pyright: ignore[reportPrivateUsage]
            "the endpoint, of a route with mode='atomic' and required=True"
        ) from error
    return getattr(operation, value._semel_what)  # pyright: ignore[reportPrivateUsage]
