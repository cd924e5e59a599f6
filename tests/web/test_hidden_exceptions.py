"""A time-out in an endpoint is a doubt, whatever answer its application makes of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import blacksheep
import blacksheep.server.routing
import cherrypy  # type: ignore[import-untyped]
import falcon
import falcon.asgi
import flask
import pytest
import quart
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.middleware.base import BaseHTTPMiddleware

from semel.web import framework_internals
from tests.web.client import new_key
from tests.web.conftest import Drive, MakeGuard
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver


def assert_in_doubt(send: Driver, runs: list[int]) -> None:
    key = new_key()
    first, again = send(Ask(key=key)), send(Ask(key=key))
    assert (first.status, again.code) == (502, "outcome-unknown")
    assert runs == [1]


@pytest.mark.parametrize("by", ["handler", "middleware"])
def test_a_time_out_that_fastapi_answers_is_a_doubt(
    by: str, make_guard: MakeGuard, drive: Drive
) -> None:
    app, runs = FastAPI(), list[int]()

    @app.post("/x")
    async def pay() -> None:
        runs.append(1)
        raise TimeoutError("bank")

    async def handle(request: Request, error: Exception) -> PlainTextResponse:
        return PlainTextResponse("bank", 502)

    async def hide(request: Request, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except TimeoutError:
            pass
        return PlainTextResponse("bank", 502)

    if by == "handler":
        app.add_exception_handler(TimeoutError, handle)
        app.add_middleware(BaseHTTPMiddleware, dispatch=lambda asked, go_on: go_on(asked))
    else:
        app.add_middleware(BaseHTTPMiddleware, dispatch=hide)
    assert_in_doubt(drive(make_guard().asgi(app)), runs)


def test_a_time_out_that_an_error_handler_of_flasks_answers_is_a_doubt(
    make_guard: MakeGuard,
) -> None:
    app, runs = flask.Flask("shop"), list[int]()

    @app.post("/x")
    def pay() -> Any:
        runs.append(1)
        raise TimeoutError("bank")

    @app.errorhandler(TimeoutError)
    def handle(error: Exception) -> Any:
        return "bank", 502

    assert_in_doubt(WsgiDriver(make_guard().wsgi(app)), runs)


# ── frameworks that make a 500 of any exception ───────────────────────────────────────────────────


def quart_app(runs: list[int]) -> Any:
    app = quart.Quart("shop")

    @app.post("/x")
    async def pay() -> str:
        runs.append(1)
        raise TimeoutError("bank")

    return app


def quart_handled(runs: list[int]) -> Any:
    app = quart_app(runs)

    @app.errorhandler(TimeoutError)  # type: ignore[untyped-decorator]
    async def handle(error: Exception) -> Any:
        return "bank", 502

    return app.asgi_app


def falcon_app(runs: list[int]) -> Any:
    class Pay:
        def on_post(self, req: Any, resp: Any) -> None:
            runs.append(1)
            raise TimeoutError("bank")

    app = falcon.App()
    app.add_route("/x", Pay())
    return app


def falcon_awaited(runs: list[int]) -> Any:
    class Pay:
        async def on_post(self, req: Any, resp: Any) -> None:
            runs.append(1)
            raise TimeoutError("bank")

    app = falcon.asgi.App()
    app.add_route("/x", Pay())
    return app


def blacksheep_app(runs: list[int]) -> Any:
    app = blacksheep.Application(router=blacksheep.server.routing.Router())

    @app.router.post("/x")
    async def pay() -> str:
        runs.append(1)
        raise TimeoutError("bank")

    return app


def cherrypy_app(runs: list[int]) -> Any:
    class Shop:
        @cherrypy.expose  # type: ignore[untyped-decorator]
        def x(self) -> str:
            runs.append(1)
            raise TimeoutError("bank")

    return cherrypy.Application(Shop(), "", {"/": {"log.screen": False}})


@pytest.mark.parametrize(
    "made",
    [quart_app, quart_handled, falcon_awaited, blacksheep_app],
    ids=lambda made: made.__name__,
)
def test_a_time_out_that_an_asgi_framework_answers_is_a_doubt(
    made: Callable[[list[int]], Any], make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs = list[int]()
    app = made(runs)
    guarded = make_guard().asgi(app)
    if made is blacksheep_app:
        runner.run(app.start())
    assert_left_unknown(AsgiDriver(guarded, runner), runs)


@pytest.mark.parametrize("made", [falcon_app, cherrypy_app], ids=lambda made: made.__name__)
def test_a_time_out_that_a_wsgi_framework_answers_is_a_doubt(
    made: Callable[[list[int]], Any], make_guard: MakeGuard
) -> None:
    runs = list[int]()
    assert_left_unknown(WsgiDriver(make_guard().wsgi(made(runs)), strict=False), runs)


def assert_left_unknown(send: Driver, runs: list[int]) -> None:
    ask = Ask(key=new_key(), headers=(("host", "shop.test"),))
    first, again = send(ask), send(ask)
    assert first.status in (500, 502)
    assert again.code == "outcome-unknown"
    assert runs == [1]


@pytest.mark.parametrize("package", ["blacksheep", "falcon", "flask"])
def test_a_version_that_hides_exceptions_is_warned_of_once(
    package: str,
    make_guard: MakeGuard,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(framework_internals, "_warned", set[str]())
    app: Any = type("App", (), {"__module__": f"{package}.app", "__call__": print})()
    for _ in range(2):
        make_guard().wsgi(app)
    assert caplog.text.count(f"this version of {package} is not known") == 1
