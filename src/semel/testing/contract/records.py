"""What every store must do with records: claims, the state table, races, bytes, recipes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import Case, Fence, Identity, Micros, OnLapse, Origin, Record, State
from semel.core.states import TABLE, RecordEvent, rule
from semel.core.stored.snapshot import LARGE, brief, is_head
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.base import due_at
from semel.testing.contract.harness import RACERS, Harness
from semel.testing.contract.terms import terms

MINUTE: Micros = 60_000_000
LEASE = MINUTE
RETENTION = 60 * MINUTE
TOMBSTONE = 30 * MINUTE
PATIENCE = 600 * MINUTE
REQUEST = b"POST /payments\0canary-of-a-body"
ORIGIN = Origin("tenant", "POST", "/payments", "a-key-of-the-client")
SNAPSHOT = b'{"paid": "canary-of-an-answer"}'
ACT = ops.Act("tests", "to see what it does")
TERMS = terms(retention=RETENTION, tombstone=TOMBSTONE)
"""Of every record that is claimed here; who needs them agrees to them first."""


def new_identity() -> Identity:
    return Identity(os.urandom(32))


def new_fence() -> Fence:
    return Fence(os.urandom(16))


def claim(
    identity: Identity,
    fence: Fence,
    *,
    on_lapse: OnLapse = OnLapse.UNKNOWN,
    fresh_until: Micros | None = None,
    request: bytes | None = None,
) -> ops.Claim:
    told = (identity, fence, "v1:abc", b"\0fields", ORIGIN, LEASE, on_lapse, fresh_until, request)
    return ops.Claim(*told, TERMS.id)


def accept(
    identity: Identity,
    fence: Fence,
    *,
    on_lapse: OnLapse = OnLapse.UNKNOWN,
    fresh_until: Micros | None = None,
    patience: Micros = PATIENCE,
) -> ops.Accept:
    told = (identity, fence, "v1:abc", b"\0fields", ORIGIN, REQUEST, patience, on_lapse)
    return ops.Accept(*told, fresh_until, TERMS.id)


def complete(identity: Identity, fence: Fence, snapshot: bytes = SNAPSHOT) -> ops.Complete:
    return ops.Complete(identity, fence, snapshot, RETENTION, TOMBSTONE)


def settle_happened(identity: Identity, seen: Fence, snapshot: bytes = b"it") -> ops.SettleHappened:
    return ops.SettleHappened(identity, seen, new_fence(), snapshot, RETENTION, TOMBSTONE, ACT)


@dataclass(frozen=True)
class Kind:
    """One kind of write: its event in the table and how it is asked."""

    event: RecordEvent
    make: Callable[[Identity, Fence], ops.StoreOperation[ops.Written]]
    keeps_fence: bool = True
    wait: Micros = 0
    """How long after the record was made it can be allowed."""
    on_lapse: OnLapse = OnLapse.UNKNOWN
    deferred: bool = False
    repeats: bool = True
    """Whether it may be asked again."""
    same_as: State | None = None
    """A state besides the target that an earlier try may have led to, were it not deferred."""

    @property
    def target(self) -> State | None:
        return next(row.target for row in TABLE if row.event is self.event)

    @property
    def source(self) -> State:
        source = next(row.source for row in TABLE if row.event is self.event)
        assert source is not None
        return source


KINDS = {
    "retake": Kind(
        RecordEvent.RETAKE, lambda i, f: ops.Retake(i, f, new_fence(), LEASE), keeps_fence=False
    ),
    "take": Kind(
        RecordEvent.TAKE,
        lambda i, f: ops.Take(i, f, new_fence(), LEASE),
        keeps_fence=False,
        deferred=True,
    ),
    "resume": Kind(
        RecordEvent.LAPSE_RESUME,
        lambda i, f: ops.Resume(i, f, new_fence(), LEASE),
        keeps_fence=False,
        wait=LEASE,
        on_lapse=OnLapse.RESUME,
    ),
    "advance": Kind(RecordEvent.ADVANCE, lambda i, f: ops.Advance(i, f, b"journal")),
    "renew": Kind(RecordEvent.RENEW, lambda i, f: ops.Renew(i, f, LEASE)),
    "open": Kind(RecordEvent.ADVANCE, lambda i, f: ops.Open(i, f, b"open receipt")),
    "complete": Kind(RecordEvent.COMPLETE, complete),
    "release": Kind(RecordEvent.RELEASE, lambda i, f: ops.Release(i, f, RETENTION, "refused")),
    "requeue": Kind(
        RecordEvent.REQUEUE,
        lambda i, f: ops.Release(i, f, RETENTION, "later", requeue=MINUTE),
        deferred=True,
        same_as=State.FAILED_RETRYABLE,
    ),
    "suspend": Kind(RecordEvent.SUSPEND, lambda i, f: ops.Suspend(i, f, "timed out")),
    "lapse": Kind(RecordEvent.LAPSE, lambda i, f: ops.Lapse(i, f, RETENTION), wait=LEASE),
    "lapse_release": Kind(
        RecordEvent.LAPSE_RELEASE,
        lambda i, f: ops.Lapse(i, f, RETENTION),
        wait=LEASE,
        on_lapse=OnLapse.RELEASE,
        same_as=State.PENDING,
    ),
    "lapse_requeue": Kind(
        RecordEvent.LAPSE_REQUEUE,
        lambda i, f: ops.Lapse(i, f, RETENTION),
        wait=LEASE,
        on_lapse=OnLapse.RELEASE,
        deferred=True,
        same_as=State.FAILED_RETRYABLE,
    ),
    "forget": Kind(RecordEvent.FORGET, ops.Forget, wait=RETENTION + TOMBSTONE),
    "settle_happened": Kind(RecordEvent.SETTLE_HAPPENED, settle_happened, keeps_fence=False),
    "settle_absent": Kind(
        RecordEvent.SETTLE_ABSENT,
        lambda i, f: ops.SettleAbsent(i, f, new_fence(), RETENTION, ACT),
        keeps_fence=False,
    ),
    "settle_call": Kind(
        RecordEvent.SETTLE_CALL,
        lambda i, f: ops.SettleCall(i, f, new_fence(), b"result", ACT),
        keeps_fence=False,
        on_lapse=OnLapse.RESUME,
    ),
    "inquire": Kind(RecordEvent.INQUIRE, lambda i, f: ops.Inquire(i, f, 0, MINUTE), repeats=False),
    "evict": Kind(RecordEvent.EVICT, lambda i, f: ops.Evict(i, f, ACT)),
    "evict_unknown": Kind(
        RecordEvent.EVICT_FORCED,
        lambda i, f: ops.EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT),
        keeps_fence=False,
    ),
    "erase": Kind(RecordEvent.ERASE, lambda i, f: ops.Erase(i, f, ACT)),
    "free_unknown": Kind(
        RecordEvent.EVICT_FREED,
        lambda i, f: ops.EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT, free=True),
        keeps_fence=False,
    ),
}

RIVALS = (
    *("retake", "take", "resume", "inquire"),
    *("settle_happened", "settle_absent", "settle_call", "evict_unknown"),
)
"""The kinds of write of which the second finds what it would change changed by the first."""

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
EVERY_STATE = pytest.mark.parametrize("state", State)
ROUNDS = range(5)
"""Of a race that any order is right in: more of them find more orders."""


@contextmanager
def case(*names: object) -> Generator[None]:
    """One of many that a test goes through; what fails in it says which one it was."""
    try:
        yield
    except BaseException as error:
        error.add_note("in the case: " + ", ".join(map(str, names)))
        raise


def reach(
    harness: Harness,
    state: State,
    on_lapse: OnLapse = OnLapse.UNKNOWN,
    *,
    deferred: bool = False,
) -> tuple[Identity, Fence]:
    """A new record in ``state`` and the fence it has."""
    identity, fence = new_identity(), new_fence()
    if deferred or state is State.PENDING:
        assert isinstance(harness.perform(accept(identity, fence, on_lapse=on_lapse)), ops.Accepted)
        if state is State.PENDING:
            return identity, fence
        seen, fence = fence, new_fence()
        applied(harness, ops.Take(identity, seen, fence, LEASE))
    else:
        assert isinstance(harness.perform(claim(identity, fence, on_lapse=on_lapse)), ops.Claimed)
    steps: dict[State, ops.StoreOperation[ops.Written]] = {
        State.COMPLETED: complete(identity, fence),
        State.FAILED_RETRYABLE: ops.Release(identity, fence, RETENTION),
        State.UNKNOWN: ops.Suspend(identity, fence),
        State.EXPIRED: ops.Suspend(identity, fence),
    }
    if state in steps:
        applied(harness, steps[state])
    if state is State.EXPIRED:
        seen, fence = fence, new_fence()
        applied(harness, ops.EvictUnknown(identity, seen, fence, TOMBSTONE, ACT))
    return identity, fence


def applied(harness: Harness, op: ops.StoreOperation[ops.Written]) -> ops.Applied:
    reply = harness.perform(op)
    assert isinstance(reply, ops.Applied), reply
    return reply


def lost(harness: Harness, op: ops.StoreOperation[ops.Written]) -> Record | None:
    reply = harness.perform(op)
    assert isinstance(reply, ops.Lost), reply
    return reply.record


def existing(harness: Harness, identity: Identity) -> Record:
    record = harness.record(identity)
    assert record is not None
    return record


def recall(harness: Harness, identity: Identity) -> Case:
    reply = harness.perform(ops.Recall(identity))
    assert isinstance(reply, ops.Recalled), reply
    return reply.case


def near(harness: Harness, value: Micros | None, expected: Micros) -> bool:
    """Whether a time is there and right, as far as the store's clock can be known."""
    return value is not None and abs(value - expected) <= harness.slack


