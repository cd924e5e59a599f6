"""A server that cancels, a client that leaves: no record is lost, and nothing runs twice.

Every place where the server's task can be interrupted is enumerated: the n-th point of one request
is cancelled, for n = 1, 2, … until a request passes without being cancelled.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

import semel
from semel.web.asgi import Middleware
from semel.web.asgi_exchange import AsgiApp, Message, Receive, Scope, Send
from tests.waiting import PATIENCE, asked, auntil
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Wire, call, scope_of
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend
from tests.web.test_waiting import waiting


@dataclass
class Cancelling:
    """Cancels the server's task at its n-th point."""

    at: int
    task: asyncio.Task[None] | None = None
    points: list[str] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        if self.task is None or self.struck:
            return
        self.points.append(point)
        if len(self.points) == self.at:
            self.task.cancel()

    @property
    def struck(self) -> bool:
        return len(self.points) >= self.at


def application(effects: Effects, point: Callable[[str], None], pieces: int) -> AsgiApp:
    """Answers with its nonce, in pieces; every step of it is a point."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        point("handler starts")
        await asyncio.sleep(0)
        name = effects.happen("-").encode()
        point("handler has happened")
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        point("answer started")
        await asyncio.sleep(0)
        for n in range(pieces):
            more = n < pieces - 1
            await send({"type": "http.response.body", "body": name, "more_body": more})
            point("piece sent")
            await asyncio.sleep(0)

    return app


class PointedWire(Wire):
    """The server's end, with a point before and after each message."""

    point: Callable[[str], None]

    async def receive(self) -> Message:
        self.point("receive")
        await asyncio.sleep(0)
        return await super().receive()

    async def send(self, message: Message) -> None:
        self.point(f"before {message['type']}")
        await asyncio.sleep(0)
        await super().send(message)
        self.point(f"after {message['type']}")
        await asyncio.sleep(0)


async def interrupted(app: Middleware, store: FaultyBackend, cancelling: Cancelling) -> None:
    """One request whose server's task is cancelled at the chosen point."""
    wire = PointedWire(Ask())
    wire.point = store.watch = cancelling
    task = cancelling.task = asyncio.create_task(app(scope_of(Ask()), wire.receive, wire.send))
    await asyncio.wait([task])
    cancelling.task = None
    assert task.cancelled() or task.exception() is None or not cancelling.struck
    await app.drain()


async def settled(app: AsgiApp) -> Reply:
    """What a client learns that comes again while its request is in flight."""

    async def ask() -> Reply:
        reply, _ = await call(app, Ask())
        return reply

    return await asked(ask, lambda reply: reply.status != 409 or reply.final)


POLICIES = {
    "buffered": (semel.ietf(), 1),
    "buffered in pieces": (semel.ietf(), 3),
    "streamed": (semel.ietf(response="stream"), 3),
    "too large to keep": (semel.ietf(max_response_body=40), 3),
}


@pytest.mark.parametrize(("policy", "pieces"), POLICIES.values(), ids=POLICIES)
async def test_cancelled_at_any_point_a_request_is_neither_lost_nor_run_twice(
    policy: semel.Policy, pieces: int, make_guard: MakeGuard, effects: Effects
) -> None:
    seen: list[str] = []
    for n in range(1, 100):
        cancelling, store = Cancelling(n), FaultyBackend()
        guard = make_guard(store, policy=policy)
        app = guard.asgi(application(effects, cancelling, pieces))
        before = len(effects.all())
        await interrupted(app, store, cancelling)
        ran = len(effects.all()) - before
        assert ran <= 1
        reply = await settled(app)
        assert len(effects.all()) - before == 1, cancelling.points
        name = effects.all()[-1].nonce.encode()
        if ran == 0:
            assert (reply.status, reply.body) == (200, name * pieces)
        elif policy.response == "buffer" and policy.max_response_body > 40:
            assert (reply.replayed, reply.body) == (True, name * pieces)
        else:
            assert reply.code == "body-not-kept"
        assert len(guard.runtime.keeper.leases) == 0
        if not cancelling.struck:
            break
        seen.append(cancelling.points[-1])
    assert {"before Claim", "after Claim", "handler starts", "handler has happened"} <= set(seen)
    assert {"before Complete", "after Complete", "after http.response.body"} <= set(seen)


@pytest.mark.parametrize("error", [ValueError, semel.OutcomeUnknown])
async def test_cancelled_at_any_point_a_failing_request_has_the_fate_of_its_failure(
    error: type[Exception], make_guard: MakeGuard, effects: Effects
) -> None:
    for n in range(1, 100):
        cancelling, store = Cancelling(n), FaultyBackend()

        async def app(
            scope: Scope, receive: Receive, send: Send, point: Cancelling = cancelling
        ) -> None:
            point("handler starts")
            await asyncio.sleep(0)
            effects.happen("-")
            point("handler has happened")
            await asyncio.sleep(0)
            raise error

        before = len(effects.all())
        guarded = make_guard(store).asgi(app)
        await interrupted(guarded, store, cancelling)
        ran = len(effects.all()) - before
        reply = await settled(guarded)
        runs = len(effects.all()) - before
        if error is semel.OutcomeUnknown:
            assert (reply.code, runs) == ("outcome-unknown", 1)
        else:
            assert (reply.status, runs) == (500, ran + 1)
        if not cancelling.struck:
            return
    raise AssertionError("there is no end to the points")


