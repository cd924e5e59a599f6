"""A tagged endpoint never runs around its guard: without its own policy it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import flask
import pytest
from fastapi import FastAPI
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import get as litestar_get
from litestar import post as litestar_post
from litestar import put as litestar_put
from litestar.exceptions import NotFoundException
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import Client

import semel
from semel.web.flask import Semel
from semel.web.handler import AsgiApp, Receive, Scope, Send
from semel.web.litestar import SemelPlugin
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

    @app.post("/pay")
    @guard.route(REQUIRED)
    def pay() -> str:
        return runs()

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


def status(app: AsgiApp, runner: asyncio.Runner, **asked: Any) -> int:
    """What a server would send."""
    return runner.run(said(app, Ask(**asked)))


async def said(app: AsgiApp, ask: Ask) -> int:
    """An exception that nobody answers is a 500."""
    reply, error = await call(app, ask)
    assert error is None or isinstance(error, semel.Unguarded)
    return reply.status or 500


@APPS
def test_without_a_guard_a_tagged_endpoint_does_not_run(
    made: Callable[..., Any], make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs = Runs()
    app = made(make_guard(), runs)
    assert status(app, runner, path=b"/pay", key=new_key()) == 500
    assert runs.count == 0


@APPS
@pytest.mark.parametrize("key", [None, "a-key-of-some-length"])
def test_a_path_that_is_changed_behind_the_guard_runs_no_tagged_endpoint(
    made: Callable[..., Any], key: str | None, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, guard = Runs(), make_guard()
    app = guard.asgi(rewritten(made(guard, runs), path="/pay", raw_path=b"/pay"))
    assert status(app, runner, path=b"/v1/pay", key=key) >= 500
    assert runs.count == 0


@APPS
def test_a_method_that_is_changed_behind_the_guard_runs_no_tagged_endpoint(
    made: Callable[..., Any], make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, guard = Runs(), make_guard()
    app = guard.asgi(rewritten(made(guard, runs), method="POST"))
    for key in (None, new_key()):
        assert status(app, runner, method="GET", path=b"/pay", key=key) >= 500
    assert runs.count == 0


@APPS
def test_under_its_guard_a_tagged_endpoint_runs_once(
    made: Callable[..., Any], make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, guard, key = Runs(), make_guard(), new_key()
    app = guard.asgi(made(guard, runs))
    codes = [status(app, runner, path=b"/pay", key=each) for each in (None, key, key)]
    assert codes[0] == 400
    assert codes[1] == codes[2] < 300
    assert runs.count == 1


def test_what_one_request_was_ruled_by_is_not_left_to_the_next(
    make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """Servers may serve both in one context: here one event loop's task does."""
    runs, guard = Runs(), make_guard()
    bare = fastapi(guard, runs)
    guarded = guard.asgi(bare)

    async def one_after_the_other() -> list[int]:
        return [await said(app, Ask(path=b"/pay", key=new_key())) for app in (guarded, bare)]

    assert runner.run(one_after_the_other()) == [200, 500]
    assert runs.count == 1


def test_a_refused_run_leaves_the_key_free(make_guard: MakeGuard, runner: asyncio.Runner) -> None:
    """Nothing was executed: once the application is put right, the same key runs."""
    runs, guard, key = Runs(), make_guard(), new_key()
    inner = fastapi(guard, runs)
    moved = guard.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(moved, runner, path=b"/v1/pay", key=key) >= 500
    listed = make_guard(guard.backend, routes=[semel.Route("POST", "/v1/pay", semel.ietf())])
    mended = listed.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(mended, runner, path=b"/v1/pay", key=key) == 200
    assert runs.count == 1


def test_it_is_told_to_whoever_listens(make_guard: MakeGuard, runner: asyncio.Runner) -> None:
    guard = make_guard()
    ear = listen(guard)
    status(fastapi(guard, Runs()), runner, path=b"/pay", key=new_key())
    assert str(ear.one("unguarded")["endpoint"]).endswith("pay")


