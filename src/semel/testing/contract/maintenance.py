"""What every store must do for workers, maintenance and operators.

Rounds of maintenance touch whatever is due, so each of these tests has a store of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Duty, Fence, Identity, Micros, OnLapse, Origin, State
from semel.core.states import RecordEvent
from semel.core.terms import TermsId
from semel.core.texts import shown
from semel.testing.contract.harness import RACERS, Harness
from semel.testing.contract.records import (
    ACT,
    LEASE,
    MINUTE,
    ORIGIN,
    PATIENCE,
    RETENTION,
    SNAPSHOT,
    TOMBSTONE,
    accept,
    applied,
    claim,
    complete,
    demand_found_in_time,
    existing,
    near,
    new_fence,
    new_identity,
    now_of,
    reach,
    recall,
)
from semel.testing.contract.terms import terms

ALL = 1_000
UNSETTLED = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)


def due(harness: Harness, work: ops.Work, limit: int = ALL) -> list[Identity]:
    return [case.record.identity for case in harness.perform(ops.Due(work, limit)).cases]


def browse(harness: Harness, *states: State, dead: bool = False) -> set[Identity]:
    cases = harness.perform(ops.Browse(states, ALL, dead=dead)).cases
    assert [case.record.identity for case in cases] == sorted(c.record.identity for c in cases)
    return {case.record.identity for case in cases}


def scan(harness: Harness, *states: State) -> set[Identity]:
    page = harness.perform(ops.Scan(states, ALL))
    identities = [each.identity for each in page.glimpses]
    assert identities == sorted(identities)
    assert page.until is None
    return {*identities}


def sweep(harness: Harness, limit: int = ALL) -> dict[str, int]:
    return harness.perform(ops.Sweep(limit)).counts


def abandon(harness: Harness, limit: int = ALL) -> ops.Tended:
    return harness.perform(ops.Abandon(limit, b"408"))


def reap(harness: Harness, limit: int = ALL) -> dict[str, int]:
    return harness.perform(ops.Reap(limit)).counts


def _began(
    harness: Harness, *writes: Callable[[Identity, Fence], Any], deferred: bool = False
) -> Identity:
    """A resumable operation, and what was done to it, each with the fence of the one before."""
    identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME, deferred=deferred)
    for write in writes:
        op = write(identity, fence)
        applied(harness, op)
        fence = op.fence
    return identity


Write = Callable[[Identity, Fence], Any]

RESUMABLE: dict[str, tuple[Write, ...]] = {
    "claim": (),
    "resume": (
        lambda i, f: ops.Renew(i, f, -1),  # its lease is past at once
        lambda i, f: ops.Resume(i, f, new_fence(), LEASE),
    ),
    "renew": (lambda i, f: ops.Renew(i, f, 2 * LEASE),),
    "advance": (lambda i, f: ops.Advance(i, f, b"journal"),),
    "open": (lambda i, f: ops.Open(i, f, b"open receipt"),),
    "release, retake": (
        lambda i, f: ops.Release(i, f, RETENTION),
        lambda i, f: ops.Retake(i, f, new_fence(), LEASE, OnLapse.RESUME),
    ),
    "settle_call": (ops.Suspend, lambda i, f: ops.SettleCall(i, f, new_fence(), b"result", ACT)),
    "settle_absent, retake": (
        ops.Suspend,
        lambda i, f: ops.SettleAbsent(i, f, new_fence(), RETENTION, ACT, b"without its intent"),
        lambda i, f: ops.Retake(i, f, new_fence(), LEASE, OnLapse.RESUME),
    ),
}
"""By which writes one comes to be in progress, or stays so; a worker has two ways more."""


class Duties:
    """What is listed, for whom, and when."""

    def test_an_empty_store_has_no_work(self, harness: Harness) -> None:
        for work in ops.Work:
            listed = harness.perform(ops.Due(work, ALL))
            assert (listed.cases, listed.next_due) == ((), None)
        assert sweep(harness) == abandon(harness).counts == reap(harness) == {}

    def test_an_accepted_request_is_a_workers_up_to_its_deadline(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.PENDING)
        listed = harness.perform(ops.Due(ops.Work.PENDING, ALL))
        assert (listed.cases, listed.next_due) == ((recall(harness, identity),), None)
        applied(harness, ops.Take(identity, fence, new_fence(), LEASE))
        assert due(harness, ops.Work.PENDING) == []
        reach(harness, State.PENDING)
        harness.travel(PATIENCE)
        assert due(harness, ops.Work.PENDING) == []

    def test_a_requeued_request_is_due_when_it_was_put_off_to(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Release(identity, fence, RETENTION, requeue=10 * MINUTE))
        listed = harness.perform(ops.Due(ops.Work.PENDING, ALL))
        assert listed.cases == ()
        assert near(harness, listed.next_due, listed.now + 10 * MINUTE)
        harness.travel(10 * MINUTE)
        assert due(harness, ops.Work.PENDING) == [identity]

    def test_only_a_lapsed_resumable_operation_is_the_completers(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        for other in (OnLapse.UNKNOWN, OnLapse.RELEASE):
            reach(harness, State.IN_PROGRESS, other)
        listed = harness.perform(ops.Due(ops.Work.LAPSED, ALL))
        assert listed.cases == ()
        assert near(harness, listed.next_due, listed.now + LEASE)
        harness.travel(LEASE)
        assert due(harness, ops.Work.LAPSED) == [identity]
        applied(harness, ops.Resume(identity, fence, new_fence(), LEASE))
        assert due(harness, ops.Work.LAPSED) == []

    def test_a_renewed_operation_is_not_the_completers(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        harness.travel(LEASE // 2)
        applied(harness, ops.Renew(identity, fence, LEASE))
        harness.travel(LEASE // 2)
        assert due(harness, ops.Work.LAPSED) == []
        harness.travel(LEASE // 2)
        assert due(harness, ops.Work.LAPSED) == [identity]

    def test_whatever_began_a_resumable_operation_it_is_the_completers(
        self, harness: Harness
    ) -> None:
        """And never the sweeper's: it is to go on, not to be asked about."""
        begun = {way: _began(harness, *writes) for way, writes in RESUMABLE.items()}
        begun["take"] = _began(harness, deferred=True)
        begun["requeue, take"] = _began(
            harness,
            lambda i, f: ops.Release(i, f, RETENTION, requeue=0),
            lambda i, f: ops.Take(i, f, new_fence(), LEASE),
            deferred=True,
        )
        for identity in begun.values():
            demand_found_in_time(harness, identity)
        assert due(harness, ops.Work.LAPSED) == [begun["settle_call"]]
        harness.travel(2 * LEASE)
        assert sweep(harness) == {}
        listed = due(harness, ops.Work.LAPSED)
        assert {way for way, identity in begun.items() if identity in listed} == {*begun}
        assert all(existing(harness, each).state is State.IN_PROGRESS for each in begun.values())

    @pytest.mark.parametrize("end", ["complete", "release", "suspend"])
    def test_an_ended_operation_is_not_the_completers(self, harness: Harness, end: str) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        ends: dict[str, ops.StoreOperation[object]] = {
            "complete": complete(identity, fence),
            "release": ops.Release(identity, fence, RETENTION),
            "suspend": ops.Suspend(identity, fence),
        }
        assert isinstance(harness.perform(ends[end]), ops.Applied)
        harness.travel(LEASE)
        assert due(harness, ops.Work.LAPSED) == []

    def test_an_unknown_record_is_the_reconcilers_when_it_is_due(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence, "timed out", MINUTE))
        listed = harness.perform(ops.Due(ops.Work.UNKNOWN, ALL))
        assert listed.cases == ()
        assert near(harness, listed.next_due, listed.now + MINUTE)
        harness.travel(MINUTE)
        assert due(harness, ops.Work.UNKNOWN) == [identity]
        applied(harness, ops.Inquire(identity, fence, 0, MINUTE))
        assert due(harness, ops.Work.UNKNOWN) == []
        harness.travel(MINUTE)
        applied(harness, ops.Inquire(identity, fence, 1, None))
        harness.travel(1000 * MINUTE)
        assert due(harness, ops.Work.UNKNOWN) == []

    def test_the_longest_due_come_first_and_a_full_list_says_so(self, harness: Harness) -> None:
        made: list[Identity] = []
        for _ in range(5):
            made.append(reach(harness, State.PENDING)[0])
            harness.travel(MINUTE)
        listed = harness.perform(ops.Due(ops.Work.PENDING, 3))
        assert [case.record.identity for case in listed.cases] == made[:3]
        assert listed.next_due is not None
        assert listed.next_due <= listed.now
        assert due(harness, ops.Work.PENDING) == made


