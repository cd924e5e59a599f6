"""The ASGI adapter with a gate before the endpoint; see `gate`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from semel.core.admission import Refused, Ticket
from semel.core.answers import Answer
from semel.core.contract import Operation
from semel.core.model import Response
from semel.core.policy import Policy
from semel.core.problems import refuse
from semel.core.runner import Await, HandlerOutcome, Raised, Unwoken
from semel.errors import NotExecuted
from semel.process.current import Run
from semel.web.asgi import (
    Middleware,
    has_key,
    read_body,
    request_of,
    send_response,
    tell_status,
    where_is,
)
from semel.web.awaited import AwaitedExchange
from semel.web.desk import MARK, Desk, Opened
from semel.web.gate import Gate, TurnedBack, Verdict, at_gate
from semel.web.handler import (
    AsgiApp,
    Handler,
    Message,
    Receive,
    Scope,
    Send,
    body_messages,
    keepable,
    start_task,
)
from semel.web.message import Spool
from semel.web.routing import Place

if TYPE_CHECKING:
    from semel.guard import Guard


class GatedHandler(Handler):
    """One run of an application that waits before its endpoint."""

    __slots__ = ("_ended", "_oversize", "_said", "_taken", "gate", "ruling", "scope")

    def __init__(
        self,
        app: AsgiApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        policy: Policy,
        label: str,
    ) -> None:
        self.ruling = policy, label
        self.scope = keepable(scope)
        """What the application gets, and leaves its notes in."""
        super().__init__(app, self.scope, receive, send, Spool(), policy)
        self.gate = Gate(app)
        self._taken = 0
        """How much of the body the application has read on its way to the gate."""
        self._ended = self._oversize = False
        self._said = 503

    async def approach(self, running: set[asyncio.Task[Any]]) -> bool:
        """Start the application; whether it has come to the gate, and not to an end before."""
        self._begin()
        self._task = start_task(self._call_app(), running)
        try:
            await self.gate.reached.wait()
        except asyncio.CancelledError:
            self._task.cancel()  # nothing is claimed: the application hears of it as without us
            raise
        return not self._over.kept

    async def rest(self) -> Spool | Response | None:
        """The whole body, of which the application may have left something unread."""
        if self._oversize:
            return refuse("body-too-large")
        if self._ended:
            return self._request_body
        return await read_body(self._policy, self._receive, self._request_body)

    async def outcome(self, run: Run, running: set[asyncio.Task[Any]]) -> HandlerOutcome:
        if self._over.kept and not self.gate.verdict.kept:
            return Raised(NotExecuted("the application gave up before its endpoint was called"))
        self._run = run
        unread = body_messages(self._request_body, self._taken)
        self._incoming = iter(()) if self._ended else unread
        self.gate.verdict.keep(run)
        return await self._outcome.wait()

    async def answer(self, message: Message) -> None:
        """Send on behalf of the guard, and remember what an application turned back is told."""
        if message["type"] == "http.response.start":
            self._said = message["status"]
        await self._send(message)

    async def refuse(self, response: Response | None) -> None:
        """Turn back; without a response when the client has left."""
        if response is not None:
            await send_response(response, self.answer)
        self.release()

    def wave_through(self) -> None:
        """The request takes no part."""
        self.gate.verdict.keep(None)

    def release(self) -> None:
        """Whoever still waits at the gate turns back; the first verdict counts."""
        self.gate.verdict.keep(TurnedBack(self._said))
        super().release()

    async def run_out(self) -> None:
        """See to the end of an application; one that is not guarded hears of a cancellation."""
        try:
            await self.returned()
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            raise
        self.close()
        self.raise_again()

    # ── what the application meets ────────────────────────────────────────────────────────────────

    def _enter(self) -> None:
        at_gate(self.gate)

    def _stopped(self, error: BaseException | None) -> None:
        super()._stopped(error)
        self.gate.reached.keep(None)

    async def _app_receive(self) -> Message:
        if isinstance(await self._decided(), Run):
            return await super()._app_receive()
        message = await self._receive()
        if message["type"] == "http.request" and not self.gate.verdict.kept:
            self._note(message)
        return message

    def _note(self, message: Message) -> None:
        self._ended = not message.get("more_body", False)
        self._oversize = self._request_body.size > self._policy.max_request_body
        if not self._oversize:  # else it is refused at the gate, and need not be kept
            self._request_body.write(message.get("body", b""))
            self._taken = self._request_body.size

    async def _app_send(self, message: Message) -> None:
        verdict = await self._decided()
        if isinstance(verdict, Run):
            await super()._app_send(message)
        elif verdict is None:
            await self._send(message)

    async def _decided(self) -> Verdict:
        """None on the way to the gate; there an application neither speaks nor reads."""
        if self.gate.called or self.gate.reached.kept:
            return await self.gate.arrive()
        return None


class GatedMiddleware(Middleware):
    """Guards an application whose endpoints can be made to wait; the others as ever."""

    claims_late: ClassVar[bool] = True

    def __init__(self, app: AsgiApp, guard: Guard) -> None:
        super().__init__(app, guard)
        self._threads: list[object] = []
        """Those that hold a thread of the framework's while they wait for another's answer."""

    def make_wait(self, scope: Scope) -> bool:
        """Whether the endpoint that will answer waits at the gate."""
        raise NotImplementedError

    async def _status(self, scope: Scope) -> Response | None:
        """Told by a route of its own, behind the application's authentication."""
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})  # made further in it would be out of sight for tenant=
        where = where_is(scope)
        # Now: on its way to the gate a request's scope becomes that of what is mounted.
        policy, label = self._desk.ruling(request_of(scope, where.path), where)
        if not policy.required and not has_key(scope):
            return await self._pass(scope, receive, send)
        if not self.make_wait(scope):
            return await super()._serve(scope, receive, send)
        handler = GatedHandler(self.app, scope, receive, send, policy, label)
        if await handler.approach(self.guard.running):
            opened = await self._at_gate(handler, where)
            if opened is not None:
                return await self._exchange(*opened, handler.answer)
        return await handler.run_out()

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that a dependency makes of its own application does not wait at its gate."""
        leave = at_gate(None)
        try:
            await self.app(scope, receive, send)
        finally:
            leave()

    async def _at_gate(
        self, handler: GatedHandler, where: Place
    ) -> tuple[AwaitedExchange, Handler, Opened] | None:
        try:
            return await self._opened(handler, where)
        except BaseException:
            handler.release()
            raise

    async def _opened(
        self, handler: GatedHandler, where: Place
    ) -> tuple[AwaitedExchange, Handler, Opened] | None:
        """The exchange to be driven; None when the request is answered, or takes no part."""
        scope = handler.scope
        request = request_of(scope, where.path)
        asked = await self._desk.ask(request) if self._desk.awaits and has_key(scope) else None
        ticket, label = self._desk.admit_under(request, *handler.ruling, asked)
        if isinstance(ticket, Refused):
            await handler.refuse(ticket.response)
            return None
        if ticket is None or self._desk.covers(ticket, scope.get(MARK)):
            handler.wave_through()
            return None
        body = await handler.rest()
        if not isinstance(body, Spool):
            if body is not None:
                self._desk.turned_away(body, ticket, label)
            await handler.refuse(body)
            return None
        opened = await self._open(ticket, where, label, body, scope)
        if isinstance(opened, Answer):
            await self._answer(opened, handler.answer)
            handler.release()
            return None
        scope[MARK] = opened.call.identity
        exchange = self._exchange_of(ticket, opened, handler)
        return exchange, handler, opened

    def _exchange_of(
        self, ticket: Ticket, opened: Opened, handler: GatedHandler
    ) -> AwaitedExchange:
        given = (self.guard, ticket, opened.call, handler, opened.started)
        if handler.gate.in_thread:
            return _InThread(*given, threads=self._threads)
        return AwaitedExchange(*given)


class _InThread(AwaitedExchange):
    """Of those that hold a thread while they wait there are ``max_waiters`` at most."""

    __slots__ = ("_threads",)

    def __init__(self, *given: Any, threads: list[object]) -> None:
        super().__init__(*given)
        self._threads = threads

    async def _attend(self, op: Operation[Any]) -> Any:
        if not isinstance(op, Await):
            return await super()._attend(op)
        if len(self._threads) >= self._guard.max_waiters:
            return Unwoken()
        self._threads.append(self)
        try:
            return await super()._attend(op)
        finally:
            self._threads.remove(self)


async def status_at(desk: Desk, scope: Scope) -> Response:
    """What the route that tells of accepted requests answers."""
    return await tell_status(desk, scope) or refuse("no-such-operation")
