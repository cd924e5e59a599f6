"""One shop on every framework: the same three handlers, and a provider that only counts.

``/pay`` is leased, ``/atomic`` writes a row with its record, ``/steps`` has two points.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

import semel
from semel.testing import PrivateStore

KEY = "opaque-key-of-some-test"
PAYMENT = {"amount": 100}
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"
"""A store that no test could use."""


class Provider:
    """Charges as often as it is asked; it can be asked what it did."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, key: str) -> str:
        self.charged.append(key)
        return f"ch_{len(self.charged)}"

    def ask(self, inquiry: semel.Inquiry) -> semel.Happened | semel.Absent:
        if inquiry.downstream_key("charge") not in self.charged:
            return semel.Absent(final=True)
        return semel.Happened("ch_1")


class Shop:
    """Its guard is made for a server that is not there."""

    def __init__(self, **options: Any) -> None:
        self.provider = Provider()
        self.guard = semel.Guard(NOWHERE, tenant=None, **options)
        probe = self.provider.ask
        self.policies = {
            "/pay": semel.ietf(probe=probe, render=lambda _: semel.Response(201, (), b"found")),
            "/atomic": semel.ietf(mode="atomic"),
            "/steps": semel.ietf(mode="resumable", probe=probe),
        }
        self.guard.delivers("receipt")(self.deliver)
        self.delivered: list[Any] = []
        self.close: Callable[[], object] = lambda: None

    def deliver(self, delivery: semel.Delivery) -> str:
        self.delivered.append(delivery.payload)
        return "mail_1"

    def pay(self) -> dict[str, str]:
        return {"charge": self.provider.charge(semel.operation().downstream_key("charge"))}

    def atomic(self) -> dict[str, str]:
        op = semel.operation()
        op.transaction.execute("INSERT INTO paid VALUES ('row')")
        op.enqueue("receipt", {"amount": 100})
        return {"paid": "row"}

    def steps(self) -> dict[str, str]:
        op = semel.operation()
        op.phase("written", self._write)
        charge = op.call("charge", self.provider.charge)
        op.phase("booked", self._book)
        return {"charge": charge}

    def _write(self) -> None:
        semel.operation().transaction.execute("INSERT INTO paid VALUES ('row')")

    def _book(self) -> None:
        semel.operation().enqueue("receipt", {"amount": 100})

    async def apay(self) -> dict[str, str]:
        return self.pay()

    async def aatomic(self) -> dict[str, str]:
        op = semel.async_operation()
        op.transaction.execute("INSERT INTO paid VALUES ('row')")
        await op.enqueue("receipt", {"amount": 100})
        return {"paid": "row"}

    async def asteps(self) -> dict[str, str]:
        op = semel.async_operation()
        await op.phase("written", self._write)
        charge = await op.call("charge", self.provider.charge)
        await op.phase("booked", self._abook)
        return {"charge": charge}

    async def _abook(self) -> None:
        await semel.async_operation().enqueue("receipt", {"amount": 100})

    def rows(self, store: PrivateStore) -> int:
        return len(sql(store, "SELECT * FROM paid"))


def sql(store: PrivateStore, statement: str) -> list[Any]:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
        return rows


Send = Callable[[str], Any]
"""Sends the payment to a path, as a test of the framework would."""


def fastapi(shop: Shop) -> tuple[Any, Send]:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()
    for path, policy in shop.policies.items():
        app.post(path, status_code=201)(shop.guard.route(policy)(_plain(shop, path)))
    guarded = shop.guard.asgi(app)
    return guarded, _posting(TestClient(guarded))


def fastapi_entered(shop: Shop) -> tuple[Any, Send]:
    """The client lives for the whole test, with one event loop."""
    app, _ = fastapi(shop)
    from fastapi.testclient import TestClient

    client = TestClient(app)
    client.__enter__()
    shop.close = lambda: client.__exit__(None, None, None)
    return app, _posting(client)


