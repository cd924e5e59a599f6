"""A tagged endpoint never runs around its guard: without its own policy it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import flask
import pytest
from fastapi import Depends, FastAPI, HTTPException
from flask.views import MethodView
from litestar import Controller, Litestar
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar import asgi as litestar_asgi
from litestar import delete as litestar_delete
from litestar import get as litestar_get
from litestar import post as litestar_post
from litestar import put as litestar_put
from litestar.exceptions import NotFoundException
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import Client

import semel
from semel.frameworks.flask import guarded
from semel.frameworks.flask import install as install_flask
from semel.frameworks.litestar import install as install_litestar
from semel.guard import MAX_BOUND
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from tests.ears import listen
from tests.web.client import new_key
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, call

REQUIRED = semel.payments(required=True, probe=None)


class Runs:
    """Counts how often an endpoint ran."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return "paid"


def fastapi(guard: semel.Guard, runs: Runs) -> Any:
    app = FastAPI()

    @app.post("/pay")
    @guard.route(REQUIRED)
    async def pay() -> str:
        return runs()

    return app


def fastapi_threads(guard: semel.Guard, runs: Runs) -> Any:
    app = FastAPI()
    app.post("/pay")(guard.route(REQUIRED)(named(runs)))
    return app


def starlette(guard: semel.Guard, runs: Runs) -> Any:
    @guard.route(REQUIRED)
    async def pay(request: Request) -> Response:
        return Response(runs())

    return Starlette(routes=[Route("/pay", pay, methods=["POST"])])


def starlette_class(guard: semel.Guard, runs: Runs) -> Any:
    @guard.route(REQUIRED)
    class Pay(HTTPEndpoint):
        async def post(self, request: Request) -> Response:
            return Response(runs())

    return Starlette(routes=[Route("/pay", Pay)])


def starlette_object(guard: semel.Guard, runs: Runs) -> Any:
    class Pay:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await Response(runs())(scope, receive, send)

    return Starlette(routes=[Route("/pay", guard.route(REQUIRED)(Pay()), methods=["POST"])])


def litestar(guard: semel.Guard, runs: Runs) -> Any:
    @litestar_post("/pay")
    @guard.route(REQUIRED)
    async def pay() -> str:
        return runs()

    return Litestar([pay], openapi_config=None)


APPS = pytest.mark.parametrize(
    "made", [fastapi, fastapi_threads, starlette, starlette_class, starlette_object, litestar]
)


def rewritten(app: AsgiApp, **changes: Any) -> AsgiApp:
    """Middleware that sends a request elsewhere than its guard has seen."""

    async def rewrite(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, **changes} if scope["type"] == "http" else scope, receive, send)

    rewrite.app = app  # type: ignore[attr-defined]
    return rewrite


Status = Callable[..., int]


@pytest.fixture
def status(runner: asyncio.Runner) -> Status:
    """What a server would send."""
    return lambda app, **asked: runner.run(said(app, Ask(**asked)))


async def said(app: AsgiApp, ask: Ask) -> int:
    """An exception that nobody answers is a 500."""
    reply, error = await call(app, ask)
    assert error is None or isinstance(error, semel.Unguarded)
    return reply.status or 500


@APPS
def test_without_a_guard_a_tagged_endpoint_does_not_run(
    made: Callable[..., Any], guard: semel.Guard, status: Status
) -> None:
    runs = Runs()
    app = made(guard, runs)
    assert status(app, path=b"/pay", key=new_key()) == 500
    assert runs.count == 0


@APPS
@pytest.mark.parametrize("key", [None, "a-key-of-some-length"])
def test_a_path_that_is_changed_behind_the_guard_runs_no_tagged_endpoint(
    made: Callable[..., Any], key: str | None, guard: semel.Guard, status: Status
) -> None:
    runs = Runs()
    app = guard.asgi(rewritten(made(guard, runs), path="/pay", raw_path=b"/pay"))
    assert status(app, path=b"/v1/pay", key=key) >= 500
    assert runs.count == 0


@APPS
def test_a_method_that_is_changed_behind_the_guard_runs_no_tagged_endpoint(
    made: Callable[..., Any], guard: semel.Guard, status: Status
) -> None:
    runs = Runs()
    app = guard.asgi(rewritten(made(guard, runs), method="POST"))
    for key in (None, new_key()):
        assert status(app, method="GET", path=b"/pay", key=key) >= 500
    assert runs.count == 0


