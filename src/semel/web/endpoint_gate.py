"""A gate before the endpoint: dependencies run for every request, the endpoint only once.

FastAPI and Litestar authenticate callers and read arguments between the router and the endpoint.
So the application is called first, and what wraps its endpoint (`gated`) waits at the gate until
the key is claimed. If there is another answer, the endpoint is turned back: it does not run, and
what the application still sends is dropped. What the application answers without reaching the
gate, such as a 401, is sent as it is.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from semel.core.exchange.answers import Answer
from semel.core.exchange.problems import refuse
from semel.core.frozen import frozen
from semel.core.operations.handler import Await, HandlerOutcome, Raised, Unwoken
from semel.core.operations.requests import Claimed, FlowOperation
from semel.core.records import Response
from semel.errors import ConfigurationError, NotExecuted
from semel.runtime.operation import Run, fitting_operation, watched
from semel.stores.open_transactions import in_event_loop
from semel.web.asgi import Middleware, asked, tell_status
from semel.web.asgi_exchange import (
    AsgiApp,
    AsgiExchange,
    Message,
    Receive,
    Scope,
    Send,
    body_messages,
    send_response,
)
from semel.web.body import Body, SpooledBody
from semel.web.exchange import too_late
from semel.web.exchange_async import Promise
from semel.web.pipeline import Pipeline
from semel.web.routes import every_route

if TYPE_CHECKING:
    from semel.guard import Guard


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
"""The gate of the current request; its exchange ends, and a context may go on for long."""


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
    is_async = inspect.isasyncgenfunction(kind)

    def begun(**named: Any) -> Any:
        gate = _gate.get()
        if gate is not None:
            gate.called = True
        return (_async_items if is_async else _items)(endpoint, gate, named)

    generates = is_async or inspect.isgeneratorfunction(kind)
    wrapped = begun if generates else _gated_function(endpoint, turned_back)
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


async def _async_items(
    endpoint: Callable[..., Any], gate: EndpointGate | None, named: Mapping[str, Any]
) -> AsyncIterator[Any]:
    verdict = None if gate is None else await gate.arrive()
    if isinstance(verdict, TurnedBack):
        return
    async for item in endpoint(**_entered(verdict, named)):
        yield item


def _items(
    endpoint: Callable[..., Any], gate: EndpointGate | None, named: Mapping[str, Any]
) -> Iterator[Any]:
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


def _entered(run: Run | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Enter the run, and replace stand-ins among the arguments by what they stand for."""
    if run is not None:
        run.occupy()
    return {
        name: value.semel_real() if type(value) is StandIn else value
        for name, value in named.items()
    }


class StandIn:
    """Stands for the transaction, or the session, that opens after the dependencies.

    The endpoint gets the real one. A dependency may keep the stand-in and use it later.
    """

    def __init__(self, what: str) -> None:
        self.semel_what = what

    def semel_real(self) -> Any:
        """What it stands for."""
        try:
            operation = fitting_operation()
        except LookupError as error:
            raise ConfigurationError(
                f"the {self.semel_what} of a request opens when its key has been claimed: use it "
                "in the endpoint, of a route with mode='atomic' and required=True"
            ) from error
        return getattr(operation, self.semel_what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.semel_real(), name)


async def transaction() -> Any:
    """A dependency: the connection of the open transaction, in ``mode="atomic"``."""
    return StandIn("transaction")


async def session() -> Any:
    """A dependency: the open transaction as a Session of SQLAlchemy, or as an AsyncSession."""
    return StandIn("session")


# ── the server's side ─────────────────────────────────────────────────────────────────────────────


