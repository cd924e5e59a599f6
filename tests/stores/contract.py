"""What every store must do. One suite; `test_contract.py` runs it on each store in each colour."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from semel.core.operations.acts import Act
from semel.core.operations.audit import Erase
from semel.core.operations.requests import (
    Accept,
    Accepted,
    Advance,
    Applied,
    Claim,
    Claimed,
    Complete,
    Conflicting,
    Evict,
    EvictUnknown,
    Fetch,
    Fetched,
    Forget,
    Found,
    Inquire,
    Lapse,
    Lost,
    NoRecord,
    Open,
    Read,
    ReadRecipe,
    Recall,
    Recalled,
    Register,
    Registered,
    Release,
    Renew,
    Resume,
    Retake,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    Stale,
    StoreOperation,
    Suspend,
    Take,
    Written,
)
from semel.core.records import Fence, Identity, Micros, OnLapse, Origin, Record, State
from semel.core.states import TABLE, RecordEvent, rule
from semel.core.stored.snapshot import LARGE, brief, is_head
from semel.errors import ConfigurationError
from semel.stores.base import due_at
from tests import canary
from tests.forms import in_proof
from tests.stores.harness import RACERS, Harness
from tests.terms import terms

MINUTE: Micros = 60_000_000
LEASE = MINUTE
RETENTION = 60 * MINUTE
TOMBSTONE = 30 * MINUTE
PATIENCE = 600 * MINUTE
REQUEST = b"POST /payments\0" + canary.BODY.encode()
ORIGIN = Origin("tenant", "POST", "/payments", "a-key-of-the-client")
SNAPSHOT = b'{"paid": "%s"}' % canary.ANSWER.encode()
ACT = Act("tests", "to see what it does")
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
) -> Claim:
    told = (identity, fence, "v1:abc", b"\0fields", ORIGIN, LEASE, on_lapse, fresh_until, request)
    return Claim(*told, TERMS.id)


def accept(
    identity: Identity,
    fence: Fence,
    *,
    on_lapse: OnLapse = OnLapse.UNKNOWN,
    fresh_until: Micros | None = None,
    patience: Micros = PATIENCE,
) -> Accept:
    told = (identity, fence, "v1:abc", b"\0fields", ORIGIN, REQUEST, patience, on_lapse)
    return Accept(*told, fresh_until, TERMS.id)


def complete(identity: Identity, fence: Fence, snapshot: bytes = SNAPSHOT) -> Complete:
    return Complete(identity, fence, snapshot, RETENTION, TOMBSTONE)


def settle_happened(identity: Identity, seen: Fence, snapshot: bytes = b"it") -> SettleHappened:
    return SettleHappened(identity, seen, new_fence(), snapshot, RETENTION, TOMBSTONE, ACT)


@dataclass(frozen=True)
class Kind:
    """One kind of write: its event in the table and how it is asked."""

    event: RecordEvent
    make: Callable[[Identity, Fence], StoreOperation[Written]]
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


KINDS = {
    "retake": Kind(
        RecordEvent.RETAKE, lambda i, f: Retake(i, f, new_fence(), LEASE), keeps_fence=False
    ),
    "take": Kind(
        RecordEvent.TAKE,
        lambda i, f: Take(i, f, new_fence(), LEASE),
        keeps_fence=False,
        deferred=True,
    ),
    "resume": Kind(
        RecordEvent.LAPSE_RESUME,
        lambda i, f: Resume(i, f, new_fence(), LEASE),
        keeps_fence=False,
        wait=LEASE,
        on_lapse=OnLapse.RESUME,
    ),
    "advance": Kind(RecordEvent.ADVANCE, lambda i, f: Advance(i, f, b"journal")),
    "renew": Kind(RecordEvent.RENEW, lambda i, f: Renew(i, f, LEASE)),
    "open": Kind(RecordEvent.ADVANCE, lambda i, f: Open(i, f, b"open receipt")),
    "complete": Kind(RecordEvent.COMPLETE, complete),
    "release": Kind(RecordEvent.RELEASE, lambda i, f: Release(i, f, RETENTION, "refused")),
    "requeue": Kind(
        RecordEvent.REQUEUE,
        lambda i, f: Release(i, f, RETENTION, "later", requeue=MINUTE),
        deferred=True,
        same_as=State.FAILED_RETRYABLE,
    ),
    "suspend": Kind(RecordEvent.SUSPEND, lambda i, f: Suspend(i, f, "timed out")),
    "lapse": Kind(RecordEvent.LAPSE, lambda i, f: Lapse(i, f, RETENTION), wait=LEASE),
    "lapse_release": Kind(
        RecordEvent.LAPSE_RELEASE,
        lambda i, f: Lapse(i, f, RETENTION),
        wait=LEASE,
        on_lapse=OnLapse.RELEASE,
        same_as=State.PENDING,
    ),
    "lapse_requeue": Kind(
        RecordEvent.LAPSE_REQUEUE,
        lambda i, f: Lapse(i, f, RETENTION),
        wait=LEASE,
        on_lapse=OnLapse.RELEASE,
        deferred=True,
        same_as=State.FAILED_RETRYABLE,
    ),
    "forget": Kind(RecordEvent.FORGET, Forget, wait=RETENTION + TOMBSTONE),
    "settle_happened": Kind(RecordEvent.SETTLE_HAPPENED, settle_happened, keeps_fence=False),
    "settle_absent": Kind(
        RecordEvent.SETTLE_ABSENT,
        lambda i, f: SettleAbsent(i, f, new_fence(), RETENTION, ACT),
        keeps_fence=False,
    ),
    "settle_call": Kind(
        RecordEvent.SETTLE_CALL,
        lambda i, f: SettleCall(i, f, new_fence(), b"result", ACT),
        keeps_fence=False,
        on_lapse=OnLapse.RESUME,
    ),
    "inquire": Kind(RecordEvent.INQUIRE, lambda i, f: Inquire(i, f, 0, MINUTE), repeats=False),
    "evict": Kind(RecordEvent.EVICT, lambda i, f: Evict(i, f, ACT)),
    "evict_unknown": Kind(
        RecordEvent.EVICT_FORCED,
        lambda i, f: EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT),
        keeps_fence=False,
    ),
    "erase": Kind(RecordEvent.ERASE, lambda i, f: Erase(i, f, ACT)),
    "free_unknown": Kind(
        RecordEvent.EVICT_FREED,
        lambda i, f: EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT, free=True),
        keeps_fence=False,
    ),
}

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
EVERY_STATE = pytest.mark.parametrize("state", State)
ROUNDS = [0, *in_proof(1, 2, 3, 4)]
"""Of a race that any order is right in: more of them find more orders."""


@contextmanager
def case(*names: object) -> Iterator[None]:
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
        assert isinstance(harness.perform(accept(identity, fence, on_lapse=on_lapse)), Accepted)
        if state is State.PENDING:
            return identity, fence
        seen, fence = fence, new_fence()
        applied(harness, Take(identity, seen, fence, LEASE))
    else:
        assert isinstance(harness.perform(claim(identity, fence, on_lapse=on_lapse)), Claimed)
    steps: dict[State, StoreOperation[Written]] = {
        State.COMPLETED: complete(identity, fence),
        State.FAILED_RETRYABLE: Release(identity, fence, RETENTION),
        State.UNKNOWN: Suspend(identity, fence),
        State.EXPIRED: Suspend(identity, fence),
    }
    if state in steps:
        applied(harness, steps[state])
    if state is State.EXPIRED:
        seen, fence = fence, new_fence()
        applied(harness, EvictUnknown(identity, seen, fence, TOMBSTONE, ACT))
    return identity, fence


def applied(harness: Harness, op: StoreOperation[Written]) -> Applied:
    reply = harness.perform(op)
    assert isinstance(reply, Applied), reply
    return reply


def lost(harness: Harness, op: StoreOperation[Written]) -> Record | None:
    reply = harness.perform(op)
    assert isinstance(reply, Lost), reply
    return reply.record


def existing(harness: Harness, identity: Identity) -> Record:
    record = harness.record(identity)
    assert record is not None
    return record


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
    told = harness.perform(Recall(identity))
    assert isinstance(told, Recalled)
    record = told.case.record
    resumable = record.on_lapse is OnLapse.RESUME
    assert kept.duty == DUTIES.get(record.state, "resume" if resumable else "lease")
    if renewed and kept.duty == "lease" and not kept.renewals_move_it:
        assert kept.due_at is not None
        assert record.leased_until is not None
        assert kept.due_at <= record.leased_until + harness.slack
    else:
        assert _alike(harness, kept.due_at, due_at(record, told.case.due_at))


def _alike(harness: Harness, one: Micros | None, other: Micros | None) -> bool:
    """A statement may read its server's clock twice."""
    return one == other if one is None or other is None else abs(one - other) <= harness.slack


