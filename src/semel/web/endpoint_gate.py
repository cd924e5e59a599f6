"""A gate before the endpoint: dependencies run for every request, the endpoint only once.

FastAPI and Litestar authenticate callers and read arguments between the router and the endpoint.
So the application is called first, and what wraps its endpoint (`gated`) waits at the gate until
the key is claimed. If there is another answer, the endpoint is turned back: it does not run, and
what the application still sends is dropped. What the application answers without reaching the
gate, such as a 401, is sent as it is. `gated` has the side of the server.
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
from semel.stores.open_transactions import in_event_loop
from semel.web.exchange_async import Promise
from semel.web.routes import every_route


@frozen
class TurnedBack:
    """The endpoint is not run: another answer, of this status, is sent."""

    status: int


GateVerdict: TypeAlias = Run | TurnedBack | None
"""A run: the endpoint runs in it. None: the request takes no part, as without a guard."""


class EndpointGate:
    """Where one request waits to be let through to its endpoint."""

    __slots__ = ("_loop", "app", "called", "in_thread", "reached", "verdict")

    def __init__(self, app: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.app = app
        self.called = False
        """The endpoint is a generator that was called and has not begun to run."""
        self.in_thread = False
        """The endpoint waits in a thread of the framework, which has few."""
        self.reached: Promise[None] = Promise()
        self.verdict: Promise[GateVerdict] = Promise()

    async def arrive(self) -> GateVerdict:
        self.reached.keep(None)
        return await self.verdict.wait()

    def arrive_from_thread(self) -> GateVerdict:
        self.in_thread = True
        return asyncio.run_coroutine_threadsafe(self.arrive(), self._loop).result()


_gate: ContextVar[EndpointGate | None] = ContextVar("semel_gate", default=None)


def at_gate(gate: EndpointGate | None) -> Callable[[], None]:
    """Make this the gate of the current context; call the result to undo it."""
    before = _gate.set(gate)
    return lambda: _gate.reset(before)


def passed_by(dependant: Any) -> bool:
    """Whether FastAPI calls another endpoint than the one that waits for this request.

    Only endpoints of the same application count: a dependency may send a request to another one.
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
    """``endpoint``, which waits at the gate of its request, in the thread where it is called.

    ``turned_back`` makes an empty response of the framework.
    """
    kind: Any = endpoint
    while isinstance(kind, functools.partial):
        kind = kind.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    kind = inspect.unwrap(kind)
    if inspect.isasyncgenfunction(kind):
        wrapped = _gated_async_generator(endpoint)
    elif inspect.isgeneratorfunction(kind):
        wrapped = _gated_generator(endpoint)
    else:
        wrapped = _gated_function(endpoint, turned_back)
    wrapped = functools.wraps(endpoint)(wrapped)
    setattr(wrapped, _GATED, True)
    return wrapped


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
        if in_event_loop():
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


def _entered(run: Run | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Enter the run, and replace stand-ins among the arguments by what they stand for."""
    if run is not None:
        run.occupy()
    return {name: real(value) for name, value in named.items()}


class StandIn:
    """Stands for the transaction, or the session, that opens after the dependencies.

    The endpoint gets the real one. A dependency may keep the stand-in and use it later.
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