class KnownRecords:
    """Whoever does not know the application and the route of a record does not get to see it."""

    OURS = terms("shop", "POST /payments", retention=RETENTION, tombstone=TOMBSTONE)
    OTHERS = (terms("shop", "POST /refunds"), terms("", "POST /payments"), terms("shop", "*"))
    KNOWN = ops.RouteScope("shop", ("POST /payments", "once mail"))

    def made(self, harness: Harness, under: TermsId, on_lapse: OnLapse) -> Identity:
        identity = new_identity()
        op = replace(claim(identity, new_fence(), on_lapse=on_lapse), terms=under)
        assert isinstance(harness.perform(op), ops.Claimed)
        return identity

    def unknown(self, harness: Harness, under: TermsId) -> Identity:
        identity = new_identity()
        op = replace(claim(identity, new_fence()), terms=under)
        harness.perform(op)
        harness.perform(ops.Suspend(identity, op.fence, "timed out", 0))
        return identity

    def agree(self, harness: Harness) -> None:
        for each in (self.OURS, *self.OTHERS):
            harness.perform(ops.Agree(each))

    def test_a_case_and_a_glimpse_have_their_terms(self, harness: Harness) -> None:
        self.agree(harness)
        ours, lost = (self.unknown(harness, under) for under in (self.OURS.id, TermsId(7)))
        assert recall(harness, ours).terms == self.OURS
        assert recall(harness, lost).terms is None
        seen = harness.perform(ops.Scan((State.UNKNOWN,), ALL)).glimpses
        assert {each.identity: each.terms for each in seen} == {ours: self.OURS, lost: None}

    def test_terms_are_agreed_to_as_often_as_one_likes(self, harness: Harness) -> None:
        replies = harness.race([ops.Agree(self.OURS)] * RACERS)
        assert {type(reply) for reply in replies} == {ops.Agreed}
        assert recall(harness, self.unknown(harness, self.OURS.id)).terms == self.OURS

    def test_only_what_is_known_is_listed(self, harness: Harness) -> None:
        self.agree(harness)
        ours = [self.unknown(harness, self.OURS.id) for _ in range(3)]
        for other in (*self.OTHERS, terms("never", "agreed to")):
            self.unknown(harness, other.id)
        harness.travel(MINUTE)
        listed = harness.perform(ops.Due(ops.Work.UNKNOWN, ALL, self.KNOWN))
        assert {case.record.identity for case in listed.cases} == {*ours}
        assert len(harness.perform(ops.Due(ops.Work.UNKNOWN, ALL)).cases) == 7
        assert (
            harness.perform(ops.Due(ops.Work.UNKNOWN, ALL, ops.RouteScope("shop", ()))).cases == ()
        )

    def test_erasing_and_retiring_keep_to_their_application(self, harness: Harness) -> None:
        self.agree(harness)
        made: dict[str, Identity] = {}
        for under in (self.OURS, self.OTHERS[1], terms("never", "agreed to")):
            op = replace(claim(new_identity(), new_fence()), terms=under.id)
            harness.perform(op)
            told = (SNAPSHOT, RETENTION, TOMBSTONE, "charge/7")
            applied(harness, ops.Complete(op.identity, op.fence, *told))
            made[under.application] = op.identity
        for application in ("shop", "", "another"):
            listed = harness.perform(
                ops.ListBelongings(ORIGIN.tenant, ALL, None, application)
            ).found
            expected = [made[application]] if application in made else []
            assert [each.identity for each in listed] == expected
            retired = harness.perform(ops.Retire("charge/7", ORIGIN.tenant, application))
            assert retired.count == len(expected)

    def test_others_do_not_fill_the_list(self, harness: Harness) -> None:
        self.agree(harness)
        for _ in range(5):
            self.unknown(harness, self.OTHERS[0].id)
        harness.travel(MINUTE)
        ours = self.unknown(harness, self.OURS.id)
        harness.travel(MINUTE)
        listed = harness.perform(ops.Due(ops.Work.UNKNOWN, 2, self.KNOWN))
        assert [case.record.identity for case in listed.cases] == [ours]

    def test_the_next_one_that_is_known_is_told(self, harness: Harness) -> None:
        self.agree(harness)
        self.made(harness, self.OTHERS[0].id, OnLapse.RESUME)
        assert harness.perform(ops.Due(ops.Work.LAPSED, ALL)).next_due is not None
        if "redis" not in harness.backend.url:  # which looks at the heads of its indexes only
            assert harness.perform(ops.Due(ops.Work.LAPSED, ALL, self.KNOWN)).next_due is None

    def test_what_is_due_is_counted_by_its_route(self, harness: Harness) -> None:
        self.agree(harness)
        for under in (self.OURS.id, self.OURS.id, self.OTHERS[1].id, TermsId(7)):
            self.unknown(harness, under)
        self.made(harness, self.OURS.id, OnLapse.UNKNOWN)  # the sweeper's, whoever that is
        self.made(harness, self.OTHERS[2].id, OnLapse.RESUME)
        harness.travel(LEASE + MINUTE)
        assert harness.perform(ops.CountDue(ALL)).routes == {
            ("shop", "POST /payments"): 2,
            ("", "POST /payments"): 1,
            ("shop", "*"): 1,
            None: 1,
        }

    def test_the_sweeper_forgets_when_the_records_own_terms_say(self, harness: Harness) -> None:
        other = terms("shop", "POST /quotes", retention=5 * RETENTION)
        harness.perform(ops.Agree(self.OURS))
        harness.perform(ops.Agree(other))
        made = [self.made(harness, under.id, OnLapse.RELEASE) for under in (self.OURS, other)]
        lost = self.made(harness, TermsId(7), OnLapse.RELEASE)
        harness.travel(LEASE)
        assert sweep(harness) == {RecordEvent.LAPSE_RELEASE.value: 2}
        times = [recall(harness, each).record for each in made]
        now = now_of(harness)
        assert near(harness, times[0].forget_at, now + RETENTION)
        assert near(harness, times[1].forget_at, now + 5 * RETENTION)
        assert recall(harness, lost).record.state is State.IN_PROGRESS  # its next request's

    def test_what_has_lost_its_terms_holds_up_no_other(self, harness: Harness) -> None:
        harness.perform(ops.Agree(self.OURS))
        for _ in range(3):
            self.made(harness, TermsId(7), OnLapse.RELEASE)
            harness.perform(replace(accept(new_identity(), new_fence()), terms=TermsId(7)))
        harness.travel(MINUTE)
        ours, deferred = self.made(harness, self.OURS.id, OnLapse.RELEASE), new_identity()
        harness.perform(replace(accept(deferred, new_fence()), terms=self.OURS.id))
        harness.travel(PATIENCE + LEASE)
        for op in (ops.Sweep(2), ops.Abandon(2, b"408")):
            while harness.perform(op).more:
                pass
        assert recall(harness, ours).record.state is State.FAILED_RETRYABLE
        assert recall(harness, deferred).record.state is State.COMPLETED

    def test_the_abandoner_keeps_its_answer_as_long_as_the_terms_say(
        self, harness: Harness
    ) -> None:
        harness.perform(ops.Agree(self.OURS))
        known, lost = new_identity(), new_identity()
        for identity, under in ((known, self.OURS.id), (lost, TermsId(7))):
            harness.perform(replace(accept(identity, new_fence()), terms=under))
        harness.travel(PATIENCE)
        assert abandon(harness).counts == {RecordEvent.ABANDON.value: 1}
        assert recall(harness, known).record.state is State.COMPLETED
        assert recall(harness, lost).record.state is State.PENDING


