"""What an endpoint came to outweighs what is answered for it: no doubt is lost on the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cherrypy  # type: ignore[import-untyped]
import falcon
import flask
import pytest
import quart
from django.http import HttpResponse
from django.test import Client as DjangoClient
from django.views.decorators.csrf import csrf_exempt
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import semel
from semel.frameworks.flask import install
from semel.web.asgi_exchange import AsgiApp, Message, Receive, Scope, Send
from tests.frameworks.django_site import GUARD, Site
from tests.web.client import new_key
from tests.web.conftest import Drive
from tests.web.drive import Ask, Driver, WsgiDriver, call

Runs = list[int]
Around = Callable[[FastAPI, semel.Guard], Any]


def assert_unknown(send: Driver, runs: Runs, first: int) -> None:
    ask = Ask(key=new_key(), headers=(("host", "shop.test"),))
    replies = [send(ask) for _ in range(2)]
    assert [replies[0].status, replies[1].code] == [first, "outcome-unknown"]
    assert runs == [1]


def from_outside(app: FastAPI, guard: semel.Guard) -> Any:
    return guard.asgi(app)


def at_the_gate(app: FastAPI, guard: semel.Guard) -> Any:
    guard.fastapi(app)
    return app


AROUND = pytest.mark.parametrize("around", [from_outside, at_the_gate])


# ── an endpoint that is cut off, or left behind ───────────────────────────────────────────────────


@AROUND
def test_a_time_limit_that_leaves_the_endpoint_running_is_a_doubt(
    around: Around, guard: semel.Guard, drive: Drive
) -> None:
    app, runs = FastAPI(), Runs()
    begun, answered = asyncio.Event(), asyncio.Event()

    @app.middleware("http")
    async def limit(request: Any, call_next: Any) -> Any:
        if begun.is_set():
            return await call_next(request)
        answer = asyncio.ensure_future(call_next(request))
        await begun.wait()
        answer.cancel()  # as a time limit does
        return JSONResponse({}, 504)

    @app.post("/x")
    async def pay() -> int:
        runs.append(1)
        begun.set()
        await answered.wait()
        return 1

    guarded = around(app, guard)

    async def client(scope: Scope, receive: Receive, send: Send) -> None:
        async def hear(message: Message) -> None:
            await send(message)
            answered.set()

        await guarded(scope, receive, hear)

    assert_unknown(drive(client), runs, 504)


class Hurried:
    """Ends what takes too long, and answers when that is over."""

    def __init__(self, app: AsgiApp, begun: asyncio.Event) -> None:
        self.app = app
        self.begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = asyncio.ensure_future(self.app(scope, receive, send))
        await self.begun.wait()
        running.cancel()
        await asyncio.wait([running])
        await Response(status_code=504)(scope, receive, send)


@pytest.mark.parametrize("made", ["fastapi", "quart", "starlette, tagged"])
def test_an_endpoint_that_was_cancelled_is_a_doubt(
    made: str, guard: semel.Guard, drive: Drive
) -> None:
    runs, begun = Runs(), asyncio.Event()

    async def pay() -> str:
        runs.append(1)
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def of_request(request: Request) -> Response:
        return Response(await pay())

    app: Any
    if made == "fastapi":
        app = FastAPI()
        app.post("/x")(pay)
    elif made == "quart":
        app = quart.Quart("shop")
        app.post("/x")(pay)
    else:
        tagged = guard.route(semel.ietf())(of_request)
        app = Starlette(routes=[Route("/x", tagged, methods=["POST"])])
    assert_unknown(drive(guard.asgi(Hurried(app, begun))), runs, 504)


# ── a second exception ────────────────────────────────────────────────────────────────────────────


@AROUND
def test_an_exception_behind_a_time_out_does_not_hide_it_in_fastapi(
    around: Around, guard: semel.Guard, drive: Drive
) -> None:
    app, runs = FastAPI(), Runs()

    @app.exception_handler(TimeoutError)
    async def late(request: Any, error: Exception) -> Any:
        return JSONResponse({}, 504)

    @app.middleware("http")
    async def broken(request: Any, call_next: Any) -> Any:
        await call_next(request)
        raise ValueError("a mistake")

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        raise TimeoutError("bank")

    assert_unknown(drive(around(app, guard)), runs, 500)


def broken_afterwards(app: Any, runs: Runs) -> None:
    def pay() -> str:
        runs.append(1)
        raise TimeoutError("bank")

    def late(error: Exception) -> Any:
        return "late", 504

    def broken(response: Any) -> Any:
        raise ValueError("a mistake")

    app.post("/x")(pay)
    app.errorhandler(TimeoutError)(late)
    app.after_request(broken)


def test_an_exception_behind_a_time_out_does_not_hide_it_in_flask(guard: semel.Guard) -> None:
    app, runs = flask.Flask("shop"), Runs()
    broken_afterwards(app, runs)
    assert_unknown(WsgiDriver(guard.wsgi(app)), runs, 500)


def test_an_exception_behind_a_time_out_does_not_hide_it_in_quart(
    guard: semel.Guard, drive: Drive
) -> None:
    app, runs = quart.Quart("shop"), Runs()
    broken_afterwards(app, runs)
    assert_unknown(drive(guard.asgi(app)), runs, 500)  # type: ignore[arg-type]


def test_an_exception_behind_a_time_out_does_not_hide_it_in_falcon(guard: semel.Guard) -> None:
    runs = Runs()

    class Pay:
        def on_post(self, req: Any, resp: Any) -> None:
            runs.append(1)
            raise TimeoutError("bank")

    class Broken:
        def process_response(self, *_: Any) -> None:
            raise ValueError("a mistake")

    app: Any = falcon.App(middleware=[Broken()])
    app.add_route("/x", Pay())
    assert_unknown(WsgiDriver(guard.wsgi(app), strict=False), runs, 500)


# ── what is answered out of sight ─────────────────────────────────────────────────────────────────


class Answers:
    """A middleware of Django's below semel's, which answers exceptions."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_exception(self, request: Any, error: Exception) -> HttpResponse:
        return HttpResponse(status=504)


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
def test_middleware_of_djangos_that_answers_an_exception_does_not_hide_it(
    colour: str, guard: semel.Guard, runner: asyncio.Runner
) -> None:
    runs = Runs()

    @csrf_exempt
    def pay(request: Any) -> HttpResponse:
        runs.append(1)
        raise TimeoutError("bank")

    nearer = f"{Answers.__module__}.{Answers.__name__}"
    site = Site(guard, {"x": pay}, MIDDLEWARE=[GUARD, nearer])
    assert_unknown(site.driver(colour, runner), runs, 504)
    site.close()


