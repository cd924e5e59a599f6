"""Where a guard can stand, and what a handler can do there.

Every position builds a guarded application whose one handler does what its `Act` says, counted by
the effects log.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from flask import Flask
from flask import Response as FlaskResponse
from litestar import Litestar, post
from litestar import Response as LitestarResponse
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import semel
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from semel.web.asgi_exchange import AsgiApp
from semel.web.wsgi import Environ, StartResponse
from tests.web.drive import KEY, AsgiDriver, Driver, WsgiDriver
from tests.web.effects import Effects

Build = Callable[["Act", semel.Guard, Effects], Any]


class Mapped(Exception):
    """Stands for an application's own error, which an exception handler turns into an answer."""


@dataclass(frozen=True)
class Act:
    """What a handler does after it has had its effect."""

    status: int = 200
    error: Callable[[], BaseException] | None = None
    begun: bool = False
    """Raises only after the first piece of its answer."""
    silent: bool = False
    """Returns without an answer."""
    mapped: int = 0
    """The application's own exception handler answers this status for the error."""

    def raise_(self) -> None:
        if self.error is not None:
            raise self.error()


# ── ASGI ──────────────────────────────────────────────────────────────────────────────────────────


def raw(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = effects.happen(KEY).encode()
        if act.silent:
            return
        if not act.begun:
            act.raise_()
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": act.status, "headers": headers})
        await send({"type": "http.response.body", "body": name, "more_body": act.begun})
        act.raise_()

    return guard.asgi(app)


class Nothing(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing at all."""


def endpoint(act: Act, effects: Effects) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        name = effects.happen(KEY)
        if act.silent:
            return Nothing()
        if act.begun:
            return StreamingResponse(broken_off(act, name), act.status, media_type="text/plain")
        act.raise_()
        if act.status == 204:
            return Response(status_code=204)
        return PlainTextResponse(name, act.status)

    return handle


async def broken_off(act: Act, name: str) -> AsyncIterator[bytes]:
    yield name.encode()
    act.raise_()


async def answer_for(request: Request, error: Exception) -> Response:
    return PlainTextResponse("mapped", request.app.state.mapped)


MAPPED: tuple[type[Exception], ...] = (
    semel.OutcomeUnknown,
    semel.NotExecuted,
    TimeoutError,
    Mapped,
)


def handlers(act: Act) -> dict[Any, Any]:
    return dict.fromkeys(MAPPED, answer_for) if act.mapped else {}


async def untouched(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    return response


def starlette(act: Act, effects: Effects) -> Starlette:
    app = Starlette(
        routes=[Route("/x", endpoint(act, effects), methods=["POST"])],
        exception_handlers=handlers(act),
    )
    app.state.mapped = act.mapped
    return app


def outside(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    return guard.asgi(starlette(act, effects))


def inside(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = starlette(act, effects)
    app.add_middleware(semel.Middleware, guard=guard)
    return app


def fastapi(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = FastAPI(exception_handlers=handlers(act))
    app.state.mapped = act.mapped
    app.add_api_route("/x", endpoint(act, effects), methods=["POST"], response_model=None)
    app.add_middleware(semel.Middleware, guard=guard)
    return app


def gated(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = FastAPI(exception_handlers=handlers(act))
    app.state.mapped = act.mapped
    app.add_api_route("/x", endpoint(act, effects), methods=["POST"], response_model=None)
    guard.fastapi(app)
    return app


def around_base_http(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = starlette(act, effects)
    app.add_middleware(BaseHTTPMiddleware, dispatch=untouched)
    app.add_middleware(semel.Middleware, guard=guard)  # added last: stands outermost
    return app


def inside_base_http(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    app = starlette(act, effects)
    app.add_middleware(semel.Middleware, guard=guard)
    app.add_middleware(BaseHTTPMiddleware, dispatch=untouched)
    return app


def litestar(act: Act, guard: semel.Guard, effects: Effects) -> AsgiApp:
    @post("/x")
    async def handle() -> LitestarResponse[Any]:
        name = effects.happen(KEY)
        if act.begun:
            pieces = broken_off(act, name)
            return Stream(pieces, status_code=act.status, media_type="text/plain")
        act.raise_()
        body = None if act.status in (204, 303) else name
        return LitestarResponse(body, status_code=act.status, media_type="text/plain")

    def mapped(request: Any, error: Exception) -> LitestarResponse[Any]:
        return LitestarResponse("mapped", status_code=act.mapped, media_type="text/plain")

    app = Litestar(
        [handle],
        on_app_init=[partial(install_litestar, guard=guard)],
        exception_handlers=dict.fromkeys(MAPPED, mapped) if act.mapped else {},
        openapi_config=None,
        logging_config=None,
    )
    return cast("AsgiApp", app)


# ── WSGI ──────────────────────────────────────────────────────────────────────────────────────────


def bare(act: Act, guard: semel.Guard, effects: Effects) -> Any:
    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        name = effects.happen(KEY).encode()
        if act.silent:
            return ()
        if not act.begun:
            act.raise_()
        headers = [] if act.status == 204 else [("Content-Type", "text/plain")]
        start_response(f"{act.status} {HTTPStatus(act.status).phrase}", headers)
        return pieces(act, b"" if act.status == 204 else name)

    return guard.wsgi(app)


def pieces(act: Act, name: bytes) -> Iterator[bytes]:
    yield name
    act.raise_()


def flask_app(act: Act, effects: Effects) -> Flask:
    app = Flask("positions")
    app.config["PROPAGATE_EXCEPTIONS"] = False
    app.logger.disabled = True

    @app.post("/x")
    def handle() -> FlaskResponse:
        name = effects.happen(KEY).encode()
        if act.begun:
            return FlaskResponse(pieces(act, name), act.status, mimetype="text/plain")
        act.raise_()
        answer = FlaskResponse(name, act.status, mimetype="text/plain")
        if act.status == 204:
            answer = FlaskResponse(status=204)
            del answer.headers["content-type"]
        return answer

    for kind in MAPPED if act.mapped else ():
        app.register_error_handler(kind, lambda error: FlaskResponse("mapped", act.mapped))
    return app


def flask(act: Act, guard: semel.Guard, effects: Effects) -> Any:
    return guard.wsgi(flask_app(act, effects).wsgi_app)


def flask_extension(act: Act, guard: semel.Guard, effects: Effects) -> Any:
    app = flask_app(act, effects)
    install_flask(app, guard)
    return app


# ── all of them ───────────────────────────────────────────────────────────────────────────────────

ASGI: dict[str, Build] = {
    "asgi": raw,
    "starlette, guard.asgi": outside,
    "starlette, add_middleware": inside,
    "fastapi, add_middleware": fastapi,
    "fastapi, guard.fastapi": gated,
    "litestar": litestar,
    "around BaseHTTPMiddleware": around_base_http,
    "inside BaseHTTPMiddleware": inside_base_http,
}
WSGI: dict[str, Build] = {"wsgi": bare, "flask": flask, "flask, installed": flask_extension}
ALL = {**ASGI, **WSGI}


def driver(
    position: str, act: Act, guard: semel.Guard, effects: Effects, runner: asyncio.Runner
) -> Driver:
    app = ALL[position](act, guard, effects)
    return AsgiDriver(app, runner) if position in ASGI else WsgiDriver(app)
