"""guard.fastapi: dependencies run for every request, then the claim, and the endpoint once."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import httpx
import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Depends,
    FastAPI,
    File,
    Form,
    HTTPException,
    Request,
    Security,
    UploadFile,
)
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import SecurityScopes
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Mount

import semel
from semel.worker.stored_runs import StoredRuns
from tests.ears import listen
from tests.waiting import PATIENCE, auntil
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Wire, scope_of

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
PATIENT = semel.payments(
    required=True, probe=None, in_flight="wait", wait=timedelta(seconds=PATIENCE)
)
TOKENS = {"a1": "alice", "a2": "alice", "b1": "bob"}


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(2 * PATIENCE):
        yield


def user_of(request: semel.Request) -> Any:
    return request.raw["state"].get("user")


def scoped_user(request: semel.Request) -> Any:
    return request.raw.get("user")


class World:
    """An application, its guard, and what has happened."""

    def __init__(self, guard: semel.Guard) -> None:
        self.guard = guard
        self.app = FastAPI()
        self.seen: list[str] = []
        self.tokens = dict(TOKENS)

    async def caller(self, request: Request) -> AsyncIterator[str]:
        """Authentication as people write it, with something to clean up."""
        name = self.tokens.get(request.headers.get("authorization", ""))
        if name is None:
            raise HTTPException(401)
        request.state.user = name
        self.seen.append("enter")
        yield name
        self.seen.append("exit")

    @asynccontextmanager
    async def client(self) -> AsyncGenerator["Client"]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            yield Client(http)


class Client:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __call__(
        self, path: str, key: str | None = KEY, token: str = "a1", **options: Any
    ) -> httpx.Response:
        headers = {"authorization": token, **({} if key is None else {"idempotency-key": key})}
        return await self._http.post(path, headers=headers, **options)

    async def get(self, path: str, token: str = "a1") -> httpx.Response:
        return await self._http.get(path, headers={"authorization": token})


def replayed(answer: httpx.Response) -> bool:
    return "true" in answer.headers.get_list("idempotent-replayed")


@pytest.fixture
def world(make_guard: MakeGuard) -> World:
    return World(make_guard(tenant=user_of))


# ── what comes first ──────────────────────────────────────────────────────────────────────────────


def coroutine(world: World) -> Callable[..., Any]:
    async def pay(amount: int, user: Annotated[str, Depends(world.caller)]) -> dict[str, Any]:
        world.seen.append("run")
        return {"user": user, "amount": amount, "key": semel.async_operation().identity.hex()}

    return pay


def function(world: World) -> Callable[..., Any]:
    def pay(amount: int, user: Annotated[str, Depends(world.caller)]) -> dict[str, Any]:
        world.seen.append("run")
        assert threading.current_thread() is not threading.main_thread()
        return {"user": user, "amount": amount, "key": semel.operation().identity.hex()}

    return pay


def generator(world: World) -> Callable[..., Any]:
    def pay(amount: int, user: Annotated[str, Depends(world.caller)]) -> Iterator[str]:
        world.seen.append("run")
        yield user
        yield semel.operation().identity.hex()

    return pay


def async_generator(world: World) -> Callable[..., Any]:
    async def pay(amount: int, user: Annotated[str, Depends(world.caller)]) -> AsyncIterator[str]:
        world.seen.append("run")
        yield user
        yield semel.async_operation().identity.hex()

    return pay


KINDS = (coroutine, function, generator, async_generator)


@pytest.mark.parametrize("kind", KINDS)
async def test_dependencies_run_for_every_request_and_the_endpoint_once(
    kind: Callable[[World], Any], world: World
) -> None:
    world.app.post("/pay")(world.guard.route(semel.ietf(required=True))(kind(world)))
    world.guard.fastapi(world.app)
    async with world.client() as post:
        first = await post("/pay?amount=3")
        assert world.seen == ["enter", "run", "exit"]
        again = await post("/pay?amount=3", token="a2")
        assert world.seen == ["enter", "run", "exit", "enter", "exit"]
        other = await post("/pay?amount=3", token="b1")
    assert first.status_code == again.status_code == 200
    assert (again.content, replayed(first), replayed(again)) == (first.content, False, True)
    assert not replayed(other)
    assert other.content != first.content


@pytest.mark.parametrize("kind", KINDS)
async def test_a_revoked_token_gets_no_kept_answer(
    kind: Callable[[World], Any], world: World
) -> None:
    world.app.post("/pay")(world.guard.route(semel.ietf(required=True))(kind(world)))
    world.guard.fastapi(world.app)
    async with world.client() as post:
        await post("/pay?amount=3")
        del world.tokens["a1"]
        assert (await post("/pay?amount=3")).status_code == 401
        assert (await post("/pay?amount=3", key=None)).status_code == 401  # before missing-key
    assert world.seen.count("run") == 1


async def test_what_the_framework_refuses_does_not_use_up_the_key(world: World) -> None:
    world.app.post("/pay")(coroutine(world))
    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert (await post("/pay?amount=much")).status_code == 422
        assert (await post("/pay?amount=3")).status_code == 200
        reused = await post("/pay?amount=4")
    assert reused.json()["code"] == "key-reused"


async def test_security_scopes_are_checked_on_every_request(world: World) -> None:
    async def scoped(scopes: SecurityScopes, request: Request) -> str:
        if "pay" not in scopes.scopes or request.headers["authorization"] not in world.tokens:
            raise HTTPException(403)
        request.state.user = "alice"
        return "alice"

    @world.app.post("/pay")
    async def pay(user: Annotated[str, Security(scoped, scopes=["pay"])]) -> str:
        return user

    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert (await post("/pay")).status_code == 200
        assert replayed(await post("/pay"))
        world.tokens.clear()
        assert (await post("/pay")).status_code == 403


async def test_without_a_tenant_there_is_no_claim(world: World) -> None:
    @world.app.post("/pay")
    async def pay() -> str:
        world.seen.append("run")
        return "paid"

    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert (await post("/pay")).json()["code"] == "tenant-missing"
        assert (await post("/pay", key=None)).status_code == 200
    assert world.seen == ["run"]


async def test_a_plain_route_is_claimed_by_the_middleware(guard: semel.Guard) -> None:
    runs: list[int] = []

    async def plain(request: StarletteRequest) -> StarletteResponse:
        runs.append(1)
        return PlainTextResponse("plain")

    world = World(guard)
    world.app.add_route("/plain", plain, methods=["POST"])
    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert [replayed(await post("/plain")) for _ in "12"] == [False, True]
    assert runs == [1]


# ── what follows ──────────────────────────────────────────────────────────────────────────────────


async def test_background_tasks_run_once_and_after_completion(world: World) -> None:
    answers: list[httpx.Response] = []

    @world.app.post("/pay")
    async def pay(tasks: BackgroundTasks, user: Annotated[str, Depends(world.caller)]) -> str:
        world.seen.append("run")
        tasks.add_task(later)
        return user

    async def later() -> None:
        world.seen.append("task")
        async with world.client() as post:
            answers.append(await post("/pay"))

    world.guard.fastapi(world.app)
    async with world.client() as post:
        await post("/pay")
        await post("/pay")
    assert (world.seen.count("run"), world.seen.count("task")) == (1, 1)
    assert replayed(answers[0])  # its record was there when the task ran


class Declined(Exception):
    """An application's own error."""


