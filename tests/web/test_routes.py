"""A policy is found where it was put: on an endpoint below any router, or in a list of routes."""

import functools
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router

import semel
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from tests.web.client import Reply
from tests.web.colours import Said
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import Ask, WsgiDriver, call

STRICT = semel.ietf(required=True)
"""Found when a request without a key is refused."""


@semel.Guard("memory://", tenant=None).route(STRICT)
async def tagged(request: Request) -> Response:
    return PlainTextResponse("tagged")


async def plain(request: Request) -> Response:
    return PlainTextResponse("plain")


@semel.Guard("memory://", tenant=None).route(STRICT)
class TaggedClass(HTTPEndpoint):
    async def post(self, request: Request) -> Response:
        return PlainTextResponse("class")


class TaggedMethod(HTTPEndpoint):
    @semel.Guard("memory://", tenant=None).route(STRICT)
    async def post(self, request: Request) -> Response:
        return PlainTextResponse("method")

    async def patch(self, request: Request) -> Response:
        return PlainTextResponse("untagged")


def wrapped(endpoint: Any) -> Any:
    @functools.wraps(endpoint)
    async def outer(request: Request) -> Response:
        response: Response = await endpoint(request)
        return response

    return outer


class Opaque:
    """A middleware as people write them."""

    def __init__(self, app: AsgiApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def post(path: str, endpoint: Any) -> Route:
    return Route(path, endpoint, methods=["POST"])


def included(*prefixes: str) -> FastAPI:
    router = APIRouter()
    router.add_api_route("/x", tagged, methods=["POST"], response_model=None)
    for prefix in reversed(prefixes[1:]):
        outer = APIRouter()
        outer.include_router(router, prefix=prefix)
        router = outer
    app = FastAPI()
    app.include_router(router, prefix=prefixes[0])
    return app


def sub_application() -> FastAPI:
    app = FastAPI()
    app.mount("/sub", included("/v1"))
    return app


STARLETTE: dict[str, tuple[Any, str]] = {
    "route": (Starlette(routes=[post("/x", tagged)]), "/x"),
    "parameter": (Starlette(routes=[post("/x/{id:int}", tagged)]), "/x/42"),
    "second of two": (Starlette(routes=[post("/{any}", plain), post("/x/y", tagged)]), "/x/y"),
    "other method first": (
        Starlette(routes=[Route("/x", plain, methods=["GET"]), post("/x", tagged)]),
        "/x",
    ),
    "mount": (Starlette(routes=[Mount("/m", routes=[post("/x", tagged)])]), "/m/x"),
    "mount in mount": (
        Starlette(routes=[Mount("/m", routes=[Mount("/n", routes=[post("/x", tagged)])])]),
        "/m/n/x",
    ),
    "mounted application": (
        Starlette(routes=[Mount("/m", Starlette(routes=[post("/x", tagged)]))]),
        "/m/x",
    ),
    "mounted below a middleware": (
        Starlette(routes=[Mount("/m", Opaque(Starlette(routes=[post("/x", tagged)])))]),
        "/m/x",
    ),
    "router": (Router(routes=[post("/x", tagged)]), "/x"),
    "host": (
        Starlette(routes=[Host("shop.example", Router(routes=[post("/x", tagged)]))]),
        "/x",
    ),
    "below a middleware": (Opaque(Starlette(routes=[post("/x", tagged)])), "/x"),
    "class": (Starlette(routes=[Route("/x", TaggedClass)]), "/x"),
    "method of a class": (Starlette(routes=[Route("/x", TaggedMethod)]), "/x"),
    "wrapped": (Starlette(routes=[post("/x", wrapped(tagged))]), "/x"),
    "partial": (Starlette(routes=[post("/x", functools.partial(tagged))]), "/x"),
    "fastapi include_router": (included("/v1"), "/v1/x"),
    "fastapi include_router twice": (included("/v1", "/shop"), "/v1/shop/x"),
    "fastapi include_router three times": (included("/v1", "/a", "/b"), "/v1/a/b/x"),
    "fastapi sub-application": (sub_application(), "/sub/v1/x"),
}


async def ask(app: AsgiApp, path: str, key: str | None = None) -> Reply:
    host = ("host", "shop.example")
    reply, error = await call(app, Ask(path=path.encode(), key=key, headers=(host,)))
    assert error is None
    return reply


@pytest.mark.parametrize(("app", "path"), STARLETTE.values(), ids=STARLETTE)
async def test_a_tag_is_found_through_the_router(
    app: AsgiApp, path: str, guard: semel.Guard
) -> None:
    guarded = guard.asgi(app)
    assert (await ask(guarded, path)).code == "missing-key"
    assert (await ask(guarded, path, "8e03978e-40d5-43e8-bc93-6894a57f9324")).status == 200


@pytest.mark.parametrize("name", [n for n, (a, _) in STARLETTE.items() if isinstance(a, Starlette)])
async def test_a_tag_is_found_from_inside_the_application(name: str, guard: semel.Guard) -> None:
    app, path = STARLETTE[name]
    inside = Starlette(routes=app.routes)
    inside.add_middleware(semel.Middleware, guard=guard)
    assert (await ask(inside, path)).code == "missing-key"


async def test_a_guarded_application_that_is_mounted_finds_its_own_tags(guard: semel.Guard) -> None:
    inner = guard.asgi(Starlette(routes=[post("/x", tagged), post("/y", plain)]))
    outer = Starlette(routes=[Mount("/m", inner)])
    assert (await ask(outer, "/m/x")).code == "missing-key"
    assert (await ask(outer, "/m/y")).status == 200


async def test_a_guard_among_the_middlewares_of_a_route_or_a_mount_finds_its_tags(
    guard: semel.Guard,
) -> None:
    ours = [Middleware(semel.Middleware, guard=guard)]
    single = Route("/x", tagged, methods=["POST"], middleware=ours)
    app = Starlette(routes=[single, Mount("/m", routes=[post("/x", tagged)], middleware=ours)])
    for path in ("/x", "/m/x"):
        assert (await ask(app, path)).code == "missing-key"
        assert (await ask(app, path, "8e03978e-40d5-43e8-bc93-6894a57f9324")).status == 200


async def test_only_the_tagged_endpoint_has_the_policy(guard: semel.Guard) -> None:
    app = Starlette(routes=[post("/x", tagged), post("/y", plain), Route("/z", TaggedMethod)])
    guarded = guard.asgi(app)
    assert (await ask(guarded, "/y")).status == 200
    assert (await ask(guarded, "/nowhere")).status == 404
    reply, _ = await call(guarded, Ask("PATCH", b"/z", key=None))
    assert reply.body == b"untagged"


async def test_a_fastapi_endpoint_keeps_its_dependencies_and_its_policy(guard: semel.Guard) -> None:
    app, runs = FastAPI(), []

    @app.post("/pay/{amount}", status_code=201)
    @guard.route(semel.payments(required=True, key="uuid", probe=None))
    async def pay(amount: int, doubled: int = Depends(lambda amount: int(amount) * 2)) -> Any:
        runs.append(amount)
        return {"paid": doubled}

    app.add_middleware(semel.Middleware, guard=guard)
    assert (await ask(app, "/pay/4")).code == "missing-key"
    assert (await ask(app, "/pay/4", "no-uuid-but-long-enough")).code == "malformed-key"
    replies = [await ask(app, "/pay/4", "8e03978e-40d5-43e8-bc93-6894a57f9324") for _ in "12"]
    assert {(reply.status, reply.body) for reply in replies} == {(201, b'{"paid":8}')}
    assert runs == [4]


# ── listed routes ─────────────────────────────────────────────────────────────────────────────────


async def anything(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("anything")(scope, receive, send)


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("/x", "/x", True),
        ("/x", "/x/", False),
        ("/x", "/xy", False),
        ("/x/{id}", "/x/1", True),
        ("/x/{id}", "/x/1/2", False),
        ("/x/{id:int}", "/x/1", True),
        ("/x/{id:int}", "/x/one", False),
        ("/x/{rest:path}", "/x/1/2", True),
        ("/x/{id:uuid}", "/x/8e03978e-40d5-43e8-bc93-6894a57f9324", True),
        ("/größe", "/größe", True),
        ("/a b", "/a b", True),
        ("/x.y", "/xzy", False),
        ("/x", "/x\n", True),
        ("/x", "/x\n\n", False),
    ],
)
async def test_a_listed_route_fits_paths_as_starlette_does(
    pattern: str, path: str, found: bool, make_guard: MakeGuard
) -> None:
    guarded = make_guard(routes=[semel.Route("POST", pattern, STRICT)]).asgi(anything)
    reply = await ask(guarded, path)
    assert (reply.status == 400) is found


