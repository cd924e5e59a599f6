"""The progress of one call, played against a scripted world with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.client import (
    AnswerLost,
    Budget,
    BudgetSpent,
    CallError,
    CallOutcomeUnknown,
    CallRefused,
    KeyExpired,
    KeyReused,
    Unanswered,
)
from semel.client.call import complete
from semel.client.model import (
    AskStatus,
    CallAnswer,
    ExtendHold,
    ForgetCall,
    LogicalCall,
    NoAnswer,
    RecordAnswer,
    RecordStatusUrl,
    ReleaseCall,
    SendRequest,
    Sleep,
    TryResult,
)
from semel.core.flow import run
from semel.core.operations.requests import FlowOperation
from tests.client.answers import KEY, accepted, answer, call, problem

LOST = NoAnswer(TimeoutError("no answer"), sent=True)
UNSENT = NoAnswer(ConnectionRefusedError("nobody there"), sent=False)
PAID = answer(201, {"paid": 1})
STATUS = "https://api.example:8443/semel/status/9f"

Result = CallAnswer | NoAnswer | BaseException


class World:
    """Gives each try what the script says next; time passes only by resting and trying."""

    def __init__(self, *script: Result, trying: float = 0.1) -> None:
        self._script: Iterator[Result] = iter(script)
        self._trying = trying
        self.now = 100.0
        self.done: list[FlowOperation[Any]] = []
        self.draw: Callable[[Sleep], float] = lambda rest: rest.most

    def __call__(self, op: FlowOperation[Any]) -> Any:
        self.done.append(op)
        match op:
            case SendRequest() | AskStatus():
                return self._try()
            case Sleep():
                self.now += self.draw(op)
            case _:
                pass
        return None

    def _try(self) -> TryResult:
        self.now += self._trying
        result = next(self._script)
        if isinstance(result, BaseException):
            raise result
        return TryResult(result, self.now, 1_000.0 + self.now)

    def kinds(self) -> list[str]:
        return [type(op).__name__ for op in self.done]

    def all(self, *kinds: type) -> list[Any]:
        return [op for op in self.done if isinstance(op, kinds)]


BUDGET = Budget(4, timedelta(seconds=30), timedelta(seconds=1), timedelta(seconds=8))


def play(
    *script: Result, made: LogicalCall | None = None, budget: Budget = BUDGET
) -> tuple[World, Any]:
    """The world afterwards, and what the call came to."""
    world = World(*script)
    try:
        return world, run(complete(made or call(), budget, world.now), world)
    except Exception as error:
        return world, error


def test_an_answer_is_journaled_before_the_caller_has_it() -> None:
    world, came = play(PAID)
    assert came is PAID
    assert world.done == [SendRequest(call()), RecordAnswer(call(), PAID)]


def test_every_try_is_the_same_call() -> None:
    world, came = play(LOST, answer(503), PAID)
    assert came is PAID
    assert [op.call for op in world.all(SendRequest)] == [call()] * 3


def test_pauses_double_up_to_the_longest() -> None:
    budget = Budget(5, timedelta(seconds=60), timedelta(seconds=1), timedelta(seconds=3))
    world, _ = play(*[UNSENT] * 4, PAID, budget=budget)
    assert [(op.least, op.most) for op in world.all(Sleep)] == [(0, 1), (0, 2), (0, 3), (0, 3)]


def test_a_retry_after_is_the_least_that_is_waited() -> None:
    world, _ = play(answer(429, retry_after="5"), PAID)
    assert [(op.least, op.most) for op in world.all(Sleep)] == [(5, 6)]


def test_a_retry_after_beyond_the_budget_ends_the_call_at_once() -> None:
    world, error = play(answer(503, retry_after="3600"))
    assert isinstance(error, Unanswered)
    assert error.retry_after == 3600
    assert world.kinds() == ["SendRequest", "ReleaseCall"]


def test_tries_that_failed_are_counted_and_waiting_is_not() -> None:
    busy = problem("in-flight", retry_after=1)
    world, came = play(*[busy] * 6, PAID)
    assert came is PAID
    assert {(op.least, op.most) for op in world.all(Sleep)} == {(1, 2)}
    world, error = play(*[LOST] * 4)
    assert isinstance(error, Unanswered)
    assert (error.tries, len(world.all(SendRequest))) == (4, 4)


def test_a_call_is_held_for_as_long_as_it_waits() -> None:
    world, _ = play(answer(429, retry_after="5"), PAID)
    assert [op.seconds for op in world.all(ExtendHold)] == [6]
    assert world.kinds() == ["SendRequest", "ExtendHold", "Sleep", "SendRequest", "RecordAnswer"]


# ── 202 ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_accepted_call_is_asked_for_at_its_status() -> None:
    kept = answer(201, {"paid": 1}, idempotent_replayed="true")
    world, came = play(accepted(), accepted(), kept)
    assert came is kept
    assert [op.url for op in world.all(AskStatus)] == [STATUS, STATUS]
    assert [op.url for op in world.all(RecordStatusUrl)] == [STATUS]
    assert len(world.all(SendRequest)) == 1


def test_a_resumed_call_looks_at_its_status_first() -> None:
    kept = answer(201, idempotent_replayed="true")
    world, came = play(kept, made=call(status_url=STATUS, resumed=True))
    assert came is kept
    assert not world.all(SendRequest)


def test_after_a_time_out_the_status_is_looked_up_where_there_is_one() -> None:
    kept = answer(201, idempotent_replayed="true")
    world, came = play(accepted(), LOST, kept)
    assert came is kept
    assert len(world.all(SendRequest)) == 1


@pytest.mark.parametrize(
    "told", [problem("attempt-failed", retry_after=1), problem("no-such-operation"), answer(404)]
)
def test_a_status_that_does_not_help_means_sending_again(told: CallAnswer) -> None:
    world, came = play(accepted(), told, PAID)
    assert came is PAID
    assert len(world.all(SendRequest)) == 2


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (problem("key-reused"), KeyReused),
        (problem("key-expired"), KeyExpired),
        (problem("body-not-kept"), AnswerLost),
        (problem("missing-key"), CallRefused),
    ],
)
def test_a_refusal_ends_the_call_for_good(told: CallAnswer, kind: type[CallRefused]) -> None:
    world, error = play(told)
    assert type(error) is kind
    assert not error.pending
    assert error.status == told.status
    assert error.code in told.body.decode()
    assert world.kinds() == ["SendRequest", "RecordAnswer"]


def test_an_outcome_nobody_knows_stays_pending() -> None:
    world, error = play(problem("outcome-unknown"))
    assert isinstance(error, CallOutcomeUnknown)
    assert error.pending
    assert world.kinds() == ["SendRequest", "ReleaseCall"]


def test_being_shut_out_is_an_answer_unless_something_may_have_happened_before() -> None:
    """A token that has expired between two tries says nothing about the first."""
    _, came = play(answer(401))
    assert isinstance(came, CallAnswer)
    _, came = play(UNSENT, answer(401))
    assert isinstance(came, CallAnswer)
    for script in ([LOST, answer(401)], [answer(500), problem("tenant-missing")]):
        world, error = play(*script)
        assert isinstance(error, CallOutcomeUnknown)
        assert world.kinds()[-1] == "ReleaseCall"
    _, error = play(answer(403), made=call(resumed=True))
    assert isinstance(error, CallOutcomeUnknown)


def test_a_spent_budget_says_whether_it_may_have_happened() -> None:
    """And in doubt it is the very error by which a guarded handler says so."""
    quiet: list[Result] = [
        UNSENT,
        problem("store-unavailable"),
        problem("not-executed"),
        answer(429),
    ]
    _, error = play(*quiet)
    assert type(error) is BudgetSpent
    assert not isinstance(error, semel.OutcomeUnknown)
    for doubtful in (LOST, answer(500), problem("completion-not-durable")):
        _, error = play(*quiet[:3], doubtful)
        assert isinstance(error, Unanswered)
        assert isinstance(error, semel.OutcomeUnknown)
    _, error = play(*[UNSENT] * 4, made=call(resumed=True))
    assert isinstance(error, Unanswered)


def test_the_last_failure_is_the_cause() -> None:
    _, error = play(answer(503), *[LOST] * 3)
    assert error.__cause__ is LOST.error
    _, error = play(*[LOST] * 3, answer(503))
    assert error.__cause__ is None
    assert error.status == 503


def test_no_error_shows_the_key_or_the_query() -> None:
    for script in ([problem("key-reused")], [problem("outcome-unknown")], [LOST] * 4):
        _, error = play(*script)
        assert error.key == error.call.key == KEY
        for shown in (str(error), repr(error), repr(error.call)):
            assert KEY not in shown
        assert "secret" not in str(error)
        assert "0198...(36)" in str(error)


def test_a_bug_before_anything_was_sent_takes_the_call_back() -> None:
    bug = KeyError("credentials")
    world, error = play(UNSENT, bug)
    assert error is bug
    assert world.kinds()[-1] == "ForgetCall"


def test_a_bug_after_something_was_sent_leaves_the_call_pending() -> None:
    bug = KeyError("credentials")
    world, error = play(LOST, bug)
    assert isinstance(error, CallOutcomeUnknown)
    assert error.__cause__ is bug
    assert world.kinds()[-1] == "ReleaseCall"
    assert not world.all(ForgetCall)


def test_an_interrupted_call_stays_pending() -> None:
    world = World(LOST, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(complete(call(), BUDGET, world.now), world)
    assert world.kinds()[-1] == "ReleaseCall"


# ── whatever happens ──────────────────────────────────────────────────────────────────────────────

results = st.sampled_from(
    [
        *(LOST, UNSENT, PAID, answer(500), answer(503, retry_after="2"), answer(401), accepted()),
        *(answer(409, retry_after="1"), answer(429), answer(402), answer(202)),
        *(problem("in-flight", retry_after=1), problem("outcome-unknown"), problem("key-reused")),
        *(problem("attempt-failed"), problem("no-such-operation"), problem("store-unavailable")),
        *(answer(201, idempotent_replayed="true"), problem("in-flight")),
    ]
)


@given(st.lists(results, min_size=1), st.randoms(use_true_random=False), st.booleans())
def test_every_call_ends_once_within_its_budget(
    script: list[CallAnswer | NoAnswer], random: Any, resumed: bool
) -> None:
    def forever() -> Iterator[Result]:
        while True:
            yield from script

    world = World()
    world._script = forever()
    world.draw = lambda rest: random.uniform(rest.least, rest.most)
    made = call(resumed=resumed)
    pending = False
    try:
        run(complete(made, BUDGET, 100.0), world)
    except CallError as error:
        pending = error.pending
    assert world.kinds()[-1] == ("ReleaseCall" if pending else "RecordAnswer")
    assert len(world.all(RecordAnswer, ReleaseCall, ForgetCall)) == 1
    spent = world.now - 100.0
    assert spent <= BUDGET.within.total_seconds() + 2 * 0.1 + 1e-6
    assert all(op.call == made for op in world.all(SendRequest, AskStatus))


@given(st.lists(st.sampled_from([LOST, UNSENT, answer(500), answer(429)]), min_size=4, max_size=4))
def test_no_more_tries_fail_than_the_budget_has(script: list[Result]) -> None:
    world = World(*script)
    with suppress(BudgetSpent):
        run(complete(call(), BUDGET, world.now), world)
    assert len(world.all(SendRequest)) <= BUDGET.tries
