"""What every store must do for the outbox and for events. Each test has a store of its own."""

from __future__ import annotations

import os

import pytest

from semel.core import operations as ops
from semel.core.records import Effect, Fence, Identity
from semel.errors import ConfigurationError
from semel.testing.contract.harness import RACERS, Harness
from semel.testing.contract.records import (
    ACT,
    LEASE,
    MINUTE,
    RETENTION,
    near,
    new_fence,
    new_identity,
)

ALL = 1_000
MAIL = ("mail",)


def put(
    harness: Harness, *keys: str, name: str = "mail", order: str | None = None, delay: int = 0
) -> None:
    for key in keys:
        op = ops.Enqueue(key, new_identity(), name, key.encode(), order, delay)
        assert harness.perform(op).applied


def take(harness: Harness, fence: Fence | None = None, limit: int = ALL) -> ops.Effects:
    return harness.perform(ops.TakeEffects(fence or new_fence(), MAIL, limit, LEASE))


def taken(harness: Harness, *keys: str, order: str | None = None) -> Fence:
    """The fence of a worker that has taken these effects, which are new."""
    put(harness, *keys, order=order)
    fence = new_fence()
    assert [each.key for each in take(harness, fence).effects] == [*keys]
    return fence


def keys(effects: ops.Effects) -> list[str]:
    return [effect.key for effect in effects.effects]


def browse(harness: Harness, shelf: ops.Shelf) -> list[str]:
    return keys(harness.perform(ops.BrowseEffects(shelf, ALL)))


def deliver(harness: Harness, key: str, fence: Fence, provider_id: str | None = None) -> bool:
    return harness.perform(ops.MarkDelivered(key, fence, provider_id, RETENTION)).applied


def fail(harness: Harness, key: str, fence: Fence, again_in: int | None = MINUTE) -> bool:
    return harness.perform(ops.MarkFailed(key, fence, "refused", again_in)).applied


def dead(harness: Harness, key: str, order: str | None = None) -> Fence:
    fence = taken(harness, key, order=order)
    assert fail(harness, key, fence, None)
    return fence