class StateTable:
    """The matrix, generated from the one table that rules the states.

    A test makes a record in each state and goes through them; time passes for all of them at once.
    """

    @EVERY_KIND
    def test_a_write_does_what_the_table_says(self, harness: Harness, kind: Kind) -> None:
        for state, identity, fence in made_for(harness, kind):
            with case(state):
                self.demand_what_the_table_says(harness, kind, state, identity, fence)

    def demand_what_the_table_says(
        self, harness: Harness, kind: Kind, state: State, identity: Identity, fence: Fence
    ) -> None:
        before = existing(harness, identity)
        demand_found_in_time(harness, identity)
        op = kind.make(identity, fence)
        if rule(state, kind.event) is not None:
            assert applied(harness, op).state is kind.target
            demand_found_in_time(harness, identity, renewed=kind.event is RecordEvent.RENEW)
            after = harness.record(identity)
            assert (after and after.state) == kind.target
        elif state in (kind.target, kind.same_as) and kind.keeps_fence:
            assert applied(harness, op).state is state
            assert existing(harness, identity) == before
        else:
            assert lost(harness, op) == before
            assert existing(harness, identity) == before

    @EVERY_KIND
    def test_a_write_without_a_record_changes_nothing(self, harness: Harness, kind: Kind) -> None:
        identity = new_identity()
        reply = harness.perform(kind.make(identity, new_fence()))
        if kind.target is None:
            assert isinstance(reply, Applied)
            assert reply.state is None
        else:
            assert isinstance(reply, Lost)
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
        source = next(row.source for row in TABLE if row.event is kind.event)
        assert source is not None
        identity, fence = reach(harness, source, kind.on_lapse, deferred=kind.deferred)
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
    def test_a_claim_never_changes_a_record(self, harness: Harness, state: State) -> None:
        identity, _ = reach(harness, state)
        before = existing(harness, identity)
        reply = harness.perform(claim(identity, new_fence()))
        assert isinstance(reply, Found)
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
        assert isinstance(reply, Claimed)
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
        assert abs(record.created_at - reply.now) <= harness.slack
        assert abs(reply.leased_until - reply.now - LEASE) <= harness.slack

    def test_an_own_claim_asked_again_is_held(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        first = harness.perform(claim(identity, fence))
        harness.travel(1_000)
        again = harness.perform(claim(identity, fence))
        assert isinstance(first, Claimed)
        assert isinstance(again, Claimed)
        assert again.now > first.now or harness.slack
        assert abs(again.leased_until - first.leased_until) <= 1_000

    def test_an_own_claim_whose_lease_is_past_is_not_handed_out_again(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        reply = harness.perform(claim(identity, fence))
        assert isinstance(reply, Found)
        assert reply.record.lapsed(reply.now)

    def test_an_own_claim_that_was_released_is_found(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.FAILED_RETRYABLE)
        reply = harness.perform(claim(identity, fence))
        assert isinstance(reply, Found)
        assert reply.record.state is State.FAILED_RETRYABLE

    def test_a_key_that_is_too_old_starts_nothing(self, harness: Harness) -> None:
        identity = new_identity()
        now = now_of(harness)
        assert harness.perform(claim(identity, new_fence(), fresh_until=now - 1)) == Stale()
        assert harness.record(identity) is None

    def test_a_key_is_fresh_up_to_the_very_instant(self, harness: Harness) -> None:
        fresh_until = now_of(harness) + harness.slack
        reply = harness.perform(claim(new_identity(), new_fence(), fresh_until=fresh_until))
        assert isinstance(reply, Claimed)

    @EVERY_STATE
    def test_an_old_key_finds_its_record_all_the_same(self, harness: Harness, state: State) -> None:
        identity, _ = reach(harness, state)
        reply = harness.perform(claim(identity, new_fence(), fresh_until=1))
        assert isinstance(reply, Found)
        assert reply.record.state is state

    def test_absent_records_are_absent(self, harness: Harness) -> None:
        assert isinstance(harness.perform(Read(new_identity())), NoRecord)


def now_of(harness: Harness) -> Micros:
    reply = harness.perform(Read(new_identity()))
    assert isinstance(reply, NoRecord)
    return reply.now


class Lives:
    """Longer walks, and the edges of time."""

    def test_completion_keeps_the_answer_and_ends_the_lease(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        reply = applied(harness, complete(identity, fence, b"\0\xff answer"))
        record = existing(harness, identity)
        assert record.snapshot == b"\0\xff answer"
        assert record.fence == fence
        assert record.leased_until is None
        assert record.expires_at == reply.expires_at
        assert record.expires_at is not None
        assert abs(record.expires_at - reply.now - RETENTION) <= harness.slack
        assert record.forget_at is not None
        assert abs(record.forget_at - record.expires_at - TOMBSTONE) <= harness.slack

    def test_the_first_of_two_completions_by_one_fence_stays(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, complete(identity, fence, b"first"))
        applied(harness, complete(identity, fence, b"second"))
        assert existing(harness, identity).snapshot == b"first"

    def test_a_late_holder_completes_an_unknown_record(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        assert applied(harness, Lapse(identity, fence, RETENTION)).state is State.UNKNOWN
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
        assert lost(harness, Release(identity, fence, RETENTION)) == settled

    def test_retaking_burns_the_fence_and_forgets_the_expiry(self, harness: Harness) -> None:
        identity, old = reach(harness, State.FAILED_RETRYABLE)
        assert existing(harness, identity).forget_at is not None
        fence = new_fence()
        reply = applied(harness, Retake(identity, old, fence, LEASE, OnLapse.RELEASE))
        record = existing(harness, identity)
        assert (record.state, record.fence) == (State.IN_PROGRESS, fence)
        assert record.forget_at is None
        assert record.on_lapse is OnLapse.RELEASE
        assert record.leased_until == reply.leased_until
        assert lost(harness, complete(identity, old)) == record

    def test_a_retake_whose_lease_is_past_is_not_handed_out_again(self, harness: Harness) -> None:
        identity, old = reach(harness, State.FAILED_RETRYABLE)
        op = Retake(identity, old, new_fence(), LEASE)
        applied(harness, op)
        applied(harness, op)
        harness.travel(LEASE)
        assert lost(harness, op) == existing(harness, identity)

    def test_renewal_counts_from_now(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE // 2)
        reply = applied(harness, Renew(identity, fence, LEASE))
        assert reply.leased_until is not None
        assert abs(reply.leased_until - reply.now - LEASE) <= harness.slack
        assert existing(harness, identity).leased_until == reply.leased_until

    def test_renewal_never_revives(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        before = existing(harness, identity)
        assert lost(harness, Renew(identity, fence, LEASE)) == before
        assert existing(harness, identity) == before

    def test_a_running_lease_does_not_lapse(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE - 1 - harness.slack)
        assert lost(harness, Lapse(identity, fence, RETENTION)) == existing(harness, identity)

    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED])
    def test_a_record_is_not_forgotten_before_its_time(
        self, harness: Harness, state: State
    ) -> None:
        identity, fence = reach(harness, state)
        kept = {State.COMPLETED: RETENTION + TOMBSTONE, State.FAILED_RETRYABLE: RETENTION}
        harness.travel(kept.get(state, TOMBSTONE) - 1 - harness.slack)
        assert lost(harness, Forget(identity, fence)) == existing(harness, identity)
        harness.travel(1 + harness.slack)
        assert applied(harness, Forget(identity, fence)).state is None
        assert harness.record(identity) is None

    @pytest.mark.parametrize("state", [State.PENDING, State.IN_PROGRESS, State.UNKNOWN])
    def test_an_unsettled_record_never_becomes_free_by_time(
        self, harness: Harness, state: State
    ) -> None:
        identity, fence = reach(harness, state)
        harness.travel(100 * (RETENTION + TOMBSTONE))
        before = existing(harness, identity)
        assert (before.expires_at, before.forget_at) == (None, None)
        assert lost(harness, Forget(identity, fence)) == before
        assert lost(harness, Evict(identity, fence, ACT)) == before
        assert isinstance(harness.perform(claim(identity, new_fence())), Found)

    def test_an_open_receipt_stays_as_evidence_when_the_lease_lapses(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        assert applied(harness, Open(identity, fence, b"open")).state is State.IN_PROGRESS
        harness.travel(LEASE)
        applied(harness, Lapse(identity, fence, RETENTION))
        assert existing(harness, identity).snapshot == b"open"

    def test_a_released_record_keeps_no_open_receipt(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, Open(identity, fence, b"open"))
        applied(harness, Release(identity, fence, RETENTION))
        assert existing(harness, identity).snapshot is None

    def test_a_forgotten_key_starts_a_new_epoch(self, harness: Harness) -> None:
        identity, old = reach(harness, State.COMPLETED)
        harness.travel(RETENTION + TOMBSTONE)
        applied(harness, Forget(identity, old))
        fence = new_fence()
        assert isinstance(harness.perform(claim(identity, fence)), Claimed)
        record = existing(harness, identity)
        assert lost(harness, Forget(identity, old)) == record
        assert lost(harness, complete(identity, old)) == record

    def test_reasons_and_evidence_are_kept(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, Suspend(identity, fence, "read timed out"))
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
            assert isinstance(harness.perform(claim(identity, fence)), Claimed)
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
        assert isinstance(claimed, Found)
        refused = lost(harness, Release(identity, new_fence(), RETENTION))
        told = brief(snapshot)
        assert is_head(told) is (size > LARGE)
        for record in (claimed.record, existing(harness, identity), refused):
            assert record is not None
            assert record.snapshot == told
        assert harness.perform(Fetch(identity, fence, told)) == Fetched(snapshot)

    def test_only_the_answer_of_a_completed_record_s_own_fence_is_fetched(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.COMPLETED)
        assert isinstance(harness.perform(Fetch(identity, new_fence(), b"")), NoRecord)
        assert isinstance(harness.perform(Fetch(new_identity(), fence, b"")), NoRecord)
        assert harness.perform(Fetch(identity, fence, b"")) == Fetched(SNAPSHOT)
        opened, holder = reach(harness, State.IN_PROGRESS)
        applied(harness, Open(opened, holder, b"an open receipt"))
        assert isinstance(harness.perform(Fetch(opened, holder, b"")), NoRecord)

    def test_an_empty_snapshot_is_a_snapshot(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, complete(identity, fence, b""))
        assert existing(harness, identity).snapshot == b""

    def test_a_reason_that_no_database_can_store_is_escaped(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, Suspend(identity, fence, "é\0\ud800☃"))
        assert existing(harness, identity).reason == "é\\x00\\ud800☃"

    def test_an_origin_that_no_database_can_store_does_not_stop_a_claim(
        self, harness: Harness
    ) -> None:
        origin = Origin("té\0nant", "POST", "/\udcff", "k\0")
        op = Claim(new_identity(), new_fence(), "v1:é", b"", origin, LEASE)
        assert isinstance(harness.perform(op), Claimed)
        assert existing(harness, op.identity).fingerprint == "v1:é"

    @pytest.mark.parametrize("text", ["v1:\0", "v1:\ud800"])
    def test_a_fingerprint_that_cannot_be_kept_exactly_is_refused(
        self, harness: Harness, text: str
    ) -> None:
        op = Claim(new_identity(), new_fence(), text, b"", ORIGIN, LEASE)
        with pytest.raises(ConfigurationError):
            harness.perform(op)
        assert harness.record(op.identity) is None


class Races:
    def test_one_of_many_claims_wins(self, harness: Harness) -> None:
        identity = new_identity()
        ops = [claim(identity, new_fence()) for _ in range(RACERS)]
        replies = harness.race(ops)
        winners = [op.fence for op, reply in zip(ops, replies, strict=True) if claimed(reply)]
        assert len(winners) == 1
        seen = {reply.record.fence for reply in replies if isinstance(reply, Found)}
        assert seen == set(winners)

    def test_claims_of_many_keys_do_not_disturb_each_other(self, harness: Harness) -> None:
        ops = [claim(new_identity(), new_fence()) for _ in range(RACERS)]
        assert all(claimed(reply) for reply in harness.race(ops))
        ends = harness.race([complete(op.identity, op.fence, op.identity) for op in ops])
        assert all(isinstance(reply, Applied) for reply in ends)
        assert all(existing(harness, op.identity).snapshot == op.identity for op in ops)

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
                assert isinstance(reply, Applied)
                assert (after.state, after.snapshot) == (State.COMPLETED, b"answer of %d" % n)
            else:  # of what is completed already, its own is an earlier try
                own = right[n] and state is State.COMPLETED
                assert isinstance(reply, Applied if own else Lost)
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
        assert all(claimed(reply) for reply in replies[:8] + replies[-8:])
        assert replies[20:24] == [Stale()] * 4
        for n, (state, identity, _) in enumerate(made):
            mine = state is State.IN_PROGRESS and n % 2 == 0
            assert isinstance(replies[8 + n], Claimed if mine else Found)
            assert existing(harness, identity) == before[n]
        assert all(existing(harness, op.identity).fence == op.fence for op in new)
        assert all(harness.record(op.identity) is None for op in late)

    def test_one_claim_asked_many_times_at_once_is_one_claim(self, harness: Harness) -> None:
        op = claim(new_identity(), new_fence())
        assert all(claimed(reply) for reply in harness.race([op] * RACERS))

    def test_one_of_many_retakes_wins(self, harness: Harness) -> None:
        identity, old = reach(harness, State.FAILED_RETRYABLE)
        replies = harness.race([Retake(identity, old, new_fence(), LEASE) for _ in range(RACERS)])
        assert [isinstance(reply, Applied) for reply in replies].count(True) == 1

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_lapse(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        ops: list[StoreOperation[Written]] = [complete(identity, fence)]
        ops += [Lapse(identity, fence, RETENTION) for _ in range(7)]
        assert isinstance(harness.race(ops)[0], Applied)
        assert existing(harness, identity).state is State.COMPLETED

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_declared_release(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE)
        harness.travel(LEASE)
        ops: list[StoreOperation[Written]] = [complete(identity, fence)]
        ops.append(Lapse(identity, fence, RETENTION))
        completed, lapsed = (isinstance(reply, Applied) for reply in harness.race(ops))
        assert completed != lapsed
        expected = State.COMPLETED if completed else State.FAILED_RETRYABLE
        assert existing(harness, identity).state is expected

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_completion_against_settling(self, harness: Harness, _round: int) -> None:
        identity, fence = reach(harness, State.UNKNOWN)
        ops: list[StoreOperation[Written]] = [complete(identity, fence, b"late")]
        ops.append(settle_happened(identity, fence, b"settled"))
        ops.append(SettleAbsent(identity, fence, new_fence(), RETENTION, ACT))
        outcomes = [isinstance(reply, Applied) for reply in harness.race(ops)]
        assert outcomes.count(True) == 1
        expected = (b"late", b"settled", None)[outcomes.index(True)]
        assert existing(harness, identity).snapshot == expected

    @pytest.mark.parametrize("_round", ROUNDS)
    def test_claims_against_forgetting(self, harness: Harness, _round: int) -> None:
        identity, old = reach(harness, State.COMPLETED)
        harness.travel(RETENTION + TOMBSTONE)
        ops: list[StoreOperation[Any]] = [claim(identity, new_fence()) for _ in range(RACERS)]
        ops.insert(RACERS // 2, Forget(identity, old))
        replies = harness.race(ops)
        assert isinstance(replies[RACERS // 2], Applied)
        winners = [
            op.fence
            for op, reply in zip(ops, replies, strict=True)
            if isinstance(op, Claim) and claimed(reply)
        ]
        record = harness.record(identity)
        assert winners == ([record.fence] if record else [])


def claimed(reply: object) -> bool:
    return isinstance(reply, Claimed)


class Recipes:
    @pytest.fixture
    def route(self) -> str:
        return f"POST /{os.urandom(8).hex()}"

    def test_the_first_recipe_is_recorded(self, harness: Harness, route: str) -> None:
        reply = harness.perform(Register(route, "r1"))
        assert isinstance(reply, Registered)
        assert (reply.previous, reply.alive_until) == (None, None)

    def test_the_same_recipe_is_the_recorded_one(self, harness: Harness, route: str) -> None:
        harness.perform(Register(route, "r1"))
        assert isinstance(harness.perform(Register(route, "r1")), Registered)
        assert isinstance(harness.perform(Register(route, "r1", previous="r0")), Registered)

    def test_another_recipe_is_refused(self, harness: Harness, route: str) -> None:
        harness.perform(Register(route, "r1"))
        for previous in (None, "r0"):
            reply = harness.perform(Register(route, "r2", previous))
            assert isinstance(reply, Conflicting)
            assert (reply.recorded, reply.alive_until) == ("r1", None)

    def test_a_recipe_takes_the_place_of_its_named_previous(
        self, harness: Harness, route: str
    ) -> None:
        harness.perform(Register(route, "r1"))
        changed = harness.perform(Register(route, "r2", "r1", MINUTE))
        assert isinstance(changed, Registered)
        assert changed.previous == "r1"
        assert changed.alive_until is not None
        assert abs(changed.alive_until - changed.now - MINUTE) <= harness.slack
        again = harness.perform(Register(route, "r2", "r1", 9 * MINUTE))
        assert isinstance(again, Registered)
        assert (again.previous, again.alive_until) == ("r1", changed.alive_until)
        refused = harness.perform(Register(route, "r1"))
        assert isinstance(refused, Conflicting)
        assert refused.recorded == "r2"

    def test_what_is_on_record_can_be_looked_at(self, harness: Harness, route: str) -> None:
        def found() -> tuple[str | None, str | None]:
            recorded = harness.perform(ReadRecipe(route))
            assert abs(recorded.now - now_of(harness)) <= max(harness.slack, MINUTE)
            return recorded.recipe, recorded.previous

        assert found() == (None, None)
        harness.perform(Register(route, "r1"))
        assert found() == ("r1", None)
        changed = harness.perform(Register(route, "r2", "r1", MINUTE))
        assert found() == ("r2", "r1")
        assert harness.perform(ReadRecipe(route)).alive_until == changed.alive_until

    def test_a_change_can_be_rolled_back_at_once(self, harness: Harness, route: str) -> None:
        harness.perform(Register(route, "r1"))
        harness.perform(Register(route, "r2", "r1", MINUTE))
        back = harness.perform(Register(route, "r1", "r2", 9 * MINUTE))
        assert isinstance(back, Registered)
        assert back.previous == "r2"
        assert back.alive_until is not None
        assert abs(back.alive_until - back.now - 9 * MINUTE) <= harness.slack
        assert isinstance(harness.perform(Register(route, "r3", "r1", MINUTE)), Conflicting)
        forth = harness.perform(Register(route, "r2", "r1", MINUTE))
        assert isinstance(forth, Registered)
        assert forth.previous == "r1"

    def test_a_second_change_waits_until_the_keys_of_the_first_have_run_out(
        self, harness: Harness, route: str
    ) -> None:
        harness.perform(Register(route, "r1"))
        harness.perform(Register(route, "r2", "r1", MINUTE))
        early = harness.perform(Register(route, "r3", "r2", MINUTE))
        assert isinstance(early, Conflicting)
        assert early.recorded == "r2"
        assert early.alive_until is not None
        assert early.alive_until > early.now
        harness.travel(MINUTE)
        late = harness.perform(Register(route, "r3", "r2", MINUTE))
        assert isinstance(late, Registered)
        assert late.previous == "r2"

    def test_of_many_changes_one_wins(self, harness: Harness, route: str) -> None:
        harness.perform(Register(route, "r1"))
        replies = harness.race([Register(route, f"r2-{n}", previous="r1") for n in range(RACERS)])
        assert [isinstance(reply, Registered) for reply in replies].count(True) == 1

    def test_many_first_registrations_agree(self, harness: Harness, route: str) -> None:
        replies = harness.race([Register(route, "r1") for _ in range(RACERS)])
        assert all(isinstance(reply, Registered) for reply in replies)

    def test_routes_are_apart(self, harness: Harness, route: str) -> None:
        harness.perform(Register(route, "r1"))
        assert isinstance(harness.perform(Register(route + " ", "r2")), Registered)