@APPS
def test_under_its_guard_a_tagged_endpoint_runs_once(
    made: Callable[..., Any], guard: semel.Guard, status: Status
) -> None:
    runs, key = Runs(), new_key()
    app = guard.asgi(made(guard, runs))
    codes = [status(app, path=b"/pay", key=each) for each in (None, key, key)]
    assert codes[0] == 400
    assert codes[1] == codes[2] < 300
    assert runs.count == 1


def test_what_one_request_was_ruled_by_is_not_left_to_the_next(
    guard: semel.Guard, runner: asyncio.Runner
) -> None:
    """Servers may serve both in one context: here one event loop's task does."""
    runs = Runs()
    bare = fastapi(guard, runs)
    guarded = guard.asgi(bare)

    async def one_after_the_other() -> list[int]:
        return [await said(app, Ask(path=b"/pay", key=new_key())) for app in (guarded, bare)]

    assert runner.run(one_after_the_other()) == [200, 500]
    assert runs.count == 1


def test_a_refused_run_leaves_the_key_free(make_guard: MakeGuard, status: Status) -> None:
    """Nothing was executed: once the application is put right, the same key runs."""
    runs, guard, key = Runs(), make_guard(), new_key()
    inner = fastapi(guard, runs)
    moved = guard.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(moved, path=b"/v1/pay", key=key) >= 500
    listed = make_guard(guard.backend, routes=[semel.Route("POST", "/v1/pay", semel.ietf())])
    mended = listed.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(mended, path=b"/v1/pay", key=key) == 200
    assert runs.count == 1


def test_it_is_told_to_whoever_listens(guard: semel.Guard, status: Status) -> None:
    ear = listen(guard)
    status(fastapi(guard, Runs()), path=b"/pay", key=new_key())
    assert str(ear.one("unguarded")["endpoint"]).endswith("pay")


def test_a_safe_method_of_a_tagged_endpoint_takes_no_part(
    guard: semel.Guard, status: Status
) -> None:
    @guard.route(semel.ietf())
    async def both(request: Request) -> Response:
        return Response(request.method)

    app = guard.asgi(Starlette(routes=[Route("/both", both, methods=["GET", "POST"])]))
    assert status(app, method="GET", path=b"/both", key=None) == 200
    assert status(app, path=b"/both", key=None) == 200


def test_generators_refuse_too(guard: semel.Guard) -> None:
    @guard.route(REQUIRED)
    def pieces() -> Iterator[int]:
        yield 1

    @guard.route(REQUIRED)
    async def awaited() -> AsyncIterator[int]:
        yield 1

    async def drawn() -> list[int]:
        return [each async for each in awaited()]

    with pytest.raises(semel.Unguarded):
        list(pieces())
    with pytest.raises(semel.Unguarded):
        asyncio.run(drawn())
    assert list(pieces.__wrapped__()) == [1]  # type: ignore[attr-defined]


def test_an_endpoint_has_one_policy(guard: semel.Guard) -> None:
    with pytest.raises(semel.ConfigurationError, match="tagged already"):
        guard.route(REQUIRED)(guard.route(semel.ietf())(lambda: None))


# ── a policy on a method that it leaves out ───────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["PUT", "DELETE", "GET"])
def test_a_listed_route_whose_policy_leaves_its_method_out_is_refused(method: str) -> None:
    with pytest.raises(semel.ConfigurationError, match=f"methods=.*{method}"):
        semel.Route(method, "/pay/{id}", REQUIRED)


def test_a_listed_route_may_refuse_keys_on_a_safe_method() -> None:
    semel.Route("GET", "/pay/{id}", semel.ietf(safe_methods="refuse"))
    semel.Route("*", "/pay/{id}", REQUIRED)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize("installed", ["asgi", "fastapi"])
def test_a_tagged_endpoint_whose_policy_leaves_its_method_out_does_not_run(
    method: str, installed: str, guard: semel.Guard, status: Status
) -> None:
    runs, inner = Runs(), FastAPI()

    @inner.api_route("/pay", methods=[method])
    @guard.route(REQUIRED)
    async def pay() -> str:
        return runs()

    app: Any = inner
    if installed == "asgi":
        app = guard.asgi(inner)
    else:
        guard.fastapi(inner)
    for key in (None, new_key()):
        assert status(app, method=method, path=b"/pay", key=key) >= 500
    assert runs.count == 0


