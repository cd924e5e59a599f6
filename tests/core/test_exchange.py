"""One request's way through, without I/O: what the exchange asks, and what it answers."""

from __future__ import annotations

import json
import os
from collections import deque
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from semel.core import operations as ops
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.settle import KeepFailed
from semel.core.flow import Interrupted, run
from semel.core.policy import Policy, accepted, ietf, payments, stripe
from semel.core.records import Fence, OnLapse, Response
from semel.core.request.fingerprint import FingerprintRule
from semel.core.stored import snapshot
from semel.errors import NotExecuted, OutcomeUnknown, StoreUnavailable
from tests.core.whole import Discard, Drain, Invoke, exchange, varied
from tests.core.world import SECOND, World, answered, call

R = TypeVar("R")

NEW = Fence(b"settler's fence ")


def code(answer: Answer) -> str:
    assert answer.response is not None
    document: dict[str, Any] = json.loads(answer.response.body)
    return str(document["code"])


def header(answer: Answer, name: bytes) -> bytes | None:
    assert answer.response is not None
    return dict(answer.response.headers).get(name)


@pytest.fixture
def world() -> World:
    return World()


# ── round trips ───────────────────────────────────────────────────────────────────────────────────


def test_a_fresh_request_costs_two_round_trips_and_completes(world: World) -> None:
    first = call()
    world.outcomes.append(answered())
    answer = world.serve(first)
    assert answer.outcome is Outcome.EXECUTED
    assert answer.response is not None
    assert answer.response.body == b"made"
    assert header(answer, b"idempotent-replayed") == b"false"
    assert world.trips() == 2
    assert world.state(first) == "completed"


@pytest.mark.parametrize(
    ("again", "outcome"),
    [(b'{"amount": 100}', Outcome.REPLAYED), (b'{"amount": 999}', Outcome.MISMATCH)],
)
def test_replay_and_mismatch_cost_one_round_trip_and_never_run(
    world: World, again: bytes, outcome: Outcome
) -> None:
    world.outcomes.append(answered())
    world.serve(call())
    before = world.record(call())
    world.asked.clear()
    answer = world.serve(call(again))
    assert answer.outcome is outcome
    assert [type(op) for op in world.asked] == [ops.Claim]
    assert world.record(call()) == before


def test_a_busy_key_costs_one_round_trip(world: World) -> None:
    world.during_handler = lambda: duplicates.append(world.serve(call()))
    duplicates: list[Answer] = []
    world.outcomes.append(answered())
    world.serve(call())
    assert [answer.outcome for answer in duplicates] == [Outcome.IN_FLIGHT]
    assert code(duplicates[0]) == "in-flight"
    assert header(duplicates[0], b"retry-after") == b"1"
    assert world.trips() == 3


def test_a_key_met_before_is_read_first_and_replayed_in_one_round_trip(world: World) -> None:
    world.outcomes.append(answered())
    world.serve(call())
    world.asked.clear()
    assert world.serve(call(seen_before=True)).outcome is Outcome.REPLAYED
    assert [type(op) for op in world.asked] == [ops.Read]


def test_a_key_that_only_seemed_familiar_is_claimed_after_all(world: World) -> None:
    world.outcomes.append(answered())
    assert world.serve(call(seen_before=True)).outcome is Outcome.EXECUTED
    assert [type(op) for op in world.asked] == [ops.Read, ops.Claim, Invoke, ops.Complete]


@pytest.mark.parametrize(
    ("again", "outcome"),
    [
        (b'{"amount": 100}', Outcome.REPLAYED),
        (b'{ "amount" : 1e2 }', Outcome.REPLAYED),
        (b'{"amount": 101}', Outcome.MISMATCH),
    ],
)
def test_the_same_bytes_or_the_same_meaning_is_the_same_request(
    world: World, again: bytes, outcome: Outcome
) -> None:
    world.outcomes.append(answered())
    world.serve(call())
    assert world.serve(call(again, seen_before=True)).outcome is outcome


# ── the policy table ──────────────────────────────────────────────────────────────────────────────

BOOM = RuntimeError("boom")
PAYMENTS = payments(probe=None)
KEPT, RELEASED, DOUBTED = "completed", "failed_retryable", "unknown"