async def test_exceptions_have_the_fate_of_their_answers(world: World) -> None:
    @world.app.exception_handler(Declined)
    async def declined(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "declined"}, 402)

    @world.app.post("/pay/{how}")
    @world.guard.route(semel.payments(required=True, probe=None))
    async def pay(how: str, user: Annotated[str, Depends(world.caller)]) -> None:
        world.seen.append("run")
        match how:
            case "declined":
                raise Declined
            case "conflict":
                raise HTTPException(409, "sold")
            case "busy":
                raise HTTPException(429, "later")
            case _:
                raise RuntimeError("broken")

    world.guard.fastapi(world.app)
    async with world.client() as post:
        said = {how: [await post(f"/pay/{how}") for _ in "12"] for how in ("declined", "conflict")}
        said |= {how: [await post(f"/pay/{how}") for _ in "12"] for how in ("busy", "broken")}
    assert [a.status_code for a in said["declined"]] == [402, 402]
    assert [a.json() for a in said["conflict"]] == [{"detail": "sold"}] * 2
    assert [replayed(answers[1]) for answers in said.values()] == [True, True, False, False]
    assert said["broken"][1].json()["code"] == "outcome-unknown"
    assert world.seen.count("run") == 1 + 1 + 2 + 1


async def test_a_dependency_sees_what_its_endpoint_raised(world: World) -> None:
    async def unit_of_work() -> AsyncIterator[None]:
        try:
            yield
        except RuntimeError:
            world.seen.append("rolled back")
            raise

    @world.app.post("/pay")
    async def pay(
        user: Annotated[str, Depends(world.caller)], work: Annotated[None, Depends(unit_of_work)]
    ) -> None:
        raise RuntimeError("broken")

    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert (await post("/pay")).status_code == 500
    assert "rolled back" in world.seen


