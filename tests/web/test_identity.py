"""The same request is the same key, whichever server and framework hand it over."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import blacksheep
import pytest
from blacksheep.server.routing import Router as BlacksheepRouter
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
    SimpleUser,
)
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import semel
from semel.core.request import keys
from semel.frameworks.flask import install
from semel.web.asgi_exchange import AsgiApp, Receive, Scope, Send
from tests.web.colours import Said, asgi
from tests.web.conftest import Drive, MakeGuard, Serve
from tests.web.drive import KEY, Ask, Wire, call, scope_of

JSON = ("content-type", "application/json")

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "core" / "vectors" / "identity.json").read_text()
)


def named(vectors: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[v["name"] for v in vectors])


class Seen:
    """Remembers the identity under which a handler runs."""

    def __init__(self) -> None:
        self.identities: list[bytes] = []
        self.paths: list[str] = []

    def __call__(self) -> Said:
        self.identities.append(semel.operation().identity)
        return Said(b"x")

    def tenant(self, request: semel.Request) -> str:
        self.paths.append(request.path)
        return "t1"


@named(VECTORS["paths"])
def test_every_adapter_reads_the_path_of_the_shared_vectors(
    vector: dict[str, Any], serve: Serve
) -> None:
    seen = Seen()
    send = serve(seen, tenant=seen.tenant, strict=False)
    send(Ask(path=bytes.fromhex(vector["decoded_hex"])))
    expected = keys.identity(keys.Scope("t1", "POST", vector["canonical"]), KEY)
    assert seen.paths == [vector["canonical"]]
    assert seen.identities == [expected]


@named([v for v in VECTORS["identities"] if len(v["key"]) >= 16 and v["path"].isascii()])
def test_every_adapter_makes_the_identity_of_the_shared_vectors(
    vector: dict[str, Any], serve: Serve
) -> None:
    seen = Seen()
    policy = semel.ietf(
        scope=vector["kind"],
        methods=[vector["method"]],
        session=None if vector["session"] is None else lambda request: vector["session"],
    )
    tenant = (lambda request: vector["tenant"]) if vector["tenant"] else None
    send = serve(seen, tenant=tenant, policy=policy, name=vector["application"], strict=False)
    quoted = '"' + vector["key"].replace("\\", "\\\\").replace('"', '\\"') + '"'
    send(Ask(vector["method"], vector["path"].encode(), quoted))
    assert [identity.hex() for identity in seen.identities] == [vector["identity"]]


@named(VECTORS["headers"])
def test_every_adapter_reads_the_key_of_the_shared_vectors(
    vector: dict[str, Any], serve: Serve
) -> None:
    seen = Seen()
    send = serve(seen, policy=semel.ietf(key=lambda key: True), strict=False)
    lines = tuple(("idempotency-key", value) for value in vector["values"])
    reply = send(Ask(key=None, headers=lines))
    if vector["key"] is None:
        assert (reply.status, reply.code, seen.identities) == (400, "malformed-key", [])
    else:
        expected = keys.identity(keys.Scope("", "POST", "/x"), vector["key"])
        assert seen.identities == [expected]


@pytest.mark.parametrize(
    ("root", "path", "canonical"),
    [
        ("/api", b"/v1", "/api/v1"),
        ("/api", b"/api", "/api/api"),
        ("/api", b"/apiary", "/api/apiary"),
        ("/api", b"/", "/api/"),
        ("/größe", b"/x", "/gr%C3%B6%C3%9Fe/x"),
        ("", b"/api/v1", "/api/v1"),
    ],
)
def test_the_mount_prefix_is_part_of_the_path(
    root: str, path: bytes, canonical: str, serve: Serve
) -> None:
    seen = Seen()
    send = serve(seen, tenant=seen.tenant)
    send(Ask(path=path, root=root))
    assert seen.paths == [canonical]


@pytest.mark.parametrize(
    ("root", "path", "canonical"),
    [("/api", "/v1", "/api/v1"), ("/api", "/apiary", "/api/apiary"), ("/api/", "/v1", "/api/v1")],
)
async def test_servers_that_leave_the_prefix_out_of_the_path_mean_the_same(
    root: str, path: str, canonical: str, make_guard: MakeGuard
) -> None:
    seen, wire = Seen(), Wire(Ask())
    app = make_guard(tenant=seen.tenant).asgi(asgi(seen))
    await app({**scope_of(Ask()), "root_path": root, "path": path}, wire.receive, wire.send)
    assert seen.paths == [canonical]


@pytest.mark.parametrize(
    ("one", "other"), [(b"/a\xff", b"/a\xfe"), (b"/x", b"/x/"), (b"/a b", b"/a+b"), (b"/x", b"/X")]
)
def test_different_paths_are_different_keys(one: bytes, other: bytes, serve: Serve) -> None:
    seen = Seen()
    send = serve(seen)
    assert [send(Ask(path=path)).replayed for path in (one, other, one)] == [False, False, True]
    assert len(set(seen.identities)) == 2


def blacksheep_shop(paid: list[str]) -> Any:
    """Its router looks at the path as it was sent."""
    app = blacksheep.Application(router=BlacksheepRouter())

    @app.router.post("/accounts/{one}")
    async def account(one: str) -> str:
        paid.append(one)
        return one

    @app.router.post("/accounts/{one}/{two}")
    async def part(one: str, two: str) -> str:
        paid.append(f"{two} of {one}")
        return two

    return app


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"/accounts/a%2Fb", b"/accounts/a/b"),
        (b"/accounts/a/b", b"/accounts/a%2fb"),
    ],
)
def test_an_escaped_slash_is_never_answered_with_what_a_plain_one_has_done(
    first: bytes, second: bytes, guard: semel.Guard, runner: asyncio.Runner
) -> None:
    paid = list[str]()
    app = blacksheep_shop(paid)
    guarded = guard.asgi(app)
    runner.run(app.start())

    def status(sent: bytes) -> int:
        wire, path = Wire(Ask()), unquote_to_bytes(sent).decode()
        scope = {**scope_of(Ask()), "path": path, "raw_path": sent}
        runner.run(guarded(scope, wire.receive, wire.send))
        return wire.reply().status

    assert [status(first), status(second), status(first)] == [200, 422, 200]
    assert len(paid) == 1


@pytest.mark.parametrize(("one", "other"), [(b"/a%2Fb", b"/a%2fb"), (b"/%7Ea%2fb", b"/~a%2Fb")])
def test_escaped_slashes_that_mean_the_same_are_the_same(one: bytes, other: bytes) -> None:
    assert keys.escaped_path(one) == keys.escaped_path(other)
    assert "%2F" in keys.escaped_path(one)


def test_an_escaped_slash_in_a_query_says_nothing_of_the_path() -> None:
    assert keys.escaped_path(b"/a?next=%2Fb") == ""
    assert keys.escaped_path(b"/a%2Fb?next=%2Fc") == "/a%2Fb"


def test_in_tenant_scope_another_endpoint_is_a_mismatch(serve: Serve) -> None:
    seen = Seen()
    send = serve(seen, policy=semel.stripe())
    assert send(Ask(path=b"/charges")).status == 200
    assert send(Ask(path=b"/refunds")).status == 400
    assert len(seen.identities) == 1


def test_a_session_is_part_of_the_identity(serve: Serve) -> None:
    seen = Seen()
    policy = semel.ietf(session=lambda request: request.headers.get("x-session"))
    send = serve(seen, policy=policy)
    for session in ("a", "b", "a"):
        send(Ask(headers=(("content-type", "application/json"), ("x-session", session))))
    assert len(seen.identities) == len(set(seen.identities)) == 2


# ── tenants ───────────────────────────────────────────────────────────────────────────────────────


def by_header(request: semel.Request) -> str | None:
    return request.headers.get("x-tenant")


def of(tenant: str | None) -> Ask:
    headers = (("content-type", "application/json"),)
    return Ask(headers=headers if tenant is None else (*headers, ("x-tenant", tenant)))


def test_tenants_are_independent(serve: Serve) -> None:
    seen = Seen()
    send = serve(seen, tenant=by_header)
    replayed = [send(of(tenant)).replayed for tenant in ("a", "b", "a", "b", "A")]
    assert replayed == [False, False, True, True, False]
    assert len(set(seen.identities)) == 3


def test_a_mismatch_tells_one_tenant_nothing_of_another(serve: Serve) -> None:
    seen = Seen()
    send = serve(seen, tenant=by_header)
    send(of("a"))
    theirs = Ask(body=b'{"other": 1}', headers=of("b").headers)
    assert send(theirs).status == 200


@pytest.mark.parametrize("nobody", [None, "", b"", False, True])
def test_a_caller_who_is_nobody_is_turned_away(nobody: object, serve: Serve) -> None:
    """Never a shared tenant."""
    seen = Seen()
    send = serve(seen, tenant=lambda request: nobody)
    reply = send()
    assert (reply.status, reply.code) == (401, "tenant-missing")
    assert seen.identities == []


class User:
    """An object whose text is its address: another one in every request."""


class Pending:
    """What an ``async def`` returns when nobody awaits it."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "tenant",
    [
        lambda request: 1 / 0,
        lambda request: User(),
        lambda request: Pending(),
        lambda request: undefined,  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_tenant_that_cannot_be_told_is_an_error_of_the_server_and_executes_nothing(
    tenant: Any, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    send = serve(seen, tenant=tenant)
    reply = send()
    assert (reply.status, reply.code) == (500, "misconfigured")
    assert (seen.identities, send.errors) == ([], [])
    assert "tenant=" in caplog.text


class Forbidden(Exception):
    status_code = 403


class Unauthorized(Exception):
    code = 401


def refused(error: type[Exception]) -> Any:
    def tenant(request: semel.Request) -> str:
        raise error

    return tenant


@pytest.mark.parametrize(
    "tenant",
    [
        lambda request: request.raw["nobody here"],
        lambda request: request.user.id,
        lambda request: None.id,  # type: ignore[attr-defined]
        refused(Forbidden),
        refused(Unauthorized),
    ],
)
def test_a_caller_whom_authentication_did_not_find_is_turned_away_without_a_traceback(
    tenant: Any, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    send = serve(seen, tenant=tenant)
    replies = [send(), send(Ask("GET", b"/semel/status/" + b"0" * 64, key=None))]
    assert [(reply.status, reply.code) for reply in replies] == [(401, "tenant-missing")] * 2
    assert (seen.identities, send.errors) == ([], [])
    assert not any(record.exc_info for record in caplog.records)


class OperationalError(Exception):
    """What drivers raise when the database of users is down."""


@pytest.mark.parametrize("outage", [OperationalError, ConnectionResetError, TimeoutError])
@pytest.mark.parametrize("option", ["tenant", "session"])
def test_an_outage_of_whoever_knows_the_caller_passes_and_executes_nothing(
    option: str, outage: type[Exception], serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    down = [True]

    def asked(request: semel.Request) -> str:
        if down:
            raise outage
        return "ann"

    seen, policy = Seen(), semel.ietf(session=asked if option == "session" else None)
    tenant = asked if option == "tenant" else None
    send = serve(seen, tenant=tenant, policy=policy)
    reply = send()
    assert (reply.status, reply.code, reply.problem["retryable"]) == (503, "not-executed", True)
    assert int(reply.one("retry-after") or 0) > 0
    assert (seen.identities, send.errors) == ([], [])
    assert outage.__name__ in caplog.text
    if option == "tenant":
        assert send(Ask("GET", b"/semel/status/" + b"0" * 64, key=None)).code == "not-executed"
    down.clear()
    assert send().status == 200


class Asked:
    """``tenant=`` as a coroutine function, which counts how often it is asked."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, request: semel.Request) -> str | None:
        self.count += 1
        await asyncio.sleep(0)
        name = request.headers.get("x-user")
        if name == "down":
            raise OperationalError
        return name


def in_asgi(guard: semel.Guard, runs: list[str]) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        runs.append("run")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(runs)})

    return guard.asgi(app)


def in_fastapi(guard: semel.Guard, runs: list[str]) -> AsgiApp:
    app = FastAPI()

    @app.post("/x")
    async def run() -> str:
        runs.append("run")
        return str(len(runs))

    guard.fastapi(app)
    return app


@pytest.mark.parametrize("guarded", [in_asgi, in_fastapi])
def test_a_tenant_that_must_be_awaited_is_awaited_for_keyed_requests(
    guarded: Any, make_guard: MakeGuard, drive: Drive
) -> None:
    runs: list[str] = []
    tenant = Asked()
    send = drive(guarded(make_guard(tenant=tenant), runs))

    def user(name: str, **options: Any) -> Ask:
        return Ask(headers=(JSON, ("x-user", name)), **options)

    assert [send(user("a")).replayed, send(user("a")).replayed] == [False, True]
    assert not send(user("b")).replayed
    assert (len(runs), tenant.count) == (2, 3)
    assert send(user("a", key=None)).status == 200
    assert tenant.count == 3
    assert send(Ask()).code == "tenant-missing"
    assert send(user("down")).code == "not-executed"
    status = b"/semel/status/" + b"0" * 64
    told = [send(user(name, method="GET", path=status, key=None)).code for name in ("a", "down")]
    assert told == ["no-such-operation", "not-executed"]
    assert send.errors == []


def test_a_tenant_that_must_be_awaited_is_refused_where_nothing_is(make_guard: MakeGuard) -> None:
    guard = make_guard(tenant=Asked())
    with pytest.raises(semel.ConfigurationError, match="coroutine function"):
        guard.wsgi(lambda environ, start_response: ())
    with pytest.raises(semel.ConfigurationError, match="coroutine function"):
        install(Flask("shop"), guard)


@pytest.mark.parametrize("same", [(7, "7"), (b"t", "t")])
def test_a_tenant_may_be_a_number_or_bytes(same: tuple[object, object], serve: Serve) -> None:
    seen, tenants = Seen(), iter(same)
    send = serve(seen, tenant=lambda request: next(tenants))
    assert [send().replayed, send().replayed] == [False, True]


def test_a_fingerprint_function_that_fails_executes_nothing(serve: Serve) -> None:
    def broken(request: semel.Request, body: bytes) -> bytes:
        raise ZeroDivisionError

    seen = Seen()
    policy = semel.ietf(fingerprint=semel.FingerprintRule(by=broken))
    send = serve(seen, policy=policy)
    reply = send(Ask(body=b"x" * 3_000_000))
    assert (reply.status, reply.code, seen.identities) == (500, "misconfigured", [])


def test_a_fingerprint_function_decides_what_a_request_means(serve: Serve) -> None:
    def first_byte(request: semel.Request, body: bytes) -> bytes:
        return body[:1]

    seen = Seen()
    policy = semel.ietf(fingerprint=semel.FingerprintRule(by=first_byte))
    send = serve(seen, policy=policy)
    statuses = [send(Ask(body=body)).status for body in (b"ab", b"ac", b"bb")]
    assert (statuses, len(seen.identities)) == ([200, 200, 422], 1)


class Named(AuthenticationBackend):
    """Believes the header; a real one verifies it."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("x-tenant")
        return (AuthCredentials(), SimpleUser(name)) if name else None


async def test_the_tenant_is_the_user_that_authentication_left_in_the_scope(
    make_guard: MakeGuard,
) -> None:
    async def handle(request: HTTPConnection) -> PlainTextResponse:
        runs.append(request.user.display_name)
        return PlainTextResponse(str(len(runs)))

    runs: list[str] = []
    guard = make_guard(tenant=lambda request: request.raw["user"].display_name)
    app = Starlette(routes=[Route("/x", handle, methods=["POST"])])
    app.add_middleware(semel.Middleware, guard=guard)
    app.add_middleware(AuthenticationMiddleware, backend=Named())  # added last: asked first
    replies = [(await call(app, of(name)))[0] for name in ("ann", "bob", "ann", None)]
    assert [reply.status for reply in replies] == [200, 200, 200, 401]
    assert [reply.body for reply in replies[:3]] == [b"1", b"2", b"1"]
    assert runs == ["ann", "bob"]
