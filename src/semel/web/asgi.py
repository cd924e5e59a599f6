"""The ASGI adapter: pure ASGI, nothing between a request that takes no part and its application.

A keyed request is claimed by the server's own task. Its handler runs in a task of its own, so that
a client that hangs up, or a server that cancels, ends neither the handler nor the write that
settles its record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote_to_bytes

from semel.core.admission import Refused, Ticket
from semel.core.answers import Answer
from semel.core.flow import Step, arun
from semel.core.frozen import replace
from semel.core.keys import escaped_path
from semel.core.model import HeaderView, Request, Response
from semel.core.policy import SAFE_METHODS, Policy
from semel.core.prints import LARGE
from semel.core.problems import refuse
from semel.errors import ConfigurationError
from semel.log import log
from semel.process.transact import AsyncTransact
from semel.web.awaited import AwaitedExchange
from semel.web.desk import MARK, Desk, Opened
from semel.web.handler import AsgiApp, Handler, Message, Receive, Scope, Send, UnseenHandler
from semel.web.layers import layers
from semel.web.message import Spool
from semel.web.routing import Place, place, slashes_merged
from semel.web.ruling import ruled_by
from semel.web.tags import OPT, TAG, find_tag, litestar_handlers, litestar_of

if TYPE_CHECKING:
    from semel.guard import Guard


class Middleware:
    """Guards an ASGI application."""

    claims_late: ClassVar[bool] = False
    """Whether the claim comes after dependencies, at the endpoint."""

    def __init__(self, app: AsgiApp, guard: Guard) -> None:
        refuse_second(type(self), app)
        self.app = app
        self.guard = guard
        self._desk = Desk(guard, app, find_tag)
        guard.stand_around(app)
        litestar = litestar_of(app)
        self._merges_slashes = litestar is not None
        if litestar is not None:
            _enforce_options(litestar, guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http" and self.guard.status in scope["path"]:
            answer = await self._status(scope)
            if answer is not None:
                return await send_response(answer, send)
        if kind == "http" and not _plainly_safe(scope):
            before = ruled_by.get()
            try:
                return await self._serve(scope, receive, send)
            finally:
                ruled_by.set(before)
        if kind == "lifespan":
            return await self._lifespan(scope, receive, send)
        return await self._pass(scope, receive, send)

    def _pass(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """A request that takes no part."""
        return self.app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        where = where_is(scope)
        request = request_of(scope, where.path)
        if self._merges_slashes:
            where = slashes_merged(where)
            request = replace(request, path=where.path, escaped="")
        asked = await self._desk.ask(request) if self._desk.awaits and has_key(scope) else None
        ticket, label = self._desk.admit(request, where, asked)
        if isinstance(ticket, Refused):
            return await send_response(ticket.response, send)
        if ticket is None or self._desk.covers(ticket, scope.get(MARK)):
            return await self.app(scope, receive, send)
        return await self._guarded(ticket, where, label, scope, receive, send)

    async def _status(self, scope: Scope) -> Response | None:
        """What the status resource says; None where the address is not one of it."""
        return await tell_status(self._desk, scope)

    async def _guarded(
        self,
        ticket: Ticket,
        where: Place,
        label: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        body = await read_body(ticket.policy, receive)
        if body is None:
            return None  # the client left before it had said what it wants
        if isinstance(body, Response):
            return await send_response(self._desk.turned_away(body, ticket, label), send)
        opened = await self._open(ticket, where, label, body, scope)
        if isinstance(opened, Answer):
            body.close()
            return await self._answer(opened, send)
        call = opened.call
        scope[MARK] = call.identity
        kind = Handler if self._desk.sees_returns else UnseenHandler
        handler = kind(self.app, scope, receive, send, body, call.policy)
        exchange = AwaitedExchange(self.guard, ticket, call, handler, opened.started)
        return await self._exchange(exchange, handler, opened, send)

    async def _open(
        self, ticket: Ticket, where: Place, label: str, body: Spool, scope: Scope
    ) -> Opened | Answer:
        if body.size < LARGE:  # else it takes long to fingerprint
            return self._desk.open(ticket, where, label, body, scope)
        return await asyncio.to_thread(self._desk.open, ticket, where, label, body, scope)

    async def _exchange(
        self, exchange: AwaitedExchange, handler: Handler, opened: Opened, send: Send
    ) -> None:
        answer = await exchange.drive(Step(opened.flow))
        if opened.errand is not None:
            opened.errand.answer = answer
        try:
            await self._answer(answer, send)
            if handler.started:
                exchange.end()
                await handler.returned()
        except BaseException:
            exchange.spawn(exchange.see_off())
            raise
        handler.close()
        handler.raise_again()

    async def _answer(self, answer: Answer, send: Send) -> None:
        if answer.response is not None:
            await send_response(answer.response, send)

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
        try:
            await check_settings(self.guard)
        except ConfigurationError as error:
            await send({"type": "lifespan.startup.failed", "message": f"semel: {error}"})
            raise

    async def drain(self) -> None:
        await drain(self.guard)


def _enforce_options(litestar: Any, guard: Guard) -> None:
    """Policies in ``opt`` of Litestar's are put on their endpoints, to hold there as well.

    What stands on a controller or higher up may leave methods out, as on any class.
    """
    for handler in litestar_handlers(litestar):
        policy = handler.opt.get(OPT)
        if policy is None or hasattr(handler.fn, TAG):
            continue
        if not policy.methods.isdisjoint(handler.http_methods):
            handler._fn = guard.route(policy)(handler.fn)


def refuse_second(kind: type[Middleware], app: Any) -> None:
    """Refuse a guard around, or inside of, one that claims late.

    Inside of it the claim of one is in the way of the other, and every request a 409; around it
    the claim comes before the caller is authenticated.
    """
    for inner in _guards_inside(app):
        if kind.claims_late or inner.claims_late:
            raise ConfigurationError(
                "this application is guarded twice: where guard.fastapi(app) or Litestar's plugin "
                "guards it, leave semel.Middleware, guard.asgi(app) and a second call out"
            )


def _guards_inside(app: Any) -> Iterator[type[Middleware]]:
    """Around what is inside, or among those that an application is told to put around itself."""
    for layer in layers(app):
        if isinstance(layer, Middleware):
            yield type(layer)
        added: Any = getattr(layer, "user_middleware", None) or getattr(layer, "middleware", None)
        for each in added if type(added) in (list, tuple) else ():
            kind = getattr(each, "cls", None) or getattr(each, "middleware", None)
            if isinstance(kind, type) and issubclass(kind, Middleware):
                yield kind


async def check_settings(guard: Guard) -> None:
    """A wrong setting stops the start; a store that is down does not: requests fail closed."""
    try:
        await asyncio.to_thread(guard.start)
    except ConfigurationError:
        raise
    except Exception as error:
        log.error("semel: the store could not be opened; keyed requests fail closed: %s", error)


async def drain(guard: Guard) -> None:
    """Wait for handlers and writes whose clients have left."""
    loop = asyncio.get_running_loop()
    running = {task for task in guard.running if task.get_loop() is loop}
    if running:
        await asyncio.wait(running, timeout=guard.drain.total_seconds())


async def tell_status(desk: Desk, scope: Scope) -> Response | None:
    """How a request that was accepted is doing; None where the address names none."""
    where = where_is(scope)
    request = request_of(scope, where.path)
    flow = desk.status(request, where, await desk.ask(request) if desk.awaits else None)
    if flow is None:
        return None
    transact = AsyncTransact(desk.guard.backend)
    response: Response = await arun(Step(flow), transact.perform)
    return response


def _plainly_safe(scope: Scope) -> bool:
    """A safe method without a key: most requests, and nothing to look up for them."""
    return scope["method"] in SAFE_METHODS and not has_key(scope)


def has_key(scope: Scope) -> bool:
    return any(name == b"idempotency-key" for name, _ in scope["headers"])


def where_is(scope: Scope) -> Place:
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


def request_of(scope: Scope, path: str) -> Request:
    sent: bytes = scope.get("raw_path") or b""
    return Request(
        method=scope["method"].upper(),
        path=path,
        query=scope.get("query_string", b""),
        headers=HeaderView(tuple(scope["headers"])),
        raw=scope,
        escaped=escaped_path(sent) if b"%2" in sent or sent[:2] == b"//" else "",
    )


async def read_body(
    policy: Policy, receive: Receive, body: Spool | None = None
) -> Spool | Response | None:
    """The whole body, a refusal when it is too large, or None when the client left.

    ``body``: what has come of it already.
    """
    body = body or Spool()
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


async def send_response(response: Response, send: Send) -> None:
    headers = list(response.headers)
    if response.body and not any(name.lower() == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})