class Receipt(BaseModel):
    amount: int


async def test_what_is_kept_is_the_finished_answer(world: World) -> None:
    async def untouched(request: Any, call_next: Any) -> Any:
        answer = await call_next(request)
        world.seen.append(f"inside saw {answer.status_code}")
        answer.headers.append("x-inside", "1")
        return answer

    @world.app.post("/pay", response_model=Receipt, status_code=201)
    def pay(
        request: Request, response: StarletteResponse, user: Annotated[str, Depends(world.caller)]
    ) -> dict[str, Any]:
        response.headers["x-made"] = "yes"
        return {"amount": 3, "secret": "not in the model"}

    world.app.add_middleware(BaseHTTPMiddleware, dispatch=untouched)
    world.guard.fastapi(world.app)
    async with world.client() as post:
        first, again = await post("/pay"), await post("/pay")
    for answer in (first, again):
        assert (answer.status_code, answer.json()) == (201, {"amount": 3})
        assert answer.headers.get_list("x-inside") == ["1"]
        assert answer.headers["x-made"] == "yes"
    assert replayed(again)
    assert world.seen.count("inside saw 201") == 2


async def test_a_stream_leaves_a_receipt(world: World) -> None:
    @world.app.post("/export")
    @world.guard.route(semel.ietf(response="stream"))
    async def export(user: Annotated[str, Depends(world.caller)]) -> StreamingResponse:
        return StreamingResponse(iter(["a", "b"]))

    world.guard.fastapi(world.app)
    async with world.client() as post:
        first, again = await post("/export"), await post("/export")
    assert (first.text, again.json()["code"]) == ("ab", "body-not-kept")


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


async def test_uploads_are_read_by_the_framework_and_count_for_the_fingerprint(
    world: World,
) -> None:
    @world.app.post("/upload")
    async def upload(
        title: Annotated[str, Form()],
        file: Annotated[UploadFile, File()],
        user: Annotated[str, Depends(world.caller)],
    ) -> dict[str, Any]:
        world.seen.append("run")
        return {"title": title, "size": len(await file.read())}

    world.guard.fastapi(world.app)
    big, other = b"x" * 3_000_000, b"y" * 3_000_000
    async with world.client() as post:
        answers = [
            await post("/upload", data={"title": "t"}, files={"file": ("f.bin", content)})
            for content in (big, big, other)  # each with a boundary of its own
        ]
    assert [a.status_code for a in answers] == [200, 200, 422]
    assert answers[1].json() == {"title": "t", "size": 3_000_000}
    assert answers[2].json()["code"] == "key-reused"
    assert world.seen.count("run") == 1


