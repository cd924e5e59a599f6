"""The list of an application's routes says of each what it does with keys, and leaves none out."""

from typing import Any, cast

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask
from litestar import Controller, Litestar, Router, asgi, get, patch
from litestar import post as litestar_post
from litestar.middleware import DefineMiddleware
from litestar.params import FromPath
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import semel
from semel.frameworks.flask import install
from semel.web.inventory import RouteMethod, inventory
from tests.web.conftest import MakeGuard

STRICT = semel.ietf(required=True, methods={"POST", "DELETE"})


async def plain(request: Request) -> Response:
    return PlainTextResponse("plain")


@semel.Guard("memory://", tenant=None).route(STRICT)
async def tagged(request: Request) -> Response:
    return PlainTextResponse("tagged")


class Both(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return PlainTextResponse("got")

    @semel.Guard("memory://", tenant=None).route(STRICT)
    async def post(self, request: Request) -> Response:
        return PlainTextResponse("posted")

    async def patch(self, request: Request) -> Response:
        return PlainTextResponse("patched")


async def opaque(scope: Any, receive: Any, send: Any) -> None:
    """An application without a router."""


def told(app: Any) -> set[tuple[str, str, str, str]]:
    return {(e.method, e.path, e.said, e.coverage) for e in inventory(app)}


def starlette(*more: Any) -> Starlette:
    inner = Starlette(routes=[Route("/deep", plain, methods=["PUT"])])
    return Starlette(
        routes=[
            Route("/tagged/{id:int}", tagged, methods=["POST", "DELETE", "PATCH"]),
            Route("/plain", plain, methods=["POST"]),
            Route("/listed/{id:uuid}", plain, methods=["POST"]),
            Route("/both", Both),
            Mount("/m", routes=[Mount("/n", inner)]),
            Mount("/static", StaticFiles(directory=".")),
            Mount("/opaque", opaque),
            WebSocketRoute("/socket", plain),
            *more,
        ]
    )


STARLETTE = {
    ("POST", "/tagged/{id:int}", "tag", "enforces"),
    ("DELETE", "/tagged/{id:int}", "tag", "enforces"),
    ("PATCH", "/tagged/{id:int}", "tag", "ignores"),
    ("POST", "/plain", "default", "accepts"),
    ("POST", "/listed/{id:uuid}", "listed", "enforces"),
    ("GET", "/both", "none", "ignores"),
    ("POST", "/both", "tag", "enforces"),
    ("PATCH", "/both", "default", "accepts"),
    ("PUT", "/m/n/deep", "default", "ignores"),
    ("*", "/opaque/{path:path}", "default", "ignores"),
}
LISTED = [semel.Route("*", "/listed/{id:uuid}", semel.ietf(required=True))]


def test_a_starlette_application_guarded_from_outside(make_guard: MakeGuard) -> None:
    assert told(make_guard(routes=LISTED).asgi(starlette())) == STARLETTE


def test_a_starlette_application_guarded_by_its_middleware(make_guard: MakeGuard) -> None:
    app = starlette()
    app.add_middleware(semel.Middleware, guard=make_guard(routes=LISTED))
    assert told(app) == STARLETTE


def test_without_a_guard_nothing_is_covered() -> None:
    assert {entry.said for entry in inventory(starlette())} == {"none"}


def test_a_guard_around_a_mounted_application_covers_that_one_alone(guard: semel.Guard) -> None:
    inner = guard.asgi(Starlette(routes=[Route("/x", tagged, methods=["POST"])]))
    app = Starlette(routes=[Mount("/m", inner), Route("/y", plain, methods=["POST"])])
    assert told(app) == {("POST", "/m/x", "tag", "enforces"), ("POST", "/y", "none", "ignores")}


def test_a_guard_among_the_middlewares_of_a_route_or_a_mount_covers_it(guard: semel.Guard) -> None:
    ours = [Middleware(semel.Middleware, guard=guard)]
    app = Starlette(
        routes=[
            Route("/x", plain, methods=["POST"], middleware=ours),
            Mount("/m", routes=[Route("/y", tagged, methods=["POST"])], middleware=ours),
            Route("/z", plain, methods=["POST"]),
        ]
    )
    assert told(app) == {
        ("POST", "/x", "default", "accepts"),
        ("POST", "/m/y", "tag", "enforces"),
        ("POST", "/z", "none", "ignores"),
    }


def test_fastapi_routers_and_sub_applications(guard: semel.Guard) -> None:
    router, sub, app = APIRouter(prefix="/v1"), FastAPI(openapi_url=None), FastAPI(openapi_url=None)
    for host in (router, sub, app):
        host.add_api_route("/x/{id}", tagged, methods=["POST"], response_model=None)
    app.add_api_route("/forgotten", plain, methods=["POST"], response_model=None)
    outer = APIRouter()
    outer.include_router(router, prefix="/a")
    app.include_router(outer, prefix="/shop")
    app.mount("/sub", sub)
    app.add_middleware(semel.Middleware, guard=guard)
    assert told(app) == {
        ("POST", "/x/{id}", "tag", "enforces"),
        ("POST", "/shop/a/v1/x/{id}", "tag", "enforces"),
        ("POST", "/sub/x/{id}", "tag", "enforces"),
        ("POST", "/forgotten", "default", "accepts"),
    }


class Accounts(Controller):
    path = "/accounts"

    @get("/")
    async def all(self) -> dict[str, int]:
        return {}

    @litestar_post("/{id:int}")
    @semel.Guard("memory://", tenant=None).route(STRICT)
    async def open(self, id: FromPath[int]) -> dict[str, int]:  # noqa: A002
        return {}

    @patch("/{id:int}")
    async def change(self, id: FromPath[int]) -> dict[str, int]:  # noqa: A002
        return {}


@litestar_post("/x", opt={"semel": STRICT}, sync_to_thread=True)
def by_opt() -> dict[str, int]:
    return {}


@asgi("/opaque", is_mount=True, copy_scope=True)
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    """An application without a router."""


LITESTAR = {
    ("GET", "/r/accounts", "none", "ignores"),
    ("POST", "/r/accounts/{id:int}", "tag", "enforces"),
    ("PATCH", "/r/accounts/{id:int}", "default", "accepts"),
    ("POST", "/x", "tag", "enforces"),
    ("*", "/opaque/{path:path}", "default", "ignores"),
}


@pytest.mark.parametrize("inside", [True, False])
def test_litestar_routers_controllers_and_mounts(inside: bool, guard: semel.Guard) -> None:
    middleware = cast("Any", semel.Middleware)
    app: Any = Litestar(
        [Router("/r", route_handlers=[Accounts]), by_opt, mounted],
        middleware=[DefineMiddleware(middleware, guard=guard)] if inside else [],
        openapi_config=None,
    )
    assert told(app if inside else guard.asgi(app)) == LITESTAR


def test_an_entry_says_what_a_policy_does_with_its_method() -> None:
    assert RouteMethod("POST", "/x", None, "none").coverage == "ignores"
    assert RouteMethod("PUT", "/x", semel.ietf(), "tag").coverage == "ignores"
    assert RouteMethod("POST", "/x", semel.ietf(), "default").coverage == "accepts"


def bare(environ: Any, start_response: Any) -> list[bytes]:
    """A WSGI application without a router."""
    return []


def flask(name: str) -> Flask:
    app = Flask(name, static_folder=None)
    app.add_url_rule("/pay", "pay", lambda: "", methods=["POST"])
    return app


PAID = ("POST", "/pay", "default", "enforces")
OPEN = ("POST", "/other/pay", "none", "ignores")
OPEN_BARE = ("*", "/bare/{path:path}", "none", "ignores")


def paying(app: Any) -> set[tuple[str, str, str, str]]:
    return {each for each in told(app) if each[0] != "GET"}


def test_what_is_dispatched_to_before_flask_is_not_guarded_by_its_extension(
    make_guard: MakeGuard,
) -> None:
    app, other = flask("shop"), flask("other")
    install(app, make_guard(policy=STRICT))
    plain = app.wsgi_app
    mounts: dict[str, Any] = {"/other": other.wsgi_app, "/bare": bare, "/again": plain}
    again = ("POST", "/again/pay", "default", "enforces")
    app.wsgi_app = DispatcherMiddleware(plain, mounts)  # type: ignore[method-assign]
    assert paying(app) == {PAID, OPEN, OPEN_BARE, again}
    assert paying(DispatcherMiddleware(app, {"/more": bare})) >= {PAID, OPEN, OPEN_BARE}


def test_a_guard_around_a_dispatcher_covers_what_it_dispatches_to(make_guard: MakeGuard) -> None:
    guard = make_guard(policy=STRICT)
    covered = {("*", "/{path:path}", "default", "ignores"), ("POST", "/f/pay", *PAID[2:])}
    assert paying(guard.wsgi(DispatcherMiddleware(bare, {"/f": flask("f")}))) == covered
    app = flask("shop")
    mounts: dict[str, Any] = {"/other": flask("other")}
    app.wsgi_app = guard.wsgi(DispatcherMiddleware(app.wsgi_app, mounts))  # type: ignore[method-assign]
    assert paying(app) == {PAID, ("POST", "/other/pay", *PAID[2:])}


def test_what_answers_where_no_route_does_is_told() -> None:
    app = Starlette(routes=[Route("/plain", plain, methods=["POST"])])
    app.router.default = opaque
    assert told(app) == {
        ("POST", "/plain", "none", "ignores"),
        ("*", "/{path:path}", "none", "ignores"),
    }


def test_a_single_path_of_litestars_that_takes_any_method_is_told() -> None:
    one = asgi("/one", copy_scope=True, signature_namespace={"Any": Any})(opaque)
    assert ("*", "/one", "none", "ignores") in told(Litestar([one]))


def test_a_policy_for_some_values_of_a_parameter_is_none_for_the_route(
    make_guard: MakeGuard,
) -> None:
    listed = ("/x", "/1", "/q/{x}", "/{x:int}/y")
    guard = make_guard(routes=[semel.Route("POST", path, STRICT) for path in listed])
    routes = ("/{a}", "/{a:int}", "/q/{a:path}", "/{a}/y")
    app = guard.asgi(Starlette(routes=[Route(path, plain, methods=["POST"]) for path in routes]))
    assert {said for _, _, said, _ in told(app)} == {"default"}
