"""What every store must do for audit, erasure and encryption. Each test has a store of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Fence, Identity, OnLapse, Origin, State
from semel.errors import ConfigurationError
from semel.testing.contract.harness import Harness
from semel.testing.contract.outbox import dead
from semel.testing.contract.records import (
    ACT,
    LEASE,
    RETENTION,
    SNAPSHOT,
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
    reach,
    recall,
    settle_happened,
)

ALL = 1_000
SETTLED = (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)
OURS = Origin("ours", "POST", "/payments/bob@example.com", "a-key-of-bob")


LOOK_ALIKES = (
    *("t", "t%", "t_", "t*", "t:", "t::", ":t", "%", "_", "*", "[t]", "t\\", "t'", 't"', "{t}"),
    *("t\0", "t\\x00", "t\\\\x00", "t\\\0", "t\ud800", "t\\ud800", "t\\\ud800", "\0t", "t\0u"),
    *("é", "e\u0301", "ｔ", "T", " t", "t ", "t\n", "tt"),
)
"""Prefixes, wildcards, separators, what stores escape, and what looks as if they had."""


def audit(harness: Harness, limit: int = ALL) -> tuple[ops.AuditEntry, ...]:
    return harness.perform(ops.BrowseAudit(limit)).entries


Doing = Callable[[Identity, Fence], ops.StoreOperation[ops.Written]]

ACTS: dict[str, tuple[Doing, State, OnLapse, ops.Verb, State | None]] = {
    "settle_happened": (
        settle_happened,
        State.UNKNOWN,
        OnLapse.UNKNOWN,
        ops.Verb.SETTLE,
        State.COMPLETED,
    ),
    "settle_absent": (
        lambda i, f: ops.SettleAbsent(i, f, new_fence(), RETENTION, ACT),
        State.UNKNOWN,
        OnLapse.UNKNOWN,
        ops.Verb.SETTLE,
        State.FAILED_RETRYABLE,
    ),
    "settle_call": (
        lambda i, f: ops.SettleCall(i, f, new_fence(), b"J", ACT),
        State.UNKNOWN,
        OnLapse.RESUME,
        ops.Verb.SETTLE,
        State.IN_PROGRESS,
    ),
    "bury": (
        lambda i, f: ops.EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT),
        State.UNKNOWN,
        OnLapse.UNKNOWN,
        ops.Verb.BURY,
        State.EXPIRED,
    ),
    "free": (
        lambda i, f: ops.EvictUnknown(i, f, new_fence(), TOMBSTONE, ACT, free=True),
        State.UNKNOWN,
        OnLapse.UNKNOWN,
        ops.Verb.FREE,
        None,
    ),
    "evict": (
        lambda i, f: ops.Evict(i, f, ACT),
        State.FAILED_RETRYABLE,
        OnLapse.UNKNOWN,
        ops.Verb.EVICT,
        None,
    ),
    "erase": (
        lambda i, f: ops.Erase(i, f, ACT),
        State.COMPLETED,
        OnLapse.UNKNOWN,
        ops.Verb.ERASE,
        State.EXPIRED,
    ),
}


class Auditing:
    def test_every_act_has_one_entry_and_what_is_refused_has_none(self, harness: Harness) -> None:
        for make, source, on_lapse, verb, target in ACTS.values():
            count = len(audit(harness))
            identity, fence = reach(harness, source, on_lapse)
            assert len(audit(harness)) == count  # reaching an unknown record is nobody's act
            lost(harness, make(identity, new_fence()))
            assert len(audit(harness)) == count
            op = make(identity, fence)
            done = applied(harness, op)
            applied(harness, op)  # asked again, it is one act still
            newest, *older = audit(harness)
            assert len(older) == count
            assert (newest.verb, newest.by, newest.reason) == (verb, ACT.by, ACT.reason)
            assert (newest.identity, newest.subject) == (identity, None)
            assert (newest.before, newest.after) == (source.value, target and target.value)
            assert near(harness, newest.at, done.now)

    def test_of_rivals_one_acts_and_one_entry_tells_who(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.UNKNOWN)
        rivals = [ops.Act(f"ann {number}", "to see who is first") for number in range(8)]
        asked = [ops.SettleAbsent(identity, fence, new_fence(), RETENTION, each) for each in rivals]
        replies = harness.race(asked)
        (winner,) = [
            op for op, reply in zip(asked, replies, strict=True) if reply.__class__ is not ops.Lost
        ]
        (entry,) = audit(harness)
        assert entry.by == winner.act.by
        assert existing(harness, identity).reason == winner.act.line

    def test_entries_outlive_what_they_are_about(self, harness: Harness) -> None:
        identity, fence = reach(harness, State.UNKNOWN)
        applied(harness, ops.SettleAbsent(identity, fence, new_fence(), RETENTION, ACT))
        before = audit(harness)
        harness.travel(10 * (RETENTION + TOMBSTONE))
        assert harness.perform(ops.Reap(ALL)).counts
        assert harness.record(identity) is None
        assert [entry.identity for entry in audit(harness)] == [identity]
        assert len(before) == 1

    def test_the_newest_come_first_and_pages_go_on(self, harness: Harness) -> None:
        for number in range(5):
            harness.perform(ops.Remark(ops.Verb.ROTATE, ops.Act("ann", f"step {number}"), "a key"))
        every = audit(harness)
        assert [entry.reason for entry in every] == [f"step {n}" for n in (4, 3, 2, 1, 0)]
        assert {entry.subject for entry in every} == {"a key"}
        assert {(each.identity, each.before, each.after) for each in every} == {(None, None, None)}
        paged: list[ops.AuditEntry] = []
        while page := harness.perform(
            ops.BrowseAudit(2, paged[-1].place if paged else None)
        ).entries:
            assert len(page) <= 2
            paged += page
        assert paged == list(every)
        with pytest.raises(ConfigurationError, match="no place"):
            harness.perform(ops.BrowseAudit(1, "yesterday"))

    def test_words_of_all_kinds_are_kept(self, harness: Harness) -> None:
        said = ops.Act("Zoë 💶", 'it\'s "quoted"; -- and \\ more')
        identity, fence = reach(harness, State.COMPLETED)
        applied(harness, ops.Evict(identity, fence, said))
        (entry,) = audit(harness)
        assert (entry.by, entry.reason) == (said.by, said.reason)

    @pytest.mark.parametrize(("by", "reason"), [("", "x"), ("x", ""), (" ", "x"), ("x", "\t")])
    def test_nobody_acts_without_a_name_and_a_reason(self, by: str, reason: str) -> None:
        with pytest.raises(ConfigurationError, match="by=, reason="):
            ops.Act(by, reason)


class AuditingEffects:
    def test_every_act_on_an_effect_has_an_entry(self, harness: Harness) -> None:
        dead(harness, "other")
        assert harness.perform(ops.Requeue("other", ACT, drop=True)).applied
        assert harness.perform(
            ops.Requeue("other", ACT, drop=True)
        ).applied  # gone: nothing was done
        (entry,) = audit(harness)
        assert (entry.verb, entry.subject) == ("drop", "other")
        assert (entry.before, entry.after) == ("dead", None)
        dead(harness, "key")
        assert harness.perform(ops.Requeue("key", ACT)).applied
        assert harness.perform(ops.Requeue("key", ACT)).applied  # it waits already
        newest, _ = audit(harness)
        assert (newest.verb, newest.subject) == ("retry", "key")
        assert (newest.before, newest.after) == ("dead", "waiting")


class Erasing:
    def made(self, harness: Harness, tenant: str = "ours") -> tuple[Identity, Fence]:
        identity, fence = new_identity(), new_fence()
        origin = Origin(tenant, OURS.method, OURS.path, OURS.key)
        op = claim(identity, fence, request=b"POST bob")
        assert isinstance(harness.perform(replace(op, origin=origin)), ops.Claimed)
        return identity, fence

    def test_what_is_left_says_nothing_and_refuses_still(self, harness: Harness) -> None:
        identity, fence = self.made(harness)
        applied(harness, ops.Advance(identity, fence, b"journal"))
        done = ops.Complete(identity, fence, SNAPSHOT, RETENTION, TOMBSTONE, "bob")
        applied(harness, done)
        before = existing(harness, identity)
        assert applied(harness, ops.Erase(identity, fence, ACT)).state is State.EXPIRED
        case = recall(harness, identity)
        record = case.record
        assert (case.request, case.journal, case.resource, record.snapshot) == (None,) * 4
        assert case.origin == Origin("", "POST", "", "")
        assert (record.fingerprint, record.fields, record.reason) == ("", b"", "erased")
        assert (record.expires_at, record.forget_at) == (None, before.forget_at)
        assert isinstance(harness.perform(claim(identity, new_fence())), ops.Found)
        assert harness.perform(ops.Retire("bob", "ours")).count == 0

    def test_one_that_was_released_is_not_freed(self, harness: Harness) -> None:
        """Its journal was what kept a retry from doing things twice."""
        identity, fence = self.made(harness)
        applied(harness, ops.Release(identity, fence, RETENTION))
        applied(harness, ops.Erase(identity, fence, ACT))
        lost(harness, ops.Retake(identity, fence, new_fence(), LEASE))
        assert existing(harness, identity).state is State.EXPIRED

    @pytest.mark.parametrize("state", [State.PENDING, State.IN_PROGRESS, State.UNKNOWN])
    def test_what_is_not_settled_is_left_alone(self, harness: Harness, state: State) -> None:
        identity, fence = reach(harness, state)
        before = recall(harness, identity)
        lost(harness, ops.Erase(identity, fence, ACT))
        assert recall(harness, identity) == before
        assert audit(harness) == ()

    def test_a_tombstone_is_forgotten_when_it_would_have_been(self, harness: Harness) -> None:
        identity, fence = self.made(harness)
        applied(harness, complete(identity, fence))
        applied(harness, ops.Erase(identity, fence, ACT))
        harness.travel(RETENTION + TOMBSTONE - 1 - harness.slack)
        harness.perform(ops.Reap(ALL))
        assert harness.record(identity) is not None
        harness.travel(1 + harness.slack)
        harness.perform(ops.Reap(ALL))
        assert harness.record(identity) is None

    def test_a_tenants_records_are_found_page_by_page(self, harness: Harness) -> None:
        ours = {self.made(harness)[0] for _ in range(5)}
        for _ in range(4):
            self.made(harness, "ours ")  # another one, whatever a collation may say
            self.made(harness, "OURS")
        pages = harness.pages(lambda after: ops.ListBelongings("ours", 3, after))
        found = {each.identity: each.state for page in pages for each in page.found}
        assert found == dict.fromkeys(ours, State.IN_PROGRESS)

    def test_tenants_that_look_alike_are_told_apart(self, harness: Harness) -> None:
        made = {tenant: self.made(harness, tenant)[0] for tenant in LOOK_ALIKES}
        for tenant, identity in made.items():
            found = harness.perform(ops.ListBelongings(tenant, ALL)).found
            assert [each.identity for each in found if each.identity in made.values()] == [identity]


class Resealing:
    def test_only_what_begins_otherwise_is_told(self, harness: Harness) -> None:
        identity, fence = new_identity(), new_fence()
        harness.perform(claim(identity, fence, request=b"E1 request"))
        applied(harness, ops.Advance(identity, fence, b"E1 journal"))
        assert harness.perform(ops.ListUnlike(b"E1", ALL)).found == ()
        (found,) = harness.perform(ops.ListUnlike(b"E2", ALL)).found
        assert (found.identity, found.fence) == (identity, fence)
        assert (found.request, found.journal, found.snapshot) == (
            *(b"E1 request", b"E1 journal"),
            None,
        )
        applied(harness, complete(identity, fence, b"E2 snapshot"))
        (found,) = harness.perform(ops.ListUnlike(b"E2", ALL)).found
        assert (found.request, found.journal, found.snapshot) == (None, b"E1 journal", None)

    def test_pages_go_on_and_end(self, harness: Harness) -> None:
        made = {reach(harness, State.COMPLETED)[0] for _ in range(5)}
        pages = list(harness.pages(lambda after: ops.ListUnlike(b"E1", 2, after)))
        assert max(len(page.found) for page in pages) <= 2
        assert [each.identity for page in pages for each in page.found] == sorted(made)

    @pytest.mark.parametrize("part", ops.Part)
    def test_bytes_are_exchanged_for_those_that_were_seen(
        self, harness: Harness, part: ops.Part
    ) -> None:
        identity, fence = new_identity(), new_fence()
        harness.perform(accept(identity, fence))
        old = recall(harness, identity).request or b""
        if part is not ops.Part.REQUEST:
            identity, fence = reach(harness, State.IN_PROGRESS)
            old = b"\0old"
            applied(harness, ops.Advance(identity, fence, old))
        if part is ops.Part.SNAPSHOT:
            applied(harness, complete(identity, fence, old))
        before = recall(harness, identity)
        lost(harness, ops.Reseal(identity, fence, part, b"\0other", b"new"))
        lost(harness, ops.Reseal(identity, new_fence(), part, old, b"new"))
        assert recall(harness, identity) == before
        applied(harness, ops.Reseal(identity, fence, part, old, b"\0new"))
        after = recall(harness, identity)
        held = {
            ops.Part.REQUEST: after.request,
            ops.Part.JOURNAL: after.journal,
            ops.Part.SNAPSHOT: after.record.snapshot,
        }
        assert held[part] == b"\0new"
        assert after.record.state is before.record.state
        assert (after.due_at, after.record.expires_at) == (before.due_at, before.record.expires_at)

    def test_what_is_gone_is_not_made_again(self, harness: Harness) -> None:
        identity = new_identity()
        reply = harness.perform(ops.Reseal(identity, new_fence(), ops.Part.SNAPSHOT, b"a", b"b"))
        assert isinstance(reply, ops.Lost)
        assert reply.record is None
        identity, fence = reach(harness, State.IN_PROGRESS)
        applied(harness, ops.Suspend(identity, fence))
        lost(harness, ops.Reseal(identity, fence, ops.Part.SNAPSHOT, b"", b"b"))
        found = harness.perform(ops.Read(identity))
        assert isinstance(found, ops.Found)
        assert found.record.snapshot is None


class ResealingEffects:
    def test_a_payload_is_exchanged_for_the_one_that_was_seen(self, harness: Harness) -> None:
        assert harness.perform(ops.Enqueue("key", None, "mail", b"old")).applied
        assert not harness.perform(ops.ResealEffect("key", b"other", b"new")).applied
        assert not harness.perform(ops.ResealEffect("nobody", b"old", b"new")).applied
        assert harness.perform(ops.ResealEffect("key", b"old", b"new")).applied
        (effect,) = harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, ALL)).effects
        assert effect.payload == b"new"