async def test_a_waiter_that_is_cancelled_leaves_the_leader_alone(
    make_guard: MakeGuard, effects: Effects
) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = effects.happen("-").encode()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name})

    guard = make_guard(policy=semel.ietf(in_flight="wait", wait=timedelta(seconds=PATIENCE)))
    guarded = guard.asgi(app)
    leader = asyncio.create_task(call(guarded, Ask()))
    await auntil(effects.all)
    waiters = [asyncio.create_task(call(guarded, Ask())) for _ in range(5)]
    await auntil(lambda: waiting(guard) == 5)
    waiters[0].cancel()
    await asyncio.wait(waiters[:1])
    go.set()
    replies = [(await task)[0] for task in (leader, *waiters[1:])]
    assert {reply.body for reply in replies} == {effects.all()[0].nonce.encode()}
    assert len(effects.all()) == 1


async def test_a_server_that_raises_on_send_after_a_disconnect_loses_no_record(
    make_guard: MakeGuard, effects: Effects
) -> None:
    """ASGI 2.4 lets ``send`` raise when the client is gone."""
    for policy in (semel.ietf(), semel.ietf(response="stream")):
        guard = make_guard(policy=policy)
        app = guard.asgi(application(effects, lambda point: None, 3))
        wire = Wire(Ask())

        async def gone(message: Message) -> None:
            raise OSError("the client is gone")

        with pytest.raises(OSError, match="gone"):
            await app(scope_of(Ask()), wire.receive, gone)
        await app.drain()
        before = len(effects.all())
        reply = await settled(app)
        assert reply.replayed or reply.code == "body-not-kept"
        assert len(effects.all()) == before
        assert len(guard.runtime.keeper.leases) == 0


async def test_what_a_handler_raises_after_its_client_has_left_is_logged(
    guard: semel.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("nobody else hears of this")

    async def gone(message: Message) -> None:
        raise OSError("the client is gone")

    guarded = guard.asgi(app)
    with caplog.at_level("ERROR", logger="semel"):
        with pytest.raises(OSError, match="gone"):
            await guarded(scope_of(Ask()), Wire(Ask()).receive, gone)
        await guarded.drain()
    assert "nobody else hears of this" in caplog.text


async def test_shutdown_waits_for_handlers_whose_clients_have_left(
    guard: semel.Guard, effects: Effects
) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        name = effects.happen("-").encode()
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": name})

    guarded = guard.asgi(app)
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    said: list[str] = []

    async def say(message: Message) -> None:
        said.append(message["type"])

    life = asyncio.create_task(guarded({"type": "lifespan"}, inbox.get, say))
    await inbox.put({"type": "lifespan.startup"})
    await auntil(lambda: said)
    request = asyncio.create_task(call(guarded, Ask()))
    await auntil(effects.all)
    request.cancel()
    await asyncio.wait([request])
    await inbox.put({"type": "lifespan.shutdown"})
    await auntil(inbox.empty)
    assert said == ["lifespan.startup.complete"]
    go.set()
    await life
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    reply, _ = await call(guarded, Ask())
    assert (reply.replayed, len(effects.all())) == (True, 1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="semel"):
        yield
        asyncio_errors = [record for record in caplog.records if record.name == "asyncio"]
        assert asyncio_errors == []


@pytest.mark.parametrize("mode", ["leased", "atomic"])
async def test_an_application_that_cancels_its_own_send_loses_nothing(
    mode: Literal["leased", "atomic"], make_guard: MakeGuard, effects: Effects, tmp_path: Path
) -> None:
    """At any point of it: the answer is kept, sent once, and no other is taken in its place."""
    seen: list[str] = []
    for n in range(1, 40):
        cancelling = Cancelling(n)
        store = FaultyBackend() if mode == "leased" else f"sqlite:///{tmp_path}/{n}.db"
        guard = make_guard(store, policy=semel.ietf(mode=mode))
        wire = PointedWire(Ask())
        wire.point = cancelling
        if isinstance(store, FaultyBackend):
            store.watch = cancelling
        app = guard.asgi(giving_up(effects, cancelling))
        before = len(effects.all())
        with suppress(asyncio.CancelledError):
            await app(scope_of(Ask()), wire.receive, wire.send)
        await app.drain()
        name = effects.all()[-1].nonce.encode()
        told = b"".join(m.get("body", b"") for m in wire.sent)
        assert told in (b"", name), cancelling.points
        reply = await settled(app)
        assert (reply.status, reply.body) == (200, name), cancelling.points
        assert len(effects.all()) - before == 1
        assert len(guard.runtime.keeper.leases) == 0
        if not cancelling.struck:
            break
        seen.append(cancelling.points[-1])
    else:
        pytest.fail("it never came to its end")
    assert "before http.response.start" in seen
    assert mode == "atomic" or {"before Complete", "after Complete"} <= set(seen)


def giving_up(effects: Effects, cancelling: Cancelling) -> AsgiApp:
    """Sends from a task that is cancelled, and then tries to say something else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = effects.happen("-").encode()

        async def answer() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            cancelling.task = asyncio.current_task()
            await send({"type": "http.response.body", "body": name})

        task = asyncio.create_task(answer())
        await asyncio.wait([task])
        cancelling.task = None
        if task.cancelled():
            with pytest.raises(RuntimeError):
                await send({"type": "http.response.body", "body": b"something else"})

    return app
