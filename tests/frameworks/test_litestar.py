"""Litestar: guards and dependencies run for every request, then the claim, the handler once."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar import (
    Controller,
    Litestar,
    Request,
    Response,
    Router,
    WebSocket,
    asgi,
    post,
    websocket,
)
from litestar.background_tasks import BackgroundTask
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, NotAuthorizedException, PermissionDeniedException
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.params import FromPath, JSONBody
from litestar.response import Stream
from litestar.testing import TestClient

import semel
from semel.frameworks.litestar import install, transaction
from semel.worker.stored_runs import StoredRuns
from tests.waiting import PATIENCE
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, call

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
TOKENS = {"a1": "alice", "b1": "bob"}
STRICT = semel.ietf(required=True)
seen: list[str] = []


@pytest.fixture(autouse=True)
async def fresh() -> AsyncIterator[None]:
    seen.clear()
    TOKENS.update(a1="alice")
    async with asyncio.timeout(2 * PATIENCE):
        yield


class Bearer(AbstractAuthenticationMiddleware):
    async def authenticate_request(
        self, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> AuthenticationResult:
        told = semel.principal(connection)
        user = told or TOKENS.get(connection.headers.get("authorization", ""))
        if user is None:
            raise NotAuthorizedException
        return AuthenticationResult(user=user, auth=None)


async def price() -> AsyncGenerator[int]:
    seen.append("enter")
    yield 3
    seen.append("exit")


async def not_frozen(connection: ASGIConnection[Any, Any, Any, Any], _: Any) -> None:
    if connection.headers.get("x-frozen"):
        raise PermissionDeniedException


@dataclass
class Order:
    amount: int


Caller = Request[str, Any, Any]


@post("/pay", opt={"semel": STRICT}, guards=[not_frozen], dependencies={"price": Provide(price)})
async def pay(
    data: JSONBody[Order], request: Caller, price: NamedDependency[int]
) -> dict[str, Any]:
    seen.append("run")
    return {"user": request.user, "amount": data.amount * price, "n": len(seen)}


@post("/threaded", sync_to_thread=True)
@semel.Guard("memory://", tenant=None).route(STRICT)
def threaded(request: Caller) -> dict[str, Any]:
    seen.append("run")
    assert threading.current_thread() is not threading.main_thread()
    return {"user": request.user, "key": semel.operation().identity.hex()}


@post("/blocking", sync_to_thread=False)
@semel.Guard("memory://", tenant=None).route(STRICT)
def blocking(request: Caller) -> dict[str, Any]:
    seen.append("run")
    return {"user": request.user, "key": semel.async_operation().identity.hex()}


class Accounts(Controller):
    path = "/accounts"
    opt = {"semel": semel.payments(required=True, probe=None)}  # noqa: RUF012 - Litestar's way

    @post("/{how:str}")
    async def open(self, how: FromPath[str]) -> Response[Any]:
        seen.append("run")
        match how:
            case "declined":
                raise HTTPException("declined", status_code=402)
            case "busy":
                raise HTTPException("later", status_code=429)
            case "broken":
                raise RuntimeError("broken")
            case _:
                return Response("done", background=BackgroundTask(seen.append, "task"))


@asgi("/mounted", is_mount=True, copy_scope=True)
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    seen.append("run")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"mounted", "more_body": False})


HANDLERS: list[Any] = [pay, threaded, blocking, Router("/r", route_handlers=[Accounts]), mounted]


def user_of(request: semel.Request) -> Any:
    return request.raw["user"]


@pytest.fixture
def app(make_guard: MakeGuard) -> Litestar:
    return Litestar(
        HANDLERS,
        middleware=[Bearer],
        on_app_init=[partial(install, guard=make_guard(tenant=user_of))],
    )


@asynccontextmanager
async def client(app: Litestar) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    headers = {"idempotency-key": KEY, "authorization": "a1"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://shop", headers=headers
    ) as made:
        yield made


def replayed(answer: httpx.Response) -> bool:
    return "true" in answer.headers.get_list("idempotent-replayed")


@pytest.mark.parametrize("path", ["/pay", "/threaded", "/blocking", "/r/accounts/fine"])
async def test_a_handler_of_each_kind_runs_once_for_each_caller(path: str, app: Litestar) -> None:
    async with client(app) as http:
        first, again = [await http.post(path, json={"amount": 1}) for _ in "12"]
        other = await http.post(path, json={"amount": 1}, headers={"authorization": "b1"})
        nobody = await http.post(path, json={"amount": 1}, headers={"authorization": "no"})
        missing = await http.post(path, json={"amount": 1}, headers={"idempotency-key": ""})
    assert first.status_code == 201, first.text
    assert (again.content, replayed(first), replayed(again)) == (first.content, False, True)
    assert (other.status_code, replayed(other)) == (201, False)
    assert (nobody.status_code, missing.status_code) == (401, 400)
    assert seen.count("run") == 2


async def test_guards_and_dependencies_run_for_every_request_before_the_claim(
    app: Litestar,
) -> None:
    async with client(app) as http:
        frozen = await http.post("/pay", json={"amount": 1}, headers={"x-frozen": "1"})
        wrong = await http.post("/pay", json={"amount": "much"})
        assert (frozen.status_code, wrong.status_code, "run" in seen) == (403, 400, False)
        seen.clear()
        first, again = [await http.post("/pay", json={"amount": 1}) for _ in "12"]
        later = await http.post("/pay", json={"amount": 1}, headers={"x-frozen": "1"})
    assert (first.status_code, replayed(again)) == (201, True)
    assert later.status_code == 403
    assert seen == ["enter", "run", "exit", "enter", "exit"]


async def test_a_revoked_token_gets_no_kept_answer(app: Litestar) -> None:
    async with client(app) as http:
        assert (await http.post("/blocking")).status_code == 201
        del TOKENS["a1"]
        assert (await http.post("/blocking")).status_code == 401


async def test_exceptions_have_the_fate_of_their_answers(app: Litestar) -> None:
    async with client(app) as http:
        said = {
            how: [await http.post(f"/r/accounts/{how}") for _ in "12"]
            for how in ("declined", "busy", "broken", "fine")
        }
    assert [a.status_code for a in said["declined"]] == [402, 402]
    assert [replayed(answers[1]) for answers in said.values()] == [True, False, False, True]
    assert said["broken"][1].json()["code"] == "outcome-unknown"
    assert (seen.count("run"), seen.count("task")) == (1 + 2 + 1 + 1, 1)


async def test_a_mounted_application_is_claimed_by_the_middleware(app: Litestar) -> None:
    async with client(app) as http:
        assert [replayed(await http.post("/mounted/x")) for _ in "12"] == [False, True]
    assert seen.count("run") == 1


@pytest.mark.parametrize("path", ["/pay", "/threaded", "/r/accounts/fine"])
async def test_policies_are_found_from_outside_too(path: str, guard: semel.Guard) -> None:
    guarded = guard.asgi(cast("Any", Litestar(HANDLERS)))
    reply, _ = await call(guarded, Ask(path=path.encode(), key=None))
    assert reply.code == "missing-key"


async def test_the_transaction_is_a_dependency(make_guard: MakeGuard, tmp_path: Path) -> None:
    file = tmp_path / "semel.db"
    guard = make_guard(f"sqlite:///{file}")

    @post("/orders/{amount:int}", dependencies={"orders": Provide(transaction)})
    @guard.route(semel.ietf(mode="atomic", required=True))
    async def order(amount: FromPath[int], orders: NamedDependency[Any]) -> bool:
        orders.execute("INSERT INTO orders VALUES (?)", (amount,))
        if amount == 500:
            raise RuntimeError("not to be")
        return isinstance(orders, sqlite3.Connection)

    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (amount INTEGER)")
    app = Litestar([order], on_app_init=[partial(install, guard=guard)])
    async with client(app) as http:
        answers = [await http.post(f"/orders/{amount}") for amount in (1, 1, 500)]
    assert [(a.status_code, replayed(a)) for a in answers] == [
        (201, False),
        (201, True),
        (500, False),
    ]
    assert answers[0].json() is True
    assert connection.execute("SELECT amount FROM orders").fetchall() == [(1,)]
    connection.close()


async def test_a_deferred_request_is_run_and_told_of(make_guard: MakeGuard, tmp_path: Path) -> None:
    guard = make_guard(f"sqlite:///{tmp_path / 'semel.db'}", tenant=user_of)

    @post("/report")
    @guard.route(semel.accepted(mode="deferred", required=True))
    async def report() -> str:
        seen.append("run")
        return "done"

    app = Litestar([report], middleware=[Bearer], on_app_init=[partial(install, guard=guard)])
    async with client(app) as http:
        at = (await http.post("/report")).headers["location"]
        assert (await http.get(at, headers={"authorization": "no"})).status_code == 401
        assert (await http.get(at, headers={"authorization": "b1"})).status_code == 404
        pending = await http.get(at)
        assert (pending.status_code, "retry-after" in pending.headers) == (202, True)
        runs = StoredRuns(guard, app)
        await runs.run_once()
        await runs.aclose()
        assert (await http.get(at)).text == "done"
    assert seen == ["run"]


def with_two_links(problem: semel.Problem, request: semel.Request) -> semel.Response:
    links = ((b"link", b"</one>; rel=help"), (b"link", b"</two>; rel=help"))
    return semel.Response(problem.status, (*links, (b"content-type", b"text/x-own")), b"no")


async def test_the_status_route_keeps_headers_that_are_there_twice(
    make_guard: MakeGuard, tmp_path: Path
) -> None:
    guard = make_guard(f"sqlite:///{tmp_path / 'semel.db'}", tenant=user_of, refusal=with_two_links)

    @post("/report")
    @guard.route(semel.accepted(mode="deferred", required=True))
    async def report() -> str:
        return "done"

    app = Litestar([report], middleware=[Bearer], on_app_init=[partial(install, guard=guard)])
    async with client(app) as http:
        at = (await http.post("/report")).headers["location"]
        refused = await http.get(at, headers={"authorization": "b1"})
    assert (refused.status_code, refused.text) == (404, "no")
    assert refused.headers.get_list("link") == ["</one>; rel=help", "</two>; rel=help"]
    assert refused.headers.get_list("content-type") == ["text/x-own"]


async def test_a_wrong_setting_stops_the_start_and_the_end_closes_the_store(
    make_guard: MakeGuard, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    async with Litestar([], on_app_init=[partial(install, guard=make_guard(url))]).lifespan():
        pass
    other = make_guard(url, policy=semel.ietf(scope="tenant"))
    with pytest.raises(ExceptionGroup) as caught:
        async with Litestar([], on_app_init=[partial(install, guard=other)]).lifespan():
            pass
    assert caught.group_contains(semel.SettingsChanged)


# ── around the gate ───────────────────────────────────────────────────────────────────────────────


async def pieces() -> AsyncGenerator[bytes]:
    for piece in (b"one ", b"two "):
        yield piece


@post("/stream")
async def stream() -> Stream:
    seen.append("run")
    return Stream(pieces())


@post("/conflict")
async def conflict() -> None:
    seen.append("run")
    raise ValueError("taken")


@post("/read")
async def read(request: Request[Any, Any, Any]) -> str:
    seen.append("run")
    return (await request.body()).decode()


@websocket("/live")
async def live(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text("live")
    await socket.close()


async def first_look(request: Request[Any, Any, Any]) -> Response[str] | None:
    assert await request.body() == b"what is sent"
    return Response("not now", status_code=202) if "x-early" in request.headers else None


def taken(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    return Response(str(error), status_code=409)


@pytest.fixture
def deep(make_guard: MakeGuard) -> Litestar:
    """Everything below two routers, the inner of which has policy, hook and exception handler."""
    inner = Router(
        "/in",
        route_handlers=[stream, conflict, read, live],
        opt={"semel": STRICT},
        before_request=first_look,
        exception_handlers={ValueError: taken},
    )
    hooks = [partial(install, guard=make_guard())]
    return Litestar([Router("/out", route_handlers=[inner])], on_app_init=hooks)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("stream", 201, "one two "), ("conflict", 409, "taken"), ("read", 201, "what is sent")],
)
async def test_below_routers_many_at_once_run_once(
    deep: Litestar, path: str, status: int, body: str
) -> None:
    async with client(deep) as http:
        sent = [http.post(f"/out/in/{path}", content=b"what is sent") for _ in range(12)]
        replies = await asyncio.gather(*sent)
        again = await http.post(f"/out/in/{path}", content=b"what is sent")
        missing = await http.post(
            f"/out/in/{path}", content=b"what is sent", headers={"idempotency-key": ""}
        )
    final = [reply for reply in replies if reply.headers.get("idempotent-replayed")]
    assert {(reply.status_code, reply.text) for reply in (*final, again)} == {(status, body)}
    others = [reply for reply in replies if reply not in final]
    assert {reply.json()["code"] for reply in others} <= {"in-flight"}
    assert (replayed(again), missing.status_code, seen) == (True, 400, ["run"])


async def test_a_hook_that_answers_uses_up_no_key(deep: Litestar) -> None:
    async with client(deep) as http:
        early = {"x-early": "yes"}
        answers = [
            await http.post("/out/in/read", content=b"what is sent", headers=headers)
            for headers in (early, {}, early, {})
        ]
    assert [reply.status_code for reply in answers] == [202, 201, 202, 201]
    assert seen == ["run"]


async def test_a_websocket_passes_whatever_key_it_has(deep: Litestar) -> None:
    def talk() -> str:
        headers = {"idempotency-key": KEY}
        with (
            TestClient(deep) as http,
            http.websocket_connect("/out/in/live", headers=headers) as socket,
        ):
            return socket.receive_text()

    assert await asyncio.to_thread(talk) == "live"