class Browsing:
    def test_every_state_can_be_browsed(self, harness: Harness) -> None:
        made = {state: {reach(harness, state)[0] for _ in range(2)} for state in State}
        for state in State:
            assert browse(harness, state) == made[state]
        assert browse(harness, *UNSETTLED) == set().union(*(made[state] for state in UNSETTLED))
        assert browse(harness, *State) == set().union(*made.values())
        assert browse(harness) == set()

    def test_a_page_goes_on_where_the_last_one_ended(self, harness: Harness) -> None:
        made = sorted(reach(harness, State.COMPLETED)[0] for _ in range(5))
        pages: list[Identity] = []
        after: Identity | None = None
        while cases := harness.perform(ops.Browse((State.COMPLETED,), 2, after)).cases:
            assert len(cases) <= 2
            pages += [case.record.identity for case in cases]
            after = pages[-1]
        assert pages == made

    def test_dead_letters_are_those_nobody_looks_at(self, harness: Harness) -> None:
        made = {state: reach(harness, state)[0] for state in State}  # suspended without a probe
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence, "timed out", 0))
        assert browse(harness, State.UNKNOWN, dead=True) == {made[State.UNKNOWN]}
        assert browse(harness, *State, dead=True) == {made[State.UNKNOWN]}
        assert browse(harness, State.UNKNOWN) == {made[State.UNKNOWN], identity}

    def test_a_case_shows_all_that_is_kept(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Advance(identity, fence, b"journal"))
        (case,) = harness.perform(ops.Browse((State.IN_PROGRESS,), ALL)).cases
        assert case == recall(harness, identity)

    def test_looking_changes_nothing(self, harness: Harness) -> None:
        made = [reach(harness, state)[0] for state in State]
        before = [recall(harness, identity) for identity in made]
        asked: list[ops.StoreOperation[Any]] = [ops.Due(ops.Work.PENDING, ALL)]
        asked += [ops.Due(work, ALL) for work in ops.Work]
        asked += [ops.ListNewest(duty, ALL) for duty in Duty]
        asked += [ops.Browse(tuple(State), ALL), ops.Scan(tuple(State), ALL)]
        (waiting, *_) = harness.race([*asked, *asked])
        assert waiting.cases == (before[list(State).index(State.PENDING)],)
        assert [recall(harness, identity) for identity in made] == before