DUTIES = {
    State.PENDING: "run",
    State.UNKNOWN: "ask",
    State.COMPLETED: "expire",
    State.FAILED_RETRYABLE: "forget",
    State.EXPIRED: "forget",
}


def demand_found_in_time(harness: Harness, identity: Identity, *, renewed: bool = False) -> None:
    """Whose duty a record is, and from when on, is kept as its state tells.

    ``renewed``: its lease may have been, which some stores leave for the sweeper to see.
    """
    kept = harness.kept(identity)
    if kept is None:
        return
    kept_case = recall(harness, identity)
    record, wanted = kept_case.record, due_at(kept_case.record, kept_case.due_at)
    resumable = record.on_lapse is OnLapse.RESUME
    assert kept.duty == DUTIES.get(record.state, "resume" if resumable else "lease")
    if renewed and kept.duty == "lease" and not kept.renewals_move_it:
        assert kept.due_at is not None
        assert record.leased_until is not None
        assert kept.due_at <= record.leased_until + harness.slack
    else:
        assert kept.due_at == wanted or near(harness, kept.due_at, wanted or 0)


class StateTable:
    """The matrix, generated from the one table that rules the states.

    A test makes a record in each state and goes through them; time passes for all of them at once.
    """

    @EVERY_KIND
    def test_a_write_does_what_the_table_says(self, harness: Harness, kind: Kind) -> None:
        for state, identity, fence in made_for(harness, kind):
            with case(state):
                before = existing(harness, identity)
                demand_found_in_time(harness, identity)
                op = kind.make(identity, fence)
                if rule(state, kind.event) is not None:
                    assert applied(harness, op).state is kind.target
                    renewed = kind.event is RecordEvent.RENEW
                    demand_found_in_time(harness, identity, renewed=renewed)
                    after = harness.record(identity)
                    assert (after and after.state) == kind.target
                    continue
                if state in (kind.target, kind.same_as) and kind.keeps_fence:
                    assert applied(harness, op).state is state
                else:
                    assert lost(harness, op) == before
                assert existing(harness, identity) == before

    @EVERY_KIND
    def test_a_write_without_a_record_changes_nothing(self, harness: Harness, kind: Kind) -> None:
        identity = new_identity()
        reply = harness.perform(kind.make(identity, new_fence()))
        if kind.target is None:
            assert isinstance(reply, ops.Applied)
            assert reply.state is None
        else:
            assert isinstance(reply, ops.Lost)
            assert reply.record is None
        assert harness.record(identity) is None

    @EVERY_KIND
    def test_a_write_with_another_fence_is_refused(self, harness: Harness, kind: Kind) -> None:
        for state, identity, _ in made_for(harness, kind):
            with case(state):
                before = existing(harness, identity)
                assert lost(harness, kind.make(identity, new_fence())) == before
                assert existing(harness, identity) == before

    @pytest.mark.parametrize(
        "kind",
        [kind for kind in KINDS.values() if kind.repeats],
        ids=[name for name, kind in KINDS.items() if kind.repeats],
    )
    def test_a_write_asked_again_is_applied_once(self, harness: Harness, kind: Kind) -> None:
        identity, fence = reach(harness, kind.source, kind.on_lapse, deferred=kind.deferred)
        harness.travel(kind.wait)
        op = kind.make(identity, fence)
        first = applied(harness, op)
        after = harness.record(identity)
        harness.travel(1)
        second = applied(harness, op)
        assert second.state is first.state
        if kind.event is not RecordEvent.RENEW:
            again = harness.record(identity)
            assert (again and again.fence) == (after and after.fence)
            assert (again and again.snapshot) == (after and after.snapshot)

    @EVERY_STATE
    @pytest.mark.parametrize("ask", [claim, accept])
    def test_a_claim_never_changes_a_record(
        self, harness: Harness, state: State, ask: Callable[..., ops.Claim | ops.Accept]
    ) -> None:
        identity, _ = reach(harness, state)
        before = existing(harness, identity)
        reply = harness.perform(ask(identity, new_fence()))
        assert isinstance(reply, ops.Found)
        assert reply.record == before == existing(harness, identity)