def test_a_time_out_behind_an_error_of_cherrypys_is_a_doubt(guard: semel.Guard) -> None:
    runs = Runs()

    class Shop:
        @cherrypy.expose  # type: ignore[untyped-decorator]
        def x(self) -> str:
            runs.append(1)
            try:
                raise TimeoutError("bank")
            except TimeoutError:
                raise cherrypy.HTTPError(504)  # noqa: B904

    app = cherrypy.Application(Shop(), "", {"/": {"log.screen": False}})
    assert_unknown(WsgiDriver(guard.wsgi(app), strict=False), runs, 504)


def test_a_time_out_of_a_dependency_that_is_part_of_the_run_is_a_doubt(
    guard: semel.Guard, drive: Drive
) -> None:
    app, runs = FastAPI(), Runs()

    async def reserve() -> None:
        runs.append(1)
        raise TimeoutError("bank")

    @app.post("/x", dependencies=[Depends(reserve)])
    async def pay() -> None: ...

    @app.exception_handler(TimeoutError)
    async def late(request: Any, error: Exception) -> Any:
        return JSONResponse({}, 504)

    @app.middleware("http")
    async def plain(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    assert_unknown(drive(guard.asgi(app)), runs, 504)


def test_so_is_one_before_a_view_of_flasks(guard: semel.Guard) -> None:
    app, runs = flask.Flask("shop"), Runs()

    @app.before_request
    def reserve() -> None:
        runs.append(1)
        raise TimeoutError("bank")

    @app.errorhandler(TimeoutError)
    def late(error: Exception) -> Any:
        return "late", 504

    app.add_url_rule("/x", "pay", lambda: "paid", methods=["POST"])
    assert_unknown(WsgiDriver(guard.wsgi(app)), runs, 504)


# ── what is no doubt ──────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_says_not_executed_does_not_outweigh_a_time_out(
    guard: semel.Guard, drive: Drive
) -> None:
    """A 408 for a time-out further on is a common mistake."""
    app, runs = FastAPI(), Runs()

    @app.exception_handler(TimeoutError)
    async def late(request: Any, error: Exception) -> Any:
        return JSONResponse({}, 408)

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        raise TimeoutError("bank")

    assert_unknown(drive(guard.asgi(app)), runs, 408)


def test_the_handlers_own_word_that_nothing_was_executed_does(
    guard: semel.Guard, drive: Drive
) -> None:
    app, runs = FastAPI(), Runs()

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        try:
            raise TimeoutError("bank")
        except TimeoutError as error:
            raise semel.NotExecuted("it was not sent") from error

    send, ask = drive(guard.asgi(app)), Ask(key=new_key())
    assert [send(ask).status for _ in range(2)] == [500, 500]
    assert runs == [1, 1]


# ── what is somebody else's ───────────────────────────────────────────────────────────────────────


