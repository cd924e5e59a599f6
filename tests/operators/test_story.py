"""A key's story, and unknown outcomes by what they have in common."""

from __future__ import annotations

from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.policy import ietf
from semel.core.records import Fence, Identity, State
from semel.core.stored.requests import StoredRequest, encode
from semel.core.unknown.evidence import Absent, CannotTell, Happened
from semel.core.unknown.settle_unknown import Passed, Settled, Undecided
from semel.errors import ConfigurationError
from semel.operators.approvals import Approvals, Intent, Irreversible, two_person_rule
from semel.operators.bulk import dead_effects, probe_each, retry_each
from semel.operators.doubts import doubts
from semel.operators.lists import EffectFilter
from semel.operators.operator import Operator, sighting
from semel.operators.story import Story, contents_of, evidence_text, story_of
from tests.scene import DAY, HOUR, MINUTE, WITH_OUTBOX, Scene

KEY = "a-clients-own-key-0123456789"
REQUEST = encode(
    StoredRequest(
        *("POST", "", "/payments", b"dry=" + KEY.encode()),
        headers=(
            (b"idempotency-key", KEY.encode()),
            (b"authorization", b"Bearer secret-token"),
            (b"content-type", b"application/json"),
        ),
        body=b'{"card":"4242"}',
        key=KEY,
        principal=None,
    )
)


def told(scene: Scene, identity: Identity) -> Story:
    return story_of(Operator(scene.guard), scene.recalled(identity))


def texts(story: Story, kind: str) -> list[str]:
    return [line.text for line in story.lines if line.kind == kind]


def test_of_an_operation_in_doubt(scene: Scene) -> None:
    identity = scene.unknown("booked", intent="charge", request=REQUEST)
    story = told(scene, identity)
    assert story.in_doubt == "charge"
    assert [(each.name, each.kind, each.done) for each in story.points] == [
        ("booked", "phase", True),
        ("charge", "call", False),
    ]
    assert story.points[0].downstream_key is None
    assert story.points[1].downstream_key == scene.key_of(identity, "charge")
    assert [line.at for line in story.lines if line.kind == "point"] == [None, None]
    assert texts(story, "state") == ["its outcome became unknown: TimeoutError"]
    assert story.lines[0].kind == "claim"
    assert story.lease_left is None
    assert evidence_text(story) == "journal: booked, charge begun; webhooks: none"


def test_secrets_of_the_request_are_no_part_of_it(scene: Scene) -> None:
    story = told(scene, scene.unknown(request=REQUEST))
    head = story.request
    assert head is not None
    assert (head.method, head.path, head.size) == ("POST", "/payments", 15)
    shown = repr((head.headers, head.query, [line.text for line in story.lines]))
    assert "application/json" in shown
    assert "secret-token" not in shown
    assert "4242" not in shown
    assert KEY not in shown
    assert contents_of(story.case).request == b'{"card":"4242"}'


def test_of_a_completed_one_the_end_is_reckoned(scene: Scene) -> None:
    scene.guard.policy = ietf()
    identity = scene.held()
    scene.travel(20_000_000)
    kept = scene.case(scene.completed()).record.snapshot or b""
    done = ops.Complete(identity, scene.fences[identity], kept, DAY, HOUR)
    scene.harness.perform(done)
    story = told(scene, identity)
    line = next(line for line in story.lines if line.text == "it completed")
    assert line.reckoned
    record = story.case.record
    assert line.at == (record.expires_at or 0) - DAY
    assert line.at is not None
    assert record.created_at < line.at
    assert texts(story, "due") == ["its answer expires", "its key is forgotten, and may run again"]
    assert story.answer is not None
    assert (story.answer.status, story.answer.size, story.answer.kept) == (201, 4, "whole")
    assert contents_of(story.case).answer == b"made"


def test_an_end_that_cannot_be_is_not_told(quick: Scene) -> None:
    identity = quick.completed()  # kept for an hour, where the terms promise a day
    line = next(line for line in told(quick, identity).lines if line.text == "it completed")
    assert (line.at, line.reckoned) == (None, False)


def test_lines_come_in_the_order_of_time(scene: Scene) -> None:
    identity = scene.unknown()
    operator = Operator(scene.guard)
    operator.settle(identity, Happened(), by="ann", reason="in the dashboard")
    times = [line.at for line in told(scene, identity).lines if line.at is not None]
    assert times == sorted(times)
    (act,) = (line for line in told(scene, identity).lines if line.kind == "act")
    assert (act.text, act.by) == ("settle: happened: in the dashboard", "operator ann")


def test_a_lease_counts_down(scene: Scene) -> None:
    identity = scene.held()
    left = told(scene, identity).lease_left
    assert left is not None
    assert 0 < left <= MINUTE
    scene.travel(2 * MINUTE)
    story = told(scene, identity)
    assert (story.lapsed, story.lease_left) == (True, 0)
    assert "its lease ended" in texts(story, "state")


def test_proposals_and_their_ends_are_in_it(scene: Scene) -> None:
    identity, other = scene.unknown(), scene.unknown()
    desk = Approvals(Operator(scene.guard), two_person_rule("all"))
    for each in (identity, other):
        seen = sighting(scene.case(each).record)
        made = desk.act(Intent(Irreversible.FREE, each.hex(), seen), by="ann", reason="gone")
        assert made.proposal is not None
        desk.decline(made.proposal.number, by="bob", reason=f"not {each.hex()[-2:]}")
    assert [line.text for line in told(scene, identity).lines if line.kind == "act"] == [
        "proposed: free: gone",
        f"decline: not {identity.hex()[-2:]}",
    ]