def made_for(harness: Harness, kind: Kind) -> list[tuple[State, Identity, Fence]]:
    """A new record in every state, as old as it must be for this kind of write."""
    made = [
        (state, *reach(harness, state, kind.on_lapse, deferred=kind.deferred)) for state in State
    ]
    harness.travel(kind.wait)
    return made


class Claims:
    def test_a_claim_makes_the_record_it_describes(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        reply = harness.perform(claim(identity, fence))
        assert isinstance(reply, ops.Claimed)
        record = existing(harness, identity)
        assert record == Record(
            identity=identity,
            state=State.IN_PROGRESS,
            fence=fence,
            fingerprint="v1:abc",
            fields=b"\0fields",
            on_lapse=OnLapse.UNKNOWN,
            created_at=record.created_at,
            leased_until=reply.leased_until,
            expires_at=None,
            forget_at=None,
            snapshot=None,
            reason=None,
        )
        assert near(harness, record.created_at, reply.now)
        assert near(harness, reply.leased_until, reply.now + LEASE)

    def test_an_own_claim_asked_again_is_held(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        first = harness.perform(claim(identity, fence))
        harness.travel(1_000)
        again = harness.perform(claim(identity, fence))
        assert isinstance(first, ops.Claimed)
        assert isinstance(again, ops.Claimed)
        assert again.now > first.now or harness.slack
        assert abs(again.leased_until - first.leased_until) <= 1_000

    def test_an_own_claim_whose_lease_is_past_is_not_handed_out_again(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        reply = harness.perform(claim(identity, fence))
        assert isinstance(reply, ops.Found)
        assert reply.record.lapsed(reply.now)

    def test_an_own_claim_that_was_released_is_found(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.FAILED_RETRYABLE)
        reply = harness.perform(claim(identity, fence))
        assert isinstance(reply, ops.Found)
        assert reply.record.state is State.FAILED_RETRYABLE

    @pytest.mark.parametrize("ask", [claim, accept])
    def test_a_key_is_fresh_up_to_the_very_instant(
        self, harness: Harness, ask: Callable[..., ops.Claim | ops.Accept]
    ) -> None:
        late = ask(new_identity(), new_fence(), fresh_until=now_of(harness) - 1)
        assert harness.perform(late) == ops.Stale()
        assert harness.record(late.identity) is None
        fresh = ask(new_identity(), new_fence(), fresh_until=now_of(harness) + harness.slack)
        assert isinstance(harness.perform(fresh), ops.Claimed | ops.Accepted)

    @EVERY_STATE
    def test_an_old_key_finds_its_record_all_the_same(self, harness: Harness, state: State) -> None:
        identity, _ = reach(harness, state)
        reply = harness.perform(claim(identity, new_fence(), fresh_until=1))
        assert isinstance(reply, ops.Found)
        assert reply.record.state is state

    def test_absent_records_are_absent(self, harness: Harness) -> None:
        identity = new_identity()
        fetch = ops.Fetch(identity, new_fence(), b"")
        asked: list[ops.StoreOperation[Any]] = [ops.Read(identity), ops.Recall(identity), fetch]
        for op in asked:
            assert isinstance(harness.perform(op), ops.NoRecord)


def now_of(harness: Harness) -> Micros:
    reply = harness.perform(ops.Read(new_identity()))
    assert isinstance(reply, ops.NoRecord)
    return reply.now


class Lives:
    """Longer walks, and the edges of time."""

    @pytest.mark.parametrize("answer", [b"\0\xff answer", b""])
    def test_completion_keeps_the_answer_and_ends_the_lease(
        self, harness: Harness, answer: bytes
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        reply = applied(harness, complete(identity, fence, answer))
        record = existing(harness, identity)
        assert record.snapshot == answer
        assert record.fence == fence
        assert record.leased_until is None
        assert record.expires_at == reply.expires_at
        assert near(harness, record.expires_at, reply.now + RETENTION)
        assert near(harness, record.forget_at, (record.expires_at or 0) + TOMBSTONE)

    def test_the_first_of_two_completions_by_one_fence_stays(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, complete(identity, fence, b"first"))
        applied(harness, complete(identity, fence, b"second"))
        assert existing(harness, identity).snapshot == b"first"

    def test_a_late_holder_completes_an_unknown_record(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        assert applied(harness, ops.Lapse(identity, fence, RETENTION)).state is State.UNKNOWN
        assert applied(harness, complete(identity, fence)).state is State.COMPLETED
        assert existing(harness, identity).snapshot == SNAPSHOT

    def test_a_holder_past_its_lease_completes_while_nobody_acted(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE + 1)
        assert applied(harness, complete(identity, fence)).state is State.COMPLETED

    @pytest.mark.parametrize("settle", ["settle_happened", "settle_absent", "evict_unknown"])
    def test_settling_burns_the_fence(self, harness: Harness, settle: str) -> None:
        identity, fence = reach(harness, State.UNKNOWN)
        applied(harness, KINDS[settle].make(identity, fence))
        settled = existing(harness, identity)
        assert settled.fence != fence
        assert lost(harness, complete(identity, fence)) == settled
        assert lost(harness, ops.Release(identity, fence, RETENTION)) == settled

    def test_retaking_burns_the_fence_and_forgets_the_expiry(self, harness: Harness) -> None:
        identity, old = reach(harness, State.FAILED_RETRYABLE)
        assert existing(harness, identity).forget_at is not None
        fence = new_fence()
        reply = applied(harness, ops.Retake(identity, old, fence, LEASE, OnLapse.RELEASE))
        record = existing(harness, identity)
        assert (record.state, record.fence) == (State.IN_PROGRESS, fence)
        assert record.forget_at is None
        assert record.on_lapse is OnLapse.RELEASE
        assert record.leased_until == reply.leased_until
        assert lost(harness, complete(identity, old)) == record

    @pytest.mark.parametrize("right", ["retake", "take"])
    def test_a_right_whose_lease_is_past_is_not_handed_out_again(
        self, harness: Harness, right: str
    ) -> None:
        kind = KINDS[right]
        identity, seen = reach(harness, kind.source, deferred=kind.deferred)
        op = kind.make(identity, seen)
        applied(harness, op)
        applied(harness, op)
        harness.travel(LEASE)
        assert lost(harness, op) == existing(harness, identity)

    def test_renewal_counts_from_now(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE // 2)
        reply = applied(harness, ops.Renew(identity, fence, LEASE))
        assert near(harness, reply.leased_until, reply.now + LEASE)
        assert existing(harness, identity).leased_until == reply.leased_until

    def test_renewal_never_revives(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        before = existing(harness, identity)
        assert lost(harness, ops.Renew(identity, fence, LEASE)) == before
        assert existing(harness, identity) == before

    def test_a_running_lease_does_not_lapse(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE - 1 - harness.slack)
        assert lost(harness, ops.Lapse(identity, fence, RETENTION)) == existing(harness, identity)

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED])
    def test_a_record_is_not_forgotten_before_its_time(
        self, harness: Harness, state: State
    ) -> None:
        identity, fence = reach(harness, state)
        kept = {State.COMPLETED: RETENTION + TOMBSTONE, State.FAILED_RETRYABLE: RETENTION}
        harness.travel(kept.get(state, TOMBSTONE) - 1 - harness.slack)
        assert lost(harness, ops.Forget(identity, fence)) == existing(harness, identity)
        harness.travel(1 + harness.slack)
        assert applied(harness, ops.Forget(identity, fence)).state is None
        assert harness.record(identity) is None

    @pytest.mark.parametrize("state", [State.PENDING, State.IN_PROGRESS, State.UNKNOWN])
    def test_an_unsettled_record_never_becomes_free_by_time(
        self, harness: Harness, state: State
    ) -> None:
        identity, fence = reach(harness, state)
        harness.travel(100 * (RETENTION + TOMBSTONE))
        before = existing(harness, identity)
        assert (before.expires_at, before.forget_at) == (None, None)
        assert lost(harness, ops.Forget(identity, fence)) == before
        assert lost(harness, ops.Evict(identity, fence, ACT)) == before
        assert isinstance(harness.perform(claim(identity, new_fence())), ops.Found)

    def test_an_open_receipt_stays_as_evidence_when_the_lease_lapses(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        assert applied(harness, ops.Open(identity, fence, b"open")).state is State.IN_PROGRESS
        harness.travel(LEASE)
        applied(harness, ops.Lapse(identity, fence, RETENTION))
        assert existing(harness, identity).snapshot == b"open"

    def test_a_released_record_keeps_no_open_receipt(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Open(identity, fence, b"open"))
        applied(harness, ops.Release(identity, fence, RETENTION))
        assert existing(harness, identity).snapshot is None

    def test_a_forgotten_key_starts_a_new_epoch(self, harness: Harness) -> None:
        identity, old = reach(harness, State.COMPLETED)
        harness.travel(RETENTION + TOMBSTONE)
        applied(harness, ops.Forget(identity, old))
        fence = new_fence()
        assert isinstance(harness.perform(claim(identity, fence)), ops.Claimed)
        record = existing(harness, identity)
        assert lost(harness, ops.Forget(identity, old)) == record
        assert lost(harness, complete(identity, old)) == record

    def test_reasons_and_evidence_are_kept(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence, "read timed out"))
        assert existing(harness, identity).reason == "read timed out"
        applied(harness, settle_happened(identity, fence))
        assert existing(harness, identity).reason == ACT.line


class Bytes:
    """What goes in comes out."""

    @pytest.mark.parametrize(
        "identities",
        [
            (bytes(32), bytes(31) + b"\1"),
            (b"a" * 32, b"a" * 31 + b" "),
            (b"abc" + b" " * 29, b"ABC" + b" " * 29),
            (b"\xff" * 32, b"\xff" * 31 + b"\0"),
            ("é".encode() * 16, b"e" * 32),
        ],
        ids=["nul", "trailing blank", "case", "trailing nul", "accent"],
    )
    def test_identities_are_compared_byte_by_byte(
        self, harness: Harness, identities: tuple[bytes, bytes]
    ) -> None:
        fences = {Identity(identity): new_fence() for identity in identities}
        for identity, fence in fences.items():
            assert isinstance(harness.perform(claim(identity, fence)), ops.Claimed)
        for identity, fence in fences.items():
            assert existing(harness, identity).fence == fence

    @pytest.mark.parametrize("size", [LARGE, LARGE + 1, 5_000_000])
    def test_of_a_large_snapshot_the_head_comes_and_the_whole_is_fetched(
        self, harness: Harness, size: int
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        snapshot = b"s" + os.urandom(size - 1)  # one that begins with the mark of heads is none
        applied(harness, complete(identity, fence, snapshot))
        claimed = harness.perform(claim(identity, new_fence()))
        assert isinstance(claimed, ops.Found)
        refused = lost(harness, ops.Release(identity, new_fence(), RETENTION))
        told = brief(snapshot)
        assert is_head(told) is (size > LARGE)
        for record in (claimed.record, existing(harness, identity), refused):
            assert record is not None
            assert record.snapshot == told
        assert harness.perform(ops.Fetch(identity, fence, told)) == ops.Fetched(snapshot)

    def test_only_the_answer_of_a_completed_record_s_own_fence_is_fetched(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.COMPLETED)
        assert isinstance(harness.perform(ops.Fetch(identity, new_fence(), b"")), ops.NoRecord)
        assert isinstance(harness.perform(ops.Fetch(new_identity(), fence, b"")), ops.NoRecord)
        assert harness.perform(ops.Fetch(identity, fence, b"")) == ops.Fetched(SNAPSHOT)
        opened, holder = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Open(opened, holder, b"an open receipt"))
        assert isinstance(harness.perform(ops.Fetch(opened, holder, b"")), ops.NoRecord)

    def test_a_reason_that_no_database_can_store_is_escaped(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence, "é\0\ud800☃"))
        assert existing(harness, identity).reason == "é\\x00\\ud800☃"

    def test_an_origin_that_no_database_can_store_does_not_stop_a_claim(
        self, harness: Harness
    ) -> None:
        origin = Origin("té\0nant", "POST", "/\udcff", "k\0")
        op = ops.Claim(new_identity(), new_fence(), "v1:é", b"", origin, LEASE)
        assert isinstance(harness.perform(op), ops.Claimed)
        assert existing(harness, op.identity).fingerprint == "v1:é"

    @pytest.mark.parametrize(
        "key",
        [
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "8E03978E-40D5-43E8-BC93-6894A57F9324",
            "00000000-0000-0000-0000-000000000000",
            "sixteen-letters!",
            "ключ ☃ \\x00",
        ],
    )
    def test_key_and_fingerprint_are_told_letter_by_letter(
        self, harness: Harness, key: str
    ) -> None:
        mark = "r1-2024.AAAAAAAAAAAAAAAAAAAA-A"
        origin = Origin("tenant", "POST", "/rides", key)
        op = ops.Claim(new_identity(), new_fence(), mark, b"", origin, LEASE)
        assert isinstance(harness.perform(op), ops.Claimed)
        found = recall(harness, op.identity)
        assert (found.origin.key, found.record.fingerprint) == (shown(key), mark)

    @pytest.mark.parametrize("text", ["v1:\0", "v1:\ud800"])
    def test_a_fingerprint_that_cannot_be_kept_exactly_is_refused(
        self, harness: Harness, text: str
    ) -> None:
        op = ops.Claim(new_identity(), new_fence(), text, b"", ORIGIN, LEASE)
        with pytest.raises(ConfigurationError):
            harness.perform(op)
        assert harness.record(op.identity) is None


class Races:
    def test_one_of_many_claims_wins(self, harness: Harness) -> None:
        identity = new_identity()
        asked = [claim(identity, new_fence()) for _ in range(RACERS)]
        replies = harness.race(asked)
        winners = [
            op.fence
            for op, reply in zip(asked, replies, strict=True)
            if isinstance(reply, ops.Claimed)
        ]
        assert len(winners) == 1
        seen = {reply.record.fence for reply in replies if isinstance(reply, ops.Found)}
        assert seen == set(winners)

    def test_claims_of_many_keys_do_not_disturb_each_other(self, harness: Harness) -> None:
        asked = [claim(new_identity(), new_fence()) for _ in range(RACERS)]
        assert all(isinstance(reply, ops.Claimed) for reply in harness.race(asked))
        ends = harness.race([complete(op.identity, op.fence, op.identity) for op in asked])
        assert all(isinstance(reply, ops.Applied) for reply in ends)
        assert all(existing(harness, op.identity).snapshot == op.identity for op in asked)

    def test_of_completions_at_once_each_is_judged_by_itself(self, harness: Harness) -> None:
        """Stale and fresh fences in every state, which stores that batch do in one statement."""
        made = [(state, *reach(harness, state)) for state in State for _ in range(4)]
        made += [(State.IN_PROGRESS, *reach(harness, State.IN_PROGRESS)) for _ in range(12)]
        right = [n % 2 == 0 for n in range(len(made))]
        before = [existing(harness, identity) for _, identity, _ in made]
        replies = harness.race(
            [
                complete(identity, fence if fresh else new_fence(), b"answer of %d" % n)
                for n, ((_, identity, fence), fresh) in enumerate(zip(made, right, strict=True))
            ]
        )
        for n, (state, identity, _) in enumerate(made):
            after, reply = existing(harness, identity), replies[n]
            if right[n] and rule(state, RecordEvent.COMPLETE) is not None:
                assert isinstance(reply, ops.Applied)
                assert (after.state, after.snapshot) == (State.COMPLETED, b"answer of %d" % n)
            else:  # of what is completed already, its own is an earlier try
                own = right[n] and state is State.COMPLETED
                assert isinstance(reply, ops.Applied if own else ops.Lost)
                assert after == before[n]

    def test_of_claims_at_once_each_is_judged_by_itself(self, harness: Harness) -> None:
        made = [(state, *reach(harness, state)) for state in State for _ in range(2)]
        before = [existing(harness, identity) for _, identity, _ in made]
        known = [
            claim(identity, new_fence() if n % 2 else fence)
            for n, (_, identity, fence) in enumerate(made)
        ]
        late = [claim(new_identity(), new_fence(), fresh_until=1) for _ in range(4)]
        new = [claim(new_identity(), new_fence()) for _ in range(16)]
        replies = harness.race([*new[:8], *known, *late, *new[8:]])
        assert all(isinstance(reply, ops.Claimed) for reply in replies[:8] + replies[-8:])
        assert replies[20:24] == [ops.Stale()] * 4
        for n, (state, identity, _) in enumerate(made):
            mine = state is State.IN_PROGRESS and n % 2 == 0
            assert isinstance(replies[8 + n], ops.Claimed if mine else ops.Found)
            assert existing(harness, identity) == before[n]
        assert all(existing(harness, op.identity).fence == op.fence for op in new)
        assert all(harness.record(op.identity) is None for op in late)

    def test_one_claim_asked_many_times_at_once_is_one_claim(self, harness: Harness) -> None:
        op = claim(new_identity(), new_fence())
        assert all(isinstance(reply, ops.Claimed) for reply in harness.race([op] * RACERS))

    @pytest.mark.parametrize("name", RIVALS)
    def test_one_of_many_rivals_wins(self, harness: Harness, name: str) -> None:
        kind = KINDS[name]
        identity, seen = reach(harness, kind.source, kind.on_lapse, deferred=kind.deferred)
        harness.travel(kind.wait)
        asked = [kind.make(identity, seen) for _ in range(RACERS)]
        replies = harness.race(asked)
        won = [
            op for op, reply in zip(asked, replies, strict=True) if reply.__class__ is not ops.Lost
        ]
        assert len(won) == 1
        assert existing(harness, identity).fence == getattr(won[0], "fence", seen)

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_lapse(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        asked: list[ops.StoreOperation[ops.Written]] = [complete(identity, fence)]
        asked += [ops.Lapse(identity, fence, RETENTION) for _ in range(7)]
        assert isinstance(harness.race(asked)[0], ops.Applied)
        assert existing(harness, identity).state is State.COMPLETED

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_declared_release(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE)
        harness.travel(LEASE)
        asked: list[ops.StoreOperation[ops.Written]] = [complete(identity, fence)]
        asked.append(ops.Lapse(identity, fence, RETENTION))
        completed, lapsed = (isinstance(reply, ops.Applied) for reply in harness.race(asked))
        assert completed != lapsed
        expected = State.COMPLETED if completed else State.FAILED_RETRYABLE
        assert existing(harness, identity).state is expected

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_settling(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.UNKNOWN)
        asked: list[ops.StoreOperation[ops.Written]] = [complete(identity, fence, b"late")]
        asked.append(settle_happened(identity, fence, b"settled"))
        asked.append(ops.SettleAbsent(identity, fence, new_fence(), RETENTION, ACT))
        outcomes = [isinstance(reply, ops.Applied) for reply in harness.race(asked)]
        assert outcomes.count(True) == 1
        expected = (b"late", b"settled", None)[outcomes.index(True)]
        assert existing(harness, identity).snapshot == expected

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_claims_against_forgetting(self, harness: Harness, _round: int) -> None:
        identity, old = reach(harness, State.COMPLETED)
        harness.travel(RETENTION + TOMBSTONE)
        asked: list[ops.StoreOperation[Any]] = [claim(identity, new_fence()) for _ in range(RACERS)]
        asked.insert(RACERS // 2, ops.Forget(identity, old))
        replies = harness.race(asked)
        assert isinstance(replies[RACERS // 2], ops.Applied)
        winners = [
            op.fence
            for op, reply in zip(asked, replies, strict=True)
            if isinstance(op, ops.Claim) and isinstance(reply, ops.Claimed)
        ]
        record = harness.record(identity)
        assert winners == ([record.fence] if record else [])


class Recipes:
    @pytest.fixture
    def route(self) -> str:
        return f"POST /{os.urandom(8).hex()}"

    def test_the_first_recipe_is_recorded(self, harness: Harness, route: str) -> None:
        reply = harness.perform(ops.Register(route, "r1"))
        assert isinstance(reply, ops.Registered)
        assert (reply.previous, reply.alive_until) == (None, None)
        for previous in (None, "r0"):
            again = harness.perform(ops.Register(route, "r1", previous))
            assert isinstance(again, ops.Registered)

    def test_another_recipe_is_refused(self, harness: Harness, route: str) -> None:
        harness.perform(ops.Register(route, "r1"))
        for previous in (None, "r0"):
            reply = harness.perform(ops.Register(route, "r2", previous))
            assert isinstance(reply, ops.Conflicting)
            assert (reply.recorded, reply.alive_until) == ("r1", None)

    def test_a_recipe_takes_the_place_of_its_named_previous(
        self, harness: Harness, route: str
    ) -> None:
        harness.perform(ops.Register(route, "r1"))
        changed = harness.perform(ops.Register(route, "r2", "r1", MINUTE))
        assert isinstance(changed, ops.Registered)
        assert changed.previous == "r1"
        assert near(harness, changed.alive_until, changed.now + MINUTE)
        again = harness.perform(ops.Register(route, "r2", "r1", 9 * MINUTE))
        assert isinstance(again, ops.Registered)
        assert (again.previous, again.alive_until) == ("r1", changed.alive_until)
        refused = harness.perform(ops.Register(route, "r1"))
        assert isinstance(refused, ops.Conflicting)
        assert refused.recorded == "r2"

    def test_what_is_on_record_can_be_looked_at(self, harness: Harness, route: str) -> None:
        def found() -> tuple[str | None, str | None]:
            recorded = harness.perform(ops.ReadRecipe(route))
            assert abs(recorded.now - now_of(harness)) <= max(harness.slack, MINUTE)
            return recorded.recipe, recorded.previous

        assert found() == (None, None)
        harness.perform(ops.Register(route, "r1"))
        assert found() == ("r1", None)
        changed = harness.perform(ops.Register(route, "r2", "r1", MINUTE))
        assert found() == ("r2", "r1")
        assert harness.perform(ops.ReadRecipe(route)).alive_until == changed.alive_until

    def test_a_change_can_be_rolled_back_at_once(self, harness: Harness, route: str) -> None:
        harness.perform(ops.Register(route, "r1"))
        harness.perform(ops.Register(route, "r2", "r1", MINUTE))
        back = harness.perform(ops.Register(route, "r1", "r2", 9 * MINUTE))
        assert isinstance(back, ops.Registered)
        assert back.previous == "r2"
        assert near(harness, back.alive_until, back.now + 9 * MINUTE)
        assert isinstance(harness.perform(ops.Register(route, "r3", "r1", MINUTE)), ops.Conflicting)
        forth = harness.perform(ops.Register(route, "r2", "r1", MINUTE))
        assert isinstance(forth, ops.Registered)
        assert forth.previous == "r1"

    def test_a_second_change_waits_until_the_keys_of_the_first_have_run_out(
        self, harness: Harness, route: str
    ) -> None:
        harness.perform(ops.Register(route, "r1"))
        harness.perform(ops.Register(route, "r2", "r1", MINUTE))
        early = harness.perform(ops.Register(route, "r3", "r2", MINUTE))
        assert isinstance(early, ops.Conflicting)
        assert early.recorded == "r2"
        assert early.alive_until is not None
        assert early.alive_until > early.now
        harness.travel(MINUTE)
        late = harness.perform(ops.Register(route, "r3", "r2", MINUTE))
        assert isinstance(late, ops.Registered)
        assert late.previous == "r2"

    def test_of_many_changes_one_wins_and_equal_ones_agree(
        self, harness: Harness, route: str
    ) -> None:
        replies = harness.race([ops.Register(route, "r1")] * RACERS)
        assert all(isinstance(reply, ops.Registered) for reply in replies)
        changes = [ops.Register(route, f"r2-{n}", previous="r1") for n in range(RACERS)]
        replies = harness.race(changes)
        assert [isinstance(reply, ops.Registered) for reply in replies].count(True) == 1

    def test_routes_are_apart(self, harness: Harness, route: str) -> None:
        harness.perform(ops.Register(route, "r1"))
        assert isinstance(harness.perform(ops.Register(route + " ", "r2")), ops.Registered)
