"""`request.state` in ``tenant=`` is what authentication left in the ASGI scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flask
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import semel
from semel.core.records import HeaderView

KEY = {"Idempotency-Key": "a-key-of-one-caller"}


@pytest.fixture
def guard() -> Iterator[semel.Guard]:
    guard = semel.Guard("memory://", tenant=lambda request: request.state.user)
    yield guard
    guard.close()


def authenticated(app: Any) -> Any:
    """An ASGI middleware that notes the caller as Starlette's own requests do."""

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        if "x-user" in request.headers:
            request.state.user = request.headers["x-user"]
        await app(scope, receive, send)

    return outer


async def pay(request: Request) -> JSONResponse:
    return JSONResponse({"for": request.state.user}, 201)


async def answers(app: Any, *users: str | None) -> list[tuple[int, str | None]]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        sent = [{**KEY, **({} if user is None else {"x-user": user})} for user in users]
        replies = [await client.post("/pay", headers=headers) for headers in sent]
    return [(reply.status_code, reply.headers.get("idempotent-replayed")) for reply in replies]


async def test_a_caller_in_the_state_is_the_tenant(guard: semel.Guard) -> None:
    app = authenticated(guard.asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])])))
    came = await answers(app, "ann", "bob", "ann")
    assert came == [(201, "false"), (201, "false"), (201, "true")]


async def test_a_state_that_nobody_set_is_nobody(guard: semel.Guard) -> None:
    app = authenticated(guard.asgi(Starlette(routes=[Route("/pay", pay, methods=["POST"])])))
    assert await answers(app, None) == [(401, None)]


def test_under_wsgi_it_is_a_mistake_that_is_named(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    app = flask.Flask("shop")
    ran: list[str] = []
    app.post("/pay")(lambda: ran.append("pay") or "paid")  # type: ignore[func-returns-value]
    app.wsgi_app = guard.wsgi(app.wsgi_app)  # type: ignore[method-assign]
    refused = app.test_client().post("/pay", headers=KEY)
    assert (refused.status_code, ran) == (500, [])
    assert "request.raw" in caplog.text


@pytest.mark.parametrize("raw", [{"wsgi.version": (1, 0)}, flask.Request({}), None], ids=type)
def test_what_is_no_asgi_scope_says_where_to_look(raw: Any) -> None:
    request = semel.Request("POST", "/", b"", HeaderView(()), raw)
    with pytest.raises(semel.ConfigurationError, match=r"request\.raw"):
        _ = request.state


def test_an_attribute_that_nobody_set_is_named() -> None:
    request = semel.Request("POST", "/", b"", HeaderView(()), {"type": "http", "state": {"a": 1}})
    assert request.state.a == 1
    with pytest.raises(AttributeError, match=r"request\.state\.user"):
        _ = request.state.user
