"""A guard around a guard: the outer one guards, the inner one steps aside, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, post
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

import semel
from semel.frameworks.litestar import install

HEADERS = {"Idempotency-Key": "a-key-of-enough-length"}


@pytest.fixture
def guard() -> Iterator[semel.Guard]:
    made = semel.Guard("memory://", tenant=None)
    yield made
    made.close()


async def test_two_asgi_guards_run_a_handler_once(guard: semel.Guard) -> None:
    runs: list[int] = []

    async def pay(request: Request) -> PlainTextResponse:
        runs.append(1)
        return PlainTextResponse(f"run {len(runs)}")

    app = guard.asgi(guard.asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])])))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:
        answers = [await client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert [answer.text for answer in answers] == ["run 1", "run 1"]


async def start(app: Any) -> None:
    """As a server does before the first request."""

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await app({"type": "lifespan"}, receive, send)


def both_ways(guard: semel.Guard) -> dict[str, Callable[[], Any]]:
    """An application that is guarded by a middleware, and after its dependencies, too."""

    def fastapi_first() -> Any:
        app = FastAPI()
        guard.fastapi(app)
        app.add_middleware(semel.Middleware, guard=guard)
        return app

    def fastapi_last() -> Any:
        app = FastAPI()
        app.add_middleware(semel.Middleware, guard=guard)
        guard.fastapi(app)
        return app

    def around() -> Any:
        app = FastAPI()
        guard.fastapi(app)
        return guard.asgi(app)

    def twice() -> Any:
        app = FastAPI()
        guard.fastapi(app)
        guard.fastapi(app)
        return app

    def litestar() -> Any:
        both = DefineMiddleware(cast("Any", semel.Middleware), guard=guard)
        return Litestar([pay], middleware=[both], on_app_init=[partial(install, guard=guard)])

    def around_litestar() -> Any:
        return guard.asgi(cast("Any", Litestar([pay], on_app_init=[partial(install, guard=guard)])))

    @post("/pay")
    async def pay() -> None: ...

    ways = (fastapi_first, fastapi_last, around, twice, litestar, around_litestar)
    return {way.__name__: way for way in ways}


@pytest.mark.parametrize(
    "way", ["fastapi_first", "fastapi_last", "around", "twice", "litestar", "around_litestar"]
)
async def test_a_guard_that_claims_after_dependencies_bears_no_other_around_it(
    way: str, guard: semel.Guard
) -> None:
    """Each would meet the other's claim: a 409 for every request, or a claim by strangers."""
    with pytest.raises(semel.ConfigurationError, match="guarded twice"):
        await start(both_ways(guard)[way]())


def test_two_wsgi_guards_run_a_handler_once(guard: semel.Guard) -> None:
    runs: list[int] = []

    def pay(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"run %d" % len(runs)]

    client = Client(guard.wsgi(guard.wsgi(pay)))
    answers = [client.post("/pay", headers=HEADERS) for _ in range(2)]
    assert [answer.text for answer in answers] == ["run 1", "run 1"]


async def test_a_scope_that_is_sent_through_again_is_guarded_again(guard: semel.Guard) -> None:
    """The mark is still in it, but nobody runs it any more."""
    runs: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    guarded = guard.asgi(app)
    headers = [(b"idempotency-key", b"a-key-of-enough-length")]
    scope = {"type": "http", "method": "POST", "path": "/pay", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    for _ in range(3):
        await guarded(scope, receive, send)
    assert len(runs) == 1


async def test_a_handler_that_calls_itself_with_its_own_key_is_not_let_through(
    guard: semel.Guard,
) -> None:
    statuses: list[int] = []

    async def pay(request: Request) -> PlainTextResponse:
        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            statuses.append((await client.post("/pay", headers=HEADERS)).status_code)
        return PlainTextResponse("paid")

    guarded = guard.asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])]))
    transport = httpx.ASGITransport(guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post("/pay", headers=HEADERS)).status_code == 200
    assert statuses == [409]
