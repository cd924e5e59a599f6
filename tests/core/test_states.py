"""The table keeps the promises that no code may argue away."""

from __future__ import annotations

import pytest

from semel.core.records import State
from semel.core.states import TABLE, Proof, RecordEvent, rule, sources

UNSETTLED = {State.PENDING, State.IN_PROGRESS, State.UNKNOWN}


def test_no_step_has_two_rules() -> None:
    steps = [(row.source, row.event) for row in TABLE]
    assert len(steps) == len(set(steps))


def test_every_event_and_every_state_is_used() -> None:
    assert {row.event for row in TABLE} == set(RecordEvent)
    named = {row.source for row in TABLE} | {row.target for row in TABLE}
    assert named == {None, *State}


def test_an_unsettled_record_is_never_freed_by_time() -> None:
    freed = [row for row in TABLE if row.source in UNSETTLED and row.target is None]
    assert [row.event for row in freed] == [RecordEvent.EVICT_FREED]


def test_unknown_is_left_only_by_evidence_or_by_an_operator() -> None:
    unknown = [row for row in TABLE if row.source is State.UNKNOWN]
    assert {row.event for row in unknown if row.target is not State.UNKNOWN} == {
        RecordEvent.COMPLETE,
        RecordEvent.SETTLE_HAPPENED,
        RecordEvent.SETTLE_ABSENT,
        RecordEvent.SETTLE_CALL,
        RecordEvent.EVICT_FORCED,
        RecordEvent.EVICT_FREED,
    }


def test_every_change_of_an_existing_record_shows_a_fence_or_a_time_that_is_past() -> None:
    unproved = [row.event for row in TABLE if row.source is not None and row.proof is Proof.NONE]
    assert unproved == [RecordEvent.RETIRE]
    assert {row.event for row in TABLE if row.proof is Proof.OVERDUE} == {
        RecordEvent.ABANDON,
        RecordEvent.EXPIRE,
    }


@pytest.mark.parametrize(
    "event",
    [
        RecordEvent.RETAKE,
        RecordEvent.TAKE,
        RecordEvent.LAPSE_RESUME,
        RecordEvent.SETTLE_HAPPENED,
        RecordEvent.SETTLE_ABSENT,
        RecordEvent.SETTLE_CALL,
        RecordEvent.EVICT,
        RecordEvent.EVICT_FORCED,
    ],
)
def test_settle_evict_and_whoever_takes_a_record_burn_the_old_fence(event: RecordEvent) -> None:
    assert all(row.burns for row in TABLE if row.event is event)


def test_rules_are_found_by_step() -> None:
    found = rule(State.IN_PROGRESS, RecordEvent.COMPLETE)
    assert found is not None
    assert found.target is State.COMPLETED
    assert rule(State.COMPLETED, RecordEvent.COMPLETE) is None
    assert sources(RecordEvent.COMPLETE) == {State.IN_PROGRESS, State.UNKNOWN}