async def test_what_dependencies_left_unread_reaches_the_endpoint_and_the_fingerprint(
    world: World,
) -> None:
    async def first_piece(request: Request) -> bytes:
        return await anext(request.stream())

    @world.app.post("/raw")
    async def raw(
        request: Request,
        begun: Annotated[bytes, Depends(first_piece)],
        user: Annotated[str, Depends(world.caller)],
    ) -> str:
        rest = [(await request.receive())["body"].decode() for _ in range(2)]
        return "|".join([begun.decode(), *rest])

    world.guard.fastapi(world.app)
    answers = [await _sent(world.app, pieces) for pieces in (("a", "b", "c"), ("a", "b", "x"))]
    assert (answers[0].status, answers[0].body) == (200, b'"a|b|c"')
    assert answers[1].code == "key-reused"


async def _sent(app: Any, pieces: tuple[str, ...]) -> Any:
    """One request whose body comes in pieces."""
    wire = Wire(Ask(path=b"/raw", key=KEY, headers=(("authorization", "a1"),)))
    messages = iter(pieces)

    async def receive() -> Any:
        piece = next(messages)
        return {"type": "http.request", "body": piece.encode(), "more_body": piece != pieces[-1]}

    await app(scope_of(wire.ask), receive, wire.send)
    return wire.reply()


async def test_a_body_too_large_is_refused_before_the_endpoint(world: World) -> None:
    @world.app.post("/pay")
    @world.guard.route(semel.ietf(max_request_body=10))
    async def pay(body: dict[str, str], user: Annotated[str, Depends(world.caller)]) -> None:
        world.seen.append("run")

    world.guard.fastapi(world.app)
    ear = listen(world.guard)
    async with world.client() as post:
        answer = await post("/pay", json={"a": "b" * 100})
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    assert ear.one("refusal")["code"] == "body-too-large"
    assert "run" not in world.seen


@pytest.mark.parametrize("pieces", [("elevenbytes",), ("eleven", "bytes")])
async def test_a_body_that_is_too_large_by_its_last_piece_is_refused(
    world: World, pieces: tuple[str, ...]
) -> None:
    async def read(request: Request) -> bytes:
        return await request.body()

    @world.app.post("/raw")
    @world.guard.route(semel.ietf(max_request_body=10))
    async def pay(
        body: Annotated[bytes, Depends(read)], user: Annotated[str, Depends(world.caller)]
    ) -> None:
        world.seen.append("run")

    world.guard.fastapi(world.app)
    reply = await _sent(world.app, pieces)
    assert (reply.status, reply.code) == (413, "body-too-large")
    assert "run" not in world.seen


async def test_a_replay_that_cannot_be_sent_leaves_nobody_at_the_gate(world: World) -> None:
    """Servers raise when a client has left: the application goes home all the same."""
    world.app.post("/pay")(world.guard.route(semel.ietf())(coroutine(world)))
    world.guard.fastapi(world.app)
    headers = (("authorization", "a1"),)
    ask = Ask(path=b"/pay", key=KEY, query=b"amount=1", headers=headers)

    async def gone(message: Any) -> None:
        raise OSError("the client has left")

    wire, again = Wire(ask), Wire(ask)
    await world.app(scope_of(ask), wire.receive, wire.send)
    assert wire.reply().status == 200
    with pytest.raises(OSError, match="the client has left"):
        await world.app(scope_of(ask), again.receive, gone)
    await auntil(lambda: not world.guard.runtime.running)
    assert world.seen == ["enter", "run", "exit", "enter", "exit"]


# ── places ────────────────────────────────────────────────────────────────────────────────────────


