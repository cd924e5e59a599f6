"""Routes in shadow behind each framework: every request runs, and what it sent comes through."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import flask
import pytest

from tests.frameworks.django_site import Site

# REST framework reads Django's settings when it is imported, so they must be there before.
# isort: split
from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt
from fastapi import FastAPI, Request
from litestar import Litestar, post
from litestar import Request as LitestarRequest
from rest_framework.decorators import api_view
from rest_framework.response import Response as RestResponse

import semel
from semel.frameworks import flask as semel_flask
from semel.frameworks import litestar as semel_litestar
from semel.frameworks.django import guarded
from semel.runtime.shadow import read_counts
from tests.web.conftest import MakeGuard
from tests.web.drive import KEY, AsgiDriver, Ask, Driver, WsgiDriver

BODY = b'{"amount": 1}'
OTHER = b'{"amount": 2}'

Sees = list[bytes]
Drives = Callable[[semel.Guard, Sees], Driver]


def answer(sees: Sees, body: bytes) -> str:
    sees.append(body)
    return f"run {len(sees)}"


@pytest.fixture
def fastapi(runner: asyncio.Runner) -> Drives:
    def drives(guard: semel.Guard, sees: Sees) -> Driver:
        app = FastAPI()

        @app.post("/x")
        @guard.route(semel.ietf(required=True))
        async def pay(request: Request) -> str:
            return answer(sees, await request.body())

        guard.fastapi(app)
        return AsgiDriver(app, runner)

    return drives


@pytest.fixture
def litestar(runner: asyncio.Runner) -> Drives:
    def drives(guard: semel.Guard, sees: Sees) -> Driver:
        @post("/x", status_code=200)
        async def pay(request: LitestarRequest[Any, Any, Any]) -> str:
            return answer(sees, await request.body())

        app = Litestar([pay], on_app_init=[partial(semel_litestar.install, guard=guard)])
        return AsgiDriver(cast("Any", app), runner)

    return drives


@pytest.fixture
def by_flask() -> Drives:
    def drives(guard: semel.Guard, sees: Sees) -> Driver:
        app = flask.Flask("shop")

        def pay() -> str:
            return answer(sees, flask.request.get_data())

        app.add_url_rule("/x", view_func=pay, methods=["POST"])
        semel_flask.install(app, guard)
        return WsgiDriver(app, strict=False)

    return drives


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    made: list[Site] = []
    yield made
    for site in reversed(made):
        site.close()


def _django(colour: str, sites: list[Site], runner: asyncio.Runner) -> Drives:
    def drives(guard: semel.Guard, sees: Sees) -> Driver:
        @csrf_exempt
        def pay(request: Any) -> HttpResponse:
            return HttpResponse(answer(sees, request.body))

        sites.append(Site(guard, {"x": pay}))
        return sites[-1].driver(colour, runner)

    return drives


@pytest.fixture
def django(sites: list[Site], runner: asyncio.Runner) -> Drives:
    return _django("wsgi", sites, runner)


@pytest.fixture
def async_django(sites: list[Site], runner: asyncio.Runner) -> Drives:
    return _django("asgi", sites, runner)


@pytest.fixture
def rest(sites: list[Site], runner: asyncio.Runner) -> Drives:
    def drives(guard: semel.Guard, sees: Sees) -> Driver:
        @api_view(["POST"])
        @guarded(guard)
        def pay(request: Any) -> RestResponse:
            return RestResponse(answer(sees, b'{"amount": %d}' % request.data["amount"]))

        sites.append(Site(guard, {"x": pay}))
        return sites[-1].driver("wsgi", runner)

    return drives


KINDS = ("fastapi", "litestar", "by_flask", "django", "async_django", "rest")


def counts_of(guard: semel.Guard) -> dict[str, int]:
    guard.runtime.shadow.run_once()
    counted = read_counts(guard.backend.blocking(), "", datetime(2000, 1, 1, tzinfo=UTC))
    (counts,) = counted.values()
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_runs_with_its_body_and_is_counted(
    kind: str, make_guard: MakeGuard, request: pytest.FixtureRequest
) -> None:
    drives: Drives = request.getfixturevalue(kind)
    guard, sees = make_guard(enforce="shadow"), Sees()
    send = drives(guard, sees)
    asks = [(KEY, BODY), (KEY, BODY), (KEY, OTHER), ("", BODY), (None, BODY), (None, BODY)]
    headers = (("content-type", "application/json"), ("content-length", str(len(BODY))))
    for number, (key, body) in enumerate(asks, 1):
        reply = send(Ask(key=key, body=body, headers=headers))
        assert (reply.status, reply.body.strip(b'"')) == (200, b"run %d" % number)
        assert sees[-1] == body
    counts = counts_of(guard)
    unkeyed = counts.pop("unkeyed")
    assert counts.pop("would_refuse missing-key", unkeyed) == unkeyed == 2
    assert counts == {
        "keyed": 4,
        "would_replay": 1,
        "differs": 1,
        "would_refuse key-reused": 1,
        "would_refuse malformed-key": 1,
        "look_alike": 1,
    }