# ── Flask's router ────────────────────────────────────────────────────────────────────────────────


def flask_app(guard: semel.Guard, runs: Runs, app: flask.Flask, **where: Any) -> flask.Flask:
    app.add_url_rule(
        "/pay", view_func=guard.route(REQUIRED)(named(runs)), methods=["POST"], **where
    )
    return app


def named(runs: Runs) -> Callable[[], str]:
    def pay() -> str:
        return runs()

    return pay


def test_a_flask_view_is_found_behind_what_wraps_its_application(guard: semel.Guard) -> None:
    runs = Runs()
    app = flask_app(guard, runs, flask.Flask("shop"))
    client = Client(guard.wsgi(ProxyFix(app.wsgi_app)))
    assert client.post("/pay").status_code == 400
    assert client.post("/pay", headers={"Idempotency-Key": new_key()}).status_code == 200
    assert runs.count == 1


@pytest.mark.parametrize("by", ["subdomain", "host"])
def test_a_flask_view_is_found_by_host_and_subdomain(by: str, guard: semel.Guard) -> None:
    runs = Runs()
    if by == "host":
        app = flask.Flask("shop", host_matching=True, static_host="static.shop.test")
        flask_app(guard, runs, app, host="api.shop.test")
    else:
        app = flask.Flask("shop", subdomain_matching=True)
        app.config["SERVER_NAME"] = "shop.test"
        flask_app(guard, runs, app, subdomain="api")
    client = Client(guard.wsgi(app))
    assert client.post("/pay", base_url="http://api.shop.test/").status_code == 400
    assert runs.count == 0


def test_a_flask_view_that_is_reached_around_its_guard_does_not_run(guard: semel.Guard) -> None:
    """In a thread that has served a guarded request before."""
    runs = Runs()
    app = flask_app(guard, runs, flask.Flask("shop"))
    headers = {"Idempotency-Key": new_key()}
    assert Client(guard.wsgi(app)).post("/pay", headers=headers).status_code == 200
    assert Client(app).post("/pay", headers=headers).status_code == 500
    assert runs.count == 1


# ── what no endpoint has answered ─────────────────────────────────────────────────────────────────


def routed(runs: Runs, path: str = "/pay/") -> Any:
    async def pay(request: Request) -> Response:
        runs()
        return Response("no such payment", 404 if "missing" in request.url.path else 200)

    paths = (path, "/missing")
    return Starlette(
        routes=[
            *(Route(each, pay, methods=["POST"]) for each in paths),
            Mount("/in", routes=[Route("/missing", pay, methods=["POST"])]),
        ]
    )


POLICIES = pytest.mark.parametrize("policy", [semel.ietf(), semel.stripe()], ids=lambda p: p.name)


@POLICIES
def test_a_redirect_of_the_routers_does_not_use_up_the_key(
    policy: semel.Policy, make_guard: MakeGuard, status: Status
) -> None:
    """A client follows it with the same key, and with a scope of the tenant it is one key."""
    runs, key = Runs(), new_key()
    app = make_guard(policy=policy).asgi(routed(runs))
    codes = [status(app, path=path, key=key) for path in (b"/pay", b"/pay/", b"/pay/")]
    assert codes == [307, 200, 200]
    assert runs.count == 1


@POLICIES
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_path_or_method_without_an_endpoint_does_not_use_up_the_key(
    policy: semel.Policy, method: str, make_guard: MakeGuard, status: Status
) -> None:
    """An old process answers so, and a new one, with the route, runs it."""
    runs, key, guard = Runs(), new_key(), make_guard(policy=policy)
    old, new = (guard.asgi(routed(runs, path)) for path in ("/other", "/pay"))
    path = b"/pay" if method == "POST" else b"/other"
    ask = {"path": path, "key": key, "method": method}
    assert status(old, **ask) == (404 if method == "POST" else 405)
    if method == "POST":
        assert status(new, **ask) == 200
        assert runs.count == 1
    else:
        assert status(old, **ask) == 405


