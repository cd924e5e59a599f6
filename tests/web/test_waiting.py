"""Requests that wait for one another in one process, as tasks and as threads."""

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import semel
from semel.web.asgi_exchange import Receive, Scope, Send
from semel.web.wsgi import Environ, StartResponse
from tests.waiting import PATIENCE, auntil, until
from tests.web.client import Reply
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, WsgiDriver, call
from tests.web.effects import Effects

FOLLOWERS = 5
WAIT = timedelta(seconds=PATIENCE)
PATIENT = semel.ietf(in_flight="wait", wait=WAIT)


def waiting(guard: semel.Guard) -> int:
    """How many requests of this process wait at this moment."""
    watches = list(guard.runtime.keeper.waiters.watches.values())
    tasks = [slot for watch in watches for slots in watch.tasks.values() for slot in slots]
    return len(tasks) + sum(len(watch.threads) for watch in watches)


async def as_tasks(guard: semel.Guard, effects: Effects, statuses: list[int]) -> list[Reply]:
    """The first request and those that came while it ran; its first run ends when all wait."""
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = effects.happen("-").encode()
        status = statuses[len(effects.all()) - 1]
        await go.wait()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": name})

    guarded = guard.asgi(app)
    leader = asyncio.create_task(call(guarded, Ask()))
    await auntil(effects.all)
    followers = [asyncio.create_task(call(guarded, Ask())) for _ in range(FOLLOWERS)]
    await auntil(lambda: waiting(guard) == FOLLOWERS)
    go.set()
    return [(await task)[0] for task in (leader, *followers)]


def as_threads(guard: semel.Guard, effects: Effects, statuses: list[int]) -> list[Reply]:
    go = threading.Event()

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        name = effects.happen("-").encode()
        status = statuses[len(effects.all()) - 1]
        assert go.wait(PATIENCE)
        start_response(f"{status} Said", [("Content-Type", "text/plain")])
        return [name]

    send = WsgiDriver(guard.wsgi(app))
    with ThreadPoolExecutor(FOLLOWERS + 1) as pool:
        leader = pool.submit(send)
        until(effects.all)
        followers = [pool.submit(send) for _ in range(FOLLOWERS)]
        until(lambda: waiting(guard) == FOLLOWERS)
        go.set()
        return [future.result() for future in (leader, *followers)]


@pytest.fixture(params=["tasks", "threads"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def served(
    colour: str, guard: semel.Guard, effects: Effects, statuses: list[int], loop: asyncio.Runner
) -> list[Reply]:
    if colour == "tasks":
        return loop.run(as_tasks(guard, effects, statuses))
    return as_threads(guard, effects, statuses)


def test_all_who_wait_get_the_one_answer(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    replies = served(colour, make_guard(policy=PATIENT), effects, [201], runner)
    assert {(reply.status, reply.body) for reply in replies} == {(201, replies[0].body)}
    assert [reply.replayed for reply in replies] == [False] + [True] * FOLLOWERS
    assert len(effects.all()) == 1


def test_of_all_who_wait_for_an_attempt_that_fails_exactly_one_tries_again(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    replies = served(colour, make_guard(policy=PATIENT), effects, [500, 201], runner)
    assert sorted(reply.status for reply in replies) == [201, 409, 409, 409, 409, 500]
    refused = [reply for reply in replies if reply.status == 409]
    assert {(reply.code, reply.one("retry-after")) for reply in refused} == {
        ("attempt-failed", "1")
    }
    assert len(effects.all()) == 2


def test_those_who_wait_for_an_unknown_outcome_learn_that_and_run_nothing(
    colour: str, make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    policy = semel.payments(probe=None, in_flight="wait", wait=WAIT)
    replies = served(colour, make_guard(policy=policy), effects, [500], runner)
    assert [reply.status for reply in replies] == [500] + [409] * FOLLOWERS
    assert {reply.code for reply in replies[1:]} == {"outcome-unknown"}
    assert len(effects.all()) == 1


def test_whoever_waits_too_long_is_told_to_come_again(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    guard = make_guard(policy=semel.ietf(in_flight="wait", wait=timedelta(milliseconds=50)))

    async def both() -> tuple[Reply, Reply]:
        go = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            name = effects.happen("-").encode()
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": name})

        guarded = guard.asgi(app)
        leader = asyncio.create_task(call(guarded, Ask()))
        await auntil(effects.all)
        follower, _ = await call(guarded, Ask())
        go.set()
        return (await leader)[0], follower

    first, second = runner.run(both())
    assert (first.status, second.status, second.code) == (200, 409, "in-flight")
    assert len(effects.all()) == 1


def test_threads_wait_only_while_there_is_room(make_guard: MakeGuard, effects: Effects) -> None:
    guard = make_guard(policy=PATIENT, max_waiters=1)
    go = threading.Event()

    def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        name = effects.happen("-").encode()
        assert go.wait(PATIENCE)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [name]

    send = WsgiDriver(guard.wsgi(app))
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(send)
        until(effects.all)
        waiter = pool.submit(send)
        until(lambda: waiting(guard) == 1)
        assert send().code == "in-flight"
        go.set()
        assert leader.result().body == waiter.result().body