class Scanning:
    def test_every_state_can_be_listed(self, harness: Harness) -> None:
        made = {state: {reach(harness, state)[0] for _ in range(2)} for state in State}
        for state in State:
            assert scan(harness, state) == made[state]
        assert scan(harness, *UNSETTLED) == set().union(*(made[state] for state in UNSETTLED))
        assert scan(harness, *State) == set().union(*made.values())

    @pytest.mark.parametrize("states", [(State.UNKNOWN,), (State.COMPLETED,), tuple(State)])
    def test_pages_are_bounded_and_end(self, harness: Harness, states: tuple[State, ...]) -> None:
        made = [reach(harness, state)[0] for _ in range(3) for state in State]
        first = list(State).index(next(iter(states)))
        wanted = sorted(made if len(states) > 1 else made[first::6])
        pages = list(harness.pages(lambda after: ops.Scan(states, 2, after)))
        assert len(pages) <= 10  # 18 records at 2 a page, and an empty one
        assert max(len(page.glimpses) for page in pages) <= 2
        assert [each.identity for page in pages for each in page.glimpses] == wanted

    def test_a_glimpse_shows_what_the_record_has(self, harness: Harness) -> None:
        for state in State:
            identity, _ = reach(harness, state)
            case = recall(harness, identity)
            record = case.record
            (seen,) = harness.perform(ops.Scan((state,), ALL)).glimpses
            assert (seen.identity, seen.state, seen.origin) == (identity, state, case.origin)
            for name in ("on_lapse", "created_at", "leased_until", "expires_at", "forget_at"):
                assert getattr(seen, name) == getattr(record, name)
            assert (seen.due_at, seen.tries, seen.reason) == (
                case.due_at,
                case.tries,
                record.reason,
            )
            assert seen.size == (None if record.snapshot is None else len(record.snapshot))


