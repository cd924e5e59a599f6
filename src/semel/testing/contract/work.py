"""What every store must do for deferred requests, operations with points, and questions."""

from __future__ import annotations

import os

import pytest

from semel.core import operations as ops
from semel.core.records import Fence, Identity, OnLapse, State
from semel.testing.contract.harness import RACERS, Harness
from semel.testing.contract.records import (
    ACT,
    LEASE,
    MINUTE,
    ORIGIN,
    PATIENCE,
    REQUEST,
    RETENTION,
    ROUNDS,
    TOMBSTONE,
    accept,
    applied,
    claim,
    complete,
    existing,
    lost,
    near,
    new_fence,
    new_identity,
    now_of,
    reach,
    recall,
    settle_happened,
)


class Deferred:
    """Requests that a worker runs."""

    def test_accepting_stores_the_request_and_its_deadline(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        reply = harness.perform(accept(identity, fence))
        assert isinstance(reply, ops.Accepted)
        case = recall(harness, identity)
        assert (case.record.state, case.record.fence) == (State.PENDING, fence)
        assert (case.request, case.journal, case.resource, case.tries) == (REQUEST, None, None, 0)
        assert case.origin == ORIGIN
        assert near(harness, case.record.leased_until, reply.now + PATIENCE)
        assert near(harness, case.due_at, reply.now)

    def test_an_own_acceptance_asked_again_is_accepted_until_it_is_taken(
        self, harness: Harness
    ) -> None:
        op = accept(new_identity(), new_fence())
        assert isinstance(harness.perform(op), ops.Accepted)
        assert isinstance(harness.perform(op), ops.Accepted)
        applied(harness, ops.Take(op.identity, op.fence, new_fence(), LEASE))
        assert isinstance(harness.perform(op), ops.Found)

    def test_one_of_many_acceptances_wins(self, harness: Harness) -> None:
        identity = new_identity()
        replies = harness.race([accept(identity, new_fence()) for _ in range(RACERS)])
        assert [isinstance(reply, ops.Accepted) for reply in replies].count(True) == 1

    def test_taking_burns_the_fence_and_begins_a_lease(self, harness: Harness) -> None:
        identity, seen = reach(harness, State.PENDING)
        reply = applied(harness, ops.Take(identity, seen, new_fence(), LEASE))
        assert near(harness, reply.leased_until, reply.now + LEASE)
        case = recall(harness, identity)
        assert case.request == REQUEST
        assert case.due_at == case.record.leased_until == reply.leased_until
        assert lost(harness, complete(identity, seen)) == case.record

    def test_going_back_to_the_queue_keeps_request_journal_and_deadline(
        self, harness: Harness
    ) -> None:
        identity, seen = reach(harness, State.PENDING)
        deadline = existing(harness, identity).leased_until
        assert deadline is not None
        fence = new_fence()
        applied(harness, ops.Take(identity, seen, fence, LEASE))
        applied(harness, ops.Advance(identity, fence, b"so far"))
        applied(harness, ops.Open(identity, fence, b"open receipt"))
        reply = applied(harness, ops.Release(identity, fence, RETENTION, "busy", requeue=MINUTE))
        assert reply.state is State.PENDING
        case = recall(harness, identity)
        assert (case.request, case.journal) == (REQUEST, b"so far")
        assert (case.record.reason, case.record.snapshot) == ("busy", None)
        assert case.record.leased_until == deadline
        assert case.record.forget_at is None
        assert near(harness, case.due_at, reply.now + MINUTE)

    def test_nothing_waits_in_the_queue_beyond_its_deadline(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Release(identity, fence, RETENTION, requeue=2 * PATIENCE))
        case = recall(harness, identity)
        assert case.due_at == case.record.leased_until

    def test_only_a_deferred_request_goes_back_to_the_queue(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        harness.perform(claim(identity, fence, request=REQUEST))
        op = ops.Release(identity, fence, RETENTION, requeue=MINUTE)
        assert applied(harness, op).state is State.FAILED_RETRYABLE
        assert applied(harness, op).state is State.FAILED_RETRYABLE
        assert existing(harness, identity).forget_at is not None

    def test_a_deferred_request_may_be_released_for_the_client_to_retry(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.FAILED_RETRYABLE, deferred=True)
        assert recall(harness, identity).request == REQUEST
        harness.travel(RETENTION // 2)
        again = new_fence()
        applied(harness, ops.Retake(identity, fence, again, LEASE))
        reply = applied(harness, ops.Release(identity, again, RETENTION, requeue=0))
        assert reply.state is State.PENDING
        # The client asks anew, and its patience begins anew.
        assert near(harness, reply.leased_until, reply.now + PATIENCE)

    def test_a_lapsed_deferred_request_that_had_no_effect_is_queued_again(
        self, harness: Harness
    ) -> None:
        identity, seen = reach(harness, State.PENDING, OnLapse.RELEASE)
        deadline = existing(harness, identity).leased_until
        assert deadline is not None
        fence = new_fence()
        applied(harness, ops.Take(identity, seen, fence, LEASE))
        harness.travel(LEASE)
        reply = applied(harness, ops.Lapse(identity, fence, RETENTION))
        assert reply.state is State.PENDING
        case = recall(harness, identity)
        assert near(harness, case.due_at, reply.now)
        assert near(
            harness, case.record.leased_until, deadline - (0 if not harness.slack else LEASE)
        )
        assert case.request == REQUEST

    @pytest.mark.parametrize("by", [ops.Lapse, ops.Sweep])
    def test_a_request_that_lapses_past_its_deadline_was_due_at_its_deadline(
        self, harness: Harness, by: type[ops.Lapse | ops.Sweep]
    ) -> None:
        """Where the abandoner looks, and not behind all that came due since."""
        identity, seen, fence = new_identity(), new_fence(), new_fence()
        harness.perform(accept(identity, seen, on_lapse=OnLapse.RELEASE, patience=MINUTE))
        applied(harness, ops.Take(identity, seen, fence, LEASE))
        harness.travel(LEASE + 10 * MINUTE)
        if by is ops.Lapse:
            applied(harness, ops.Lapse(identity, fence, RETENTION))
        else:
            while harness.perform(ops.Sweep(RACERS)).more:
                continue  # others share the store
        case = recall(harness, identity)
        assert case.record.state is State.PENDING
        assert case.due_at == case.record.leased_until

    def test_a_lapsed_deferred_request_that_may_have_had_one_is_unknown(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        harness.travel(LEASE)
        assert applied(harness, ops.Lapse(identity, fence, RETENTION)).state is State.UNKNOWN

    @pytest.mark.parametrize("end", ["completed", "settled as happened", "given up"])
    def test_an_end_drops_the_request_and_giving_up_the_journal(
        self, harness: Harness, end: str
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Advance(identity, fence, b"calls"))
        ends: dict[str, ops.StoreOperation[ops.Written]] = {
            "completed": ops.Complete(identity, fence, b"", RETENTION, TOMBSTONE, "charge/7"),
            "settled as happened": settle_happened(identity, fence),
            "given up": ops.EvictUnknown(identity, fence, new_fence(), TOMBSTONE, ACT),
        }
        if end != "completed":
            applied(harness, ops.Suspend(identity, fence))
        applied(harness, ends[end])
        case = recall(harness, identity)
        assert (case.request, case.journal) == (None, None if end == "given up" else b"calls")
        assert case.resource == ("charge/7" if end == "completed" else None)
        assert case.due_at == (case.record.expires_at or case.record.forget_at)


class RecoveryPoints:
    """Operations with recovery points."""

    def test_a_claim_stores_the_request(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        request = os.urandom(200_000)
        assert isinstance(harness.perform(claim(identity, fence, request=request)), ops.Claimed)
        assert recall(harness, identity).request == request

    def test_claims_at_once_each_store_their_own_request(self, harness: Harness) -> None:
        asked = [claim(i := new_identity(), new_fence(), request=i[:4]) for _ in range(RACERS)]
        asked += [claim(new_identity(), new_fence()) for _ in range(RACERS)]
        assert all(isinstance(reply, ops.Claimed) for reply in harness.race(asked))
        assert all(recall(harness, op.identity).request == op.request for op in asked)

    def test_completions_at_once_each_name_their_own_resource(self, harness: Harness) -> None:
        asked = [claim(new_identity(), new_fence()) for _ in range(RACERS)]
        harness.race(asked)
        ends = [
            ops.Complete(
                op.identity, op.fence, b"", RETENTION, TOMBSTONE, f"r{n}" if n % 2 else None
            )
            for n, op in enumerate(asked)
        ]
        assert all(isinstance(reply, ops.Applied) for reply in harness.race(ends))
        assert all(recall(harness, op.identity).resource == op.resource for op in ends)

    def test_advancing_replaces_the_journal_and_nothing_else(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        before = existing(harness, identity)
        for journal in (b"one", b"one", b"\0two\xff"):
            reply = applied(harness, ops.Advance(identity, fence, journal))
            assert reply.leased_until == before.leased_until
            assert recall(harness, identity).journal == journal
        assert existing(harness, identity) == before

    def test_a_stale_holder_does_not_advance(self, harness: Harness) -> None:
        identity, old = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        applied(harness, ops.Advance(identity, old, b"intent"))
        harness.travel(LEASE)
        applied(harness, ops.Resume(identity, old, new_fence(), LEASE))
        lost(harness, ops.Advance(identity, old, b"stale"))
        assert recall(harness, identity).journal == b"intent"

    def test_a_released_operation_is_retried_with_its_request_and_journal(
        self, harness: Harness
    ) -> None:
        identity, fence = new_identity(), new_fence()
        harness.perform(claim(identity, fence, on_lapse=OnLapse.RESUME, request=REQUEST))
        applied(harness, ops.Advance(identity, fence, b"so far"))
        applied(harness, ops.Release(identity, fence, RETENTION))
        case = recall(harness, identity)
        assert (case.request, case.journal) == (REQUEST, b"so far")
        applied(harness, ops.Retake(identity, fence, new_fence(), LEASE, OnLapse.RESUME))
        case = recall(harness, identity)
        assert (case.request, case.journal) == (REQUEST, b"so far")
        assert case.record.on_lapse is OnLapse.RESUME

    def test_only_a_lapsed_operation_is_resumed(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        op = ops.Resume(identity, fence, new_fence(), LEASE)
        harness.travel(LEASE // 2)
        renewed = applied(harness, ops.Renew(identity, fence, LEASE))
        assert recall(harness, identity).due_at == renewed.leased_until
        harness.travel(LEASE - 1 - harness.slack)
        assert lost(harness, op) == existing(harness, identity)
        assert existing(harness, identity).fence == fence

    def test_a_resumable_operation_does_not_lapse(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        harness.travel(LEASE)
        before = existing(harness, identity)
        assert lost(harness, ops.Lapse(identity, fence, RETENTION)) == before
        assert existing(harness, identity) == before

    def test_resuming_keeps_request_and_journal(self, harness: Harness) -> None:
        identity, old = new_identity(), new_fence()
        harness.perform(claim(identity, old, on_lapse=OnLapse.RESUME, request=REQUEST))
        applied(harness, ops.Advance(identity, old, b"so far"))
        harness.travel(LEASE)
        fence = new_fence()
        reply = applied(harness, ops.Resume(identity, old, fence, LEASE))
        assert near(harness, reply.leased_until, reply.now + LEASE)
        case = recall(harness, identity)
        assert (case.request, case.journal) == (REQUEST, b"so far")
        assert (case.record.fence, case.due_at) == (fence, case.record.leased_until)
        assert lost(harness, complete(identity, old)) == case.record

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_resumption(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        harness.travel(LEASE)
        replies = harness.race(
            [complete(identity, fence), ops.Resume(identity, fence, new_fence(), LEASE)]
        )
        completed, resumed = (isinstance(reply, ops.Applied) for reply in replies)
        assert completed != resumed
        expected = State.COMPLETED if completed else State.IN_PROGRESS
        assert existing(harness, identity).state is expected

    def test_a_call_that_happened_lets_its_operation_be_resumed_at_once(
        self, harness: Harness
    ) -> None:
        identity, old = new_identity(), new_fence()
        harness.perform(claim(identity, old, on_lapse=OnLapse.RESUME, request=REQUEST))
        applied(harness, ops.Advance(identity, old, b"intent"))
        applied(harness, ops.Suspend(identity, old, "timed out", probe_after=0))
        applied(harness, ops.Inquire(identity, old, 0, MINUTE))
        op = ops.SettleCall(identity, old, new_fence(), b"result", ACT)
        assert applied(harness, op).state is State.IN_PROGRESS
        case = recall(harness, identity)
        assert (case.request, case.journal, case.tries) == (REQUEST, b"result", 0)
        assert case.record.reason == ACT.line
        assert case.record.lapsed(now_of(harness))
        assert lost(harness, complete(identity, old)) == case.record
        applied(harness, ops.Resume(identity, op.fence, new_fence(), LEASE))
        assert recall(harness, identity).journal == b"result"
        assert lost(harness, op) is not None

    @pytest.mark.parametrize("on_lapse", [OnLapse.UNKNOWN, OnLapse.RELEASE])
    def test_only_what_was_declared_so_is_resumed_or_has_calls_to_settle(
        self, harness: Harness, on_lapse: OnLapse
    ) -> None:
        running, held = reach(harness, State.IN_PROGRESS, on_lapse)
        unknown, fence = reach(harness, State.UNKNOWN, on_lapse)
        harness.travel(LEASE)
        before = existing(harness, running), existing(harness, unknown)
        assert lost(harness, ops.Resume(running, held, new_fence(), LEASE)) == before[0]
        settling = ops.SettleCall(unknown, fence, new_fence(), b"", ACT)
        assert lost(harness, settling) == before[1]
        assert (existing(harness, running), existing(harness, unknown)) == before

    @pytest.mark.parametrize("journal", [None, b"without the intent"])
    def test_an_absent_call_leaves_a_journal_for_the_retry(
        self, harness: Harness, journal: bytes | None
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        applied(harness, ops.Advance(identity, fence, b"with the intent"))
        applied(harness, ops.Suspend(identity, fence))
        applied(harness, ops.SettleAbsent(identity, fence, new_fence(), RETENTION, ACT, journal))
        assert recall(harness, identity).journal == (journal or b"with the intent")


class Inquiries:
    """Unknown records, and who asks about them."""

    def unknown(self, harness: Harness, probe_after: int | None = 0) -> tuple[Identity, Fence]:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence, "timed out", probe_after))
        return identity, fence

    def test_a_suspended_record_is_due_when_it_is_to_be_asked_about(self, harness: Harness) -> None:
        identity, _ = self.unknown(harness, MINUTE)
        case = recall(harness, identity)
        assert near(harness, case.due_at, now_of(harness) + MINUTE)
        assert case.record.leased_until is None

    def test_a_lapsed_record_is_due_at_once(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        reply = applied(harness, ops.Lapse(identity, fence, RETENTION))
        assert near(harness, recall(harness, identity).due_at, reply.now)

    def test_an_inquiry_counts_and_comes_again(self, harness: Harness) -> None:
        identity, fence = self.unknown(harness)
        for tries in range(3):
            reply = applied(harness, ops.Inquire(identity, fence, tries, MINUTE))
            assert reply.state is State.UNKNOWN
            case = recall(harness, identity)
            assert case.tries == tries + 1
            assert near(harness, case.due_at, reply.now + MINUTE)

    def test_whoever_comes_second_does_not_ask(self, harness: Harness) -> None:
        identity, fence = self.unknown(harness)
        applied(harness, ops.Inquire(identity, fence, 0, MINUTE))
        before = recall(harness, identity)
        lost(harness, ops.Inquire(identity, fence, 0, MINUTE))
        lost(harness, ops.Inquire(identity, fence, 2, MINUTE))
        assert recall(harness, identity) == before

    def test_what_nobody_asks_about_is_a_dead_letter_until_somebody_does(
        self, harness: Harness
    ) -> None:
        identity, fence = self.unknown(harness, None)
        assert recall(harness, identity).due_at is None
        applied(harness, ops.Inquire(identity, fence, 0, 0))
        assert recall(harness, identity).due_at is not None
        applied(harness, ops.Inquire(identity, fence, 1, None))  # and given up again
        assert recall(harness, identity).due_at is None
        assert existing(harness, identity).state is State.UNKNOWN

    def test_a_late_completion_leaves_nothing_to_ask(self, harness: Harness) -> None:
        identity, fence = self.unknown(harness)
        applied(harness, complete(identity, fence))
        lost(harness, ops.Inquire(identity, fence, 0, MINUTE))
        case = recall(harness, identity)
        assert case.due_at == case.record.expires_at

    def test_questions_are_counted_anew_when_a_record_is_unknown_anew(
        self, harness: Harness
    ) -> None:
        identity, fence = self.unknown(harness)
        applied(harness, ops.Inquire(identity, fence, 0, MINUTE))
        settled, again = new_fence(), new_fence()
        applied(harness, ops.SettleAbsent(identity, fence, settled, RETENTION, ACT))
        applied(harness, ops.Retake(identity, settled, again, LEASE))
        applied(harness, ops.Suspend(identity, again, "timed out", 0))
        assert recall(harness, identity).tries == 0
