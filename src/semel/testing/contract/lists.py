"""What every store must do for lists that people look at. Each test has a store of its own."""

from __future__ import annotations

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Duty, Identity, Micros, OnLapse, State, duty_of
from semel.core.stored import snapshot
from semel.stores.encryption import EncryptedBackend
from semel.testing.contract.harness import Harness
from semel.testing.contract.outbox import put
from semel.testing.contract.records import (
    LEASE,
    MINUTE,
    RETENTION,
    TERMS,
    applied,
    claim,
    complete,
    near,
    new_fence,
    new_identity,
    now_of,
    reach,
)
from semel.testing.contract.terms import terms

ALL = 1_000
EVERY_DUTY = pytest.mark.parametrize("duty", Duty)

_WAYS: dict[Duty, tuple[State, OnLapse]] = {
    Duty.LEASE: (State.IN_PROGRESS, OnLapse.UNKNOWN),
    Duty.RESUME: (State.IN_PROGRESS, OnLapse.RESUME),
    Duty.RUN: (State.PENDING, OnLapse.UNKNOWN),
    Duty.ASK: (State.UNKNOWN, OnLapse.UNKNOWN),
    Duty.EXPIRE: (State.COMPLETED, OnLapse.UNKNOWN),
    Duty.FORGET: (State.FAILED_RETRYABLE, OnLapse.UNKNOWN),
}


def made(harness: Harness, duty: Duty) -> Identity:
    """A record of this duty; it has a time, if it is to be asked about."""
    if duty is not Duty.ASK:
        return reach(harness, *_WAYS[duty])[0]
    identity, fence = reach(harness, State.IN_PROGRESS)
    applied(harness, ops.Suspend(identity, fence, "timed out", 0))
    return identity


def newest(harness: Harness, duty: Duty, limit: int = ALL) -> list[ops.Placed]:
    """All of a duty, read by pages."""
    pages = list(harness.pages(lambda before: ops.ListNewest(duty, limit, before)))
    assert max(len(page.found) for page in pages) <= limit
    ranks = [rank(page.until) for page in pages if page.until is not None]
    assert ranks == sorted({*ranks}, reverse=True)
    return [each for page in pages for each in page.found]


def rank(place: ops.DuePlace) -> tuple[Micros, Identity]:
    return -1 if place.due_at is None else place.due_at, place.identity


def identities(found: list[ops.Placed]) -> list[Identity]:
    return [each.glimpse.identity for each in found]