@pytest.mark.parametrize("pattern", ["/x", "/api/x"])
def test_a_listed_route_fits_with_and_without_the_mount_prefix(pattern: str, serve: Serve) -> None:
    send = serve(lambda: Said(b"x"), routes=[semel.Route("POST", pattern, STRICT)])
    assert send(Ask(path=b"/x", root="/api", key=None)).code == "missing-key"
    assert send(Ask(path=b"/y", root="/api", key=None)).status == 200


def test_slashes_in_front_lead_flask_to_no_other_policy_and_no_other_key(
    make_guard: MakeGuard,
) -> None:
    runs: list[str] = []

    def run() -> str:
        runs.append("x")
        return "x"

    app = Flask(__name__)
    app.post("/x")(run)
    guard = make_guard(routes=[semel.Route("POST", "/x", STRICT)])
    send = WsgiDriver(guard.wsgi(app.wsgi_app))
    for root in ("", "/api"):
        assert send(Ask(path=b"//x", root=root, key=None)).code == "missing-key"
    for path in (b"/x", b"//x", b"///x"):
        assert send(Ask(path=path)).status == 200
    assert len(runs) == 1


async def test_the_first_listed_route_that_fits_wins_over_tags_and_the_default(
    make_guard: MakeGuard,
) -> None:
    app = Starlette(routes=[post("/x", tagged), post("/y", plain)])
    routes = [
        semel.Route("post", "/x", semel.ietf()),
        semel.Route("*", "/{any}", STRICT),
    ]
    guarded = make_guard(routes=routes).asgi(app)
    assert (await ask(guarded, "/x")).status == 200
    assert (await ask(guarded, "/y")).code == "missing-key"
