"""The contract is served by every framework's adapter, and is in OpenAPI documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.http import HttpResponse
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post

import semel
from semel.frameworks.django import guarded
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from tests.frameworks.django_site import Site
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask, Driver, WsgiDriver

PAY = semel.payments(probe=None, required=True)
WHERE = Ask("GET", b"/.well-known/idempotency", None, b"", headers=())
SITES: list[Site] = []


def fastapi(guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    app = FastAPI()

    @app.post("/pay")
    @guard.route(PAY)
    async def pay() -> None: ...

    guard.fastapi(app)
    return AsgiDriver(app, runner)


def flask(guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    app = Flask(__name__)

    @app.post("/pay")
    @guard.route(PAY)
    def pay() -> str:
        return ""

    install_flask(app, guard)
    return WsgiDriver(app.wsgi_app)


def litestar(guard: semel.Guard, runner: asyncio.Runner) -> Driver:
    @post("/pay")
    @guard.route(PAY)
    async def pay() -> None: ...

    app: Any = Litestar([pay], on_app_init=[partial(install_litestar, guard=guard)])
    return AsgiDriver(app, runner)


def django(guard: semel.Guard, runner: asyncio.Runner, *, colour: str) -> Driver:
    @guarded(guard, PAY)
    def pay(request: Any) -> HttpResponse:
        return HttpResponse()

    SITES.append(Site(guard, {"pay": pay}))
    return SITES[-1].driver(colour, runner)


BUILDS: dict[str, Callable[[semel.Guard, asyncio.Runner], Driver]] = {
    "fastapi": fastapi,
    "flask": flask,
    "litestar": litestar,
    "django, wsgi": partial(django, colour="wsgi"),
    "django, asgi": partial(django, colour="asgi"),
}


@pytest.fixture(autouse=True)
def closed_sites() -> Iterator[None]:
    yield
    while SITES:
        SITES.pop().close()


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_it_is_served_where_that_was_asked_for(
    make_guard: MakeGuard, runner: asyncio.Runner, build: Any
) -> None:
    reply = build(make_guard(publish=True), runner)(WHERE)
    assert reply.status == 200
    told = json.loads(reply.body)
    routes = {(each["method"], each["path"]): each for each in told["routes"]}
    assert routes[("POST", "/pay")]["key"]["required"]
    assert not told["default"]["key"]["required"]
    assert build(make_guard(), runner)(WHERE).status == 404


def test_a_tagged_endpoint_that_takes_no_keys_promises_nothing(make_guard: MakeGuard) -> None:
    guard, app = make_guard(publish=True), FastAPI()

    @app.post("/free")
    @guard.route(semel.exempt())
    async def free() -> None: ...

    @app.api_route("/pay", methods=["POST", "PUT"])
    @guard.route(PAY)
    async def pay() -> None: ...

    guard.fastapi(app)
    told = {(each["method"], each["path"]): each for each in guard.contract(app)["routes"]}
    assert told["POST", "/free"] == {"method": "POST", "path": "/free", "methods": []}
    assert told["PUT", "/pay"] == {"method": "PUT", "path": "/pay", "methods": []}
    assert told["POST", "/pay"]["methods"] == ["PATCH", "POST"]


def test_openapi_has_the_promises_of_each_operation(make_guard: MakeGuard) -> None:
    for publish in (True, False):
        guard, app = make_guard(publish=publish), FastAPI()

        @app.post("/pay")
        @guard.route(PAY)
        async def pay() -> None: ...

        guard.fastapi(app)
        operation = app.openapi()["paths"]["/pay"]["post"]
        (route,) = guard.contract(app)["routes"]
        told = operation.get("x-idempotency")
        assert told == ({k: v for k, v in route.items() if k not in ("method", "path")} if publish
                        else None)  # fmt: skip