def fastapi_installed(shop: Shop) -> tuple[Any, Send]:
    """Dependencies run before the claim; the handlers are coroutine functions."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()
    for path, policy in shop.policies.items():
        app.post(path, status_code=201)(shop.guard.route(policy)(_awaited(shop, path)))
    shop.guard.fastapi(app)
    return app, _posting(TestClient(app))


def httpx_asgi(shop: Shop) -> tuple[Any, Send]:
    app, _ = fastapi_installed(shop)

    async def sent(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(path, json=PAYMENT, headers={"idempotency-key": KEY})

    return app, lambda path: asyncio.run(sent(path))


def flask(shop: Shop) -> tuple[Any, Send]:
    from flask import Flask

    from semel.frameworks import flask as adapter

    app = Flask("shop")
    for path, policy in shop.policies.items():
        view = shop.guard.route(policy)(_plain(shop, path))
        app.post(path, endpoint=path)(view)
    adapter.install(app, shop.guard)
    client = app.test_client()
    return app, lambda path: client.post(path, json=PAYMENT, headers={"idempotency-key": KEY})


def wsgi(shop: Shop) -> tuple[Any, Send]:
    """Any WSGI application, with the routes in the guard's own list."""
    from werkzeug.test import Client
    from werkzeug.wrappers import Request, Response

    @Request.application
    def app(request: Request) -> Response:
        body = getattr(shop, request.path[1:])()
        return Response(json.dumps(body), 201, content_type="application/json")

    shop.guard.routes = tuple(
        semel.Route("POST", path, policy) for path, policy in shop.policies.items()
    )
    guarded = shop.guard.wsgi(app)
    client = Client(guarded)
    return guarded, lambda path: client.post(path, json=PAYMENT, headers={"idempotency-key": KEY})


def django(shop: Shop) -> tuple[Any, Send]:
    """Django's own test client, and views behind the middleware."""
    from django.core.wsgi import get_wsgi_application
    from django.http import JsonResponse
    from django.test import Client

    from tests.frameworks.django_site import Site

    def viewed(path: str) -> Any:
        def view(request: Any) -> Any:
            return JsonResponse(getattr(shop, path[1:])(), status=201)

        return shop.guard.route(shop.policies[path])(view)

    site = Site(shop.guard, {path[1:]: viewed(path) for path in shop.policies})
    shop.close = site.close
    client = Client(headers={"idempotency-key": KEY})
    return get_wsgi_application(), lambda path: client.post(path, PAYMENT, "application/json")


def litestar(shop: Shop) -> tuple[Any, Send]:
    from functools import partial

    from litestar import Litestar, post
    from litestar.testing import TestClient

    from semel.frameworks.litestar import install

    handlers = [
        post(path, sync_to_thread=True)(shop.guard.route(policy)(_plain(shop, path)))
        for path, policy in shop.policies.items()
    ]
    app = Litestar(handlers, on_app_init=[partial(install, guard=shop.guard)])

    def send(path: str) -> Any:
        # An application of Litestar's cannot be started twice at once, and the worker starts it.
        with TestClient(app) as client:
            return _posting(client)(path)

    return app, send


FRAMEWORKS: dict[str, Callable[[Shop], tuple[Any, Send]]] = {
    made.__name__: made
    for made in (
        fastapi,
        fastapi_entered,
        fastapi_installed,
        httpx_asgi,
        flask,
        wsgi,
        django,
        litestar,
    )
}


def _plain(shop: Shop, path: str) -> Any:
    handler: Callable[[], dict[str, str]] = getattr(shop, path[1:])

    def view() -> dict[str, str]:
        return handler()

    view.__name__ = path[1:]
    return view


def _awaited(shop: Shop, path: str) -> Any:
    handler: Callable[[], Any] = getattr(shop, "a" + path[1:])

    async def view() -> dict[str, str]:
        answer: dict[str, str] = await handler()
        return answer

    view.__name__ = path[1:]
    return view


def _posting(client: Any) -> Send:
    return lambda path: client.post(path, json=PAYMENT, headers={"idempotency-key": KEY})
