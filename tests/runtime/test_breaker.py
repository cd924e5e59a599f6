"""The circuit breaker by itself: when it opens, who may try, and how it closes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from semel.errors import ConfigurationError
from semel.runtime.breaker import FAILURES, FIRST, LASTING, Breaker
from tests.waiting import PATIENCE


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def breaker(clock: Clock, told: list[str]) -> Breaker:
    return Breaker(timedelta(seconds=4), clock, told.append)


def fail(breaker: Breaker, clock: Clock, times: int = FAILURES, took: float = 2 * LASTING) -> None:
    started = clock.now
    clock.now += took
    for _ in range(times):
        breaker.failed(started)


def test_repeated_failures_open_it_and_everybody_is_refused(
    breaker: Breaker, clock: Clock, told: list[str]
) -> None:
    fail(breaker, clock, FAILURES - 1)
    assert (breaker.circuit, breaker.refuses()) == ("closed", None)
    breaker.failed(clock.now)
    assert breaker.circuit == "open"
    for _ in range(3):
        assert breaker.refuses() == pytest.approx(FIRST * 1_000_000, abs=2)
    assert told == ["open"]


def test_a_success_between_failures_begins_the_count_anew(breaker: Breaker, clock: Clock) -> None:
    for _ in range(3):
        fail(breaker, clock, FAILURES - 1)
        breaker.succeeded()
    assert breaker.circuit == "closed"


def test_many_failures_of_one_instant_are_not_an_outage(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, clock, 64, took=LASTING / 2)
    assert breaker.circuit == "closed"


def test_time_outs_count_from_when_they_were_asked(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, clock, FAILURES, took=5.0)
    assert breaker.circuit == "open"


def test_one_at_a_time_may_try_and_pauses_grow_to_the_longest(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, clock)
    pauses: list[float] = []
    for _ in range(6):
        opened = clock.now
        wait = breaker.refuses()
        assert wait is not None
        clock.now += wait / 1_000_000 + 1e-5
        assert breaker.refuses() is None, "nobody may try"
        assert breaker.refuses() is not None, "two try at once"
        pauses.append(round(clock.now - opened, 3))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_trial_that_never_reports_keeps_nobody_from_the_next(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, clock)
    for _ in range(3):
        clock.now += 10
        assert breaker.refuses() is None


def test_any_success_closes_it_and_the_next_outage_begins_with_a_short_pause(
    breaker: Breaker, clock: Clock, told: list[str]
) -> None:
    for _ in range(2):
        fail(breaker, clock)
        clock.now += 10
        assert breaker.refuses() is None
        breaker.succeeded()
        assert (breaker.circuit, breaker.refuses()) == ("closed", None)
        fail(breaker, clock, FAILURES - 1)
        assert breaker.circuit == "closed"
        breaker.succeeded()
    fail(breaker, clock)
    assert breaker.refuses() == pytest.approx(FIRST * 1_000_000, abs=2)
    assert told == ["open", "closed"] * 2 + ["open"]


def test_of_many_threads_one_is_the_trial(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, clock)
    barrier = threading.Barrier(16)

    def ask(_: int) -> int | None:
        barrier.wait(PATIENCE)
        return breaker.refuses()

    with ThreadPoolExecutor(16) as pool:
        for _ in range(50):
            clock.now += 10
            assert list(pool.map(ask, range(16))).count(None) == 1


def test_a_forked_child_recovers_by_itself(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, clock)
    clock.now += 10
    child = os.fork()
    if child == 0:
        os._exit(0 if breaker.refuses() is None and breaker.refuses() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("longest", [timedelta(0), timedelta(seconds=-1), 10])
def test_a_pause_that_is_none_is_refused(longest: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="breaker="):
        Breaker(longest)


class Overtaken(Breaker):
    """Something happens between taking the trial and saying so."""

    def __init__(self, clock: Clock, meanwhile: Callable[[Overtaken], None]) -> None:
        super().__init__(timedelta(seconds=4), clock)
        self._meanwhile: list[Callable[[Overtaken], None]] = [meanwhile]

    def _next_trial(self, now: float) -> None:
        if self.is_open and self._meanwhile:
            self._meanwhile.pop()(self)
        super()._next_trial(now)


def test_whoever_comes_in_the_very_moment_is_not_a_second_trial(clock: Clock) -> None:
    answers: list[int | None] = []
    breaker = Overtaken(clock, lambda it: answers.append(it.refuses()))
    fail(breaker, clock)
    clock.now += 10
    assert breaker.refuses() is None
    assert answers != [None]


def test_a_child_forked_in_the_very_moment_still_recovers(clock: Clock) -> None:
    codes: list[int] = []

    def fork(breaker: Overtaken) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if breaker.refuses() is None else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    breaker = Overtaken(clock, fork)
    fail(breaker, clock)
    clock.now += 10
    assert breaker.refuses() is None
    assert codes == [0]


class Meeting(Breaker):
    """An answer of the store comes to another thread while this one opens the circuit."""

    def _next_trial(self, now: float) -> None:
        super()._next_trial(now)
        self.succeeded()


def test_opened_while_another_thread_succeeds_it_closes_with_the_next_answer(
    clock: Clock, told: list[str]
) -> None:
    breaker = Meeting(timedelta(seconds=4), clock, told.append)
    fail(breaker, clock)
    assert breaker.circuit == "open"
    assert breaker.is_open, "what callers look at before they tell of a success"
    breaker.succeeded()
    assert (breaker.circuit, breaker.refuses()) == ("closed", None)
    assert told == ["open", "closed"]
