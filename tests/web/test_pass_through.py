"""What takes no part is untouched; what takes part sees an ordinary server."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import semel
from semel.core.operations.requests import Complete, Register
from semel.web.asgi_exchange import AsgiApp, Message, Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Wire, WsgiDriver, call, environ_of, scope_of
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend
from tests.web.positions import untouched

PASSING = {
    "GET": Ask("GET", key=None),
    "GET with a key": Ask("GET"),
    "POST without a key": Ask(key=None),
    "PUT with a key": Ask("PUT"),
}


async def nowhere(message: Message) -> None:
    raise AssertionError("nothing is sent by the guard itself")


async def nothing() -> Message:
    raise AssertionError("nothing is received by the guard itself")


# ── untouched ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ask", PASSING.values(), ids=PASSING)
async def test_a_request_that_takes_no_part_reaches_the_application_as_it_came(
    ask: Ask, guard: semel.Guard
) -> None:
    given: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given.extend((scope, receive, send))

    scope, before = scope_of(ask), scope_of(ask)
    scope["extensions"] = before["extensions"] = {"http.response.trailers": {}}
    await guard.asgi(app)(scope, nothing, nowhere)
    assert [id(part) for part in given] == [id(part) for part in (scope, nothing, nowhere)]
    assert scope == before


@pytest.mark.parametrize("kind", ["websocket", "something new"])
async def test_other_protocols_reach_the_application_as_they_came(
    kind: str, guard: semel.Guard
) -> None:
    given: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given.extend((scope, receive, send))

    scope = {"type": kind, "headers": [(b"idempotency-key", b"8e03978e-40d5-43e8")]}
    await guard.asgi(app)(scope, nothing, nowhere)
    assert [id(part) for part in given] == [id(part) for part in (scope, nothing, nowhere)]


@pytest.mark.parametrize("ask", PASSING.values(), ids=PASSING)
def test_a_wsgi_request_that_takes_no_part_reaches_the_application_as_it_came(
    ask: Ask, guard: semel.Guard
) -> None:
    given: list[Any] = []
    answer = [b"its own"]

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        given.extend((environ, start_response))
        return answer

    def start(status: str, headers: Any) -> Any:
        raise AssertionError("not called by the guard")

    environ = environ_of(ask)
    assert guard.wsgi(app)(environ, start) is answer
    assert given[0] is environ
    assert given[1] is start


async def test_looking_for_a_tag_leaves_no_trace_in_the_scope(
    guard: semel.Guard, effects: Effects
) -> None:
    router, app = APIRouter(), FastAPI()
    seen: list[set[str]] = []

    @router.post("/x")
    async def x(request: Request) -> None: ...

    class Watch:
        def __init__(self, app: AsgiApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(set(scope))
            await self.app(scope, receive, send)

    app.include_router(router)
    app.add_middleware(Watch)
    guarded = guard.asgi(app)
    scope = scope_of(Ask(key=None))
    expected = {*scope, "app"}
    wire = Wire(Ask(key=None))
    await guarded(scope, wire.receive, wire.send)
    assert seen == [expected]


async def test_a_stream_that_takes_no_part_flows_piece_by_piece(guard: semel.Guard) -> None:
    wire = Wire(Ask(key=None))
    arrived: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for n in range(3):
            await send({"type": "http.response.body", "body": b"%d" % n, "more_body": n < 2})
            arrived.append(len(wire.sent))

    await guard.asgi(app)(scope_of(wire.ask), wire.receive, wire.send)
    assert arrived == [2, 3, 4]


async def test_a_declared_stream_flows_piece_by_piece(make_guard: MakeGuard) -> None:
    wire = Wire(Ask())
    arrived: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for n in range(3):
            await send({"type": "http.response.body", "body": b"%d" % n, "more_body": n < 2})
            arrived.append(len(wire.sent))

    guard = make_guard(policy=semel.ietf(response="stream"))
    await guard.asgi(app)(scope_of(wire.ask), wire.receive, wire.send)
    assert arrived == [2, 3, 4]
    assert wire.reply().body == b"012"


# ── lifespan ──────────────────────────────────────────────────────────────────────────────────────


async def live(app: AsgiApp) -> list[Message]:
    """Start an application and stop it, as a server does; what it said."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    said: list[Message] = []

    async def say(message: Message) -> None:
        said.append(message)

    await inbox.put({"type": "lifespan.startup"})
    await inbox.put({"type": "lifespan.shutdown"})
    await app({"type": "lifespan", "state": {}}, inbox.get, say)
    return said


