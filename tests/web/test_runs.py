"""The worker's loop that runs stored requests: one that takes long holds up no other."""

import asyncio
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.maintenance import Due, Work
from semel.worker.stored_runs import StoredRuns
from semel.worker.worker import Round
from tests.stores.harness import Harness, open_harness
from tests.waiting import Ahead, auntil, turns
from tests.web.faulty import Faults, FaultyBackend


def under_way() -> int:
    """How many runs the loop has begun and not ended, whether or not their handlers were called."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(each.__qualname__ == "StoredRuns._one" for each in coroutines)


class Yard:
    """A deferred route whose handlers end when they are told to."""

    def __init__(self, backend: Any, **options: Any) -> None:
        self.guard = semel.Guard(
            backend, tenant=None, policy=semel.accepted(mode="deferred", required=True, **options)
        )
        self.app: Any = self.guard.asgi(self._handle)
        self.began: list[str] = []
        self.ended: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}
        self.rounds: list[Round] = []

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("this application has no lifespan")
        name = scope["path"]
        self.began.append(name)
        if name.startswith("/exit"):
            sys.exit(1)
        if name in self.may_end:
            await self.may_end[name].wait()
        self.ended.append(name)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    def handle_blocking(self, environ: Any, start_response: Any) -> list[bytes]:
        name = environ["PATH_INFO"]
        self.began.append(name)
        if name.startswith("/exit"):
            sys.exit(1)
        self.ended.append(name)
        start_response("201 Created", [])
        return [b"done"]

    async def accept(self, name: str, *, slow: bool = False) -> None:
        if slow:
            self.may_end[name] = asyncio.Event()
        scope = {
            "type": "http",
            "method": "POST",
            "path": name,
            "query_string": b"",
            "headers": [(b"idempotency-key", f"key-of-request-{name[1:]:0>20}".encode())],
        }
        said: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await self.app(scope, receive, send)
        assert said[0]["status"] == 202

    def runs(self, **options: Any) -> StoredRuns:
        return StoredRuns(self.guard, self.app, report=self.rounds.append, **options)

    async def until(self, names: list[str], *, ended: bool = True) -> None:
        await auntil(lambda: set(names) <= set(self.ended if ended else self.began))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    def postgres() -> Any:
        return request.getfixturevalue("postgres")

    with open_harness(f"{request.param}-sync", tmp_path, postgres) as harness:
        harness.backend.migrate()
        yield harness


@pytest.fixture
def backend(harness: Harness) -> Any:
    return harness.backend


def test_what_comes_up_is_run_beside_one_that_takes_long(
    backend: Any, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        yard = Yard(backend)
        runs = yard.runs()
        await yard.accept("/slow", slow=True)
        round_ = asyncio.create_task(runs.run_once())
        await yard.until(["/slow"], ended=False)
        await yard.accept("/quick")
        runs.wake()
        await yard.until(["/quick"])
        assert yard.ended == ["/quick"]
        yard.may_end["/slow"].set()
        assert (await round_).done + sum(told.done for told in yard.rounds) == 2
        await yard.guard.aclose()

    runner.run(work())


def test_no_more_run_side_by_side_than_are_allowed(backend: Any, runner: asyncio.Runner) -> None:
    async def work() -> None:
        yard = Yard(backend)
        names = [f"/{number}" for number in range(5)]
        for name in names:
            await yard.accept(name, slow=True)
        round_ = asyncio.create_task(yard.runs(at_once=2).run_once())
        for number in range(4):
            wanted = number + 2
            await auntil(lambda wanted=wanted: len(yard.began) >= wanted)  # type: ignore[misc]
            assert under_way() == 2
            yard.may_end[yard.began[number]].set()
        yard.may_end[yard.began[4]].set()
        await round_
        assert sorted(yard.ended) == names
        await yard.guard.aclose()

    runner.run(work())


def test_stopped_it_takes_nothing_more_and_finishes_what_runs(
    backend: Any, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        yard = Yard(backend)
        await yard.accept("/slow", slow=True)
        runs = yard.runs()
        round_ = asyncio.create_task(runs.run_once())
        await yard.until(["/slow"], ended=False)
        runs.stop()
        await yard.accept("/late")
        runs.wake()
        await turns()
        assert not round_.done()
        yard.may_end["/slow"].set()
        await round_  # which would run whatever it had taken
        assert yard.began == yard.ended == ["/slow"]
        await yard.guard.aclose()

    runner.run(work())


def test_handlers_that_hang_do_not_take_all_the_places(
    backend: Any, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        yard, clock = Yard(backend), Ahead()
        for name in ("/one", "/two"):
            await yard.accept(name, slow=True)
        runs = yard.runs(at_once=2)
        round_ = asyncio.create_task(runs.run_once())
        await yard.until(["/one", "/two"], ended=False)
        await yard.accept("/quick")
        policy = yard.guard.policy
        over = policy.max_run + timedelta(microseconds=policy.lease_micros)
        await clock.forward(over.total_seconds())
        await yard.until(["/quick"])
        assert yard.ended == ["/quick"]
        await round_
        for name in ("/one", "/two"):
            yard.may_end[name].set()
        await yard.until(["/one", "/two"])
        await yard.guard.aclose()

    runner.run(work())


@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_an_application_that_exits_does_not_end_the_worker(
    backend: Any, runner: asyncio.Runner, colour: str
) -> None:
    async def work() -> None:
        yard = Yard(backend)
        for name in ("/exit1", "/a", "/exit2", "/b"):
            await yard.accept(name)
        if colour == "wsgi":
            yard.app = yard.guard.wsgi(yard.handle_blocking)
        assert (await yard.runs().run_once()).done == 4
        assert sorted(yard.ended) == ["/a", "/b"]
        assert sorted(yard.began) == ["/a", "/b", "/exit1", "/exit2"]
        await yard.guard.aclose()

    runner.run(work())


def test_an_outage_while_it_looks_for_more_stops_no_handler(
    backend: Any, runner: asyncio.Runner
) -> None:
    async def work() -> None:
        faults = Faults()
        yard = Yard(FaultyBackend(backend, faults))
        await yard.accept("/slow", slow=True)
        runs = yard.runs()
        round_ = asyncio.create_task(runs.run_once())
        await yard.until(["/slow"], ended=False)
        faults.at, faults.count, faults.lasting = 1, 0, True
        runs.wake()
        await auntil(lambda: "Due" in faults.hit)
        faults.heal()
        yard.may_end["/slow"].set()
        assert (await round_).done == 1
        assert yard.ended == ["/slow"]
        pending = backend.blocking().perform(Due(Work.PENDING, 9))
        assert pending.cases == ()
        await yard.guard.aclose()

    runner.run(work())