@pytest.mark.parametrize("offered", ["http.response.pathsend", "http.response.trailers"])
def test_nor_where_the_server_offers_what_semel_takes_away(
    offered: str, guard: semel.Guard, status: Status
) -> None:
    key = new_key()
    app, ear = rewritten(guard.asgi(routed(Runs())), extensions={offered: {}}), listen(guard)
    assert [status(app, path=b"/none", key=key) for _ in range(2)] == [404, 404]
    assert ear.tally("exchange", "outcome") == {"released": 2}


@pytest.mark.parametrize("path", [b"/missing", b"/in/missing"])
def test_a_404_that_an_endpoint_answered_is_kept(
    path: bytes, guard: semel.Guard, status: Status
) -> None:
    runs, key = Runs(), new_key()
    app = guard.asgi(routed(runs))
    assert [status(app, path=path, key=key) for _ in range(2)] == [404, 404]
    assert runs.count == 1


def test_litestars_own_404_and_405_do_not_use_up_the_key(
    make_guard: MakeGuard, status: Status
) -> None:
    runs, key = Runs(), new_key()

    @litestar_post(["/pay", "/missing"])
    async def pay(request: LitestarRequest[Any, Any, Any]) -> str:
        runs()
        if request.url.path == "/missing":
            raise NotFoundException
        return "paid"

    @litestar_get("/read")
    async def read() -> None: ...

    policy = semel.stripe()
    app = make_guard(policy=policy).asgi(Litestar([pay, read], openapi_config=None))  # type: ignore[arg-type]
    paths = (b"/none", b"/read", b"/pay", b"/pay")
    codes = [status(app, path=path, key=key) for path in paths]
    assert codes == [404, 405, 201, 201]
    key = new_key()
    assert [status(app, path=b"/missing", key=key) for _ in range(2)] == [404, 404]
    assert runs.count == 2


def test_flasks_own_404_and_redirect_do_not_use_up_the_key(make_guard: MakeGuard) -> None:
    runs, app = Runs(), flask.Flask("shop")
    app.add_url_rule("/pay/", view_func=named(runs), methods=["POST"])
    guard = make_guard(policy=semel.stripe())
    client, headers = Client(guard.wsgi(app)), {"Idempotency-Key": new_key()}
    paths = ("/none", "/pay", "/pay/", "/pay/")
    codes = [client.post(path, headers=headers).status_code for path in paths]
    assert codes == [404, 308, 200, 200]
    assert runs.count == 1


def test_a_404_that_a_flask_view_answered_is_kept(guard: semel.Guard) -> None:
    runs, app = Runs(), flask.Flask("shop")

    @app.post("/missing")
    def missing() -> tuple[str, int]:
        return runs(), 404

    @app.post("/aborted")
    def aborted() -> str:
        runs()
        flask.abort(404)

    client = Client(guard.wsgi(app))
    for path in ("/missing", "/aborted"):
        headers = {"Idempotency-Key": new_key()}
        codes = [client.post(path, headers=headers).status_code for _ in range(2)]
        assert codes == [404, 404]
    assert runs.count == 2


# ── what a router takes for one path ──────────────────────────────────────────────────────────────

SPELT = (b"/pay", b"/pay/", b"/pay//", b"//pay")


@pytest.mark.parametrize("said_by", ["tag", "listed", "nobody"])
def test_litestar_takes_no_notice_of_slashes_and_neither_does_its_guard(
    said_by: str, make_guard: MakeGuard, status: Status
) -> None:
    runs, key = Runs(), new_key()
    listed = [semel.Route("POST", "/pay", REQUIRED)] if said_by == "listed" else []
    guard = make_guard(routes=listed)

    async def pay() -> str:
        return runs()

    handler = litestar_post("/pay")(guard.route(REQUIRED)(pay) if said_by == "tag" else pay)
    inner: Any = Litestar([handler], openapi_config=None)
    app = guard.asgi(inner)
    if said_by != "nobody":
        assert [status(app, path=path, key=None) for path in SPELT] == [400] * 4
    assert [status(app, path=path, key=key) for path in SPELT] == [201] * 4
    assert runs.count == 1