@pytest.mark.parametrize("inside", [False, True])
async def test_lifespan_messages_pass_and_the_applications_own_hooks_run(
    inside: bool, guard: semel.Guard
) -> None:
    hooks: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        hooks.append("up")
        yield
        hooks.append("down")

    app = Starlette(lifespan=lifespan)
    if inside:
        app.add_middleware(semel.Middleware, guard=guard)
    said = await live(app if inside else guard.asgi(app))
    assert [message["type"] for message in said] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert hooks == ["up", "down"]


async def test_a_shutdown_that_fails_closes_the_guard_too(make_guard: MakeGuard) -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        raise ZeroDivisionError

    guard = make_guard()
    before = guard.runtime.keeper
    with pytest.raises(ZeroDivisionError):
        await live(guard.asgi(Starlette(lifespan=lifespan)))
    assert guard.runtime.keeper is not before


async def test_changed_settings_stop_the_start(make_guard: MakeGuard) -> None:
    store = FaultyBackend()
    make_guard(store).start()
    changed = make_guard(store, policy=semel.ietf(scope="tenant")).asgi(Starlette())
    with pytest.raises(semel.SettingsChanged):
        await live(changed)
    reply, _ = await call(changed, Ask())
    assert (reply.status, reply.code) == (500, "misconfigured")


async def test_a_store_that_is_down_does_not_stop_the_start(make_guard: MakeGuard) -> None:
    store = FaultyBackend()
    store.fail(Register)
    said = await live(make_guard(store).asgi(Starlette()))
    assert said[0]["type"] == "lifespan.startup.complete"


# ── taking part ───────────────────────────────────────────────────────────────────────────────────