async def test_routers_and_mounted_applications(world: World) -> None:
    router, sub = APIRouter(dependencies=[Depends(world.caller)]), FastAPI()
    for host in (router, sub):
        host.post("/pay")(world.guard.route(semel.ietf(required=True))(coroutine(world)))
    outer = APIRouter()
    outer.include_router(router, prefix="/a")
    world.app.include_router(outer, prefix="/v1")
    world.app.include_router(outer, prefix="/v2")
    world.app.mount("/sub", sub)
    world.guard.fastapi(world.app)
    async with world.client() as post:
        for path in ("/v1/a/pay", "/v2/a/pay", "/sub/pay"):
            assert (await post(f"{path}?amount=1", key=None)).json()["code"] == "missing-key"
            answers = [await post(f"{path}?amount=1") for _ in "12"]
            assert [replayed(a) for a in answers] == [False, True], path
            assert (await post(f"{path}?amount=1", token="none")).status_code == 401
    assert world.seen.count("run") == 3


async def test_a_dependency_that_asks_its_own_application_does_not_wait_at_its_own_gate(
    world: World,
) -> None:
    @world.app.post("/price")
    async def price() -> int:
        return 3

    async def priced() -> int:
        async with world.client() as post:
            return int((await post("/price", key=None)).text)

    @world.app.post("/pay")
    async def pay(
        price: Annotated[int, Depends(priced)], user: Annotated[str, Depends(world.caller)]
    ) -> int:
        return price

    world.guard.fastapi(world.app)
    async with world.client() as post:
        assert (await post("/price")).status_code == 401  # a key was sent there once
        assert (await post("/pay")).text == "3"


async def test_mounted_in_a_guarded_application_it_steps_aside(guard: semel.Guard) -> None:
    world = World(guard)
    world.app.post("/pay")(coroutine(world))
    world.guard.fastapi(world.app)
    guarded = world.guard.asgi(Starlette(routes=[Mount("/", world.app)]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guarded), base_url="http://shop"
    ) as http:
        post = Client(http)
        assert [replayed(await post("/pay?amount=1")) for _ in "12"] == [False, True]
    assert world.seen == ["enter", "run", "exit"]


async def test_the_status_resource_says_its_length_once(world: World) -> None:
    """Servers and proxies refuse an answer that says it twice."""
    world.app.post("/pay")(world.guard.route(semel.accepted())(coroutine(world)))
    world.guard.fastapi(world.app, dependencies=[Depends(world.caller)])
    async with world.client() as post:
        address = f"/semel/status/{(await post('/pay?amount=3')).json()['key']}"
        told = [await post.get(address), await post.get("/semel/status/" + "0" * 64)]
    assert [answer.status_code for answer in told] == [200, 404]
    for answer in told:
        assert answer.headers.get_list("content-length") == [str(len(answer.content))]
        assert len(answer.headers.get_list("content-type")) == 1


# ── at once ───────────────────────────────────────────────────────────────────────────────────────


async def test_of_many_at_once_one_runs(world: World) -> None:
    go = asyncio.Event()

    @world.app.post("/pay")
    @world.guard.route(PATIENT)
    async def pay(user: Annotated[str, Depends(world.caller)]) -> str:
        world.seen.append("run")
        await go.wait()
        return user

    world.guard.fastapi(world.app)
    async with world.client() as post:
        asked = [asyncio.create_task(post("/pay")) for _ in range(20)]
        await auntil(lambda: world.seen.count("enter") == 20)
        go.set()
        answers = await asyncio.gather(*asked)
    assert {(a.status_code, a.text) for a in answers} == {(200, '"alice"')}
    assert sum(replayed(a) for a in answers) == 19
    assert world.seen.count("run") == 1


async def test_functions_that_wait_hold_no_more_threads_than_max_waiters(
    make_guard: MakeGuard,
) -> None:
    world, go = World(make_guard(max_waiters=2)), threading.Event()

    @world.app.post("/pay")
    @world.guard.route(semel.ietf(in_flight="wait", wait=timedelta(minutes=5)))
    def pay() -> str:
        world.seen.append("run")
        assert go.wait(PATIENCE)
        return "paid"

    world.guard.fastapi(world.app)
    async with world.client() as post:
        asked = {asyncio.create_task(post("/pay")) for _ in range(6)}
        refused, waiting = set[Any](), asked
        while len(refused) < 3:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        go.set()
        served = await asyncio.gather(*waiting)
    assert {task.result().json()["code"] for task in refused} == {"in-flight"}
    assert {(a.status_code, a.text) for a in served} == {(200, '"paid"')}
    assert world.seen == ["run"]


