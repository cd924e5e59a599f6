"""What a handler makes and forgets to await has not happened, so its answer is not kept."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import semel
from tests.web.client import Reply, new_key
from tests.web.conftest import MakeGuard
from tests.web.drive import AsgiDriver, Ask

ATOMIC = semel.ietf(mode="atomic", required=True)
POINTS = semel.payments(mode="resumable", probe=None)

Forget = Callable[[semel.AsyncOperation], object]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        file.execute("CREATE TABLE orders (n INT)")
        yield file


def play(
    forget: Forget, policy: semel.Policy, guard: semel.Guard, runner: asyncio.Runner
) -> tuple[list[Reply], list[int]]:
    app, runs = FastAPI(), list[int]()

    @app.post("/x", status_code=201)
    @guard.route(policy)
    async def order() -> str:
        runs.append(1)
        op: semel.AsyncOperation = semel.async_operation()
        if policy is ATOMIC:
            op.transaction.execute("INSERT INTO orders VALUES (1)")
        forget(op)
        return "done"

    guard.fastapi(app)
    send, key = AsgiDriver(app, runner), new_key()
    return [send(Ask(key=key)) for _ in range(2)], runs


def test_an_effect_that_nobody_awaited_undoes_the_run(
    make_guard: MakeGuard,
    runner: asyncio.Runner,
    shop: sqlite3.Connection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = make_guard(f"sqlite:///{tmp_path}/shop.db")
    replies, runs = play(lambda op: op.enqueue("mail", {"a": 1}), ATOMIC, guard, runner)
    assert [(reply.status, reply.code) for reply in replies] == [(500, "handler-failed")] * 2
    assert len(runs) == 2
    assert shop.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert "'mail' was made by the handler and not awaited" in caplog.text


@pytest.mark.parametrize(
    "forget",
    [lambda op: op.phase("made", lambda: 1), lambda op: op.call("made", lambda key: 1)],
    ids=["phase", "call"],
)
def test_a_point_that_nobody_awaited_is_not_answered_for(
    forget: Forget,
    make_guard: MakeGuard,
    runner: asyncio.Runner,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard = make_guard(f"sqlite:///{tmp_path}/shop.db")
    replies, runs = play(forget, POINTS, guard, runner)
    assert [(reply.status, reply.code) for reply in replies] == [(500, "handler-failed")] * 2
    assert len(runs) == 2
    assert "'made' was made by the handler and not awaited" in caplog.text


def test_a_call_that_still_runs_when_the_handler_answers_is_in_doubt(
    make_guard: MakeGuard, runner: asyncio.Runner, tmp_path: Path
) -> None:
    guard, sent = make_guard(f"sqlite:///{tmp_path}/shop.db", policy=POINTS), list[str]()
    tasks: list[asyncio.Future[Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        under_way, over = asyncio.Event(), asyncio.Event()

        async def charge(key: str) -> None:
            sent.append(key)
            under_way.set()
            await over.wait()

        tasks.append(asyncio.ensure_future(semel.async_operation().call("charged", charge)))
        await under_way.wait()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    send, key = AsgiDriver(guard.asgi(app), runner), new_key()
    first, again = send(Ask(key=key)), send(Ask(key=key))
    assert (first.status, first.code, again.code) == (500, "outcome-unknown", "outcome-unknown")
    assert len(sent) == 1
    (task,) = tasks
    runner.get_loop().call_soon(task.cancel)
    with pytest.raises(semel.OutcomeUnknown):
        runner.get_loop().run_until_complete(task)