@AROUND
@pytest.mark.parametrize("inner", ["returns", "raises", "still runs"])
def test_what_a_request_within_the_endpoint_comes_to_is_not_its_own(
    inner: str, around: Around, guard: semel.Guard, drive: Drive
) -> None:
    app, other, runs, tasks = FastAPI(), FastAPI(), Runs(), list[Any]()

    @other.post("/in")
    async def elsewhere() -> None:
        if inner == "raises":
            raise TimeoutError("elsewhere")
        if inner == "still runs":
            await asyncio.Event().wait()

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        asked = asyncio.ensure_future(call(other, Ask(path=b"/in", key=None)))
        tasks.append(asked)
        if inner != "still runs":
            await asked
        await asyncio.sleep(0)
        raise HTTPException(503)

    send, ask = drive(around(app, guard)), Ask(key=new_key())
    assert [send(ask).status for _ in range(2)] == [503, 503]
    assert runs == [1, 1]
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("how", ["extension", "from outside"])
@pytest.mark.parametrize("then", [503, ValueError])
def test_nor_in_flask(how: str, then: Any, guard: semel.Guard) -> None:
    app, runs = flask.Flask("shop"), Runs()
    app.config["PROPAGATE_EXCEPTIONS"] = False

    @app.post("/in")
    def elsewhere() -> str:
        if then == 503:
            raise TimeoutError("elsewhere")
        return "in"

    @app.post("/x")
    def pay() -> Any:
        runs.append(1)
        app.test_client().post("/in")
        if then == 503:
            return "later", 503
        raise ValueError

    if how == "extension":
        install(app, guard)
    else:
        app.wsgi_app = guard.wsgi(app.wsgi_app)  # type: ignore[method-assign]
    send, ask = WsgiDriver(app), Ask(key=new_key())
    assert [send(ask).status for _ in range(2)] == [503 if then == 503 else 500] * 2
    assert runs == [1, 1]


@pytest.mark.parametrize("then", [503, ValueError])
def test_nor_in_django(then: Any, guard: semel.Guard, runner: asyncio.Runner) -> None:
    runs = Runs()

    @csrf_exempt
    def elsewhere(request: Any) -> HttpResponse:
        if then == 503:
            raise TimeoutError("elsewhere")
        return HttpResponse()

    @csrf_exempt
    def pay(request: Any) -> HttpResponse:
        runs.append(1)
        DjangoClient(raise_request_exception=False).post("/in")
        if then == 503:
            return HttpResponse(status=503)
        raise ValueError

    site = Site(guard, {"x": pay, "in": elsewhere})
    send, ask = site.driver("wsgi", runner), Ask(key=new_key())
    assert [send(ask).status for _ in range(2)] == [503 if then == 503 else 500] * 2
    assert runs == [1, 1]
    site.close()


@pytest.mark.parametrize("order", ["doubt first", "doubt last"])
@pytest.mark.parametrize("status", [429, 503])
def test_one_try_that_was_not_executed_does_not_excuse_another(
    order: str, status: int, guard: semel.Guard, drive: Drive
) -> None:
    app, runs = FastAPI(), Runs()
    raised = [TimeoutError("bank"), semel.NotExecuted("the breaker is open")]
    raised = raised if order == "doubt first" else raised[::-1]

    @app.middleware("http")
    async def retry(request: Any, call_next: Any) -> Any:
        for _ in range(2):
            with suppress(Exception):
                return await call_next(request)
        return JSONResponse({}, status)

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        raise raised[len(runs) - 1]

    send, ask = drive(guard.asgi(app)), Ask(key=new_key())
    assert [send(ask).status, send(ask).code] == [status, "outcome-unknown"]
    assert runs == [1, 1]


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_tagged_asgi_application_answers_by_itself(
    status: int, guard: semel.Guard, drive: Drive
) -> None:
    runs = Runs()

    @guard.route(semel.ietf())
    async def raw(scope: Scope, receive: Receive, send: Send) -> None:
        runs.append(1)
        await Response(status_code=status)(scope, receive, send)

    app = guard.asgi(Starlette(routes=[Mount("/x", app=raw)]))
    send, ask = drive(app), Ask(path=b"/x/", key=new_key())
    assert [send(ask).status for _ in range(2)] == [status, status]
    assert runs == [1, 1]


def test_a_tagged_asgi_object_tells_what_it_raised(guard: semel.Guard, drive: Drive) -> None:
    runs = Runs()

    class Pay:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            runs.append(1)
            raise TimeoutError("bank")

    async def hide(request: Any, call_next: Any) -> Any:
        with suppress(TimeoutError):
            return await call_next(request)
        return Response(status_code=504)

    route = Route("/x", guard.route(semel.ietf())(Pay()), methods=["POST"])
    inner = Starlette(routes=[route], middleware=[Middleware(BaseHTTPMiddleware, dispatch=hide)])
    assert_unknown(drive(guard.asgi(inner)), runs, 504)


def test_what_whoever_called_the_server_handles_is_not_the_handlers(guard: semel.Guard) -> None:
    def plain(environ: Any, start_response: Any) -> list[bytes]:
        start_response("503 Later", [])
        return [b""]

    send, ask = WsgiDriver(guard.wsgi(plain), strict=False), Ask(key=new_key())
    try:
        raise TimeoutError("primary")
    except TimeoutError:
        assert send(ask).status == 503
    assert send(ask).status == 503
