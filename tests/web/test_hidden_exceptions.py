"""A time-out in an endpoint is a doubt, whatever answer its application makes of it."""

import asyncio
from typing import Any

import flask
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.middleware.base import BaseHTTPMiddleware

from semel.web import framework_internals
from tests.web.client import new_key
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver


def assert_in_doubt(send: Driver, runs: list[int]) -> None:
    key = new_key()
    first, again = send(Ask(key=key)), send(Ask(key=key))
    assert (first.status, again.code) == (502, "outcome-unknown")
    assert runs == [1]


@pytest.mark.parametrize("by", ["handler", "middleware"])
def test_a_time_out_that_fastapi_answers_is_a_doubt(
    by: str, make_guard: MakeGuard, runner: asyncio.Runner
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
    assert_in_doubt(AsgiDriver(make_guard().asgi(app), runner), runs)


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


@pytest.mark.parametrize("package", ["blacksheep", "cherrypy", "falcon", "quart"])
def test_a_framework_that_hides_exceptions_is_warned_of_once(
    package: str,
    make_guard: MakeGuard,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(framework_internals, "_told", set[str]())
    app: Any = type("App", (), {"__module__": f"{package}.app"})()
    for _ in range(2):
        make_guard().wsgi(app)
    assert caplog.text.count(f"{package} answers 500 to any exception") == 1