def test_a_safe_method_of_a_tagged_endpoint_takes_no_part(
    make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    guard = make_guard()

    @guard.route(semel.ietf())
    async def both(request: Request) -> Response:
        return Response(request.method)

    app = guard.asgi(Starlette(routes=[Route("/both", both, methods=["GET", "POST"])]))
    assert status(app, runner, method="GET", path=b"/both", key=None) == 200
    assert status(app, runner, path=b"/both", key=None) == 200


def test_generators_refuse_too(make_guard: MakeGuard) -> None:
    guard = make_guard()

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


def test_an_endpoint_has_one_policy(make_guard: MakeGuard) -> None:
    guard = make_guard()
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
    method: str, installed: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, guard, inner = Runs(), make_guard(), FastAPI()

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
        assert status(app, runner, method=method, path=b"/pay", key=key) >= 500
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


def test_a_flask_view_is_found_behind_what_wraps_its_application(make_guard: MakeGuard) -> None:
    runs, guard = Runs(), make_guard()
    app = flask_app(guard, runs, flask.Flask("shop"))
    client = Client(guard.wsgi(ProxyFix(app.wsgi_app)))
    assert client.post("/pay").status_code == 400
    assert client.post("/pay", headers={"Idempotency-Key": new_key()}).status_code == 200
    assert runs.count == 1


@pytest.mark.parametrize("by", ["subdomain", "host"])
def test_a_flask_view_is_found_by_host_and_subdomain(by: str, make_guard: MakeGuard) -> None:
    runs, guard = Runs(), make_guard()
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


def test_a_flask_view_that_is_reached_around_its_guard_does_not_run(make_guard: MakeGuard) -> None:
    """In a thread that has served a guarded request before."""
    runs, guard = Runs(), make_guard()
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
    policy: semel.Policy, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """A client follows it with the same key, and with a scope of the tenant it is one key."""
    runs, key = Runs(), new_key()
    app = make_guard(policy=policy).asgi(routed(runs))
    codes = [status(app, runner, path=path, key=key) for path in (b"/pay", b"/pay/", b"/pay/")]
    assert codes == [307, 200, 200]
    assert runs.count == 1


@POLICIES
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_path_or_method_without_an_endpoint_does_not_use_up_the_key(
    policy: semel.Policy, method: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    """An old process answers so, and a new one, with the route, runs it."""
    runs, key, guard = Runs(), new_key(), make_guard(policy=policy)
    old, new = (guard.asgi(routed(runs, path)) for path in ("/other", "/pay"))
    path = b"/pay" if method == "POST" else b"/other"
    ask = {"path": path, "key": key, "method": method}
    assert status(old, runner, **ask) == (404 if method == "POST" else 405)
    if method == "POST":
        assert status(new, runner, **ask) == 200
        assert runs.count == 1
    else:
        assert status(old, runner, **ask) == 405


@pytest.mark.parametrize("offered", ["http.response.pathsend", "http.response.trailers"])
def test_nor_where_the_server_offers_what_semel_takes_away(
    offered: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    guard, key = make_guard(), new_key()
    app, ear = rewritten(guard.asgi(routed(Runs())), extensions={offered: {}}), listen(guard)
    assert [status(app, runner, path=b"/none", key=key) for _ in range(2)] == [404, 404]
    assert ear.tally("exchange", "outcome") == {"released": 2}


@pytest.mark.parametrize("path", [b"/missing", b"/in/missing"])
def test_a_404_that_an_endpoint_answered_is_kept(
    path: bytes, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, key = Runs(), new_key()
    app = make_guard().asgi(routed(runs))
    assert [status(app, runner, path=path, key=key) for _ in range(2)] == [404, 404]
    assert runs.count == 1


def test_litestars_own_404_and_405_do_not_use_up_the_key(
    make_guard: MakeGuard, runner: asyncio.Runner
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
    codes = [status(app, runner, path=path, key=key) for path in paths]
    assert codes == [404, 405, 201, 201]
    key = new_key()
    assert [status(app, runner, path=b"/missing", key=key) for _ in range(2)] == [404, 404]
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


def test_a_404_that_a_flask_view_answered_is_kept(make_guard: MakeGuard) -> None:
    runs, app = Runs(), flask.Flask("shop")

    @app.post("/missing")
    def missing() -> tuple[str, int]:
        return runs(), 404

    @app.post("/aborted")
    def aborted() -> str:
        runs()
        flask.abort(404)

    client = Client(make_guard().wsgi(app))
    for path in ("/missing", "/aborted"):
        headers = {"Idempotency-Key": new_key()}
        codes = [client.post(path, headers=headers).status_code for _ in range(2)]
        assert codes == [404, 404]
    assert runs.count == 2


# ── what a router takes for one path ──────────────────────────────────────────────────────────────

SPELT = (b"/pay", b"/pay/", b"/pay//", b"//pay")


@pytest.mark.parametrize("said_by", ["tag", "listed", "nobody"])
def test_litestar_takes_no_notice_of_slashes_and_neither_does_its_guard(
    said_by: str, make_guard: MakeGuard, runner: asyncio.Runner
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
        assert [status(app, runner, path=path, key=None) for path in SPELT] == [400] * 4
    assert [status(app, runner, path=path, key=key) for path in SPELT] == [201] * 4
    assert runs.count == 1


@pytest.mark.parametrize("installed", ["wsgi", "extension"])
@pytest.mark.parametrize("path", ["/pay", "/pay/"])
def test_where_flask_ignores_a_slash_at_the_end_one_key_runs_once(
    path: str, installed: str, make_guard: MakeGuard
) -> None:
    runs, guard, app = Runs(), make_guard(), flask.Flask("shop")
    app.url_map.strict_slashes = False
    app.add_url_rule(path, view_func=named(runs), methods=["POST"])
    if installed == "extension":
        Semel(app, guard)
    client = Client(app if installed == "extension" else guard.wsgi(app))
    headers = {"Idempotency-Key": new_key()}
    codes = [client.post(each, headers=headers).status_code for each in ("/pay", "/pay/")]
    assert codes == [200, 200]
    assert runs.count == 1


def test_where_flask_does_not_a_slash_tells_two_paths_apart(make_guard: MakeGuard) -> None:
    runs, guard, app = Runs(), make_guard(), flask.Flask("shop")

    @app.post("/pay/<path:of>")
    def pay(of: str) -> str:
        return runs()

    client, headers = Client(guard.wsgi(app)), {"Idempotency-Key": new_key()}
    for each in ("/pay/a", "/pay/a/"):
        assert client.post(each, headers=headers).status_code == 200
    assert runs.count == 2


# ── Litestar's own place for a policy ─────────────────────────────────────────────────────────────


def test_a_policy_in_litestars_opt_holds_at_the_endpoint(
    make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    runs, guard, key = Runs(), make_guard(), new_key()

    @litestar_post("/pay", opt={"semel": REQUIRED}, sync_to_thread=False)
    def pay() -> str:
        return runs()

    inner: Any = Litestar([pay], openapi_config=None)
    app = guard.asgi(inner)
    codes = [status(app, runner, path=b"/pay", key=each) for each in (None, key, key)]
    assert codes == [400, 201, 201]
    moved = guard.asgi(rewritten(inner, path="/pay", raw_path=b"/pay"))
    assert status(moved, runner, path=b"/v1/pay", key=new_key()) >= 500
    assert status(inner, runner, path=b"/pay", key=new_key()) >= 500
    assert runs.count == 1


# ── at start-up ───────────────────────────────────────────────────────────────────────────────────


def with_a_put(guard: semel.Guard, runs: Runs, app: Any) -> Any:
    app.add_api_route("/paid", guard.route(REQUIRED)(named(runs)), methods=["PUT"])
    return app


@APPS
def test_where_all_is_guarded_nothing_is_told(
    made: Callable[..., Any], make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    guard.asgi(made(guard, Runs()))
    guard.start()
    assert caplog.text == ""


def test_a_tagged_route_whose_policy_leaves_its_method_out_is_told_at_start_up(
    make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    guard.asgi(with_a_put(guard, Runs(), FastAPI()))
    guard.start()
    guard.start()
    assert caplog.text.count("PUT /paid is tagged with a policy that leaves PUT out") == 1


@pytest.mark.parametrize("installed", ["guard.fastapi", "middleware", "litestar"])
def test_it_is_told_when_the_application_starts(
    installed: str, make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard, runs = make_guard(), Runs()
    if installed == "litestar":
        handler = litestar_put("/paid", sync_to_thread=False)(guard.route(REQUIRED)(named(runs)))
        options: Any = {"openapi_config": None, "logging_config": None}
        app: Any = Litestar([handler], plugins=[SemelPlugin(guard)], **options)
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
    make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    fastapi(guard, Runs())
    guard.asgi(starlette(guard, Runs()))
    guard.start()
    assert caplog.text.count("found in no application that this guard stands around") == 1
    assert "fastapi.<locals>.pay" in caplog.text
    assert "starlette.<locals>.pay" not in caplog.text


def test_a_tag_above_the_frameworks_decorator_is_told_at_start_up(
    make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard, app = make_guard(), FastAPI()

    @guard.route(REQUIRED)
    @app.post("/pay")
    async def pay() -> None: ...

    guard.asgi(app)
    guard.start()
    assert "answer requests without their tags" in caplog.text
    assert "<locals>.pay. Put @guard.route() below" in caplog.text


@pytest.mark.parametrize("installed", ["wsgi", "extension"])
def test_without_a_start_it_is_told_by_the_first_keyed_request(
    installed: str, make_guard: MakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    app = flask_app(guard, Runs(), flask.Flask("shop"))
    app.add_url_rule("/paid", "paid", guard.route(REQUIRED)(named(Runs())), methods=["PUT"])
    if installed == "extension":
        Semel(app, guard)
    client = Client(app if installed == "extension" else guard.wsgi(app))
    assert "PUT /paid" not in caplog.text
    client.post("/pay", headers={"Idempotency-Key": new_key()})
    assert "PUT /paid is tagged with a policy that leaves PUT out" in caplog.text


def test_a_decorated_view_of_flasks_refuses_a_method_that_its_policy_leaves_out(
    make_guard: MakeGuard,
) -> None:
    runs, guard, app = Runs(), make_guard(), flask.Flask("shop")
    extension = Semel(app, guard)
    app.add_url_rule("/pay", "pay", extension.view(REQUIRED)(named(runs)), methods=["PUT"])
    assert Client(app).put("/pay", headers={"Idempotency-Key": new_key()}).status_code == 500
    assert runs.count == 0