TABLE: list[tuple[ops.HandlerOutcome, str, str, str]] = [
    # outcome, then the state under ietf, stripe, payments
    (answered(200), KEPT, KEPT, KEPT),
    (answered(302), KEPT, KEPT, KEPT),
    (answered(402), KEPT, KEPT, KEPT),
    (answered(404), KEPT, KEPT, KEPT),
    *((answered(s), RELEASED, RELEASED, RELEASED) for s in (401, 403, 407, 408, 425, 429)),
    (answered(500), RELEASED, KEPT, DOUBTED),
    (answered(503), RELEASED, KEPT, DOUBTED),
    (ops.Raised(NotExecuted()), RELEASED, RELEASED, RELEASED),
    (ops.Raised(OutcomeUnknown()), DOUBTED, KEPT, DOUBTED),
    (ops.Raised(TimeoutError()), DOUBTED, KEPT, DOUBTED),
    (ops.Raised(ConnectionResetError()), DOUBTED, KEPT, DOUBTED),
    (ops.Abandoned(KeyboardInterrupt()), DOUBTED, KEPT, DOUBTED),
    (ops.Raised(BOOM), RELEASED, KEPT, DOUBTED),
]
ROWS = [
    (outcome, policy, state)
    for outcome, *states in TABLE
    for policy, state in zip((ietf(), stripe(), PAYMENTS), states, strict=True)
]


@pytest.mark.parametrize(("outcome", "policy", "state"), ROWS)
def test_each_outcome_leaves_the_state_its_policy_promises(
    world: World, outcome: ops.HandlerOutcome, policy: Policy, state: str
) -> None:
    first = call(policy=policy)
    world.outcomes.append(outcome)
    answer = world.serve(first)
    assert world.state(first) == state
    assert answer.response is not None
    assert answer.reraise is isinstance(outcome, ops.Raised | ops.Abandoned)


@pytest.mark.parametrize(("outcome", "policy", "state"), ROWS)
def test_what_a_retry_meets_follows_from_the_state(
    world: World, outcome: ops.HandlerOutcome, policy: Policy, state: str
) -> None:
    world.outcomes.extend([outcome, answered(200, b"second run")])
    first = world.serve(call(policy=policy))
    again = world.serve(call(policy=policy))
    assert first.response is not None
    assert again.response is not None
    match state:
        case "completed":
            assert again.outcome is Outcome.REPLAYED
            assert (again.response.status, again.response.body) == (
                first.response.status,
                first.response.body,
            )
        case "failed_retryable":
            assert again.outcome is Outcome.EXECUTED
            assert again.response.body == b"second run"
        case _:
            assert code(again) == "outcome-unknown"
            assert len(world.outcomes) == 1, "an unknown outcome was run again"


@pytest.mark.parametrize(("policy", "status"), [(ietf(), 422), (stripe(), 400), (PAYMENTS, 422)])
def test_a_reused_key_is_refused_by_the_policy_and_names_the_fields(
    world: World, policy: Policy, status: int
) -> None:
    world.outcomes.append(answered())
    world.serve(call(b'{"amount": 1, "to": "a"}', policy))
    answer = world.serve(call(b'{"amount": 2, "to": "a"}', policy))
    assert answer.response is not None
    assert answer.response.status == status
    assert json.loads(answer.response.body)["differing_fields"] == ["amount"]


def test_keep_takes_statuses(world: World) -> None:
    policy = ietf(keep={200})
    world.outcomes.extend([answered(404), answered(200)])
    world.serve(call(policy=policy))
    assert world.state(call(policy=policy)) == "failed_retryable"
    world.serve(call(policy=policy))
    assert world.state(call(policy=policy)) == "completed"


def test_a_keep_function_that_fails_leaves_the_outcome_unknown(world: World) -> None:
    def keep(response: Response) -> bool:
        raise ZeroDivisionError

    for outcome in (answered(), ops.Streaming(200, ())):
        world.outcomes.append(outcome)
        first = call(policy=ietf(keep=keep), key=os.urandom(16).hex().encode())
        answer = world.serve(first)
        assert world.state(first) == "unknown"
        assert isinstance(answer.error, KeepFailed)
        assert answer.response is not None
        assert answer.response.status == 500, "a success was sent whose record is unknown"
    assert world.count(Discard) == 1