class GatedExchange(AsgiExchange):
    """One keyed request to an application that waits before its endpoint.

    Until the key is claimed, the application talks to the server as without a guard, and is
    cancelled when the server cancels.
    """

    __slots__ = (
        *("_all_read", "_let_through", "_over", "_read", "_sent_status", "_taken", "_threads"),
        "gate",
    )

    async def approach(self, threads: list[object]) -> bool:
        """Start the application; True when it reaches the gate, False when it ends before.

        ``threads``: the exchanges that hold a thread of the framework while they wait.
        """
        self.prepare()
        self.gate = EndpointGate(self._app)
        self._threads = threads
        self._read = SpooledBody()
        """What has come of the body."""
        self._taken = 0
        """How much of the body the application has read on its way to the gate."""
        self._all_read = self._let_through = self._over = False
        self._sent_status = 503
        task = self.spawn(self._call_app())
        self._task = weakref.ref(task)
        try:
            await self.gate.reached.wait()
        except asyncio.CancelledError:
            # Nothing is claimed: the application hears of it as without us. One that goes on all
            # the same finds the gate closed, and does not wait there for ever.
            self.turn_back()
            task.cancel()
            raise
        return not self._over

    async def read_body(self) -> Body | Response | None:
        """The whole body: what the application has read, and the rest."""
        if self._read.size > self.policy.body_limit:
            return refuse("body-too-large")
        return self._read.small() if self._all_read else await self._read_rest(self._read)

    async def turn_away(self, response: Response | None) -> None:
        """Send an answer, and wait for the application, whose endpoint is turned back."""
        await self._send_instead(response)
        self.turn_back()
        await self.run_out()

    async def _send_instead(self, response: Response | None) -> None:
        """Send an answer of the guard; the application that is turned back gets its status."""
        if response is not None:
            self._sent_status = response.status
            await send_response(response, self._send)

    def overhear(self, heard: Callable[[bytes], None], before: bytes = b"") -> None:
        """The application has mostly read it all on its way to the gate."""
        if self._all_read:
            heard(self._read.whole())
        else:
            super().overhear(heard, self._read.whole())

    async def take_no_part(self) -> None:
        """Let the endpoint run as without a guard."""
        if hasattr(self, "body"):
            self._incoming = self._unread()
        self.gate.verdict.keep(None)
        await self.run_out()

    async def respond(self) -> None:
        """Claim, let the endpoint run, and wait until its record is settled."""
        try:
            entry = await self.claim()
            if isinstance(entry, Answer):
                self.tell(entry)
                await self._send_instead(entry.response)
            else:
                await self._let_in(entry)
        finally:
            self.turn_back()
        await self._done
        self._read.close()
        self.raise_again()

    async def _let_in(self, entry: Claimed) -> None:
        """Let the application through to its endpoint, unless it is too late."""
        in_time = self.start_run(entry)
        if in_time and not self._over:
            self._incoming = self._unread()
            self._let_through = True
            self.gate.verdict.keep(self.run)
            return
        given_up = NotExecuted("the application gave up before its endpoint was called")
        try:
            await self._settle(Raised(given_up) if in_time else too_late())
        finally:
            await self.end()

    def _unread(self) -> Iterator[Message]:
        """What the application has not read of the body, in the pieces that came."""
        return iter(()) if self._all_read else body_messages(self._read, self._taken)

    async def _answered(self, answer: Answer) -> None:
        if answer.response is not None:
            self._sent_status = answer.response.status
        await super()._answered(answer)

    async def attend(self, op: FlowOperation[Any]) -> Any:
        """At most ``max_waiters`` exchanges hold a thread while they wait."""
        if not isinstance(op, Await) or not self.gate.in_thread:
            return await super().attend(op)
        if len(self._threads) >= self.runtime.max_waiters:
            return Unwoken()
        self._threads.append(self)
        try:
            return await super().attend(op)
        finally:
            self._threads.remove(self)

    def turn_back(self) -> None:
        """The endpoint does not run, unless it was let through: the first verdict counts."""
        self.gate.verdict.keep(TurnedBack(self._sent_status))

    async def run_out(self) -> None:
        """Wait for an application that is not guarded. Cancelled, it cancels the application."""
        try:
            await self._done
        except asyncio.CancelledError:
            task = self._task()
            if task is not None:
                task.cancel()
            raise
        self._read.close()
        self.raise_again()

    # ── what the application meets ────────────────────────────────────────────────────────────────

    def enter(self) -> None:
        _gate.set(self.gate)

    async def call_ended(self, outcome: HandlerOutcome | None) -> None:
        self._over = True
        self.gate.reached.keep(None)
        if self._let_through:
            await super().call_ended(outcome)
        else:
            self.over()

    async def app_receive(self) -> Message:
        if isinstance(await self._verdict(), Run):
            return await super().app_receive()
        unread = None if self._incoming is None else next(self._incoming, None)
        if unread is not None:
            return unread
        message = await self._receive()
        if message["type"] == "http.request" and not self.gate.verdict.kept:
            self._all_read = not message.get("more_body", False)
            # A body that is too large is refused at the gate, and need not be kept.
            if self._read.size <= self.policy.body_limit:
                self._read.write(message.get("body", b""))
                self._taken = self._read.size
        return message

    async def app_send(self, message: Message) -> None:
        verdict = await self._verdict()
        if isinstance(verdict, Run):
            await super().app_send(message)
        elif verdict is None:
            await self._send(message)

    async def _verdict(self) -> GateVerdict:
        """None before the gate. At the gate it waits: the application sends and reads nothing."""
        if self.gate.called or self.gate.reached.kept:
            return await self.gate.arrive()
        return None


class GatedMiddleware(Middleware):
    """Guards an application whose endpoints can be made to wait at a gate.

    Other endpoints are claimed before the application is called, as by `Middleware`.
    """

    claims_late: ClassVar[bool] = True

    def __init__(self, app: AsgiApp, guard: Guard) -> None:
        super().__init__(app, guard)
        self._threads: list[object] = []
        """The exchanges that hold a thread of the framework while they wait for an answer."""

    def make_wait(self, scope: Scope) -> bool:
        """Make the endpoint that will answer wait at the gate; False if it cannot."""
        raise NotImplementedError

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})  # made further in it would be out of sight for tenant=
        where, request = asked(scope)
        # Now: on its way to the gate a request's scope becomes that of what is mounted.
        runtime = self.guard.runtime
        plan = self._pipeline.plan(runtime, request, where)
        policy = plan.policy
        if not policy.looks_at_all and policy.key_header not in request.headers.first:
            return await self._pass(scope, receive, send)
        if not self.make_wait(scope):
            return await super()._serve(scope, receive, send)
        ex = GatedExchange(runtime, plan, request, self.app, scope, receive, send)
        if not await ex.approach(self._threads):
            return await ex.run_out()
        try:
            _, ex.request = asked(ex.scope)  # with what dependencies have done
            return await self._exchange(ex, where)
        finally:
            ex.turn_back()  # unless there was another verdict, which counts

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that a dependency sends to its own application does not wait at a gate."""
        token = _gate.set(None)
        try:
            await self.app(scope, receive, send)
        finally:
            _gate.reset(token)


async def status_at(pipeline: Pipeline, scope: Scope) -> Response:
    """The answer of the route that tells how accepted requests are doing."""
    return await tell_status(pipeline, scope) or refuse("no-such-operation")