@WITH_OUTBOX
def test_effects_with_their_tries_and_errors(scene: Scene) -> None:
    identity = scene.completed()
    scene.harness.perform(ops.Enqueue("one", identity, "mail", b"{}"))
    scene.harness.perform(ops.TakeEffects(Fence(b"f" * 16), ("mail",), 1, MINUTE))
    scene.harness.perform(ops.MarkFailed("one", Fence(b"f" * 16), "refused", None))
    story = told(scene, identity)
    assert [each.key for each in story.effects] == ["one"]
    assert texts(story, "effect") == [
        "effect mail: written to the outbox",
        "effect mail: dead after one try: refused",
    ]


# ── what was seen must still be so ────────────────────────────────────────────────────────────────


def test_a_settlement_of_what_has_changed_is_refused(scene: Scene) -> None:
    identity = scene.unknown()
    seen = told(scene, identity).seen
    operator = Operator(scene.guard)
    act: dict[str, Any] = {"by": "ann", "reason": "seen", "seen": seen}
    operator.settle(identity, Absent(final=True), by="bob", reason="seen")
    fence = Fence(b"the next holder.")
    before = scene.case(identity).record.fence
    scene.harness.perform(ops.Retake(identity, before, fence, MINUTE))
    scene.harness.perform(ops.Suspend(identity, fence, "again", 0))
    came = operator.settle(identity, Happened(), **act)
    assert isinstance(came, Passed), "it is unknown, and not the unknown that was seen"
    assert scene.state(identity) is State.UNKNOWN
    for written in (operator.bury(identity, **act), operator.evict(identity, **act)):
        assert isinstance(written, ops.Lost)
    now = told(scene, identity).seen
    assert isinstance(operator.settle(identity, Happened(), **(act | {"seen": now})), Settled)


def test_a_sighting_does_not_tell_the_fence(quick: Scene) -> None:
    record = quick.case(quick.unknown()).record
    assert record.fence.hex() not in sighting(record)


# ── probes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_look_decides_nothing(scene: Scene) -> None:
    scene.guard.policy = ietf(probe=lambda _: Happened(provider_id="ch_7"))
    identity = scene.unknown()
    before = scene.case(identity)
    assert Operator(scene.guard).look(identity) == Happened(provider_id="ch_7")
    assert scene.case(identity) == before
    assert list(Operator(scene.guard).audit()) == []


def test_a_look_at_a_probe_that_fails_or_is_not_there(quick: Scene) -> None:
    identity = quick.unknown()
    with pytest.raises(ConfigurationError):
        Operator(quick.guard).look(identity)

    def fails(_: object) -> Happened:
        raise OSError

    quick.guard.policy = ietf(probe=fails)
    assert isinstance(Operator(quick.guard).look(identity), Undecided)
    assert Operator(quick.guard).look(Identity(b"\xfe" * 32)) is None


# ── many ──────────────────────────────────────────────────────────────────────────────────────────


def test_doubts_are_grouped_by_route_and_reason(scene: Scene) -> None:
    first = scene.unknown(path="/payments", probe_after=None)
    second = scene.unknown(path="/payments")
    third = scene.unknown(path="/refunds")
    found = doubts(Operator(scene.guard))
    assert [(each.route, each.reason, each.count, each.dead) for each in found.groups] == [
        ("POST /payments", "TimeoutError", 2, 1),
        ("POST /refunds", "TimeoutError", 1, 0),
    ]
    assert set(found.groups[0].identities) == {first, second}
    assert found.groups[1].identities == (third,)
    assert (found.looked, found.more) == (3, False)
    assert doubts(Operator(scene.guard), look=2).more


def test_of_many_probes_one_that_fails_holds_up_no_other(quick: Scene) -> None:
    bad, good = quick.unknown(path="/bad"), quick.unknown(path="/good")

    def ask(inquiry: object) -> Happened | CannotTell:
        if getattr(inquiry, "path", "") == "/bad":
            return CannotTell("down")
        return Happened()

    quick.guard.policy = ietf(probe=ask)
    results = list(probe_each(Operator(quick.guard), [bad, Identity(b"\xfe" * 32), good], by="ann"))
    assert [(each.name, each.done) for each in results] == [
        (bad.hex(), False),
        ("fe" * 32, False),
        (good.hex(), True),
    ]


@WITH_OUTBOX
def test_of_a_list_that_was_agreed_to_each_has_its_result(scene: Scene) -> None:
    for key in ("one", "two"):
        scene.harness.perform(ops.Enqueue(key, None, "mail", b"{}"))
    taken = scene.harness.perform(ops.TakeEffects(Fence(b"f" * 16), ("mail",), 9, MINUTE))
    for each in taken.effects:
        scene.harness.perform(ops.MarkFailed(each.key, Fence(b"f" * 16), f"no {each.key}", None))
    operator = Operator(scene.guard)
    assert [each.key for each in dead_effects(operator, EffectFilter(error="no t"))] == ["two"]
    assert dead_effects(operator, EffectFilter(name="sms")) == []
    agreed = sorted(
        (each.key, each.dead_at or 0) for each in dead_effects(operator, EffectFilter())
    )
    operator.drop_dead("one", by="cleo", reason="wrong")
    results = list(retry_each(operator, agreed, by="ann", reason="fixed"))
    assert [(each.name, each.done) for each in results] == [("one", False), ("two", True)]
