"""The ASGI adapter: pure ASGI, nothing between a request that takes no part and its application.

A keyed request is claimed by the server's own task. Its application runs in a task of its own, with
the write that settles its record (`web/asgi_exchange.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote_to_bytes

from semel.core.flow import arun
from semel.core.frozen import replace
from semel.core.policy import SAFE_METHODS
from semel.core.records import HeaderView, Request, Response
from semel.core.request.keys import escaped_path
from semel.errors import ConfigurationError
from semel.log import log
from semel.runtime.transactions import AsyncTransact
from semel.web import routes
from semel.web.asgi_exchange import (
    AsgiApp,
    AsgiExchange,
    Message,
    Receive,
    Scope,
    Send,
    send_response,
)
from semel.web.body import Body, close
from semel.web.contract import told
from semel.web.pipeline import MARK, Pipeline, demand_application
from semel.web.shadow import looks
from semel.web.tags import TAG, ruled_by

if TYPE_CHECKING:
    from semel.guard import Guard


class Middleware:
    """Guards an ASGI application."""

    claims_late: ClassVar[bool] = False
    """Whether the claim comes after dependencies, at the endpoint."""

    def __init__(self, app: AsgiApp, guard: Guard) -> None:
        demand_application(app, "asgi")
        refuse_second(type(self), app)
        self.app = app
        self.guard = guard
        self._pipeline = Pipeline(guard, app, routes.find_tag)
        guard.stand_around(app)
        litestar = routes.litestar_of(app)
        self._merges_slashes = litestar is not None
        if litestar is not None:
            _enforce_options(litestar, guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            other = self._lifespan if scope["type"] == "lifespan" else self._pass
            return await other(scope, receive, send)
        # Behind a gate, a route of the application tells the status, after authentication.
        if self.guard.status in scope["path"] and not self.claims_late:
            answer = await tell_status(self._pipeline, scope)
            if answer is not None:
                return await send_response(answer, send)
        # A safe method without a key: most requests, and nothing to look up for them.
        if scope["method"] in SAFE_METHODS:
            key_headers = self.guard.key_headers
            if self.guard.contract_at == scope["path"]:
                app = scope.get("litestar_app", self.app)  # whose middleware is behind its router
                return await send_response(told(self.guard, app, scope["method"]), send)
            if not any(name in key_headers for name, _ in scope["headers"]):
                return await self._pass(scope, receive, send)
        before = ruled_by.get()
        try:
            return await self._serve(scope, receive, send)
        finally:
            ruled_by.set(before)

    def _pass(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """A request that takes no part."""
        return self.app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        where, request = asked(scope)
        if self._merges_slashes:
            where = routes.slashes_merged(where)
            request = replace(request, path=where.path, escaped="")
        pipeline, runtime = self._pipeline, self.guard.runtime
        plan = pipeline.plan(runtime, request, where)
        policy = plan.policy
        if not policy.looks_at_all and policy.key_header not in request.headers.first:
            return await self.app(scope, receive, send)
        return await self._exchange(
            AsgiExchange(runtime, plan, request, self.app, scope, receive, send), where
        )

    async def _exchange(self, ex: AsgiExchange, where: routes.Place) -> None:
        """Admit and open a request that has a key, or needs one; then its exchange responds."""
        pipeline, request, scope, policy = self._pipeline, ex.request, ex.scope, ex.policy
        early: Body | None = None
        if policy.key_in_body and request.method in policy.methods:
            read = await self._read_early(ex)
            if read is None or isinstance(read, Response):
                return await ex.turn_away(read)
            early = read
        who = None
        if pipeline.awaits and (policy.shadow or ex.may_have_key()):
            who = await pipeline.ask(request)
        admitted = pipeline.admit(ex, who)
        if isinstance(admitted, Response):
            close(early or b"")
            return await ex.turn_away(admitted)
        if not admitted or (MARK in scope and pipeline.covers(ex, scope[MARK])):
            if not admitted and looks(ex):
                look = partial(pipeline.look, ex, who)
                ex.overhear(look) if early is None else look(early)
            return await ex.take_no_part()
        body = await ex.read_body() if early is None else early
        if type(body) is bytes:
            answer = pipeline.open(ex, where, body, scope)
        elif body is None:  # the client left before it had said what it wants
            return await ex.turn_away(None)
        elif isinstance(body, Response):
            return await ex.turn_away(pipeline.turned_away(body, ex))
        else:  # a large one takes long to fingerprint: not in the thread of the event loop
            answer = await asyncio.to_thread(pipeline.open, ex, where, body, scope)
        if answer is not None:
            close(body)
            return await ex.turn_away(answer.response)
        scope[MARK] = ex.identity
        ex.sees_returns = pipeline.sees_returns
        return await ex.respond()

    async def _read_early(self, ex: AsgiExchange) -> Body | Response | None:
        """The body of a request whose key may be in it; a refusal, or None when the client left."""
        body = await ex.read_body()
        if isinstance(body, Response):
            return self._pipeline.turned_away(body, ex)
        if body is not None:
            ex.body = body
            if not isinstance(body, bytes):  # a large one takes long to read
                await asyncio.to_thread(ex.find_key)
        return body

    # ── start-up and shutdown ─────────────────────────────────────────────────────────────────────

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch the lifespan pass by: check settings before the start, drain before the end."""

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await drain(self.guard)
            if message["type"] != "lifespan.startup":
                return message
            try:
                await check_settings(self.guard)
            except ConfigurationError as error:
                await send({"type": "lifespan.startup.failed", "message": f"semel: {error}"})
                raise
            return message

        async def watched_send(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.guard.aclose()
            await send(message)

        await self.app(scope, watched_receive, watched_send)

    async def drain(self) -> None:
        await drain(self.guard)


def _enforce_options(litestar: Any, guard: Guard) -> None:
    """Policies in ``opt`` of Litestar's are put on their endpoints, to hold there as well.

    What stands on a controller or higher up may leave methods out, as on any class.
    """
    none: dict[str, Any] = {}
    maps = [getattr(route, "route_handler_map", None) or none for route in litestar.routes]
    for handler in [routes.handler_in(each) for handlers in maps for each in handlers.values()]:
        policy = handler.opt.get(routes.OPT)
        if policy is None or hasattr(handler.fn, TAG):
            continue
        if not policy.methods.isdisjoint(handler.http_methods):
            handler._fn = guard.route(policy)(handler.fn)


def refuse_second(kind: type[Middleware], app: Any) -> None:
    """Refuse a guard around, or inside of, one that claims late.

    Inside of it the claim of one is in the way of the other, and every request a 409; around it
    the claim comes before the caller is authenticated.
    """
    inside: list[Any] = []
    for layer in routes.layers(app):
        # Those that the application is told to put around itself count, too.
        added: Any = getattr(layer, "user_middleware", None) or getattr(layer, "middleware", None)
        listed = added if type(added) in (list, tuple) else ()
        inside += [getattr(it, "cls", None) or getattr(it, "middleware", None) for it in listed]
        inside.append(type(layer))
    guards = [it for it in inside if isinstance(it, type) and issubclass(it, Middleware)]
    if guards and (kind.claims_late or any(guard.claims_late for guard in guards)):
        raise ConfigurationError(
            "this application is guarded twice: where guard.fastapi(app) or Litestar's install "
            "guards it, leave semel.Middleware, guard.asgi(app) and a second call out"
        )


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
    running = {task for task in guard.runtime.running if task.get_loop() is loop}
    if running:
        await asyncio.wait(running, timeout=guard.drain.total_seconds())


async def tell_status(pipeline: Pipeline, scope: Scope) -> Response | None:
    """How a request that was accepted is doing; None where the address names none."""
    where, request = asked(scope)
    who = await pipeline.ask(request) if pipeline.awaits else None
    flow = pipeline.status(request, where, who)
    if flow is None:
        return None
    return await arun(flow, AsyncTransact(pipeline.guard.backend).perform)


def asked(scope: Scope) -> tuple[routes.Place, Request]:
    """Where a request goes, and the request as everybody else sees it."""
    path: str = scope["path"]
    known = _known_address if len(path) <= _LONG else _address
    where, escaped = known(scope.get("root_path", ""), path, scope.get("raw_path") or b"")
    query, headers = scope.get("query_string", b""), HeaderView(scope["headers"])
    return where, Request(scope["method"].upper(), where.path, query, headers, scope, escaped)


def _address(prefix: str, path: str, sent: bytes) -> tuple[routes.Place, str]:
    """Where a request goes; and the path as it was sent, where a router may tell it from others."""
    escaped = escaped_path(sent) if b"%2" in sent or sent[:2] == b"//" else ""
    raw = path.encode("utf-8", "surrogatepass")
    if "\ufffd" in path and sent:
        # The server could not decode the path; two different ones must not become the same.
        raw = unquote_to_bytes(sent)
    root = prefix.rstrip("/").encode("utf-8", "surrogatepass")
    # Before ASGI 2.4 servers left the prefix out of the path.
    below = raw[len(root) :] if (raw + b"/").startswith(root + b"/") else raw
    return routes.place(root, below), escaped


_LONG: Final = 256
"""Longer paths would fill the cache."""
_known_address = lru_cache(512)(_address)
