"""The ASGI adapter: pure ASGI, nothing between a request that takes no part and its application.

A keyed request is claimed by the server's own task. Its handler runs in a task of its own, so that
a client that hangs up, or a server that cancels, ends neither the handler nor the write that
settles its record.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from semel.core.admission import Call, Refused, Ticket
from semel.core.answers import Answer
from semel.core.contract import Operation, StoreOperation
from semel.core.flow import Flow, Step, arun, wind_up
from semel.core.model import Headers, HeaderView, Request, Response
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.problems import refuse
from semel.core.runner import (
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
from semel.errors import ConfigurationError
from semel.log import log
from semel.process.current import Run
from semel.process.jitter import pause_before
from semel.process.transact import AsyncTransact
from semel.stores.base import AsyncStore
from semel.web.desk import BIG, MARK, Desk, Performer, report, too_late
from semel.web.errands import Errand, find_errand
from semel.web.handler import AsgiApp, Handler, Message, Receive, Scope, Send, start_task
from semel.web.message import Spool
from semel.web.routing import Place, place
from semel.web.tags import find_tag

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")


class Middleware:
    """Guards an ASGI application."""

    def __init__(self, app: AsgiApp, guard: Guard) -> None:
        self.app = app
        self.guard = guard
        self._desk = Desk(guard, app, find_tag)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http" and self.guard.status in scope["path"]:
            answer = await self._status(scope)
            if answer is not None:
                return await _send(answer, send)
        if kind == "http" and not _plainly_safe(scope):
            where = _place(scope)
            ticket, label = self._desk.admit(_request(scope, where.path), where)
            if isinstance(ticket, Ticket) and not self._desk.covers(ticket, scope.get(MARK)):
                return await self._guarded(ticket, where, label, scope, receive, send)
            if isinstance(ticket, Refused):
                return await _send(ticket.response, send)
        elif kind == "lifespan":
            return await self._lifespan(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _status(self, scope: Scope) -> Response | None:
        """What the status resource says; None where the address is not one of it."""
        where = _place(scope)
        flow = self._desk.status(_request(scope, where.path), where)
        if flow is None:
            return None
        transact = AsyncTransact(self.guard.backend)
        response: Response = await arun(Step(flow), transact.perform)
        return response

    async def _guarded(
        self,
        ticket: Ticket,
        where: Place,
        label: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        body = await _read_body(ticket.policy, receive)
        if body is None:
            return None  # the client left before it had said what it wants
        if isinstance(body, Response):
            return await _send(body, send)
        call = await self._call(ticket, where, body)
        if isinstance(call, Answer):
            body.close()
            return await self._answer(call, send)
        errand = find_errand(scope)
        if errand is not None:
            adopted = self._desk.adopt(call, errand)
            if adopted is None:
                body.close()
                return await _send(refuse("no-such-operation"), send)
            call = adopted
        elif (answer := self._desk.recollect(call)) is not None:
            body.close()
            return await self._answer(answer, send)
        scope[MARK] = call.identity
        handler = Handler(self.app, scope, receive, send, body, call.policy)
        started = None if errand is None else errand.started
        exchange = AwaitedExchange(self.guard, ticket, call, handler, started)
        flow = self._desk.serve(call, label) if errand is None else self._desk.resume(call)
        return await self._exchange(exchange, flow, send, errand)

    async def _call(self, ticket: Ticket, where: Place, body: Spool) -> Call | Answer:
        if body.size < BIG:
            return self._desk.call(ticket, where, body)
        return await asyncio.to_thread(self._desk.call, ticket, where, body)

    async def _exchange(
        self, exchange: AwaitedExchange, flow: Flow[Answer], send: Send, errand: Errand | None
    ) -> None:
        answer = await exchange.drive(flow)
        if errand is not None:
            errand.answer = answer
        try:
            await self._answer(answer, send)
            if exchange.begun:
                exchange.end()
                await exchange.handler.returned()
        except BaseException:
            exchange.spawn(exchange.see_off())
            raise
        exchange.handler.close()
        exchange.handler.raise_again()

    async def _answer(self, answer: Answer, send: Send) -> None:
        report(answer)
        if answer.response is not None:
            await _send(answer.response, send)

    # ── start-up and shutdown ─────────────────────────────────────────────────────────────────────

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch the lifespan pass by: check settings before the start, drain before the end."""

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._check(send)
            elif message["type"] == "lifespan.shutdown":
                await self.drain()
            return message

        async def watched_send(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.guard.aclose()
            await send(message)

        await self.app(scope, watched_receive, watched_send)

    async def _check(self, send: Send) -> None:
        """A wrong setting stops the start; a store that is down does not: requests fail closed."""
        try:
            await asyncio.to_thread(self.guard.start)
        except ConfigurationError as error:
            await send({"type": "lifespan.startup.failed", "message": f"semel: {error}"})
            raise
        except Exception as error:
            log.error("semel: the store could not be opened; keyed requests fail closed: %s", error)

    async def drain(self) -> None:
        """Wait for handlers and writes whose clients have left."""
        loop = asyncio.get_running_loop()
        running = {task for task in self.guard.running if task.get_loop() is loop}
        if running:
            await asyncio.wait(running, timeout=self.guard.drain.total_seconds())


class AwaitedHandler(Protocol):
    """What runs under the lease: an ASGI application, or a coroutine function."""

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

    async def drive(self, flow: Flow[Answer]) -> Answer:
        """Run the exchange; when its caller is cancelled it is finished without one."""
        step = Step(flow)
        try:
            answer: Answer = await arun(step, self.perform)
        except asyncio.CancelledError:
            self.spawn(self.finish_alone(step))
            raise
        except BaseException:
            self.end()  # a surprise: at least the lease must run out and the handler end
            self.handler.close()
            if self._transact is not None:
                self.spawn(self._transact.end())
            raise
        return answer

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        start_task(work, self._guard.running)

    async def perform(self, op: Operation[R]) -> R:
        if isinstance(op, StoreOperation):
            self._before(op)
            reply: R = await (self._transact or self._store).perform(op)
            if self._transact is None or self._transact.transaction is None:
                self._tell(op, reply)  # within a transaction nothing has changed yet
            return reply
        answer: R = await self._attend(op)
        return answer

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
            case Pursue(write, claim):
                return self._guard.attendant.pursue(write, claim)
            case Render(response):
                return await self._render(response)
            case _ if self._transact is not None:
                self._before(op)
                return await self._transact.perform(op)
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
            report(await wind_up(step, self.perform))
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


def _plainly_safe(scope: Scope) -> bool:
    """A safe method without a key: most requests, and nothing to look up for them."""
    return scope["method"] in SAFE_METHODS and not any(
        name == b"idempotency-key" for name, _ in scope["headers"]
    )


def _place(scope: Scope) -> Place:
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if "\ufffd" in path and scope.get("raw_path"):
        # The server could not decode the path; two different ones must not become the same.
        return _place_of(root, unquote_to_bytes(scope["raw_path"]))
    known = _known_place if len(path) <= _LONG else _decoded_place
    return known(root, path)


def _decoded_place(root: str, path: str) -> Place:
    return _place_of(root, path.encode("utf-8", "surrogatepass"))


_LONG: Final = 256
"""Longer paths would fill the cache."""
_known_place = lru_cache(512)(_decoded_place)


def _place_of(prefix: str, raw: bytes) -> Place:
    root = prefix.rstrip("/").encode("utf-8", "surrogatepass")
    # Before ASGI 2.4 servers left the prefix out of the path.
    return place(root, raw[len(root) :] if (raw + b"/").startswith(root + b"/") else raw)


def _request(scope: Scope, path: str) -> Request:
    return Request(
        method=scope["method"].upper(),
        path=path,
        query=scope.get("query_string", b""),
        headers=HeaderView(tuple(scope["headers"])),
        raw=scope,
    )


async def _read_body(policy: Policy, receive: Receive) -> Spool | Response | None:
    """The whole body, a refusal when it is too large, or None when the client left."""
    body = Spool()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            body.close()
            return None
        body.write(message.get("body", b""))
        if body.size > policy.max_request_body:
            body.close()
            return refuse("body-too-large")
        if not message.get("more_body", False):
            return body


async def _send(response: Response, send: Send) -> None:
    headers = list(response.headers)
    if response.body and not any(name.lower() == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