async def test_a_request_cancelled_before_the_gate_leaves_nothing(world: World) -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @world.app.post("/pay", dependencies=[Depends(slow)])
    async def pay() -> None:
        world.seen.append("run")

    world.guard.fastapi(world.app)
    wire = Wire(Ask(path=b"/pay", key=KEY))
    serving = asyncio.create_task(world.app(scope_of(wire.ask), wire.receive, wire.send))
    await reached.wait()
    serving.cancel()
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    assert world.seen == []


class GoesOn:
    """A middleware that lets what is inside end although it is cancelled."""

    def __init__(self, app: Any, cancelled: asyncio.Event) -> None:
        self.app, self.cancelled = app, cancelled

    async def __call__(self, *given: Any) -> None:
        inside = asyncio.ensure_future(self.app(*given))
        try:
            await asyncio.shield(inside)
        except asyncio.CancelledError:
            self.cancelled.set()
            await inside
            raise


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_request_cancelled_on_its_way_to_the_gate_does_not_wait_there(
    world: World, in_thread: bool
) -> None:
    reached, cancelled, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await go.wait()

    def pay() -> None:
        world.seen.append("run")

    async def apay() -> None:
        world.seen.append("run")

    world.app.add_api_route(
        "/pay", pay if in_thread else apay, methods=["POST"], dependencies=[Depends(slow)]
    )
    world.app.add_middleware(GoesOn, cancelled=cancelled)
    world.guard.fastapi(world.app)
    wire = Wire(Ask(path=b"/pay", key=KEY, headers=(("authorization", "a1"),)))
    serving = asyncio.create_task(world.app(scope_of(wire.ask), wire.receive, wire.send))
    await reached.wait()
    serving.cancel()
    await cancelled.wait()
    go.set()
    await auntil(lambda: not world.guard.runtime.running)
    assert world.seen == []


async def test_a_request_cancelled_at_the_gate_lets_the_application_end(world: World) -> None:
    """It does not read its body, and the guard waits for it."""

    @world.app.post("/pay")
    async def pay(user: Annotated[str, Depends(world.caller)]) -> None:
        world.seen.append("run")

    asked = asyncio.Event()

    async def receive() -> Any:
        asked.set()
        await asyncio.Event().wait()

    world.guard.fastapi(world.app)
    wire = Wire(Ask(path=b"/pay", key=KEY, headers=(("authorization", "a1"),)))
    serving = asyncio.create_task(world.app(scope_of(wire.ask), receive, wire.send))
    await asked.wait()
    serving.cancel()
    await auntil(lambda: not world.guard.runtime.running)
    assert world.seen == ["enter", "exit"]


async def test_a_request_that_takes_no_part_is_cancelled_as_without_a_guard(world: World) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    @world.app.put("/x")
    async def put() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    world.guard.fastapi(world.app)
    wire = Wire(Ask("PUT", key=KEY))
    serving = asyncio.create_task(world.app(scope_of(wire.ask), wire.receive, wire.send))
    await running.wait()
    serving.cancel()
    await cancelled.wait()


async def test_the_tenant_is_read_from_the_scope_that_the_application_was_given(
    make_guard: MakeGuard,
) -> None:
    """A server that offers more than can be kept gets a copy of its scope passed on."""
    world = World(make_guard(tenant=scoped_user))

    async def caller(request: Request) -> None:
        request.scope["user"] = "alice"

    @world.app.post("/x", dependencies=[Depends(caller)])
    async def pay() -> str:
        return "paid"

    world.guard.fastapi(world.app)
    wire = Wire(Ask(key=KEY))
    scope: dict[str, Any] = {**scope_of(wire.ask), "extensions": {"http.response.pathsend": {}}}
    await world.app(scope, wire.receive, wire.send)
    assert wire.reply().status == 200