class Counting:
    def test_keys_are_counted_by_tenant_and_tombstones_are_not(self, harness: Harness) -> None:
        assert harness.perform(ops.Count(ALL)).tenants == {}
        for state in State:
            reach(harness, state)
        odd = "zoë  \0\U0001f600"
        for tenant in ("a", "A", "a ", odd, odd):
            origin = Origin(tenant, "POST", "/x", "0123456789abcdef")
            op = replace(claim(new_identity(), new_fence()), origin=origin)
            assert isinstance(harness.perform(op), ops.Claimed)
        counted = harness.perform(ops.Count(ALL))
        assert counted.until is None
        here = {"a": 1, "A": 1, "a ": 1, shown(odd): 2, shown(ORIGIN.tenant): len(State) - 1}
        assert counted.tenants == here

    def test_pages_are_bounded_and_end(self, harness: Harness) -> None:
        for _ in range(7):
            reach(harness, State.COMPLETED)
        reach(harness, State.EXPIRED)
        pages = list(harness.pages(lambda after: ops.Count(3, after)))
        counts = [sum(page.tenants.values()) for page in pages]
        assert sum(counts) == 7
        assert max(counts) <= 3
        assert 3 <= len(pages) <= 10
        places = [page.until for page in pages if page.until is not None]
        assert places == sorted({*places})