@pytest.mark.parametrize("installed", ["wsgi", "extension"])
@pytest.mark.parametrize("path", ["/pay", "/pay/"])
def test_where_flask_ignores_a_slash_at_the_end_one_key_runs_once(
    path: str, installed: str, guard: semel.Guard
) -> None:
    runs, app = Runs(), flask.Flask("shop")
    app.url_map.strict_slashes = False
    app.add_url_rule(path, view_func=named(runs), methods=["POST"])
    if installed == "extension":
        install_flask(app, guard)
    client = Client(app if installed == "extension" else guard.wsgi(app))
    headers = {"Idempotency-Key": new_key()}
    codes = [client.post(each, headers=headers).status_code for each in ("/pay", "/pay/")]
    assert codes == [200, 200]
    assert runs.count == 1


def test_where_flask_does_not_a_slash_tells_two_paths_apart(guard: semel.Guard) -> None:
    runs, app = Runs(), flask.Flask("shop")

    @app.post("/pay/<path:of>")
    def pay(of: str) -> str:
        return runs()

    client, headers = Client(guard.wsgi(app)), {"Idempotency-Key": new_key()}
    for each in ("/pay/a", "/pay/a/"):
        assert client.post(each, headers=headers).status_code == 200
    assert runs.count == 2


# ── Litestar's own place for a policy ─────────────────────────────────────────────────────────────


def test_a_policy_in_litestars_opt_holds_at_the_endpoint(
    guard: semel.Guard, status: Status
) -> None:
    runs, key = Runs(), new_key()

    @litestar_post("/pay", opt={"semel": REQUIRED}, sync_to_thread=False)
    def pay() -> str:
        return runs()

    inner: Any = Litestar([pay], openapi_config=None)
    app = guard.asgi(inner)
    codes = [status(app, path=b"/pay", key=each) for each in (None, key, key)]
    assert codes == [400, 201, 201]
    moved = guard.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(moved, path=b"/v1/pay", key=new_key()) >= 500
    assert status(inner, path=b"/pay", key=new_key()) >= 500
    assert runs.count == 1


# ── at start-up ───────────────────────────────────────────────────────────────────────────────────


def with_a_put(guard: semel.Guard, runs: Runs, app: Any) -> Any:
    app.add_api_route("/paid", guard.route(REQUIRED)(named(runs)), methods=["PUT"])
    return app