@pytest.mark.parametrize(
    ("probe", "retryable", "retry_after"), [(None, False, None), (print, True, b"1")]
)
def test_an_unknown_outcome_is_retryable_only_when_somebody_can_be_asked(
    world: World, probe: Any, retryable: bool, retry_after: bytes | None
) -> None:
    policy = payments(probe=probe)
    world.outcomes.append(ops.Raised(TimeoutError()))
    world.serve(call(policy=policy))
    answer = world.serve(call(policy=policy))
    assert answer.response is not None
    assert answer.response.status == 409
    assert json.loads(answer.response.body)["retryable"] is retryable
    assert header(answer, b"retry-after") == retry_after


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_lapsed_lease_becomes_unknown_and_is_not_run_again(world: World) -> None:
    dead = call()
    world.perform(_claim_of(dead))
    world.now += 61 * SECOND
    answer = world.serve(call())
    assert code(answer) == "outcome-unknown"
    assert world.state(dead) == "unknown"
    assert world.count(Invoke) == 0


def test_a_lapsed_lease_runs_again_only_where_declared(world: World) -> None:
    policy = ietf(after_lapse="release", effects="none")
    dead = call(policy=policy)
    world.perform(_claim_of(dead))
    world.now += 61 * SECOND
    world.outcomes.append(answered())
    assert world.serve(call(policy=policy)).outcome is Outcome.EXECUTED


def test_what_was_begun_as_an_operation_and_is_none_any_more_is_left_alone(world: World) -> None:
    """Resumed as a plain handler, it would do again what its journal says is done."""
    begun = call(policy=ietf(mode="resumable"))
    world.perform(_claim_of(begun))
    world.now += 61 * SECOND
    before = world.record(begun)
    assert code(world.serve(call())) == "in-flight"
    assert world.record(begun) == before


def test_a_deferred_request_with_another_payload_is_a_mismatch(world: World) -> None:
    policy = accepted(mode="deferred", required=True)
    asked = varied(call(policy=policy), stored=b"stored")
    world.serve(asked)
    before = world.record(asked)
    other = varied(call(b'{"amount": 999}', policy), stored=b"stored")
    assert world.serve(other).outcome is Outcome.MISMATCH
    assert world.record(asked) == before


def test_a_mismatch_never_changes_a_lapsed_record(world: World) -> None:
    dead = call()
    world.perform(_claim_of(dead))
    world.now += 61 * SECOND
    before = world.record(dead)
    assert world.serve(call(b'{"amount": 2}')).outcome is Outcome.MISMATCH
    assert world.record(dead) == before


def test_past_retention_the_key_is_gone_for_good_until_its_tombstone_ends(world: World) -> None:
    world.outcomes.extend([answered(), answered(200, b"new life")])
    world.serve(call())
    world.now += 25 * 3600 * SECOND
    assert code(world.serve(call())) == "key-expired"
    world.now += 24 * 3600 * SECOND
    assert world.serve(call()).outcome is Outcome.EXECUTED


def test_under_stripe_an_expired_key_starts_anew(world: World) -> None:
    world.outcomes.extend([answered(), answered(200, b"new life")])
    world.serve(call(policy=stripe()))
    world.now += 25 * 3600 * SECOND
    assert world.serve(call(b'{"amount": 5}', stripe())).outcome is Outcome.EXECUTED


def test_an_unknown_record_never_becomes_free_by_time(world: World) -> None:
    world.outcomes.append(ops.Raised(OutcomeUnknown()))
    world.serve(call())
    world.now += 10 * 365 * 24 * 3600 * SECOND
    assert code(world.serve(call())) == "outcome-unknown"


def _uuid7(milliseconds: int) -> bytes:
    text = f"{milliseconds:012x}"
    return f"{text[:8]}-{text[8:12]}-7abc-8abc-0123456789ab".encode()


