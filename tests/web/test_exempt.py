"""Routes that need no keys: nobody asks for one there, whatever the guard's default says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import flask
import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, post
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import semel
from semel.frameworks.flask import install
from semel.operators.coverage import audit
from tests.web.conftest import MakeGuard

KEY = {"Idempotency-Key": "9b2f6a1e-7c1d-4b3a-8f00-0123456789ab"}
STRICT = semel.ietf(required=True)


def starlette(guard: semel.Guard) -> Any:
    async def search(request: Any) -> PlainTextResponse:
        return PlainTextResponse("found")

    routes = [
        Route("/search", guard.route(semel.exempt())(search), methods=["POST"]),
        Route("/pay", search, methods=["POST"]),
    ]
    return guard.asgi(Starlette(routes=routes))


def listed(guard: semel.Guard) -> Any:
    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse("found")

    guard.routes = (semel.Route("POST", "/search", semel.exempt()),)
    routes = [Route(path, answer, methods=["POST"]) for path in ("/search", "/pay")]
    return guard.asgi(Starlette(routes=routes))


def fastapi(guard: semel.Guard) -> Any:
    app = FastAPI()

    @app.post("/search")
    @guard.route(semel.exempt())
    async def search() -> str:
        return "found"

    @app.post("/pay")
    async def pay() -> str:
        return "paid"

    guard.fastapi(app)
    return app


def litestar(guard: semel.Guard) -> Any:
    @post("/search")
    @guard.route(semel.exempt())
    async def search() -> str:
        return "found"

    @post("/pay")
    async def pay() -> str:
        return "paid"

    app: Any = Litestar([search, pay], openapi_config=None)
    return guard.asgi(app)


@pytest.mark.parametrize("make", [starlette, listed, fastapi, litestar])
async def test_an_exempt_route_asks_for_no_key_and_keeps_none(
    make: Callable[[semel.Guard], Any], make_guard: MakeGuard
) -> None:
    app = make(make_guard(tenant=None, policy=STRICT))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        assert (await client.post("/pay")).status_code == 400
        for headers in ({}, KEY, KEY):
            answer = await client.post("/search", headers=headers)
            assert answer.status_code in (200, 201)
            assert "idempotent-replayed" not in answer.headers
    keys = {each.path: each.keys for each in audit(app, None, ())}
    assert keys == {"/search": "exempt", "/pay": "enforces"}


def test_an_exempt_view_of_flask_asks_for_no_key(make_guard: MakeGuard) -> None:
    guard = make_guard(tenant=None, policy=STRICT)
    app = flask.Flask("shop")
    install(app, guard)

    @app.post("/search")
    @guard.route(semel.exempt())
    def search() -> str:
        return "found"

    @app.post("/pay")
    def pay() -> str:
        return "paid"

    client = app.test_client()
    assert client.post("/pay").status_code == 400
    assert [client.post("/search", headers=each).text for each in ({}, KEY, KEY)] == ["found"] * 3


async def test_an_inbox_is_asked_for_no_key(make_guard: MakeGuard) -> None:
    """It is semel's own, and providers send none."""
    guard = make_guard(tenant=None, policy=STRICT)
    bank = guard.inbox("bank", b"s" * 32, lambda event: None)
    app = guard.asgi(Starlette(routes=[Mount("/webhooks/bank", bank.asgi)]))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        answer = await client.post("/webhooks/bank/", content=b"{}")
    assert (answer.status_code, json.loads(answer.content)) == (401, {"status": "refused"})
    assert [each.keys for each in audit(app, None, ())] == ["exempt"]