async def test_a_keyed_request_is_not_offered_what_cannot_be_kept(guard: semel.Guard) -> None:
    offered: list[set[str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        offered.append(set(scope["extensions"]))
        await PlainTextResponse("x")(scope, receive, send)

    guarded, wire = guard.asgi(app), Wire(Ask())
    scope = scope_of(Ask())
    scope["extensions"] = {"http.response.trailers": {}, "http.response.pathsend": {}, "tls": {}}
    await guarded(scope, wire.receive, wire.send)
    assert offered == [{"tls"}]
    assert "http.response.trailers" in scope["extensions"]


async def test_the_handler_gets_the_whole_body_and_then_no_disconnect(guard: semel.Guard) -> None:
    """A disconnect reported after the body makes frameworks stop handlers mid-effect."""
    body = b"x" * 3_000_000  # on disk meanwhile
    got: list[bytes] = []
    told: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            got.append(message["body"])
            more = message["more_body"]
        listening = asyncio.create_task(receive_into(told, receive))
        for _ in range(10):
            await asyncio.sleep(0)  # the server has the disconnect ready
        assert told == []
        await PlainTextResponse("x")(scope, receive, send)
        await listening

    wire = Wire(Ask(body=body))
    wire.gone.set()
    await guard.asgi(app)(scope_of(wire.ask), wire.receive, wire.send)
    assert b"".join(got) == body
    assert [message["type"] for message in told] == ["http.disconnect"]
    assert wire.reply().body == b"x"


async def test_a_stream_with_effects_is_finished_although_its_client_is_gone(
    guard: semel.Guard, effects: Effects
) -> None:
    """Starlette cancels a stream in the middle when it hears of a disconnect."""

    async def pieces() -> AsyncIterator[str]:
        for _ in range(10):
            yield effects.happen("-")
            await asyncio.sleep(0)

    async def handle(request: Request) -> Response:
        return StreamingResponse(pieces())

    app = guard.asgi(Starlette(routes=[Route("/x", handle, methods=["POST"])]))
    wire = Wire(Ask())
    wire.gone.set()
    await app(scope_of(wire.ask), wire.receive, wire.send)
    again, _ = await call(app, Ask())
    assert again.body == "".join(effect.nonce for effect in effects.all()).encode()
    assert len(effects.all()) == 10


async def test_the_handler_may_read_its_body_after_it_has_answered(guard: semel.Guard) -> None:
    body = b"x" * 3_000_000
    read = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal read
        await PlainTextResponse("x")(scope, receive, send)
        more = True
        while more:
            message = await receive()
            read += len(message["body"])
            more = message["more_body"]

    _, error = await call(guard.asgi(app), Ask(body=body))
    assert (read, error) == (len(body), None)


async def receive_into(told: list[Message], receive: Receive) -> None:
    told.append(await receive())


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("base_http", [False, True])
async def test_background_tasks_run_after_completion_and_only_once(
    inside: bool, base_http: bool, make_guard: MakeGuard, effects: Effects
) -> None:
    store, wire = FaultyBackend(), Wire(Ask())
    order: list[str] = []

    async def later() -> None:
        order.append(f"background after {store.count(Complete)} completions, {len(wire.sent)} sent")

    async def handle(request: Request) -> Response:
        return PlainTextResponse(effects.happen("-"), background=BackgroundTask(later))

    app, guard = Starlette(routes=[Route("/x", handle, methods=["POST"])]), make_guard(store)
    if base_http:
        app.add_middleware(BaseHTTPMiddleware, dispatch=untouched)
    if inside:
        app.add_middleware(semel.Middleware, guard=guard)
    served = app if inside else guard.asgi(app)
    await served(scope_of(Ask()), wire.receive, wire.send)
    assert order[0].startswith("background after 1 completions")
    assert order[0].endswith(f"{len(wire.sent)} sent")
    again, _ = await call(served, Ask())
    assert again.replayed
    assert len(order) == 1


async def test_a_failing_background_task_changes_no_answer(
    guard: semel.Guard, effects: Effects
) -> None:
    async def later() -> None:
        raise ZeroDivisionError

    async def handle(request: Request) -> Response:
        return PlainTextResponse(effects.happen("-"), background=BackgroundTask(later))

    served = guard.asgi(Starlette(routes=[Route("/x", handle, methods=["POST"])]))
    first, error = await call(served, Ask())
    assert first.status == 200
    assert isinstance(error, ZeroDivisionError)
    again, error = await call(served, Ask())
    assert (again.body, error) == (first.body, None)


async def test_the_application_sees_the_operation_and_outer_context(guard: semel.Guard) -> None:
    outer: ContextVar[str] = ContextVar("outer")
    seen: list[object] = []

    def handle(request: Request) -> Response:  # in a thread of Starlette's
        operation = semel.operation()
        seen.extend((outer.get(), operation.held, operation.downstream_key("charge")))
        return PlainTextResponse("x")

    served = guard.asgi(Starlette(routes=[Route("/x", handle, methods=["POST"])]))
    outer.set("here")
    await call(served, Ask())
    assert seen[:2] == ["here", True]
    with pytest.raises(LookupError):
        semel.async_operation()


def test_a_thread_does_not_take_an_operation_to_its_next_request(guard: semel.Guard) -> None:
    """It would send another payment's key to the provider."""

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            return [semel.operation().downstream_key("charge").encode()]
        except LookupError:
            return [b"none"]

    send = WsgiDriver(guard.wsgi(app))
    assert send().body.startswith(b"semel_")
    assert send(Ask(key=None)).body == b"none"
    with pytest.raises(LookupError):
        semel.operation()


async def test_a_client_that_leaves_before_its_body_is_whole_executes_nothing(
    make_guard: MakeGuard, effects: Effects
) -> None:
    messages = iter(
        (
            {"type": "http.request", "body": b"{", "more_body": True},
            {"type": "http.disconnect"},
        )
    )

    async def receive() -> Message:
        return next(messages)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        effects.happen("-")

    store = FaultyBackend()
    await make_guard(store).asgi(app)(scope_of(Ask()), receive, nowhere)
    assert effects.all() == []
    assert store.seen == []


async def test_websocket_routes_work_beside_the_guard(guard: semel.Guard) -> None:
    async def echo(socket: Any) -> None:
        await socket.accept()
        await socket.close()

    app = Starlette(routes=[WebSocketRoute("/x", echo)])
    app.add_middleware(semel.Middleware, guard=guard)
    scope = {**scope_of(Ask("GET", key=None)), "type": "websocket", "subprotocols": []}
    wire = Wire(Ask())

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    await app(scope, receive, wire.send)
    assert [message["type"] for message in wire.sent] == ["websocket.accept", "websocket.close"]
