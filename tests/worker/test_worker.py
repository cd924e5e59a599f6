"""The worker's own doings: rounds side by side, waking, failing, stopping."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from semel.errors import ConfigurationError, StoreUnavailable
from semel.worker.wake_up import EFFECT, WORK, Wake
from semel.worker.worker import DELIVER, MAINTAIN, RUN, ConcurrentLoop, Round, Worker
from tests.waiting import PATIENCE, Ahead, turns

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE):
        yield


class Rounds:
    """A loop that does as it is told and says each time that it was asked."""

    def __init__(self, *rounds: Round | Exception) -> None:
        self._rounds = deque(rounds)
        self.asked = 0
        self.came = asyncio.Event()

    async def run_once(self) -> Round:
        self.asked += 1
        self.came.set()
        given = self._rounds.popleft() if self._rounds else Round(0)
        if isinstance(given, Exception):
            raise given
        return given

    async def comes(self) -> None:
        await self.came.wait()
        self.came.clear()


class Lasting:
    """A loop whose rounds last until it is stopped."""

    def __init__(self, *, obedient: bool = True) -> None:
        self.begun, self.woken, self._end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._obedient = obedient

    def wake(self) -> None:
        self.woken.set()

    def stop(self) -> None:
        if self._obedient:
            self._end.set()

    async def run_once(self) -> Round:
        self.begun.set()
        await self._end.wait()
        return Round(1)


class HandListener:
    """Rung by the test."""

    def __init__(self) -> None:
        self.wake: Wake = lambda channel: None
        self.listening = asyncio.Event()

    async def listen(self, wake: Wake) -> None:
        self.wake = wake
        self.listening.set()
        await asyncio.Event().wait()


class Running:
    """A worker at work."""

    def __init__(self, *loops: tuple[str, Any], **options: Any) -> None:
        self.worker = Worker(loops, **{"poll": HOUR, **options})

    async def __aenter__(self) -> Worker:
        self.task = asyncio.create_task(self.worker.run())
        return self.worker

    async def __aexit__(self, *_: object) -> None:
        self.worker.stop()
        await self.task


async def test_a_loop_with_nothing_to_do_is_not_asked_until_somebody_wakes_it() -> None:
    rounds = Rounds()
    async with Running((DELIVER, rounds)) as worker:
        await rounds.comes()
        await Ahead().forward(10)
        assert rounds.asked == 1
        worker.wake()
        await rounds.comes()
    assert rounds.asked == 2


async def test_a_bell_wakes_those_whom_it_concerns() -> None:
    deliver, run, maintain, listener = Rounds(), Rounds(), Rounds(), HandListener()
    loops = ((DELIVER, deliver), (RUN, run), (MAINTAIN, maintain))
    async with Running(*loops, listener=listener):
        await asyncio.gather(
            deliver.comes(), run.comes(), maintain.comes(), listener.listening.wait()
        )
        listener.wake(EFFECT)
        await deliver.comes()
        assert run.asked == 1
        listener.wake(WORK)
        await run.comes()
    assert (deliver.asked, run.asked, maintain.asked) == (2, 2, 1)


async def test_a_bell_that_rings_during_a_round_is_not_missed() -> None:
    worker: Worker

    class Rung(Rounds):
        async def run_once(self) -> Round:
            if not self.asked:
                worker.wake(EFFECT)
            return await super().run_once()

    rounds = Rung()
    async with Running((DELIVER, rounds)) as worker:
        await rounds.comes()
        await rounds.comes()


async def test_a_loop_is_asked_again_when_it_said_it_would_be_due() -> None:
    rounds = Rounds(Round(0, 0.02), Round(1, 0.0), Round(1, -5.0))
    async with Running((DELIVER, rounds)):
        while rounds.asked < 4:
            await rounds.comes()


async def test_what_is_due_but_not_to_be_had_does_not_make_it_run_hot() -> None:
    rounds = Rounds(*[Round(0, 0.0) for _ in range(10_000)])
    started = time.monotonic()
    async with Running((DELIVER, rounds)):
        while rounds.asked < 4:
            await rounds.comes()
        assert time.monotonic() - started >= 0.29


async def test_a_loop_that_fails_is_tried_again_and_disturbs_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.worker.worker._LONGEST_REST", 0.02)
    failing, fine = Rounds(*[StoreUnavailable("no answer")] * 3), Rounds()
    told: list[tuple[str, str]] = []

    def note(name: str, error: Exception) -> None:
        told.append((name, str(error)))

    async with Running((DELIVER, failing), (RUN, fine), on_failure=note):
        while failing.asked < 4:
            await failing.comes()
    assert told == [(DELIVER, "no answer")] * 3
    assert fine.asked == 1


async def test_waking_up_does_not_shorten_the_rest_after_a_failure() -> None:
    failing = Rounds(*[StoreUnavailable("no answer")] * 100)
    async with Running((DELIVER, failing)) as worker:
        await failing.comes()
        for _ in range(3):
            worker.wake()
            await turns()
    assert failing.asked == 1


async def test_rounds_that_did_something_are_told_and_no_others() -> None:
    rounds = Rounds(Round(3, 0.0, "delivered 3"), Round(0))
    told: list[tuple[str, Round]] = []

    def note(name: str, round_: Round) -> None:
        told.append((name, round_))

    async with Running((DELIVER, rounds), on_round=note):
        while rounds.asked < 2:
            await rounds.comes()
    assert told == [(DELIVER, Round(3, 0.0, "delivered 3"))]


async def test_a_long_round_is_woken_and_stopped_in_its_middle() -> None:
    lasting, listener = Lasting(), HandListener()
    worker = Worker([(DELIVER, lasting)], listener=listener)
    task = asyncio.create_task(worker.run())
    await asyncio.gather(lasting.begun.wait(), listener.listening.wait())
    listener.wake(EFFECT)
    await lasting.woken.wait()
    worker.stop()
    assert await task is True


async def test_what_does_not_end_in_time_is_cancelled_and_said() -> None:
    lasting = Lasting(obedient=False)
    worker = Worker([(DELIVER, lasting)], drain=timedelta(milliseconds=10))
    task = asyncio.create_task(worker.run())
    await lasting.begun.wait()
    worker.stop()
    assert await task is False


async def test_a_worker_that_cannot_even_tell_of_a_failure_ends() -> None:
    """Such as one whose output was closed: its loop is over, and it would idle for ever."""

    def closed(name: str, error: Exception) -> None:
        raise BrokenPipeError("nobody reads")

    failing, other = Rounds(StoreUnavailable("down")), Lasting()
    worker = Worker([(RUN, failing), (DELIVER, other)], on_failure=closed)
    with pytest.raises(BrokenPipeError):
        await worker.run()


async def test_a_bell_that_breaks_leaves_the_worker_polling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def listen(self, wake: Wake) -> None:
            raise RuntimeError("broken")

    rounds = Rounds()
    async with Running((DELIVER, rounds), listener=Broken(), poll=timedelta(milliseconds=5)):
        while rounds.asked < 3:
            await rounds.comes()
    assert "waking up early does not work" in caplog.text


async def test_once_each_loop_has_one_round() -> None:
    deliver, run = Rounds(Round(2)), Rounds(Round(0))
    rounds = await Worker([(DELIVER, deliver), (RUN, run)]).run_once()
    assert rounds == {DELIVER: Round(2), RUN: Round(0)}


async def test_a_worker_without_loops_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Worker([])


class OneAtWork(ConcurrentLoop):
    """Has one thing to do, which lasts until it is let go; counts the looks for more."""

    def __init__(self) -> None:
        super().__init__(2, None)
        self.looks, self.end = 0, asyncio.Event()

    async def _fill(self) -> float | None:
        self.looks += 1
        if self.looks == 1:
            self._start(self._work())
        return None

    async def _work(self) -> str:
        await self.end.wait()
        return "done"


async def test_one_call_to_wake_is_one_look_while_work_goes_on() -> None:
    """Not one after the other until that work ends: each asks the store."""
    loop = OneAtWork()
    round_ = asyncio.create_task(loop.run_once())
    await turns()
    looks = [loop.looks]
    for _ in range(2):
        loop.wake()
        await turns()
        looks.append(loop.looks)
    loop.end.set()
    assert (await round_).done == 1
    assert looks == [1, 2, 3]