class Sweeping:
    def test_a_sweep_does_what_a_lapse_does(self, harness: Harness) -> None:
        unknown, unknown_fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Open(unknown, unknown_fence, b"open"))
        released, released_fence = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE)
        applied(harness, ops.Open(released, released_fence, b"open"))
        queued, _ = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE, deferred=True)
        resumable, _ = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        left = recall(harness, resumable)
        assert sweep(harness) == {}
        harness.travel(LEASE)
        assert sweep(harness) == {
            RecordEvent.LAPSE.value: 1,
            RecordEvent.LAPSE_RELEASE.value: 1,
            RecordEvent.LAPSE_REQUEUE.value: 1,
        }
        now = now_of(harness)
        case = recall(harness, unknown)
        assert (case.record.state, case.record.fence) == (State.UNKNOWN, unknown_fence)
        assert (case.record.snapshot, case.record.reason) == (b"open", "the lease ran out")
        assert (case.record.leased_until, case.record.forget_at) == (None, None)
        assert near(harness, case.due_at, now)
        case = recall(harness, released)
        assert case.record.state is State.FAILED_RETRYABLE
        assert (case.record.snapshot, case.record.leased_until) == (None, None)
        assert near(harness, case.record.forget_at, now + RETENTION)
        case = recall(harness, queued)
        assert case.record.state is State.PENDING
        assert near(harness, case.record.leased_until, now - LEASE + PATIENCE)
        assert near(harness, case.due_at, now)
        assert recall(harness, resumable).record.fence == left.record.fence
        assert existing(harness, resumable).state is State.IN_PROGRESS
        assert sweep(harness) == {}

    def test_what_was_swept_is_the_next_ones_duty(self, harness: Harness) -> None:
        unknown, _ = reach(harness, State.IN_PROGRESS)
        queued, _ = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE, deferred=True)
        released, _ = reach(harness, State.IN_PROGRESS, OnLapse.RELEASE)
        harness.travel(LEASE)
        sweep(harness)
        assert due(harness, ops.Work.UNKNOWN) == [unknown]
        assert due(harness, ops.Work.PENDING) == [queued]
        harness.travel(RETENTION)
        assert reap(harness) == {RecordEvent.FORGET.value: 1}
        assert harness.record(released) is None

    def test_a_renewed_lease_is_not_swept_until_it_ends(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        for _ in range(3):
            harness.travel(LEASE // 2)
            applied(harness, ops.Renew(identity, fence, LEASE))
            assert sweep(harness) == {}
        before = recall(harness, identity)
        harness.travel(LEASE // 2)
        assert sweep(harness) == {}
        assert existing(harness, identity).fence == before.record.fence
        harness.travel(LEASE // 2)
        assert sweep(harness) == {RecordEvent.LAPSE.value: 1}

    def test_a_retaken_record_is_swept_when_its_lease_ends(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Release(identity, fence, RETENTION, requeue=0))
        applied(harness, ops.Take(identity, fence, new_fence(), LEASE))
        harness.travel(LEASE - 1 - harness.slack)
        assert sweep(harness) == {}
        harness.travel(1 + harness.slack)
        assert sweep(harness) == {RecordEvent.LAPSE.value: 1}

    def test_a_completed_record_is_left_as_it_is(self, harness: Harness) -> None:
        identity, _ = reach(harness, State.COMPLETED)
        harness.travel(LEASE)
        before = recall(harness, identity)
        assert sweep(harness) == {}
        assert recall(harness, identity) == before

    def test_completed_records_never_clog_the_sweep(self, harness: Harness) -> None:
        for _ in range(5):
            reach(harness, State.COMPLETED)
        identity, _ = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        for _ in range(7):
            harness.perform(ops.Sweep(1))
        assert existing(harness, identity).state is State.UNKNOWN

    def test_resumable_operations_never_clog_the_sweep(self, harness: Harness) -> None:
        for _ in range(5):
            reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        identity, _ = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        assert sweep(harness, 1) == {RecordEvent.LAPSE.value: 1}
        assert existing(harness, identity).state is State.UNKNOWN

    def test_of_sweeps_at_once_each_record_is_swept_by_one(self, harness: Harness) -> None:
        for _ in range(20):
            reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE)
        counts = [reply.counts for reply in harness.race([ops.Sweep(ALL)] * 4)]
        assert sum(count.get(RecordEvent.LAPSE.value, 0) for count in counts) == 20

    def test_completions_and_a_sweep_at_once(self, harness: Harness) -> None:
        held = [reach(harness, State.IN_PROGRESS, OnLapse.RELEASE) for _ in range(RACERS)]
        harness.travel(LEASE)
        asked: list[ops.StoreOperation[object]] = [complete(*each) for each in held]
        asked.insert(RACERS // 2, ops.Sweep(ALL))
        replies = harness.race(asked)
        tended = replies.pop(RACERS // 2)
        assert isinstance(tended, ops.Tended)
        completed = [isinstance(reply, ops.Applied) for reply in replies].count(True)
        assert completed + tended.counts.get(RecordEvent.LAPSE_RELEASE.value, 0) == RACERS
        assert len(browse(harness, State.COMPLETED)) == completed


class Abandoning:
    def test_what_nobody_ran_in_time_is_answered(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.PENDING)
        assert abandon(harness).counts == {}
        harness.travel(PATIENCE)
        tended = abandon(harness)
        assert tended.counts == {RecordEvent.ABANDON.value: 1}
        case = recall(harness, identity)
        assert (case.record.state, case.record.fence) == (State.COMPLETED, fence)
        assert (case.record.snapshot, case.request) == (b"408", None)
        assert near(harness, case.record.expires_at, tended.now + RETENTION)
        assert near(harness, case.record.forget_at, tended.now + RETENTION + TOMBSTONE)
        assert case.due_at == case.record.expires_at
        assert abandon(harness).counts == {}

    def test_what_was_put_off_beyond_its_deadline_is_abandoned_there(
        self, harness: Harness
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS, deferred=True)
        applied(harness, ops.Release(identity, fence, RETENTION, requeue=2 * PATIENCE))
        harness.travel(PATIENCE)
        assert abandon(harness).counts == {RecordEvent.ABANDON.value: 1}
        assert existing(harness, identity).state is State.COMPLETED

    def test_what_runs_is_not_abandoned(self, harness: Harness) -> None:
        identity, _ = reach(harness, State.IN_PROGRESS, deferred=True)
        harness.travel(PATIENCE)
        assert abandon(harness).counts == {}
        assert existing(harness, identity).state is State.IN_PROGRESS

    def test_a_worker_and_the_abandoner_at_once(self, harness: Harness) -> None:
        waiting = [reach(harness, State.PENDING) for _ in range(16)]
        harness.travel(PATIENCE)
        asked: list[ops.StoreOperation[object]]
        asked = [ops.Take(identity, seen, new_fence(), LEASE) for identity, seen in waiting]
        asked.insert(8, ops.Abandon(ALL, b"408"))
        replies = harness.race(asked)
        tended = replies.pop(8)
        assert isinstance(tended, ops.Tended)
        taken = [isinstance(reply, ops.Applied) for reply in replies].count(True)
        assert taken + tended.counts.get(RecordEvent.ABANDON.value, 0) == 16

    def test_an_abandoned_record_ends_like_any_other(self, harness: Harness) -> None:
        identity, _ = reach(harness, State.PENDING)
        harness.travel(PATIENCE)
        abandon(harness)
        harness.travel(RETENTION)
        assert reap(harness) == {RecordEvent.EXPIRE.value: 1}
        harness.travel(TOMBSTONE)
        assert reap(harness) == {RecordEvent.FORGET.value: 1}
        assert harness.record(identity) is None


class Reaping:
    @pytest.mark.parametrize("swept", [True, False])
    def test_an_answer_expires_and_then_its_key_is_forgotten(
        self, harness: Harness, swept: bool
    ) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Advance(identity, fence, b"journal"))
        applied(harness, complete(identity, fence))
        passed = LEASE if swept else 0
        harness.travel(passed)
        if swept:
            sweep(harness)
        harness.travel(RETENTION - passed - 1 - harness.slack)
        assert reap(harness) == {}
        harness.travel(1 + harness.slack)
        sweep(harness)
        assert reap(harness) == {RecordEvent.EXPIRE.value: 1}
        case = recall(harness, identity)
        assert (case.record.state, case.record.fence) == (State.EXPIRED, fence)
        assert (case.record.snapshot, case.request, case.journal) == (None, None, None)
        assert case.due_at == case.record.forget_at
        assert isinstance(harness.perform(claim(identity, new_fence())), ops.Found)
        harness.travel(TOMBSTONE - 1 - harness.slack)
        assert reap(harness) == {}
        harness.travel(1 + harness.slack)
        assert reap(harness) == {RecordEvent.FORGET.value: 1}
        assert isinstance(harness.perform(claim(identity, new_fence())), ops.Claimed)

    def test_a_tombstone_keeps_what_refuses_and_what_finds_it(self, harness: Harness) -> None:
        """The identity refuses the key, the fingerprint other requests; of a person's data the
        tenant stays, by whose name it can be erased."""
        op = claim(new_identity(), new_fence())
        harness.perform(op)
        done = ops.Complete(op.identity, op.fence, SNAPSHOT, RETENTION, TOMBSTONE, "bob")
        applied(harness, done)
        before = recall(harness, op.identity)
        assert (before.record.fields, before.origin) == (op.fields, op.origin)
        harness.travel(RETENTION)
        harness.perform(ops.Reap(10))
        left = recall(harness, op.identity)
        assert left.record.state is State.EXPIRED
        assert left.record.fingerprint == op.fingerprint
        assert left.origin == replace(op.origin, key="")
        assert (left.record.fields, left.resource, left.record.snapshot) == (b"", None, None)
        assert left.due_at == left.record.forget_at
        applied(harness, ops.Erase(op.identity, op.fence, ACT))
        assert recall(harness, op.identity).origin.tenant == ""

    def test_a_place_that_the_route_says_is_told_in_full(self, harness: Harness) -> None:
        """A record that names its terms need not repeat the method and the path of their route."""
        ours = terms("shop", "POST /rides")
        harness.perform(ops.Agree(ours))
        op = claim(new_identity(), new_fence())
        left_out = replace(op, origin=replace(op.origin, method="", path=""), terms=ours.id)
        harness.perform(left_out)
        whole = replace(op.origin, method="POST", path="/rides")
        assert recall(harness, op.identity).origin == whole
        seen = harness.perform(ops.Scan(tuple(State), 10)).glimpses
        assert [each.origin for each in seen if each.identity == op.identity] == [whole]

    def test_without_a_tombstone_nothing_stays(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Complete(identity, fence, SNAPSHOT, RETENTION, 0))
        harness.travel(RETENTION)
        sweep(harness)
        reap(harness)
        assert harness.record(identity) is None

    def test_a_released_record_is_forgotten(self, harness: Harness) -> None:
        identity, _ = reach(harness, State.FAILED_RETRYABLE)
        harness.travel(RETENTION - 1 - harness.slack)
        assert reap(harness) == {}
        harness.travel(1 + harness.slack)
        assert reap(harness) == {RecordEvent.FORGET.value: 1}
        assert harness.record(identity) is None

    def test_a_tombstone_of_an_operator_is_forgotten(self, harness: Harness) -> None:
        identity, _ = reach(harness, State.EXPIRED)
        harness.travel(TOMBSTONE)
        assert reap(harness) == {RecordEvent.FORGET.value: 1}
        assert harness.record(identity) is None

    def test_nothing_unsettled_is_ever_reaped(self, harness: Harness) -> None:
        made = [reach(harness, state)[0] for state in UNSETTLED]
        made.append(reach(harness, State.IN_PROGRESS, OnLapse.RESUME)[0])
        harness.travel(1000 * (RETENTION + TOMBSTONE + PATIENCE))
        before = [recall(harness, identity) for identity in made]
        assert reap(harness) == {}
        assert [recall(harness, identity) for identity in made] == before

    def test_a_retaken_record_is_not_reaped(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.FAILED_RETRYABLE, deferred=True)
        harness.travel(RETENTION)
        applied(harness, ops.Retake(identity, fence, new_fence(), LEASE))
        assert reap(harness) == {}
        assert existing(harness, identity).state is State.IN_PROGRESS

    @pytest.mark.parametrize(
        ("state", "wait", "op", "event"),
        [
            (State.IN_PROGRESS, LEASE, ops.Sweep(2), RecordEvent.LAPSE),
            (State.PENDING, PATIENCE, ops.Abandon(2, b"408"), RecordEvent.ABANDON),
            (State.FAILED_RETRYABLE, RETENTION, ops.Reap(2), RecordEvent.FORGET),
        ],
        ids=["sweep", "abandon", "reap"],
    )
    def test_a_round_is_bounded_and_says_when_there_is_more(
        self, harness: Harness, state: State, wait: Micros, op: Any, event: RecordEvent
    ) -> None:
        for _ in range(5):
            reach(harness, state)
        harness.travel(wait)
        rounds: list[ops.Tended] = [harness.perform(op) for _ in range(3)]
        assert [each.counts[event.value] for each in rounds] == [2, 2, 1]
        assert [each.more for each in rounds] == [True, True, False]

    def test_events_are_forgotten_in_their_time(self, harness: Harness) -> None:
        for number in range(3):
            harness.perform(ops.NoteEvent("stripe", f"evt_{number}", RETENTION))
        harness.perform(ops.NoteEvent("stripe", "late", 2 * RETENTION))
        assert reap(harness) == {}
        harness.travel(RETENTION)
        rounds = [harness.perform(ops.Reap(2)) for _ in range(2)]
        assert [each.counts for each in rounds] == [{"events": 2}, {"events": 1}]
        assert [each.more for each in rounds] == [True, False]
        assert not harness.perform(ops.NoteEvent("stripe", "evt_1", None)).before
        assert harness.perform(ops.NoteEvent("stripe", "late", None)).before

    def test_claims_while_the_reaper_works(self, harness: Harness) -> None:
        old = [reach(harness, State.COMPLETED) for _ in range(RACERS)]
        harness.travel(RETENTION + TOMBSTONE)
        asked: list[ops.StoreOperation[object]] = [
            claim(identity, new_fence()) for identity, _ in old
        ]
        asked += [claim(new_identity(), new_fence()) for _ in range(RACERS)]
        asked[RACERS:RACERS] = [ops.Sweep(ALL), ops.Reap(ALL), ops.Reap(ALL)]
        replies = harness.race(asked)
        fresh = replies[RACERS + 3 :]
        assert all(isinstance(reply, ops.Claimed) for reply in fresh)
        sweep(harness)
        reap(harness)
        for op, reply in zip(asked[:RACERS], replies[:RACERS], strict=True):
            assert isinstance(op, type(claim(new_identity(), new_fence())))
            record = harness.record(op.identity)
            assert (record and record.fence) == (
                op.fence if isinstance(reply, ops.Claimed) else None
            )


class LeaderElection:
    def test_one_leads_until_its_time_is_past(self, harness: Harness) -> None:
        first, second = new_fence(), new_fence()
        led = harness.perform(ops.Lead("sweeper", first, LEASE))
        assert led.leading
        assert near(harness, led.until, led.now + LEASE)
        told = harness.perform(ops.Lead("sweeper", second, LEASE))
        assert (told.leading, told.until) == (False, led.until)
        harness.travel(LEASE - 1 - harness.slack)
        assert not harness.perform(ops.Lead("sweeper", second, LEASE)).leading
        harness.travel(1 + harness.slack)
        assert harness.perform(ops.Lead("sweeper", second, LEASE)).leading
        assert not harness.perform(ops.Lead("sweeper", first, LEASE)).leading
        assert harness.perform(ops.Lead("reaper", first, LEASE)).leading  # another office

    def test_a_leader_stays_by_coming_again(self, harness: Harness) -> None:
        first, second = new_fence(), new_fence()
        for _ in range(3):
            led = harness.perform(ops.Lead("sweeper", first, LEASE))
            assert led.leading
            assert near(harness, led.until, led.now + LEASE)
            harness.travel(LEASE // 2)
        assert not harness.perform(ops.Lead("sweeper", second, LEASE)).leading

    def test_a_leader_gives_up_by_an_end_that_is_past(self, harness: Harness) -> None:
        harness.perform(ops.Lead("sweeper", fence := new_fence(), LEASE))
        harness.perform(ops.Lead("sweeper", fence, 0))
        harness.travel(1)
        assert harness.perform(ops.Lead("sweeper", new_fence(), LEASE)).leading

    def test_who_leads_can_be_seen_without_leading(self, harness: Harness) -> None:
        assert harness.perform(ops.WhoLeads("sweeper")).until is None
        led = harness.perform(ops.Lead("sweeper", new_fence(), LEASE))
        assert harness.perform(ops.WhoLeads("sweeper")).until == led.until
        harness.travel(2 * LEASE)
        seen = harness.perform(ops.WhoLeads("sweeper"))
        assert seen.until is not None
        assert seen.until < seen.now
        assert harness.perform(ops.WhoLeads("reaper")).until is None

    def test_one_of_many_leads(self, harness: Harness) -> None:
        def elected() -> list[bool]:
            asked = [ops.Lead("sweeper", new_fence(), LEASE) for _ in range(RACERS)]
            return [reply.leading for reply in harness.race(asked)]

        assert elected().count(True) == 1
        harness.travel(LEASE)
        assert elected().count(True) == 1


class Retiring:
    def made(
        self, harness: Harness, resource: str | None, tenant: str = "tenant"
    ) -> tuple[Identity, Fence]:
        origin = Origin(tenant, "POST", "/", "key")
        op = replace(claim(new_identity(), new_fence()), origin=origin)
        harness.perform(op)
        applied(
            harness, ops.Complete(op.identity, op.fence, SNAPSHOT, RETENTION, TOMBSTONE, resource)
        )
        return op.identity, op.fence

    def test_only_what_made_the_resource_for_the_tenant_is_retired(self, harness: Harness) -> None:
        mine = [self.made(harness, "charge/7")[0] for _ in range(2)]
        others = [
            self.made(harness, "charge/8")[0],
            self.made(harness, "charge/7", "another")[0],
            self.made(harness, None)[0],
            self.made(harness, "Charge/7")[0],
        ]
        reply = harness.perform(ops.Retire("charge/7", "tenant"))
        assert reply.count == 2
        for identity in mine:
            record = existing(harness, identity)
            assert near(harness, record.retired_at, reply.now)
            assert (record.state, record.snapshot) == (State.COMPLETED, SNAPSHOT)
            found = harness.perform(claim(identity, new_fence()))
            assert isinstance(found, ops.Found)
            assert found.record == record
        assert all(existing(harness, identity).retired_at is None for identity in others)

    def test_asked_again_the_first_time_stays(self, harness: Harness) -> None:
        identity, _ = self.made(harness, "charge/7")
        harness.perform(ops.Retire("charge/7", "tenant"))
        first = existing(harness, identity)
        harness.travel(MINUTE)
        moved = MINUTE if harness.slack else 0
        assert harness.perform(ops.Retire("charge/7", "tenant")).count == 1
        again = existing(harness, identity)
        assert first.retired_at is not None
        assert again.retired_at == first.retired_at - moved

    def test_long_names_that_begin_alike_are_apart(self, harness: Harness) -> None:
        long = "r" * 3000
        mine, _ = self.made(harness, long + "1")
        other, _ = self.made(harness, long + "2")
        assert harness.perform(ops.Retire(long + "1", "tenant")).count == 1
        assert existing(harness, mine).retired_at is not None
        assert existing(harness, other).retired_at is None

    def test_what_is_not_completed_is_not_retired(self, harness: Harness) -> None:
        identity, _ = self.made(harness, "charge/7")
        harness.travel(RETENTION)
        sweep(harness)
        reap(harness)
        assert harness.perform(ops.Retire("charge/7", "tenant")).count == 0
        assert existing(harness, identity).retired_at is None
