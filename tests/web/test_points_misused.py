"""Points that are nested, run side by side, named alike, or come too late are refused before
anything is sent."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.maintenance import Browse
from semel.core.records import State
from semel.core.recovery import journal
from semel.web.wsgi import Environ, StartResponse
from tests.databases import connect, executed
from tests.stores.harness import Harness, open_harness, server_of
from tests.waiting import PATIENCE
from tests.web.client import Reply
from tests.web.drive import AsgiDriver, WsgiDriver

POLICY = semel.payments(mode="resumable", probe=None)


class Bench:
    """One operation, whatever it does, on a real store."""

    def __init__(self, harness: Harness, runner: asyncio.Runner) -> None:
        self.harness = harness
        self.runner = runner
        self.sent: list[str] = []

    def charge(self, key: str, what: str) -> str:
        self.sent.append(what)
        return what

    def run(self, handler: Callable[[Any], Any]) -> Reply:
        guard = semel.Guard(self.harness.backend, tenant=None, policy=POLICY, maintenance=None)

        def app(environ: Environ, start_response: StartResponse) -> list[bytes]:
            said = handler(semel.operation())
            start_response("200 OK", [])
            return [json.dumps(said).encode()]

        return WsgiDriver(guard.wsgi(app), strict=False)()

    def arun(self, handler: Callable[[Any], Any]) -> Reply:
        guard = semel.Guard(self.harness.backend, tenant=None, policy=POLICY, maintenance=None)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            said = await handler(semel.async_operation())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(said).encode()})

        return AsgiDriver(guard.asgi(app), self.runner)()

    def record(self) -> tuple[str, list[tuple[str, bool]]]:
        (case,) = self.harness.backend.blocking().perform(Browse(tuple(State), 9)).cases
        points = journal.decode(case.journal).points
        return case.record.state.value, [(point.name, point.done) for point in points]


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, runner: asyncio.Runner
) -> Iterator[Bench]:
    with open_harness(
        f"{request.param}-sync", tmp_path, server_of(request, request.param)
    ) as harness:
        harness.backend.migrate()
        yield Bench(harness, runner)
        runner.run(harness.backend.aclose())


def test_a_call_in_a_phase(bench: Bench) -> None:
    """Journaled before its phase, it would keep the operation from ever being resumed."""

    def handler(op: semel.Operation) -> Any:
        return op.phase("outer", op.call, "inner", bench.charge, "a")

    assert bench.run(handler).status == 500
    assert bench.sent == []
    assert bench.record() == ("failed_retryable", [])


def test_a_phase_in_a_phase_leaves_the_outer_one_whole(bench: Bench) -> None:
    def outer() -> str:
        op: semel.Operation = semel.operation()
        with pytest.raises(semel.ConfigurationError, match="one after the other"):
            op.phase("inner", lambda: 1)
        executed(op.transaction, "SELECT 1")
        op.enqueue("receipt", {})
        return "done"

    assert bench.run(lambda op: op.phase("outer", outer)).status == 200
    assert bench.record() == ("completed", [("outer", True)])


def test_calls_side_by_side_in_an_event_loop(bench: Bench) -> None:
    """Each would write the journal without the other, and a crash would lose one that was made."""

    async def handler(op: semel.AsyncOperation) -> Any:
        began, go_on = asyncio.Event(), asyncio.Event()

        async def charge(key: str, what: str) -> str:
            began.set()
            await go_on.wait()
            return bench.charge(key, what)

        first = asyncio.create_task(op.call("one", charge, "a"))
        await began.wait()
        with pytest.raises(semel.ConfigurationError, match="one after the other"):
            await op.call("two", charge, "b")
        go_on.set()
        return await first

    assert bench.arun(handler).status == 200
    assert bench.sent == ["a"]
    assert bench.record() == ("completed", [("one", True)])


def test_calls_side_by_side_in_threads(bench: Bench) -> None:
    began, go_on = threading.Event(), threading.Event()

    def charge(key: str, what: str) -> str:
        began.set()
        assert go_on.wait(PATIENCE)
        return bench.charge(key, what)

    def handler(op: semel.Operation) -> Any:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(copy_context().run, lambda: op.call("one", charge, "a"))
            assert began.wait(PATIENCE)
            with pytest.raises(semel.ConfigurationError, match="one after the other"):
                op.call("two", charge, "b")
            go_on.set()
            return first.result()

    assert bench.run(handler).status == 200
    assert bench.sent == ["a"]


def test_a_second_call_of_one_name_would_have_the_key_of_the_first(bench: Bench) -> None:
    def handler(op: semel.Operation) -> Any:
        return [op.call("charged", bench.charge, what) for what in "ab"]

    assert bench.run(handler).status == 500
    assert bench.sent == ["a"]
    assert bench.record() == ("in_progress", [("charged", True)])


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def too_deep(key: str) -> Any:
    return nested(100_000)


TOO_LONG = "the handler ran longer than max_run"


def test_a_phase_after_max_run(bench: Bench) -> None:
    """Nobody looks after the lease any more: a phase that hangs would keep its locks for ever."""
    entered: list[int] = []

    def handler(op: semel.Operation) -> Any:
        op._run.lease.end(TOO_LONG)
        return op.phase("late", lambda: entered.append(1))

    assert bench.run(handler).code == "handler-failed"
    assert entered == []
    assert bench.record() == ("failed_retryable", [])


def test_a_phase_after_max_run_in_an_event_loop(bench: Bench) -> None:
    entered: list[int] = []

    async def handler(op: semel.AsyncOperation) -> Any:
        op._run.lease.end(TOO_LONG)
        return await op.phase("late", lambda: entered.append(1))

    assert bench.arun(handler).code == "handler-failed"
    assert entered == []
    assert bench.record() == ("failed_retryable", [])


def test_a_result_that_is_nested_too_deep(bench: Bench) -> None:
    """It was made, and what it gave cannot be kept: also where the handler takes no notice."""

    def handler(op: semel.Operation) -> Any:
        with pytest.raises(semel.OutcomeUnknown):
            op.call("charged", too_deep)
        raise semel.NotExecuted("so it says")

    assert bench.run(handler).status >= 500
    assert bench.record() == ("unknown", [("charged", False)])


def test_a_payload_that_is_nested_too_deep(bench: Bench) -> None:
    def write() -> str:
        with pytest.raises(semel.ConfigurationError, match="JSON"):
            semel.operation().enqueue("receipt", nested(100_000))
        return "done"

    assert bench.run(lambda op: op.phase("outer", write)).status == 200


# ── phases that end their transaction themselves ──────────────────────────────────────────────────

BY_ITSELF = (
    *(("sqlite", "COMMIT"), ("postgresql", "COMMIT"), ("postgresql", "COMMIT; BEGIN")),
    *(("mysql", "COMMIT"), ("mysql", "BEGIN"), ("mysql", "ANALYZE TABLE kept")),
    *(("mysql", "CREATE TABLE IF NOT EXISTS kept (number int)"), ("mysql", "CALL gives_up()")),
)
GIVES_UP = "CREATE PROCEDURE gives_up() BEGIN ROLLBACK; INSERT INTO kept VALUES (9); END"


def ending(bench: Bench, statement: str, said: type[Exception] | None) -> Callable[[], str]:
    with closing(connect(bench.harness.backend.url)) as outside:
        executed(outside, "CREATE TABLE IF NOT EXISTS kept (number int)")
        if statement.startswith("CALL"):
            executed(outside, "DROP PROCEDURE IF EXISTS gives_up")
            executed(outside, GIVES_UP)

    def work() -> str:
        bench.sent.append("ran")
        connection = semel.operation().transaction
        executed(connection, "INSERT INTO kept VALUES (1)")
        with suppress(semel.ConfigurationError):
            executed(connection, statement)
        if said is not None:
            raise said("after it")
        return "done"

    return work


@pytest.mark.parametrize(("bench", "statement"), BY_ITSELF, indirect=["bench"])
@pytest.mark.parametrize("said", [None, ValueError, semel.NotExecuted])
def test_a_phase_that_ended_its_transaction_is_not_done_and_not_run_again(
    bench: Bench, statement: str, said: type[Exception] | None
) -> None:
    """What it wrote may be there, or may be gone although it returned."""
    work = ending(bench, statement, said)
    assert bench.run(lambda op: op.phase("made", work)).code == "outcome-unknown"
    assert bench.run(lambda op: op.phase("made", work)).code == "outcome-unknown"
    assert bench.sent == ["ran"]
    assert bench.record() == ("unknown", [])


@pytest.mark.parametrize("bench", ["mysql"], indirect=True)
def test_nor_is_it_by_the_handler_that_hides_it(bench: Bench) -> None:
    work = ending(bench, "BEGIN", None)

    def handler(op: semel.Operation) -> Any:
        for _ in range(2):
            with suppress(semel.OutcomeUnknown):
                op.phase("made", work)
        return "done"

    bench.run(handler)
    assert bench.sent == ["ran"]
    assert bench.record()[0] != "failed_retryable"
