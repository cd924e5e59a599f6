"""A request in one transaction, without I/O: what is asked when the transaction fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.exchange import Exchange
from semel.core.frozen import replace
from semel.core.policy import Policy, ietf, payments
from semel.core.records import Fence, OnLapse, Record, Response, State
from semel.errors import ConfigurationError, StoreUnavailable
from tests.core.script import Script
from tests.core.whole import Invoke, exchange
from tests.core.world import answered, call

CLAIMED = ops.Claimed(60_000_000, 0, 0)
KEPT = ops.Applied(State.COMPLETED, 0, None, 99)
SUSPENDED = ops.Applied(State.UNKNOWN, 0)
GONE = StoreUnavailable("the line was cut")
REFUSED = StoreUnavailable("rolled back", applied=False)
ATOMIC = ietf(mode="atomic")
DOUBTING = payments(mode="atomic", probe=None)


def code(answer: Answer) -> str:
    assert answer.response is not None
    return str(json.loads(answer.response.body)["code"])


def script(**said: Any) -> Script:
    """A transaction that goes well, but for what is ``said``."""
    well = {"Begin": ops.Begun(), "Claim": CLAIMED, "Complete": KEPT, "Suspend": SUSPENDED}
    return Script(**{**well, "Invoke": answered(), **said})


def play(told: Script, policy: Policy = ATOMIC) -> Answer:
    return told.play(exchange(call(policy=policy)))


def test_what_nobody_could_look_up_is_neither_called_done_nor_undone() -> None:
    told = script(Commit=GONE, Ascertain=GONE, Pause=[True, False])
    answer = play(told)
    assert (answer.outcome, code(answer)) == (Outcome.NOT_DURABLE, "completion-not-durable")
    assert not told.all(ops.Pursue)  # a commit that came through is complete by itself


def test_a_doubt_that_nobody_could_look_up_is_pursued_with_its_claim() -> None:
    told = script(Invoke=answered(500), Commit=GONE, Ascertain=GONE, Pause=False)
    assert play(told, DOUBTING).outcome is Outcome.SUSPENDED
    pursued = told.one(ops.Pursue)
    assert isinstance(pursued.op, ops.Suspend)
    assert pursued.claim is not None
    assert pursued.claim.fence == pursued.op.fence == told.one(Invoke).fence


def test_a_doubt_written_apart_takes_over_what_is_in_its_way() -> None:
    """A record released before: suspended without being held, the doubt would be refused."""
    of = call(policy=DOUBTING)
    in_the_way = ops.Found(released(of), 0)
    told = script(
        Claim=[CLAIMED, in_the_way],
        Invoke=answered(500),
        Commit=REFUSED,
        Retake=ops.Applied(State.IN_PROGRESS, 0, 1),
    )
    assert told.play(exchange(of)).outcome is Outcome.SUSPENDED
    assert told.kinds[-3:] == [ops.Claim, ops.Retake, ops.Suspend]
    assert told.one(ops.Retake).seen == in_the_way.record.fence


def released(of: Exchange) -> Record:
    return Record(
        identity=of.identity,
        state=State.FAILED_RETRYABLE,
        fence=Fence(b"of another      "),
        fingerprint=of.prints.fingerprint.text,
        fields=b"",
        on_lapse=OnLapse.UNKNOWN,
        created_at=0,
        leased_until=None,
        expires_at=None,
        forget_at=99,
        snapshot=None,
        reason=None,
    )


def test_of_writes_that_are_gone_no_success_is_told_where_more_may_have_happened() -> None:
    """It answered, and then something timed out: what it did outside is not undone."""
    outcome = ops.Returned(Response(201, (), b"made"), TimeoutError("sent, and not answered"))
    told = script(Invoke=outcome, Commit=REFUSED)
    answer = play(told)
    assert answer.response is not None
    assert (answer.outcome, answer.response.status) == (Outcome.SUSPENDED, 500)
    assert told.kinds[-2:] == [ops.Claim, ops.Suspend]


@pytest.mark.parametrize("at", ["Flush", "Complete", "Commit"])
def test_a_handler_that_ended_the_transaction_itself_leaves_a_doubt(at: str) -> None:
    told = script(**{at: ConfigurationError("the handler has committed")})
    answer = play(told)
    assert answer.outcome is Outcome.MISCONFIGURED
    assert told.kinds[-3:] == [ops.RollBack, ops.Claim, ops.Suspend]


def test_what_the_database_says_to_the_handlers_writes_is_the_handlers_error() -> None:
    told = script(Flush=ValueError("a constraint"))
    answer = play(told)
    assert answer.outcome is Outcome.RELEASED
    assert isinstance(answer.error, ValueError)
    assert told.kinds[-1] is ops.RollBack
    assert not told.all(ops.Complete)
    assert not told.all(ops.Commit)


def test_a_claim_that_failed_leaves_no_transaction_open() -> None:
    told = script(Claim=GONE)
    assert play(told).outcome is Outcome.STORE_ERROR
    assert told.kinds[-1] is ops.RollBack


def test_a_completion_that_is_refused_leaves_none_of_the_handlers_writes() -> None:
    of = call(policy=ATOMIC)
    settled = replace(released(of), state=State.UNKNOWN, forget_at=None)
    told = script(Complete=ops.Lost(settled, 0))
    assert told.play(exchange(of)).zombie
    assert ops.RollBack in told.kinds[told.kinds.index(ops.Complete) :]
    assert not told.all(ops.Commit)