@APPS
def test_where_all_is_guarded_nothing_is_told(
    made: Callable[..., Any], guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.asgi(made(guard, Runs()))
    guard.start()
    assert caplog.text == ""


def test_a_tagged_route_whose_policy_leaves_its_method_out_is_told_at_start_up(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.asgi(with_a_put(guard, Runs(), FastAPI()))
    guard.start()
    guard.start()
    assert caplog.text.count("PUT /paid is tagged with a policy that leaves PUT out") == 1


@pytest.mark.parametrize("installed", ["guard.fastapi", "middleware", "litestar"])
def test_it_is_told_when_the_application_starts(
    installed: str, guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs()
    if installed == "litestar":
        handler = litestar_put("/paid", sync_to_thread=False)(guard.route(REQUIRED)(named(runs)))
        options: Any = {"openapi_config": None, "logging_config": None}
        app: Any = Litestar(
            [handler], on_app_init=[partial(install_litestar, guard=guard)], **options
        )
    else:
        app = with_a_put(guard, runs, FastAPI())
        if installed == "middleware":
            app.add_middleware(semel.Middleware, guard=guard)
        else:
            guard.fastapi(app)
    assert caplog.text == ""
    with TestClient(app):
        pass
    assert caplog.text.count("PUT /paid is tagged with a policy that leaves PUT out") == 1


def test_a_tagged_endpoint_that_no_guard_stands_around_is_told_at_start_up(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    fastapi(guard, Runs())
    guard.asgi(starlette(guard, Runs()))
    guard.start()
    assert caplog.text.count("found in no application that this guard stands around") == 1
    assert "fastapi.<locals>.pay" in caplog.text
    assert "starlette.<locals>.pay" not in caplog.text


def test_a_tag_above_the_frameworks_decorator_is_told_at_start_up(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @guard.route(REQUIRED)
    @app.post("/pay")
    async def pay() -> None: ...

    guard.asgi(app)
    guard.start()
    assert "answer requests without their tags" in caplog.text
    assert "<locals>.pay. Put @guard.route() below" in caplog.text


@pytest.mark.parametrize("installed", ["wsgi", "extension"])
def test_without_a_start_it_is_told_by_the_first_keyed_request(
    installed: str, guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    app = flask_app(guard, Runs(), flask.Flask("shop"))
    app.add_url_rule("/paid", "paid", guard.route(REQUIRED)(named(Runs())), methods=["PUT"])
    if installed == "extension":
        install_flask(app, guard)
    client = Client(app if installed == "extension" else guard.wsgi(app))
    assert "PUT /paid" not in caplog.text
    client.post("/pay", headers={"Idempotency-Key": new_key()})
    assert "PUT /paid is tagged with a policy that leaves PUT out" in caplog.text


def test_a_decorated_view_of_flasks_refuses_a_method_that_its_policy_leaves_out(
    guard: semel.Guard,
) -> None:
    runs, app = Runs(), flask.Flask("shop")
    install_flask(app, guard)
    app.add_url_rule("/pay", "pay", guarded(guard, REQUIRED)(named(runs)), methods=["PUT"])
    assert Client(app).put("/pay", headers={"Idempotency-Key": new_key()}).status_code == 500
    assert runs.count == 0


# ── found by strangers ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("by", ["flask", "starlette"])
def test_what_acts_where_the_router_found_nothing_is_not_the_router(
    by: str, guard: semel.Guard, status: Status
) -> None:
    """What is not here yet goes to an older system, which answers with a redirect."""
    runs, key = Runs(), new_key()
    if by == "flask":
        app = flask.Flask("shop")

        @app.errorhandler(404)
        def legacy(error: Exception) -> Any:
            return runs(), 308, {"location": "/done"}

        client = Client(guard.wsgi(app))
        codes = [client.post("/x", headers={"Idempotency-Key": key}).status_code for _ in "12"]
    else:

        async def proxied(scope: Scope, receive: Receive, send: Send) -> None:
            await Response(runs(), 307)(scope, receive, send)

        inner = Starlette()
        inner.router.default = proxied
        codes = [status(guard.asgi(inner), path=b"/x", key=key) for _ in "12"]
    assert codes == ([308] if by == "flask" else [307]) * 2
    assert runs.count == 1


def test_slashes_in_front_are_never_answered_with_what_the_path_without_has_done(
    guard: semel.Guard, status: Status
) -> None:
    async def pay(request: Request) -> Response:
        return Response("paid")

    routes = [Route("/pay", pay, methods=["POST"]), Route("/{url:path}", pay, methods=["POST"])]
    app, key = guard.asgi(Starlette(routes=routes)), new_key()
    assert [status(app, path=path, key=key) for path in (b"/pay", b"//pay")] == [200, 422]


def test_an_endpoint_that_no_tag_protects_is_not_called_around_its_gate(
    guard: semel.Guard, status: Status
) -> None:
    """Middleware inside leads to another one than the one that was made to wait."""
    app, runs = FastAPI(), Runs()

    @app.post("/pay")
    async def pay() -> str:
        return runs()

    @app.post("/{rest:path}")
    async def nothing_here(rest: str) -> str:
        return rest

    class Moved:
        def __init__(self, app: AsgiApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.app({**scope, "path": "/pay"}, receive, send)

    app.add_middleware(Moved)
    guard.fastapi(app)
    assert status(app, path=b"/v1/pay", key=new_key()) == 500
    assert runs.count == 0


def test_a_dependency_may_ask_another_application(guard: semel.Guard, status: Status) -> None:
    app, other, runs = FastAPI(), FastAPI(), Runs()

    @other.post("/pay")
    async def elsewhere() -> str:
        return "asked"

    async def asks() -> int:
        return await said(other, Ask(path=b"/pay", key=None))

    @app.post("/pay", dependencies=[Depends(asks)])
    async def pay() -> str:
        return runs()

    guard.fastapi(app)
    key = new_key()
    for _ in range(2):
        assert status(app, path=b"/pay", key=key) == 200
    assert runs.count == 1


@pytest.mark.parametrize("installed", ["asgi", "fastapi"])
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_safe_method_of_a_tagged_endpoint_of_fastapis_passes(
    installed: str, in_thread: bool, guard: semel.Guard, status: Status
) -> None:
    inner = FastAPI()
    if in_thread:

        @guard.route(REQUIRED)
        def cart() -> str:
            return "cart"

        inner.api_route("/cart", methods=["GET", "POST"])(cart)
    else:

        @guard.route(REQUIRED)
        async def awaited() -> str:
            return "cart"

        inner.api_route("/cart", methods=["GET", "POST"])(awaited)
    app: Any = guard.asgi(inner) if installed == "asgi" else inner
    if installed == "fastapi":
        guard.fastapi(inner)
    assert status(app, method="GET", path=b"/cart", key=None) == 200
    assert status(app, path=b"/cart", key=None) == 400
    moved = guard.asgi(rewritten(inner, method="POST")) if installed == "asgi" else None
    if moved is not None:
        assert status(moved, method="GET", path=b"/cart", key=None) == 500


def test_a_body_cannot_pass_for_a_request(make_guard: MakeGuard, status: Status) -> None:
    app, runs = FastAPI(), Runs()

    @app.post("/grants")
    @make_guard().route(REQUIRED)
    async def grant(body: Grant) -> str:
        return runs()

    sent = b'{"method": "GET", "scope": "x"}'
    asked = {"path": b"/grants", "key": None, "body": sent}
    assert status(app, **asked) == 500
    assert runs.count == 0


class Grant(BaseModel):
    method: str
    scope: str


@pytest.mark.parametrize("installed", ["wsgi", "extension"])
@pytest.mark.parametrize("how", ["decorators", "view", "generator"])
def test_tags_on_what_flask_calls_are_found(how: str, installed: str, guard: semel.Guard) -> None:
    runs, app = Runs(), flask.Flask("shop")

    class Orders(MethodView):
        decorators: ClassVar[Any] = [guard.route(semel.ietf())] if how == "decorators" else []

        def post(self) -> str:
            return runs()

    @guard.route(semel.ietf())
    def pieces() -> Iterator[str]:
        yield runs()

    view: Any = pieces
    if how != "generator":
        made = Orders.as_view("orders")
        view = guard.route(semel.ietf())(made) if how == "view" else made
    app.add_url_rule("/x", view_func=view, methods=["POST"])
    if installed == "extension":
        install_flask(app, guard)
    client = Client(app if installed == "extension" else guard.wsgi(app))
    key = {"Idempotency-Key": new_key()}
    answers = [client.post("/x", headers=headers).text for headers in ({}, key, key)]
    assert answers == ["paid"] * 3
    assert runs.count == 2


def test_what_stands_higher_up_in_litestar_may_leave_methods_out_and_is_told(
    guard: semel.Guard, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    class Pay(Controller):
        path = "/v1"
        opt = {"semel": REQUIRED}  # noqa: RUF012

        @litestar_post("/pay")
        async def pay(self) -> str:
            return "paid"

        @litestar_delete("/pay", status_code=200)
        async def undo(self) -> str:
            return "undone"

    options: Any = {"openapi_config": None, "logging_config": None}
    app = guard.asgi(Litestar([Pay], **options))  # type: ignore[arg-type]
    guard.start()
    assert caplog.text.count("DELETE /v1/pay is tagged with a policy that leaves DELETE out") == 1
    assert "found in no application" not in caplog.text
    assert status(app, method="DELETE", path=b"/v1/pay", key=None) == 200
    key = new_key()
    assert [status(app, path=p, key=key) for p in (b"/v1/pay", b"/v1//pay")] == [201, 201]


def test_a_guarded_application_of_starlettes_may_be_mounted_in_litestar(
    guard: semel.Guard, status: Status
) -> None:
    runs, key = Runs(), new_key()

    @guard.route(REQUIRED)
    async def pay(request: Request) -> Response:
        return Response(runs())

    # Litestar puts a slash at the end of what it hands on.
    inner: Any = guard.asgi(Starlette(routes=[Route("/pay/", pay, methods=["POST"])]))
    mounted = litestar_asgi("/in", is_mount=True, copy_scope=True)(inner)
    app: Any = Litestar([mounted], openapi_config=None)
    assert [status(app, path=b"/in/pay", key=each) for each in (None, key, key)] == [
        400,
        200,
        200,
    ]
    assert runs.count == 1


def test_applications_that_come_later_are_not_called_unguarded(
    guard: semel.Guard, status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette makes what stands around a mounted application when it is first asked."""
    shop, bank = fastapi(guard, Runs()), fastapi_threads(guard, Runs())
    for each in (shop, bank):
        each.add_middleware(semel.Middleware, guard=guard)
    app: Any = Starlette(routes=[Mount("/shop", shop), Mount("/bank", bank)])
    for path in (b"/shop/pay", b"/bank/pay"):
        assert status(app, path=path, key=new_key()) == 200
    assert caplog.text == ""


def test_endpoints_that_are_decorated_for_every_request_are_not_kept(guard: semel.Guard) -> None:
    for _ in range(3 * MAX_BOUND):
        guard.route(REQUIRED)(named(Runs()))
    assert len(guard._tagged) == MAX_BOUND


def test_a_safe_request_of_a_dependency_does_not_pass_for_the_one_that_waits(
    guard: semel.Guard, status: Status
) -> None:
    """Else an answer would be repeated to a caller whom nobody has authenticated yet."""
    app, runs, known = FastAPI(), Runs(), [True]

    @app.api_route("/me", methods=["GET", "POST"])
    async def me() -> str:
        return "ann" if known[0] else "nobody"

    async def user() -> None:
        reply, _ = await call(app, Ask(method="GET", path=b"/me", key=None, body=b""))
        if reply.body != b'"ann"':
            raise HTTPException(401)

    @app.post("/pay", dependencies=[Depends(user)])
    async def pay() -> str:
        return runs()

    guard.fastapi(app)
    key = new_key()
    assert status(app, path=b"/me", key=new_key()) == 200
    assert status(app, path=b"/pay", key=key) == 200
    known[0] = False
    assert status(app, path=b"/pay", key=key) == 401
    assert runs.count == 1


@pytest.mark.parametrize("installed", ["asgi", "fastapi"])
def test_a_key_on_a_safe_method_of_a_tagged_endpoint_in_a_thread_passes(
    installed: str, guard: semel.Guard, status: Status
) -> None:
    inner = FastAPI()

    @inner.api_route("/cart", methods=["GET", "POST"])
    @guard.route(REQUIRED)
    def cart() -> str:
        return "cart"

    app: Any = guard.asgi(inner) if installed == "asgi" else inner
    if installed == "fastapi":
        guard.fastapi(inner)
    assert status(app, method="GET", path=b"/cart", key=new_key()) == 200


@pytest.mark.parametrize("by", ["fastapi", "litestar", "flask"])
def test_a_404_for_which_there_is_a_handler_is_kept(
    by: str, guard: semel.Guard, status: Status
) -> None:
    """It may have acted: what is not here yet, it hands on."""
    runs, key = Runs(), new_key()

    async def forward(request: Any, error: Exception) -> Response:
        return Response(runs(), 404)

    def forwarded(request: Any, error: Exception) -> LitestarResponse[str]:
        return LitestarResponse(runs(), status_code=404)

    app: Any
    if by == "flask":
        site = flask.Flask("shop")
        site.register_error_handler(404, lambda error: (runs(), 404))
        client = Client(guard.wsgi(site))
        codes = [client.post("/x", headers={"Idempotency-Key": key}).status_code for _ in "12"]
    else:
        if by == "fastapi":
            app = FastAPI(exception_handlers={404: forward})
        else:
            handlers: Any = {NotFoundException: forwarded}
            app = Litestar([], exception_handlers=handlers, openapi_config=None)
        codes = [status(guard.asgi(app), path=b"/x", key=key) for _ in "12"]
    assert codes == [404, 404]
    assert runs.count == 1


def test_one_that_gives_all_errors_their_form_is_not_one_for_this(
    guard: semel.Guard, status: Status
) -> None:
    async def shaped(request: Any, error: Exception) -> Response:
        return Response("{}", 404)

    key = new_key()
    app = guard.asgi(FastAPI(exception_handlers={StarletteHTTPException: shaped}))
    ear = listen(guard)
    assert [status(app, path=b"/x", key=key) for _ in "12"] == [404, 404]
    assert ear.tally("exchange", "outcome") == {"released": 2}


def test_the_router_that_was_asked_is_the_one_that_is_asked_again(
    guard: semel.Guard, status: Status
) -> None:
    runs, key = Runs(), new_key()

    async def pay(request: Request) -> Response:
        return Response(runs(), 404)

    new, old = Starlette(), Starlette(routes=[Route("/v1/pay", pay, methods=["POST"])])

    class ByVersion:
        app = new

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await old(scope, receive, send)

    app = guard.asgi(ByVersion())
    assert [status(app, path=b"/v1/pay", key=key) for _ in "12"] == [404, 404]
    assert runs.count == 1