class Taking:
    def test_what_was_written_is_taken(self, harness: Harness) -> None:
        identity, payload = Identity(new_identity()), os.urandom(100_000)
        kept = harness.perform(ops.Enqueue("key", identity, "mail", payload, "order"))
        assert kept.applied
        (effect,) = take(harness).effects
        assert effect == Effect(
            *("key", identity, "mail", payload, "order", 1, effect.created_at),
            due_at=effect.due_at,
            leased_until=effect.leased_until,
        )
        assert near(harness, effect.due_at, kept.now + LEASE)
        assert near(harness, effect.leased_until, kept.now + LEASE)
        assert near(harness, effect.created_at, kept.now)

    def test_a_key_is_written_once(self, harness: Harness) -> None:
        put(harness, "key")
        assert not harness.perform(ops.Enqueue("key", None, "other", b"other")).applied
        (effect,) = take(harness).effects
        assert (effect.name, effect.payload) == ("mail", b"key")

    def test_of_many_that_write_one_key_one_does(self, harness: Harness) -> None:
        replies = harness.race([ops.Enqueue("key", None, "mail", b"")] * RACERS)
        assert [reply.applied for reply in replies].count(True) == 1

    def test_an_empty_outbox(self, harness: Harness) -> None:
        taken = take(harness)
        assert (taken.effects, taken.next_due) == ((), None)

    def test_the_oldest_come_first(self, harness: Harness) -> None:
        put(harness, "c", "a", "b")
        first = take(harness, limit=2)
        assert keys(first) == ["c", "a"]
        assert first.next_due is not None
        assert first.next_due <= first.now
        assert keys(take(harness, limit=2)) == ["b"]

    def test_what_is_put_off_is_not_taken_before(self, harness: Harness) -> None:
        put(harness, "later", delay=10 * MINUTE)
        early = take(harness)
        assert early.effects == ()
        assert near(harness, early.next_due, early.now + 10 * MINUTE)
        harness.travel(10 * MINUTE)
        assert keys(take(harness)) == ["later"]

    def test_a_worker_takes_only_what_it_can_deliver(self, harness: Harness) -> None:
        put(harness, "mail")
        put(harness, "sms", name="sms")
        put(harness, "push", name="push", delay=MINUTE)
        assert keys(take(harness)) == ["mail"]
        assert harness.perform(ops.TakeEffects(new_fence(), (), ALL, LEASE)).effects == ()
        both = harness.perform(ops.TakeEffects(new_fence(), ("sms", "push"), ALL, LEASE))
        assert keys(both) == ["sms"]

    def test_what_is_taken_is_nobody_elses_until_the_lease_ends(self, harness: Harness) -> None:
        put(harness, "key")
        take(harness)
        again = take(harness)
        assert again.effects == ()
        assert near(harness, again.next_due, again.now + LEASE)
        harness.travel(LEASE - 1 - harness.slack)
        assert take(harness).effects == ()
        harness.travel(1 + harness.slack)
        (effect,) = take(harness).effects
        assert effect.tries == 2

    def test_workers_at_once_take_different_effects(self, harness: Harness) -> None:
        put(harness, *[f"{n:02}" for n in range(40)])
        asked = [ops.TakeEffects(new_fence(), MAIL, 10, LEASE) for _ in range(8)]
        taken = [key for reply in harness.race(asked) for key in keys(reply)]
        assert len(taken) == len(set(taken))
        while more := keys(take(harness)):
            taken += more
        assert sorted(taken) == [f"{n:02}" for n in range(40)]

    def test_a_renewed_lease_keeps_others_away(self, harness: Harness) -> None:
        put(harness, "a", "b", "c")
        fence, other = new_fence(), new_fence()
        take(harness, fence, 2)
        take(harness, other)
        harness.travel(LEASE // 2)
        assert harness.perform(ops.RenewEffects(fence, LEASE)).applied
        harness.travel(LEASE // 2)
        assert keys(take(harness)) == ["c"]
        harness.travel(LEASE // 2)
        assert keys(take(harness)) == ["a", "b"]

    def test_a_lease_that_is_past_is_not_renewed(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        harness.travel(LEASE)
        assert not harness.perform(ops.RenewEffects(fence, LEASE)).applied
        assert keys(take(harness)) == ["key"]

    def test_there_is_nothing_to_renew_when_all_is_done(self, harness: Harness) -> None:
        fence = taken(harness, "done", "failed")
        deliver(harness, "done", fence)
        fail(harness, "failed", fence, 10 * MINUTE)
        assert not harness.perform(ops.RenewEffects(fence, LEASE)).applied


class Ordered:
    """Effects of one order are delivered one after the other."""

    def test_a_later_one_waits_for_the_one_before(self, harness: Harness) -> None:
        put(harness, "1", "2", order="a")
        put(harness, "x")
        fence = new_fence()
        assert keys(take(harness, fence)) == ["1", "x"]
        assert take(harness).effects == ()
        assert deliver(harness, "1", fence)
        assert keys(take(harness)) == ["2"]

    def test_a_later_one_waits_for_a_retry(self, harness: Harness) -> None:
        put(harness, "1", "2", order="a")
        fence = new_fence()
        take(harness, fence)
        fail(harness, "1", fence, MINUTE)
        waiting = take(harness)
        assert waiting.effects == ()
        assert near(harness, waiting.next_due, waiting.now + MINUTE)
        harness.travel(MINUTE)
        assert keys(take(harness)) == ["1"]

    def test_a_later_one_waits_for_one_that_is_put_off(self, harness: Harness) -> None:
        put(harness, "1", order="a", delay=MINUTE)
        put(harness, "2", order="a")
        assert take(harness).effects == ()
        harness.travel(MINUTE)
        assert keys(take(harness)) == ["1"]

    def test_a_later_one_waits_when_a_lease_is_past(self, harness: Harness) -> None:
        put(harness, "1", "2", order="a")
        take(harness)
        harness.travel(LEASE)
        assert keys(take(harness)) == ["1"]

    def test_a_later_one_waits_for_one_this_worker_cannot_deliver(self, harness: Harness) -> None:
        put(harness, "1", name="sms", order="a")
        put(harness, "2", order="a")
        assert take(harness).effects == ()

    def test_a_dead_one_steps_aside(self, harness: Harness) -> None:
        dead(harness, "1", "a")
        put(harness, "2", order="a")
        assert keys(take(harness)) == ["2"]

    def test_a_dead_one_that_is_tried_again_waits_for_what_is_under_way(
        self, harness: Harness
    ) -> None:
        dead(harness, "1", "a")
        put(harness, "2", "3", order="a")
        fence = new_fence()
        assert keys(take(harness, fence)) == ["2"]
        assert harness.perform(ops.Requeue("1", ACT)).applied
        assert take(harness).effects == ()
        deliver(harness, "2", fence)
        assert keys(take(harness)) == ["1"]

    def test_orders_do_not_wait_for_each_other(self, harness: Harness) -> None:
        for order in ("a", "b", None):
            put(harness, f"{order}1", f"{order}2", order=order)
        assert keys(take(harness)) == ["a1", "b1", "None1", "None2"]

    def test_workers_at_once_take_one_of_each_order(self, harness: Harness) -> None:
        for order in ("a", "b", "c"):
            put(harness, *[f"{order}{n}" for n in range(5)], order=order)
        done: list[str] = []
        for _ in range(5):
            fences = [new_fence() for _ in range(6)]
            replies = harness.race([ops.TakeEffects(fence, MAIL, 2, LEASE) for fence in fences])
            taken = [
                (key, fence)
                for fence, reply in zip(fences, replies, strict=True)
                for key in keys(reply)
            ]
            assert len({key[0] for key, _ in taken}) == len(taken)
            done += [key for key, fence in taken if deliver(harness, key, fence)]
        while more := take(harness, fence := new_fence()).effects:
            done += [effect.key for effect in more if deliver(harness, effect.key, fence)]
        for order in ("a", "b", "c"):
            assert [key for key in done if key[0] == order] == [f"{order}{n}" for n in range(5)]


class Delivering:
    def test_a_delivered_effect_is_done(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert deliver(harness, "key", fence, "msg_1")
        (effect,) = harness.perform(ops.BrowseEffects(ops.Shelf.DELIVERED, ALL)).effects
        assert (effect.provider_id, effect.error, effect.dead_at) == ("msg_1", None, None)
        assert effect.delivered_at is not None
        harness.travel(LEASE)
        assert take(harness).effects == ()
        assert browse(harness, ops.Shelf.WAITING) == []

    def test_once_delivered_it_is_forgotten_in_its_time(self, harness: Harness) -> None:
        for key in ("key", "waiting"):
            put(harness, key)
        fence = new_fence()
        take(harness, fence, limit=1)
        assert deliver(harness, "key", fence)
        assert harness.perform(ops.Reap(ALL)).counts == {}
        harness.travel(RETENTION)
        assert harness.perform(ops.Reap(ALL)).counts == {"effects": 1}
        assert harness.perform(ops.Enqueue("key", None, "mail", b"")).applied
        assert not harness.perform(ops.Enqueue("waiting", None, "mail", b"")).applied

    def test_told_again_it_is_delivered_once(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert deliver(harness, "key", fence, "first")
        assert deliver(harness, "key", fence, "second")
        (effect,) = harness.perform(ops.BrowseEffects(ops.Shelf.DELIVERED, ALL)).effects
        assert effect.provider_id == "first"

    def test_whoever_lost_it_does_not_deliver_it(self, harness: Harness) -> None:
        put(harness, "key")
        old, new = new_fence(), new_fence()
        take(harness, old)
        harness.travel(LEASE)
        take(harness, new)
        assert not deliver(harness, "key", old)
        assert not fail(harness, "key", old)
        assert not fail(harness, "key", old, None)
        assert browse(harness, ops.Shelf.WAITING) == ["key"]
        assert deliver(harness, "key", new)
        assert not deliver(harness, "key", old)

    def test_late_is_good_enough_while_nobody_else_has_it(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        harness.travel(10 * LEASE)
        assert deliver(harness, "key", fence)

    @pytest.mark.parametrize("again_in", [MINUTE, None])
    def test_that_it_was_delivered_after_all_is_evidence(
        self, harness: Harness, again_in: int | None
    ) -> None:
        fence = taken(harness, "key")
        assert fail(harness, "key", fence, again_in)
        assert deliver(harness, "key", fence)
        assert browse(harness, ops.Shelf.DELIVERED) == ["key"]
        assert not fail(harness, "key", fence)

    def test_what_is_not_there_is_not_delivered(self, harness: Harness) -> None:
        assert not deliver(harness, "nothing", new_fence())
        assert not fail(harness, "nothing", new_fence())
        put(harness, "never taken")
        assert not deliver(harness, "never taken", new_fence())
        assert not fail(harness, "never taken", new_fence())

    def test_a_failed_effect_is_tried_again_in_its_time(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert fail(harness, "key", fence, 10 * MINUTE)
        early = take(harness)
        assert early.effects == ()
        assert near(harness, early.next_due, early.now + 10 * MINUTE)
        harness.travel(10 * MINUTE)
        (effect,) = take(harness).effects
        assert (effect.tries, effect.error) == (2, "refused")

    def test_a_failure_told_twice_is_one_failure(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert fail(harness, "key", fence, MINUTE)
        assert fail(harness, "key", fence, 100 * MINUTE)
        assert fail(harness, "key", fence, None)
        harness.travel(MINUTE)
        assert keys(take(harness)) == ["key"]

    def test_a_dead_letter_stays_until_somebody_looks(self, harness: Harness) -> None:
        fence = dead(harness, "key")
        harness.travel(1000 * RETENTION)
        assert take(harness).effects == ()
        (effect,) = harness.perform(ops.BrowseEffects(ops.Shelf.DEAD, ALL)).effects
        assert (effect.tries, effect.error) == (1, "refused")
        assert effect.dead_at is not None
        assert fail(harness, "key", fence, None)

    def test_an_error_that_no_database_can_store_is_escaped(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert harness.perform(ops.MarkFailed("key", fence, "é\0\ud800", MINUTE)).applied
        (effect,) = harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, ALL)).effects
        assert effect.error == "é\\x00\\ud800"


class DeadLetters:
    def test_a_dead_effect_is_tried_again_with_all_its_tries(self, harness: Harness) -> None:
        fence = dead(harness, "key")
        assert harness.perform(ops.Requeue("key", ACT)).applied
        assert harness.perform(ops.Requeue("key", ACT)).applied
        assert browse(harness, ops.Shelf.DEAD) == []
        assert not deliver(harness, "key", fence)
        assert not fail(harness, "key", fence)
        (effect,) = take(harness).effects
        assert (effect.tries, effect.dead_at) == (1, None)

    def test_a_dead_effect_is_dropped_for_good(self, harness: Harness) -> None:
        dead(harness, "key")
        assert harness.perform(ops.Requeue("key", ACT, drop=True)).applied
        assert harness.perform(ops.Requeue("key", ACT, drop=True)).applied
        assert all(browse(harness, shelf) == [] for shelf in ops.Shelf)
        assert not harness.perform(ops.Requeue("key", ACT)).applied

    def test_an_effect_that_died_again_is_left_by_who_saw_another_death(
        self, harness: Harness
    ) -> None:
        put(harness, "key")
        deaths: list[int] = []
        for _ in range(2):
            fence = new_fence()
            take(harness, fence)
            fail(harness, "key", fence, again_in=None)
            (dead,) = harness.perform(ops.FindEffect("key")).effects
            assert dead.dead_at is not None
            deaths.append(dead.dead_at)
            if len(deaths) == 1:
                assert harness.perform(ops.Requeue("key", ACT, died_at=deaths[0])).applied
                harness.travel(MINUTE)
        for drop in (False, True):
            assert not harness.perform(ops.Requeue("key", ACT, drop, deaths[0])).applied
        assert browse(harness, ops.Shelf.DEAD) == ["key"]
        assert harness.perform(ops.Requeue("key", ACT, True, deaths[1])).applied
        assert browse(harness, ops.Shelf.DEAD) == []

    def test_only_dead_effects_are_dropped(self, harness: Harness) -> None:
        fence = taken(harness, "waiting", "delivered")
        deliver(harness, "delivered", fence)
        assert not harness.perform(ops.Requeue("waiting", ACT, drop=True)).applied
        assert not harness.perform(ops.Requeue("delivered", ACT, drop=True)).applied
        assert not harness.perform(ops.Requeue("delivered", ACT)).applied
        assert browse(harness, ops.Shelf.WAITING) == ["waiting"]
        assert browse(harness, ops.Shelf.DELIVERED) == ["delivered"]

    def test_what_is_under_way_is_not_disturbed(self, harness: Harness) -> None:
        fence = taken(harness, "key")
        assert harness.perform(ops.Requeue("key", ACT)).applied
        assert take(harness).effects == ()
        assert deliver(harness, "key", fence)

    def test_one_is_found_wherever_it_is(self, harness: Harness) -> None:
        put(harness, "key", "other", delay=MINUTE)
        (seen,) = (found := harness.perform(ops.FindEffect("key"))).effects
        assert near(harness, seen.due_at, found.now + MINUTE)
        assert (seen.key, seen.tries, seen.leased_until) == ("key", 0, None)
        harness.travel(MINUTE)
        (taken, _) = take(harness, fence := new_fence()).effects
        found = harness.perform(ops.FindEffect("key"))
        assert found.effects == (taken,)
        assert near(harness, taken.leased_until, found.now + LEASE)
        harness.perform(ops.MarkFailed("key", fence, "refused", None))
        (seen,) = harness.perform(ops.FindEffect("key")).effects
        assert (seen.error, seen.due_at, seen.leased_until) == ("refused", None, None)
        assert seen.dead_at is not None
        assert harness.perform(ops.FindEffect("KEY")).effects == ()

    def test_a_page_goes_on_where_the_last_one_ended(self, harness: Harness) -> None:
        made = ["A", "B", "a", "b", "é", "😀"]
        put(harness, *reversed(made))
        pages: list[str] = []
        after: str | None = None
        while more := keys(harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, 2, after))):
            pages += more
            after = more[-1]
        assert pages == made

    @pytest.mark.parametrize("text", ["\0", "\ud800", "k" * 2000])
    def test_a_key_that_cannot_be_kept_exactly_is_refused(
        self, harness: Harness, text: str
    ) -> None:
        for op in (
            ops.Enqueue(text, None, "mail", b""),
            ops.Enqueue("key", None, "mail", b"", text),
        ):
            with pytest.raises(ConfigurationError):
                harness.perform(op)
        assert browse(harness, ops.Shelf.WAITING) == []


class ProviderEvents:
    def test_an_event_is_noted_once_and_asking_notes_nothing(self, harness: Harness) -> None:
        for _ in range(2):
            assert not harness.perform(ops.NoteEvent("stripe", "evt_1", None)).before
        assert not harness.perform(ops.NoteEvent("stripe", "evt_1", RETENTION)).before
        assert harness.perform(ops.NoteEvent("stripe", "evt_1", RETENTION)).before
        assert harness.perform(ops.NoteEvent("stripe", "evt_1", None)).before

    def test_sources_are_apart(self, harness: Harness) -> None:
        harness.perform(ops.NoteEvent("stripe", "evt_1", RETENTION))
        assert not harness.perform(ops.NoteEvent("adyen", "evt_1", None)).before
        assert not harness.perform(ops.NoteEvent("stripe", "EVT_1", None)).before

    def test_of_many_one_is_the_first(self, harness: Harness) -> None:
        replies = harness.race([ops.NoteEvent("stripe", "evt_1", RETENTION)] * RACERS)
        assert [reply.before for reply in replies].count(False) == 1