class NewestFirst:
    """Records of one duty, latest due first."""

    def test_every_record_is_listed_under_its_duty_and_no_other(self, harness: Harness) -> None:
        ways = [(state, lapse) for state in State for lapse in (OnLapse.UNKNOWN, OnLapse.RESUME)]
        there: dict[Duty, set[Identity]] = {duty: set() for duty in Duty}
        for state, lapse in ways:
            there[duty_of(state, lapse)].add(reach(harness, state, lapse)[0])
        for duty in Duty:
            found = newest(harness, duty)
            assert {*identities(found)} == there[duty]
            assert len(found) == len(there[duty])

    @EVERY_DUTY
    def test_what_came_last_comes_first(self, harness: Harness, duty: Duty) -> None:
        came: list[Identity] = []
        for _ in range(4):
            came.append(made(harness, duty))
            harness.travel(LEASE // 8)
        assert identities(newest(harness, duty)) == came[::-1]

    @EVERY_DUTY
    @pytest.mark.parametrize("limit", [1, 3, 4, 9])
    def test_pages_lose_and_repeat_nothing(self, harness: Harness, duty: Duty, limit: int) -> None:
        """Where the clock is the test's own, most of them are of the same time."""
        for n in range(9):
            made(harness, duty)
            harness.travel(MINUTE if n == 4 else 0)
        found = newest(harness, duty, limit)
        assert [each.place for each in found] == [
            each.place for each in sorted(newest(harness, duty), key=lambda it: rank(it.place))
        ][::-1]
        assert len({*identities(found)}) == 9

    @pytest.mark.parametrize("limit", [1, 2, 5, 7])
    def test_dead_letters_come_last_by_identity(self, harness: Harness, limit: int) -> None:
        dead = [reach(harness, State.UNKNOWN)[0] for _ in range(4)]
        asked = [made(harness, Duty.ASK) for _ in range(3)]
        found = newest(harness, Duty.ASK, limit)
        assert {*identities(found)[:3]} == {*asked}
        assert identities(found)[3:] == sorted(dead, reverse=True)
        assert [each.place.due_at for each in found[3:]] == [None] * 4

    @EVERY_DUTY
    def test_a_page_may_begin_at_a_place_that_is_not_taken(
        self, harness: Harness, duty: Duty
    ) -> None:
        came: list[Identity] = []
        for _ in range(3):
            came.append(made(harness, duty))
            harness.travel(LEASE // 8)
        last, middle, _ = (each.place for each in newest(harness, duty))
        assert last.due_at is not None
        assert middle.due_at is not None

        def after(due_at: Micros, identity: bytes) -> list[Identity]:
            place = ops.DuePlace(due_at, Identity(identity))
            return identities(list(harness.perform(ops.ListNewest(duty, ALL, place)).found))

        nobody, everybody = bytes(32), b"\xff" * 32
        assert after(middle.due_at, everybody) == came[1::-1]
        assert after(middle.due_at, nobody) == came[:1]
        assert after(middle.due_at + 1, nobody) == came[1::-1]
        assert after(last.due_at + MINUTE, nobody) == came[::-1]
        assert after(0, everybody) == []

    def test_paging_ends_while_records_come_and_change(self, harness: Harness) -> None:
        for _ in range(5):
            made(harness, Duty.EXPIRE)
        harness.travel(MINUTE // 10)
        held = [reach(harness, State.IN_PROGRESS) for _ in range(5)]
        there = {*identities(newest(harness, Duty.EXPIRE))}
        seen: list[Identity] = []
        before: ops.DuePlace | None = None
        for identity, fence in held:  # each comes to the head of the list that is being read
            page = harness.perform(ops.ListNewest(Duty.EXPIRE, 1, before))
            seen += identities(list(page.found))
            before = page.until
            applied(harness, complete(identity, fence))
        assert {*seen} == there
        assert before is None or not harness.perform(ops.ListNewest(Duty.EXPIRE, 1, before)).found

    def test_its_place_is_the_one_in_the_index(self, harness: Harness) -> None:
        for duty in Duty:
            identity = made(harness, duty)
            (found,) = newest(harness, duty)
            kept = harness.kept(identity)
            if kept is not None:
                assert (kept.duty, found.place.due_at) == (duty, kept.due_at)

    def test_a_glimpse_is_that_of_other_lists(self, harness: Harness) -> None:
        for state in State:
            identity, _ = reach(harness, state)
            (seen,) = harness.perform(ops.Scan((state,), ALL)).glimpses
            (found,) = [
                each
                for each in newest(harness, duty_of(state, OnLapse.UNKNOWN))
                if each.glimpse.identity == identity
            ]
            assert found.glimpse == seen

    def test_a_glimpse_tells_the_resource(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.IN_PROGRESS)
        answer = snapshot.encode_whole(201, (), b"{}")
        op = ops.Complete(identity, fence, answer, RETENTION, RETENTION, resource="charge/7")
        applied(harness, op)
        (found,) = newest(harness, Duty.EXPIRE)
        assert found.glimpse.resource == "charge/7"
        # Encrypted, it is no list's to know.
        sealed = isinstance(harness.backend, EncryptedBackend)
        assert found.glimpse.status == (None if sealed else 201)

    def test_terms_are_listed(self, harness: Harness) -> None:
        others = [terms(route=f"POST /{n}", retention=n * MINUTE) for n in range(3)]
        for each in others:
            harness.perform(ops.Agree(each))
        known = harness.perform(ops.ListTerms(ALL)).terms
        assert {*others} <= {*known}
        assert len(harness.perform(ops.ListTerms(2)).terms) == 2


# ── counts ────────────────────────────────────────────────────────────────────────────────────────


class CountingForPeople:
    """What is unsettled by its kind; all records by route and state."""

    def test_an_empty_store(self, harness: Harness) -> None:
        assert [newest(harness, duty) for duty in Duty] == [[]] * len(Duty)
        none = ops.KindCount(0, None)
        counts = harness.perform(ops.CountUnsettled(ALL))
        assert (counts.pending, counts.in_progress, counts.lapsed) == (none, none, none)
        assert (counts.unknown, counts.dead) == (none, none)
        sampled = harness.perform(ops.SampleRecords(ALL, 0))
        assert (sampled.groups, sampled.until) == ((), None)

    def test_what_is_unsettled_is_counted_by_its_kind(self, harness: Harness) -> None:
        for state in State:
            reach(harness, state)  # the unknown one is a dead letter
        reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        made(harness, Duty.ASK)
        counts = harness.perform(ops.CountUnsettled(ALL))
        kinds = counts.pending, counts.in_progress, counts.lapsed, counts.unknown, counts.dead
        assert [kind.count for kind in kinds] == [1, 2, 0, 1, 1]
        assert [kind.oldest is None for kind in kinds] == [False, False, True, False, False]
        harness.travel(LEASE + MINUTE)
        late = made(harness, Duty.LEASE)
        counts = harness.perform(ops.CountUnsettled(ALL))
        assert (counts.in_progress.count, counts.lapsed.count) == (3, 2)
        oldest, newest_made = counts.in_progress.oldest, harness.record(late)
        assert newest_made is not None
        assert oldest is not None
        assert near(harness, oldest + LEASE + MINUTE, newest_made.created_at)

    def test_counts_are_bounded(self, harness: Harness) -> None:
        for _ in range(4):
            made(harness, Duty.RUN)
            reach(harness, State.UNKNOWN)[0]
        counts = harness.perform(ops.CountUnsettled(3))
        assert (counts.pending.count, counts.dead.count) == (3, 3)

    def test_a_sample_counts_records_by_route_and_state(self, harness: Harness) -> None:
        for state in (State.COMPLETED, State.COMPLETED, State.UNKNOWN):
            reach(harness, state)
        nobody = replace(claim(new_identity(), new_fence()), terms=terms(route="POST /other").id)
        assert isinstance(harness.perform(nobody), ops.Claimed)
        now = now_of(harness)
        sampled = harness.perform(ops.SampleRecords(ALL, now - MINUTE))
        known = (TERMS.application, TERMS.route)
        assert {
            (each.application, each.route, each.state): (each.count, each.recent)
            for each in sampled.groups
        } == {
            (*known, State.COMPLETED): (2, 2),
            (*known, State.UNKNOWN): (1, 1),
            (None, None, State.IN_PROGRESS): (1, 1),
        }
        assert all(each.oldest <= each.newest <= sampled.now for each in sampled.groups)
        harness.travel(2 * MINUTE)
        later = harness.perform(ops.SampleRecords(ALL, now_of(harness) - MINUTE))
        assert sum(each.recent for each in later.groups) == 0
        assert later.looked == 4

    def test_a_sample_is_a_run_of_identities(self, harness: Harness) -> None:
        there = sorted(reach(harness, State.COMPLETED)[0] for _ in range(7))
        sampled = harness.perform(ops.SampleRecords(3, 0, there[0]))
        assert (sampled.looked, sampled.until) == (3, there[3])
        rest = harness.perform(ops.SampleRecords(ALL, 0, there[3]))
        assert (rest.looked, rest.until) == (3, None)


# ── effects ───────────────────────────────────────────────────────────────────────────────────────


def settle(harness: Harness, *keys: str, dead: bool) -> None:
    """All that is due is taken; these are delivered or given up, one after the other."""
    fence = new_fence()
    taken = harness.perform(ops.TakeEffects(fence, ("mail", "sms"), ALL, LEASE)).effects
    assert {each.key for each in taken} >= {*keys}
    for key in keys:
        if dead:
            op: ops.StoreOperation[ops.EffectWritten] = ops.MarkFailed(key, fence, "no", None)
        else:
            op = ops.MarkDelivered(key, fence, None, RETENTION)
        assert harness.perform(op).applied
        harness.travel(MINUTE // 10)


def newest_effects(
    harness: Harness, shelf: ops.Shelf, limit: int = ALL, name: str | None = None
) -> list[str]:
    found: list[str] = []
    for page in harness.pages(lambda before: ops.ListNewestEffects(shelf, limit, name, before)):
        assert len(page.effects) <= page.looked <= limit
        found += [each.key for each in page.effects]
    return found


EVERY_LIMIT = pytest.mark.parametrize("limit", [1, 2, 5, ALL])


class NewestEffectsFirst:
    """Effects of one shelf, latest due first."""

    @EVERY_LIMIT
    def test_waiting_ones_by_when_they_may_be_tried(self, harness: Harness, limit: int) -> None:
        put(harness, "b", "a", "c")
        put(harness, "later", delay=MINUTE)
        harness.travel(MINUTE // 2)
        put(harness, "d")
        assert newest_effects(harness, ops.Shelf.WAITING, limit) == ["later", "d", "c", "a", "b"]

    @EVERY_LIMIT
    @pytest.mark.parametrize(
        ("shelf", "listed"),
        [(ops.Shelf.DEAD, ["c", "a", "b"]), (ops.Shelf.DELIVERED, ["b", "a", "c"])],
    )
    def test_dead_ones_as_they_were_written_and_others_by_their_delivery(
        self, harness: Harness, limit: int, shelf: ops.Shelf, listed: list[str]
    ) -> None:
        put(harness, "b", "a", "c", "waits")
        settle(harness, "c", "a", "b", dead=shelf is ops.Shelf.DEAD)
        assert newest_effects(harness, shelf, limit) == listed

    @EVERY_LIMIT
    @pytest.mark.parametrize("shelf", ops.Shelf)
    def test_of_one_name_only(self, harness: Harness, shelf: ops.Shelf, limit: int) -> None:
        for n in range(3):
            put(harness, f"mail {n}")
            put(harness, f"sms {n}", name="sms")
        every = [f"{name} {n}" for n in range(3) for name in ("mail", "sms")]
        if shelf is not ops.Shelf.WAITING:
            settle(harness, *every, dead=shelf is ops.Shelf.DEAD)
        assert newest_effects(harness, shelf, limit, "sms") == ["sms 2", "sms 1", "sms 0"]
        assert newest_effects(harness, shelf, limit, "no such\0") == []
        assert newest_effects(harness, shelf, limit) == every[::-1]

    def test_an_effect_is_told_whole(self, harness: Harness) -> None:
        put(harness, "key")
        (seen,) = harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, ALL)).effects
        page = harness.perform(ops.ListNewestEffects(ops.Shelf.WAITING, ALL))
        assert page.effects == (seen,)
        assert seen.payload == b"key"
        assert page.until is None

    def test_what_waits_and_what_is_dead_is_counted(self, harness: Harness) -> None:
        none = ops.KindCount(0, None)
        counts = harness.perform(ops.CountEffects(ALL))
        assert (counts.waiting, counts.dead) == (none, none)
        assert [newest_effects(harness, shelf) for shelf in ops.Shelf] == [[]] * len(ops.Shelf)
        put(harness, "a")
        harness.travel(MINUTE)
        put(harness, "b", "c")
        settle(harness, "b", "c", dead=True)
        put(harness, "delivered")
        settle(harness, "delivered", dead=False)
        put(harness, "d")
        put(harness, "later", delay=MINUTE)
        counts = harness.perform(ops.CountEffects(ALL))
        assert (counts.waiting.count, counts.dead.count) == (3, 2)
        assert counts.waiting.oldest is not None
        assert counts.dead.oldest is not None
        assert near(harness, counts.waiting.oldest + MINUTE, counts.dead.oldest)
        counts = harness.perform(ops.CountEffects(1))
        assert (counts.waiting.count, counts.dead.count) == (1, 1)