def test_a_uuid7_older_than_retention_does_not_start_a_record(world: World) -> None:
    old = _uuid7(world.now // 1000 - 25 * 3600 * 1000)
    answer = world.serve(call(key=old))
    assert code(answer) == "key-expired"
    assert world.count(Invoke) == 0
    assert world.record(call(key=old)) is None


def test_an_old_uuid7_never_beats_a_live_record(world: World) -> None:
    key = _uuid7(world.now // 1000)
    world.outcomes.append(answered())
    policy = ietf(max_request_age=timedelta(hours=2))
    world.serve(call(key=key, policy=policy))
    world.now += 3 * 3600 * SECOND
    assert world.serve(call(key=key, policy=policy)).outcome is Outcome.REPLAYED


# ── the store fails ───────────────────────────────────────────────────────────────────────────────


def test_a_store_that_is_down_fails_closed_before_any_effect(world: World) -> None:
    world.faults[ops.Claim] = deque(["refused"])
    answer = world.serve(call())
    assert code(answer) == "store-unavailable"
    assert header(answer, b"retry-after") == b"1"
    assert world.count(Invoke) == 0
    assert world.pursued == []


@pytest.mark.parametrize("fault", ["lost", "ambiguous"])
def test_a_claim_whose_answer_never_came_does_not_run_and_is_taken_back(
    world: World, fault: str
) -> None:
    world.faults[ops.Claim] = deque([fault])
    first = call()
    assert code(world.serve(first)) == "store-unavailable"
    assert world.count(Invoke) == 0
    (retraction,) = world.pursued
    assert isinstance(retraction, ops.Release)
    assert retraction.fence == first.fence
    world.store.perform(retraction)
    world.outcomes.append(answered())
    assert world.serve(call()).outcome is Outcome.EXECUTED


def test_a_retake_whose_answer_never_came_is_taken_back(world: World) -> None:
    world.outcomes.append(answered(500))
    first = call()
    world.serve(first)
    world.faults[ops.Retake] = deque(["ambiguous"])
    assert code(world.serve(call())) == "store-unavailable"
    (retraction,) = world.pursued
    assert isinstance(retraction, ops.Release)
    assert isinstance(world.store.perform(retraction), ops.Applied)
    (pursued,) = [op for op in world.asked if isinstance(op, ops.Pursue)]
    assert pursued.seen == first.fence


@pytest.mark.parametrize("fault", ["lost", "ambiguous"])
def test_a_deferred_request_that_is_asked_for_again_is_put_back_in_the_end(
    world: World, fault: str
) -> None:
    """Held by nobody it would lapse, and a request that nobody ran would be unknown."""
    asked = varied(call(policy=accepted(mode="deferred", required=True)), stored=b"stored")
    world.serve(asked)
    store, fence = world.store, Fence(b"\xdd" * 16)
    store.perform(ops.Take(asked.identity, asked.fence, fence, SECOND))
    store.perform(ops.Suspend(asked.identity, fence))
    store.perform(
        ops.SettleAbsent(
            asked.identity, fence, Fence(b"\xee" * 16), SECOND, ops.Act("ann", "voided")
        )
    )
    world.faults[ops.Release] = deque([fault])
    again = varied(call(policy=asked.policy), stored=b"stored")
    assert code(world.serve(again)) == "store-unavailable"
    (write,) = world.pursued
    assert isinstance(store.perform(write), ops.Applied)
    assert world.state(asked) == "pending"


@pytest.mark.parametrize("fault", ["lost", "ambiguous"])
def test_a_completion_is_asked_again_until_it_is_durable(world: World, fault: str) -> None:
    world.faults[ops.Complete] = deque([fault, fault])
    world.outcomes.append(answered())
    answer = world.serve(call())
    assert answer.outcome is Outcome.EXECUTED
    assert world.count(ops.Complete) == 3
    assert world.state(call()) == "completed"


def test_a_success_is_never_sent_before_it_is_durable(world: World) -> None:
    world.faults[ops.Complete] = deque(["lost"] * 10)
    world.outcomes.append(answered())
    answer = world.serve(call())
    assert code(answer) == "completion-not-durable"
    assert answer.response is not None
    assert answer.response.status == 503
    (write,) = world.pursued
    assert isinstance(write, ops.Complete)
    world.faults.clear()
    world.store.perform(write)
    assert world.serve(call()).outcome is Outcome.REPLAYED


@pytest.mark.parametrize(
    ("outcome", "kind"), [(answered(500), ops.Release), (ops.Raised(TimeoutError()), ops.Suspend)]
)
def test_a_concession_that_cannot_be_written_is_pursued(
    world: World, outcome: ops.HandlerOutcome, kind: type
) -> None:
    world.faults[kind] = deque(["lost"])
    world.outcomes.append(outcome)
    world.serve(call())
    assert [type(write) for write in world.pursued] == [kind]


def test_a_damaged_snapshot_fails_closed(world: World) -> None:
    first = call()
    world.perform(_claim_of(first))
    world.store.perform(ops.Complete(first.identity, first.fence, b"garbage", SECOND, SECOND))
    answer = world.serve(call())
    assert code(answer) == "store-unavailable"
    assert world.count(Invoke) == 0


# ── zombies ───────────────────────────────────────────────────────────────────────────────────────


def _lapse_and_settle(world: World, holder: Any, happened: bool) -> None:
    world.now += 61 * SECOND
    world.store.perform(ops.Lapse(holder.identity, holder.fence, SECOND))
    if happened:
        kept = snapshot.encode(snapshot.Snapshot(200, (), b"settled"))
        settle: Any = ops.SettleHappened(
            holder.identity, holder.fence, NEW, kept, 99 * SECOND, SECOND, ops.Act("ann", "ledger")
        )
    else:
        settle = ops.SettleAbsent(
            holder.identity, holder.fence, NEW, 99 * SECOND, ops.Act("ann", "ledger")
        )
    assert isinstance(world.store.perform(settle), ops.Applied)


def test_a_late_holder_completes_an_unknown_record_that_nobody_settled(world: World) -> None:
    first = call()

    def lapse() -> None:
        world.now += 61 * SECOND
        world.store.perform(ops.Lapse(first.identity, first.fence, SECOND))

    world.during_handler = lapse
    world.outcomes.append(answered())
    assert world.serve(first).outcome is Outcome.EXECUTED
    assert world.state(first) == "completed"


def test_a_zombie_answers_from_the_record_that_was_settled(world: World) -> None:
    first = call()
    world.during_handler = lambda: _lapse_and_settle(world, first, happened=True)
    world.outcomes.append(answered(201, b"mine"))
    answer = world.serve(first)
    assert answer.zombie
    assert answer.response is not None
    assert answer.response.body == b"settled"


@pytest.mark.parametrize("outcome", [answered(), answered(500), ops.Raised(TimeoutError())])
def test_a_zombie_whose_record_was_freed_tells_nobody_to_retry(
    world: World, outcome: ops.HandlerOutcome
) -> None:
    first = call()
    world.during_handler = lambda: _lapse_and_settle(world, first, happened=False)
    world.outcomes.append(outcome)
    answer = world.serve(first)
    assert answer.zombie
    assert code(answer) == "outcome-unknown"
    assert world.state(first) == "failed_retryable", "the zombie changed the record"


def test_a_zombie_whose_record_was_evicted_does_not_bring_it_back(world: World) -> None:
    first = call()

    def evict() -> None:
        _lapse_and_settle(world, first, happened=True)
        world.store.perform(ops.Evict(first.identity, NEW, ops.Act("ann", "test")))

    world.during_handler = evict
    world.outcomes.append(answered())
    assert code(world.serve(first)) == "outcome-unknown"
    assert world.record(first) is None


def test_a_stale_holder_cannot_renew(world: World) -> None:
    first = call()
    world.perform(_claim_of(first))
    _lapse_and_settle(world, first, happened=False)
    assert not isinstance(
        world.store.perform(ops.Renew(first.identity, first.fence, SECOND)), ops.Applied
    )


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────

PATIENT = ietf(in_flight="wait", wait=timedelta(seconds=5))


def _claim_of(holder: Any) -> ops.Claim:
    return ops.Claim(
        identity=holder.identity,
        fence=holder.fence,
        fingerprint=holder.prints.fingerprint.text,
        fields=b"",
        origin=holder.origin,
        lease=holder.policy.lease_micros,
        on_lapse=holder.policy.lapse,
    )


def _busy(world: World) -> Any:
    leader = call(policy=PATIENT)
    assert isinstance(world.perform(_claim_of(leader)), ops.Claimed)
    return leader


def _woken(world: World, leader: Any, elected: bool = False) -> ops.Woken:
    record = world.record(leader)
    assert record is not None
    return ops.Woken(record, world.now, elected)


def test_a_waiter_gets_the_leaders_answer(world: World) -> None:
    leader = _busy(world)
    kept = snapshot.encode(snapshot.Snapshot(200, (), b"leader"))
    seen = ops.Complete(leader.identity, leader.fence, kept, 99 * SECOND, SECOND)
    world.store.perform(seen)
    completed = _woken(world, leader)
    world.store.perform(ops.Evict(leader.identity, leader.fence, ops.Act("ann", "test")))
    _busy(world)
    world.wakes.append(completed)
    answer = world.serve(call(policy=PATIENT))
    assert answer.outcome is Outcome.REPLAYED
    assert world.count(ops.Await) == 1


def test_a_waiter_whose_time_is_up_is_told_to_come_back(world: World) -> None:
    _busy(world)
    world.wakes.append(ops.Unwoken())
    assert code(world.serve(call(policy=PATIENT))) == "in-flight"


@pytest.mark.parametrize("elected", [True, False])
def test_of_all_who_waited_only_the_elected_one_runs_after_a_failure(
    world: World, elected: bool
) -> None:
    leader = _busy(world)
    failed = ops.Release(leader.identity, leader.fence, 99 * SECOND)

    def fail_then_wake() -> ops.Woken:
        world.store.perform(failed)
        return _woken(world, leader, elected)

    answer = _serve_waiting(world, fail_then_wake)
    if elected:
        assert answer.outcome is Outcome.EXECUTED
    else:
        assert code(answer) == "attempt-failed"
        assert world.count(Invoke) == 0


@pytest.mark.parametrize("elected", [True, False])
def test_a_lapse_wakes_waiters_with_the_unknown_answer(world: World, elected: bool) -> None:
    leader = _busy(world)

    def lapse_then_wake() -> ops.Woken:
        world.now += 61 * SECOND
        return _woken(world, leader, elected)

    assert code(_serve_waiting(world, lapse_then_wake)) == "outcome-unknown"


def test_who_waited_for_an_operation_is_not_told_that_it_is_lost(world: World) -> None:
    """It has lapsed, and the elected one goes on with it."""
    policy = ietf(in_flight="wait", wait=timedelta(seconds=5), mode="resumable")
    leader = call(policy=policy)
    assert isinstance(world.perform(_claim_of(leader)), ops.Claimed)

    def lapse_then_wake() -> ops.Woken:
        world.now += 61 * SECOND
        return _woken(world, leader)

    answer = _serve_waiting(world, lapse_then_wake, policy)
    assert code(answer) == "in-flight"
    assert world.count(Invoke) == 0


def test_who_waited_once_and_finds_the_next_holder_does_not_wait_again(world: World) -> None:
    leader = _busy(world)

    def taken_over() -> ops.Woken:
        world.store.perform(ops.Release(leader.identity, leader.fence, 99 * SECOND))
        next_one = ops.Retake(leader.identity, leader.fence, NEW, 99 * SECOND)
        assert isinstance(world.store.perform(next_one), ops.Applied)
        return _woken(world, leader)

    assert code(_serve_waiting(world, taken_over)) == "in-flight"
    assert world.count(ops.Await) == 1


def _serve_waiting(world: World, wake: Any, policy: Policy = PATIENT) -> Answer:
    world.outcomes.append(answered())
    waiter = call(policy=policy)

    def perform(op: ops.FlowOperation[R]) -> R:
        if isinstance(op, ops.Await):
            world.wakes.append(wake())
        return world.perform(op)

    return run(exchange(waiter), perform)


# ── interruptions ─────────────────────────────────────────────────────────────────────────────────


def test_a_caller_that_leaves_during_its_claim_runs_nothing(world: World) -> None:
    first = call()
    flow = exchange(first)
    next(flow)
    retraction = flow.throw(Interrupted())
    assert isinstance(retraction, ops.Pursue)
    with pytest.raises(StopIteration) as done:
        flow.send(None)
    assert done.value.value.outcome is Outcome.INTERRUPTED
    assert done.value.value.response is None


# ── streams and receipts ──────────────────────────────────────────────────────────────────────────

STREAM = ietf(response="stream")
HEAD = ops.Streaming(200, ((b"content-type", b"text/plain"),))


def test_a_stream_is_opened_before_its_first_byte_and_closed_at_its_end(world: World) -> None:
    world.outcomes.append(HEAD)
    answer = world.serve(call(policy=STREAM))
    assert answer.response is None
    assert [type(op) for op in world.asked] == [ops.Claim, Invoke, ops.Open, Drain, ops.Complete]
    again = world.serve(call(policy=STREAM))
    assert code(again) == "body-not-kept"
    assert again.response is not None
    assert json.loads(again.response.body)["original_status"] == 200


def test_a_stream_that_breaks_off_is_remembered_as_such(world: World) -> None:
    world.outcomes.append(HEAD)
    world.drained = ops.Drained(1, b"", whole=False, error=BOOM)
    answer = world.serve(call(policy=STREAM))
    assert answer.error is BOOM
    assert answer.reraise
    record = world.record(call(policy=STREAM))
    assert record is not None
    assert record.snapshot is not None
    assert not snapshot.decode(record.snapshot).whole


def test_nothing_of_a_stream_is_sent_when_it_cannot_be_opened(world: World) -> None:
    world.faults[ops.Open] = deque(["lost"] * 10)
    world.outcomes.append(HEAD)
    answer = world.serve(call(policy=STREAM))
    assert code(answer) == "completion-not-durable"
    assert world.count(Discard) == 1
    assert world.count(Drain) == 0


def test_a_stream_whose_end_is_not_on_record_is_not_called_executed(world: World) -> None:
    world.faults[ops.Complete] = deque(["lost"] * 10)
    world.outcomes.append(HEAD)
    assert world.serve(call(policy=STREAM)).outcome is Outcome.NOT_DURABLE
    assert [type(op) for op in world.pursued] == [ops.Complete]


def test_an_open_receipt_whose_lease_lapses_becomes_unknown(world: World) -> None:
    dead = call(policy=STREAM)
    world.perform(_claim_of(dead))
    receipt = snapshot.encode(snapshot.Snapshot(200, (), None, open=True))
    world.store.perform(ops.Open(dead.identity, dead.fence, receipt))
    world.now += 61 * SECOND
    assert code(world.serve(call(policy=STREAM))) == "outcome-unknown"


def test_an_answer_past_the_limit_is_kept_as_a_receipt(world: World) -> None:
    policy = ietf(max_response_body=3)
    world.outcomes.append(answered(200, b"four"))
    first = world.serve(call(policy=policy))
    assert first.response is not None
    assert first.response.body == b"four"
    assert code(world.serve(call(policy=policy))) == "body-not-kept"


def test_a_failed_stream_releases_the_key_after_it_has_ended(world: World) -> None:
    world.outcomes.append(ops.Streaming(500, ()))
    world.serve(call(policy=STREAM))
    assert [type(op) for op in world.asked] == [ops.Claim, Invoke, Drain, ops.Release]


# ── previous settings, other tenants ──────────────────────────────────────────────────────────────


def test_a_key_alive_under_the_previous_settings_is_found(world: World) -> None:
    old, new = ietf(scope="tenant"), ietf(previous=ietf(scope="tenant"))
    world.outcomes.append(answered(200, b"old life"))
    world.serve(call(policy=old))
    answer = world.serve(call(policy=new))
    assert answer.outcome is Outcome.REPLAYED
    assert world.count(ops.Read) == 1


def test_a_new_key_takes_the_new_settings(world: World) -> None:
    new = ietf(previous=ietf(scope="tenant"))
    world.outcomes.append(answered())
    fresh = call(policy=new)
    world.serve(fresh)
    assert world.state(fresh) == "completed"


def test_the_same_key_of_two_tenants_is_two_keys(world: World) -> None:
    world.outcomes.extend([answered(200, b"for a"), answered(200, b"for b")])
    a = world.serve(call(tenant="a"))
    b = world.serve(call(tenant="b"))
    assert a.response is not None
    assert b.response is not None
    assert (a.response.body, b.response.body) == (b"for a", b"for b")


def test_on_replay_that_fails_is_a_problem_and_no_second_run(world: World) -> None:
    policy = ietf(on_replay=lambda request, response: response)
    world.outcomes.append(answered())
    world.serve(call(policy=policy))
    answer = world.serve(call(policy=policy))
    assert code(answer) == "replay-failed"
    assert isinstance(answer.error, ValueError)


def test_store_unavailable_says_whether_it_was_applied() -> None:
    assert StoreUnavailable("x").applied is None
    assert StoreUnavailable("x", applied=False).applied is False


def test_lapse_modes_are_recorded_with_the_claim(world: World) -> None:
    policy = ietf(after_lapse="release", effects="transactional")
    world.outcomes.append(answered())
    world.serve(call(policy=policy))
    record = world.record(call(policy=policy))
    assert record is not None
    assert record.on_lapse is OnLapse.RELEASE


@pytest.mark.parametrize("old_session", [None, lambda request: "s1"])
@pytest.mark.parametrize("new_session", [None, lambda request: "s2"])
def test_a_key_bound_otherwise_before_is_found_under_its_old_session(
    world: World, old_session: Any, new_session: Any
) -> None:
    old = ietf(session=old_session)
    new = ietf(session=new_session, previous=old)
    world.outcomes.append(answered(200, b"old life"))
    world.serve(call(policy=old))
    assert world.serve(call(policy=new)).outcome is Outcome.REPLAYED


UPPER = b"5F0C0C1E-8B9D-4F0E-9A43-0F8C4A1B2C3D"


@pytest.mark.parametrize(("old", "new"), [("opaque", "uuid"), ("uuid", "opaque")])
def test_a_key_of_another_format_before_is_found_under_its_old_form(
    world: World, old: Any, new: Any
) -> None:
    before = ietf(key=old)
    world.outcomes.append(answered(200, b"old life"))
    world.serve(call(policy=before, key=UPPER))
    after = ietf(key=new, previous=before)
    assert world.serve(call(policy=after, key=UPPER)).outcome is Outcome.REPLAYED


def test_a_record_with_the_new_fingerprint_is_compared_by_the_new_recipe(world: World) -> None:
    strict = ietf()
    loose = ietf(fingerprint=FingerprintRule(exclude=("sent_at",)), previous=strict)
    world.outcomes.append(answered())
    world.serve(call(b'{"amount": 1, "sent_at": 1}', loose))
    again = world.serve(call(b'{"amount": 1, "sent_at": 2}', loose))
    assert again.outcome is Outcome.REPLAYED


def test_a_record_with_the_old_fingerprint_is_compared_by_the_old_recipe(world: World) -> None:
    strict = ietf()
    loose = ietf(fingerprint=FingerprintRule(exclude=("sent_at",)), previous=strict)
    world.outcomes.append(answered())
    world.serve(call(b'{"amount": 1, "sent_at": 1}', strict))
    same = world.serve(call(b'{"sent_at": 1, "amount": 1}', loose))
    other = world.serve(call(b'{"amount": 1, "sent_at": 2}', loose))
    assert (same.outcome, other.outcome) == (Outcome.REPLAYED, Outcome.MISMATCH)


def test_an_old_uuid7_starts_anew_where_expired_keys_do(world: World) -> None:
    old = _uuid7(world.now // 1000 - 25 * 3600 * 1000)
    world.outcomes.append(answered())
    assert world.serve(call(key=old, policy=stripe())).outcome is Outcome.EXECUTED


def test_a_request_age_of_nothing_is_not_retention(world: World) -> None:
    policy = ietf(max_request_age=timedelta(0))
    assert (
        code(world.serve(call(key=_uuid7(world.now // 1000 - 1), policy=policy))) == "key-expired"
    )
