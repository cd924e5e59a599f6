"""Evidence about an unknown record, without I/O: what is asked, and what is written."""

from __future__ import annotations

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.policy import accepted
from semel.core.records import Case, Fence, OnLapse, Origin, State
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal, PointKind
from semel.core.unknown.evidence import Absent, CannotTell, Evidence, Happened
from semel.core.unknown.probe import Doubt, GivenUp, reconcile
from semel.core.unknown.settle_unknown import (
    Passed,
    Running,
    Settled,
    Settlement,
    Undecided,
    Witness,
    settle_unknown,
)
from tests.core.script import Script, a_record

FENCE, SEEN, NOW = Fence(b"f" * 16), Fence(b"s" * 16), 100
POLICY = accepted()
TERMS = POLICY.terms("", "*", probe=True)
PROBE = Witness("probe", "charge")
ABSENT = Absent(final=True)
BEGUN = Journal().reaching("made", PointKind.PHASE, 1).intending("charge")
ACTED = Journal().reaching("reserved", PointKind.CALL, 1).intending("charge")


def case(
    state: State = State.UNKNOWN,
    points: Journal | None = None,
    leased_until: int | None = None,
) -> Case:
    """With points, it is an operation's."""
    on_lapse = OnLapse.UNKNOWN if points is None else OnLapse.RESUME
    record = a_record(state, SEEN, on_lapse=on_lapse, leased_until=leased_until)
    blob = None if points is None else journal.encode(points)
    return Case(record, Origin("", "POST", "/", "key"), None, blob, None, 0, NOW, TERMS)


def settled(told: Script, about: Case, evidence: Evidence) -> Settlement:
    return told.play(settle_unknown(about, NOW, evidence, FENCE, PROBE))


def test_what_has_lapsed_is_lapsed_before_it_is_settled() -> None:
    told = Script(
        Lapse=ops.Applied(State.UNKNOWN, NOW), SettleAbsent=ops.Applied(State.FAILED_RETRYABLE, NOW)
    )
    assert isinstance(settled(told, case(State.IN_PROGRESS, leased_until=NOW), ABSENT), Settled)
    assert told.kinds == [ops.Lapse, ops.SettleAbsent]


def test_a_holder_that_completed_before_its_lapse_was_first() -> None:
    done = replace(case().record, state=State.COMPLETED)
    told = Script(Lapse=ops.Lost(done, NOW))
    about = case(State.IN_PROGRESS, leased_until=NOW)
    assert settled(told, about, ABSENT) == Passed(State.COMPLETED, NOW)
    assert told.kinds == [ops.Lapse]


def test_a_lease_that_lasts_is_not_settled() -> None:
    told = Script()
    about = case(State.IN_PROGRESS, leased_until=NOW + 1)
    assert settled(told, about, ABSENT) == Running(State.IN_PROGRESS, NOW + 1, NOW)
    assert told.asked == []


def test_an_absent_call_leaves_the_rest_of_its_journal_to_the_retry() -> None:
    told = Script(SettleAbsent=ops.Applied(State.FAILED_RETRYABLE, NOW))
    settled(told, case(points=BEGUN), ABSENT)
    op = told.one(ops.SettleAbsent)
    assert (op.seen, op.fence) == (SEEN, FENCE)
    assert journal.decode(op.journal) == BEGUN.withdrawing()
    assert op.journal is not None


def test_an_operation_that_has_acted_is_not_freed_by_an_absent_call() -> None:
    told = Script(SettleCall=ops.Applied(State.IN_PROGRESS, NOW))
    settled(told, case(points=ACTED), ABSENT)
    assert journal.decode(told.one(ops.SettleCall).journal) == ACTED.withdrawing()


@pytest.mark.parametrize("points", [BEGUN, ACTED])
def test_a_call_that_happened_is_journaled_and_its_operation_goes_on(points: Journal) -> None:
    told = Script(SettleCall=ops.Applied(State.IN_PROGRESS, NOW))
    assert settled(told, case(points=points), Happened({"id": 7})) == Settled(
        State.IN_PROGRESS, NOW
    )
    assert journal.decode(told.one(ops.SettleCall).journal) == points.settling({"id": 7})


def test_a_plain_handler_that_happened_is_completed() -> None:
    told = Script(SettleHappened=ops.Applied(State.COMPLETED, NOW))
    settled(told, case(), Happened(provider_id="ch_7"))
    assert told.kinds == [ops.SettleHappened]


def test_of_two_reconcilers_the_second_does_not_ask() -> None:
    other = replace(case().record, state=State.COMPLETED)
    told = Script(Inquire=ops.Lost(other, NOW), Ask=ABSENT)
    doubt = Doubt(case(), NOW, TERMS, "charge", lambda _: ABSENT)
    assert told.play(reconcile(doubt, FENCE, 1.0)) == Passed(State.COMPLETED, NOW)
    assert told.kinds == [ops.Inquire]


def test_the_next_question_is_on_record_before_this_one_is_put() -> None:
    told = Script(
        Inquire=ops.Applied(State.UNKNOWN, NOW),
        Ask=ABSENT,
        SettleAbsent=ops.Applied(State.FAILED_RETRYABLE, NOW),
    )
    doubt = Doubt(case(), NOW, TERMS, "charge", lambda _: ABSENT)
    told.play(reconcile(doubt, FENCE, 1.0))
    assert told.kinds == [ops.Inquire, ops.Ask, ops.SettleAbsent]
    assert told.one(ops.Inquire).again_in == POLICY.reconcile_micros


def test_what_nobody_can_be_asked_about_is_given_up_for_good() -> None:
    told = Script(Inquire=ops.Applied(State.UNKNOWN, NOW))
    doubt = Doubt(case(), NOW, replace(TERMS, probe=False), "charge", None)
    assert isinstance(told.play(reconcile(doubt, FENCE, 1.0)), GivenUp)
    assert told.kinds == [ops.Inquire]
    assert told.one(ops.Inquire).again_in is None


def test_who_asks_about_a_dead_letter_does_not_bring_it_back_to_life() -> None:
    told = Script(Inquire=ops.Applied(State.UNKNOWN, NOW), Ask=CannotTell())
    dead = replace(case(), due_at=None)
    doubt = Doubt(dead, NOW, TERMS, "charge", lambda _: CannotTell())
    assert isinstance(told.play(reconcile(doubt, FENCE, 1.0, asker="operator ann")), Undecided)
    assert told.kinds == [ops.Inquire, ops.Ask]
    assert told.one(ops.Inquire).again_in is None