async def test_a_request_cancelled_behind_the_gate_is_carried_through(world: World) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @world.app.post("/pay")
    async def pay(user: Annotated[str, Depends(world.caller)]) -> str:
        running.set()
        await go.wait()
        world.seen.append("run")
        return "paid"

    world.guard.fastapi(world.app)
    headers = (("authorization", "a1"),)
    wire = Wire(Ask(path=b"/pay", key=KEY, body=b"", headers=headers))
    serving = asyncio.create_task(world.app(scope_of(wire.ask), wire.receive, wire.send))
    await running.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    go.set()
    await asyncio.wait(world.guard.runtime.running)
    async with world.client() as post:
        again = await post("/pay")
    assert (replayed(again), again.text, world.seen.count("run")) == (True, '"paid"', 1)


@pytest.mark.parametrize("first_ends", ["kept", "released"])
async def test_an_application_that_gives_up_at_the_gate_has_executed_nothing(
    first_ends: str, world: World
) -> None:
    """It has a time-out of its own, and waits for another's answer when that comes."""
    running, gave_up, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hurried(request: Any, call_next: Any) -> Any:
        if not running.is_set():
            return await call_next(request)
        try:
            async with asyncio.timeout(None) as patience:
                ending.append(asyncio.create_task(end_while_it_waits(patience)))
                return await call_next(request)
        except TimeoutError:
            gave_up.set()
            raise

    ending: list[asyncio.Task[None]] = []

    async def end_while_it_waits(patience: asyncio.Timeout) -> None:
        await auntil(lambda: bool(world.guard.runtime.keeper.waiters.watches))
        patience.reschedule(asyncio.get_running_loop().time())

    @world.app.post("/pay")
    @world.guard.route(PATIENT)
    async def pay(user: Annotated[str, Depends(world.caller)]) -> str:
        world.seen.append("run")
        running.set()
        await go.wait()
        if first_ends == "released":
            raise HTTPException(429)
        return "paid"

    world.app.add_middleware(BaseHTTPMiddleware, dispatch=hurried)
    world.guard.fastapi(world.app)
    async with world.client() as post:
        first = asyncio.create_task(post("/pay"))
        await running.wait()
        second = asyncio.create_task(post("/pay"))
        await gave_up.wait()
        go.set()
        answers = [await first, await second]
    if first_ends == "kept":
        assert [a.text for a in answers] == ['"paid"', '"paid"']
    else:
        assert [a.status_code for a in answers] == [429, 503]
        assert answers[1].json()["code"] == "not-executed"
    assert world.seen.count("run") == 1


# ── deferred ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_deferred_request_is_authenticated_when_accepted_run_and_asked_about(
    make_guard: MakeGuard, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    world = World(make_guard(url, tenant=user_of))

    async def caller(request: Request) -> None:
        told = semel.principal(request)
        request.state.user = told or world.tokens.get(request.headers.get("authorization", ""))
        if request.state.user is None:
            raise HTTPException(401)

    @world.app.post("/report", dependencies=[Depends(caller)])
    @world.guard.route(semel.accepted(mode="deferred", required=True))
    async def report() -> str:
        world.seen.append("run")
        return "done"

    world.guard.fastapi(world.app, dependencies=[Depends(caller)])
    async with world.client() as post:
        accepted = await post("/report")
        assert (accepted.status_code, world.seen) == (202, [])
        at = accepted.headers["location"]
        assert (await post.get(at, "nobody")).status_code == 401
        assert (await post.get(at, "b1")).status_code == 404
        assert (await post.get(at)).status_code == 202
        runs = StoredRuns(world.guard, world.app)
        await runs.run_once()
        await runs.aclose()
        assert world.seen == ["run"]
        assert (await post.get(at)).text == '"done"'
        assert (await post("/report")).text == '"done"'
