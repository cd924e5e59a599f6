"""What an operator does: find, ask, settle, give up, and look after dead letters."""

from __future__ import annotations

from typing import Any

import pytest

import semel
from semel.core.operations.outbox import Enqueue, MarkFailed, TakeEffects
from semel.core.operations.requests import Applied, Lost
from semel.core.policy import ietf
from semel.core.records import Fence, Identity, Response, State
from semel.core.unknown.evidence import Absent, CannotTell, Happened, Inquiry
from semel.core.unknown.settle_unknown import Passed, Settled, Undecided
from semel.errors import ConfigurationError
from semel.operators.operator import KeyAddress, Operator
from tests.ears import listen
from tests.scene import MINUTE, WITH_OUTBOX, Scene

ANSWER = Response(201, (), b"paid")
NOBODY = Identity(b"\xfe" * 32)


def dead_effect(scene: Scene, key: str) -> None:
    scene.harness.perform(Enqueue(key, None, "mail", b"{}"))
    fence = Fence(key.encode().ljust(16)[:16])
    taken = scene.harness.perform(TakeEffects(fence, ("mail",), 1, MINUTE))
    assert [each.key for each in taken.effects] == [key]
    scene.harness.perform(MarkFailed(key, fence, "refused", None))


class TestFinding:
    def test_by_identity_and_by_where_its_key_was_used(self, quick: Scene) -> None:
        key = "0123456789abcdef"

        def doubtful() -> None:
            raise semel.OutcomeUnknown

        with pytest.raises(semel.OutcomeUnknown):
            quick.guard.once(key, doubtful, name="send-invoice")
        operator = Operator(quick.guard)
        found = operator.find(KeyAddress("", "once", "/send-invoice", key))
        assert found is not None
        assert operator.find(found.case.record.identity) == found
        assert operator.find(KeyAddress("", "ONCE", "/send-invoice", "another-key-0123")) is None
        assert operator.find(NOBODY) is None

    def test_under_the_settings_before(self, quick: Scene) -> None:
        from semel.core.request import keys

        before = ietf(scope="tenant")
        quick.guard.policy = ietf(previous=before)
        scope = keys.Scope("ann", "POST", "/payments", "tenant")
        identity = Identity(keys.identity(scope, "0123456789abcdef"))
        addressed = Operator(quick.guard)._identities(
            KeyAddress("ann", "post", "/payments", "0123456789abcdef")
        )
        assert identity in list(addressed)

    def test_every_page_of_what_is_in_doubt_is_listed(self, scene: Scene) -> None:
        unknown = {scene.unknown() for _ in range(3)}
        lapsed = scene.held()
        scene.travel(2 * MINUTE)
        dead, alive = scene.unknown(probe_after=None), scene.held()
        scene.held("made")
        scene.completed()
        operator = Operator(scene.guard)
        listed = [case.record.identity for case, _ in operator.list_unknown()]
        assert set(listed) == {*unknown, lapsed, dead}
        assert alive not in listed
        assert [case.record.identity for case, _ in operator.list_unknown(dead=True)] == [dead]

    def test_pages_follow_each_other(self, quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("semel.operators.lists.CASES_AT_ONCE", 2)
        unknown = sorted(quick.unknown() for _ in range(5))
        listed = [case.record.identity for case, _ in Operator(quick.guard).list_unknown()]
        assert listed == unknown


class TestSettling:
    def test_who_and_why_are_on_record(self, scene: Scene) -> None:
        identity = scene.unknown()
        came = Operator(scene.guard).settle(
            identity, Happened(ANSWER, "ch_7"), by="ann", reason="in the dashboard"
        )
        assert isinstance(came, Settled)
        reason = scene.case(identity).record.reason
        assert reason == "operator ann: happened (ch_7): in the dashboard"

    def test_nobody_settles_anonymously(self, quick: Scene) -> None:
        with pytest.raises(ConfigurationError):
            Operator(quick.guard).settle(quick.unknown(), Absent(final=True), by=" ", reason="")

    def test_a_record_that_is_not_there(self, quick: Scene) -> None:
        assert (
            Operator(quick.guard).settle(NOBODY, Absent(final=True), by="ann", reason="seen")
            is None
        )
        assert Operator(quick.guard).probe_now(NOBODY, by="ann") is None
        assert Operator(quick.guard).bury(NOBODY, by="ann", reason="x") is None

    def test_a_colleague_was_faster(self, scene: Scene) -> None:
        identity = scene.unknown()
        operator = Operator(scene.guard)
        operator.settle(identity, Happened(ANSWER), by="bob", reason="seen")
        came = operator.settle(identity, Absent(final=True), by="ann", reason="seen")
        assert isinstance(came, Passed)
        assert scene.state(identity) is State.COMPLETED


class TestAsking:
    def test_a_probe_is_asked_at_once(self, scene: Scene) -> None:
        async def probe(inquiry: Inquiry) -> Happened:
            return Happened(ANSWER)

        scene.guard.policy = ietf(probe=probe)
        identity = scene.unknown(probe_after=None)
        assert isinstance(Operator(scene.guard).probe_now(identity, by="ann"), Settled)

    def test_one_that_cannot_tell(self, quick: Scene) -> None:
        quick.guard.policy = ietf(probe=lambda _: CannotTell("down"))
        came = Operator(quick.guard).probe_now(quick.unknown(), by="ann")
        assert isinstance(came, Undecided)

    def test_nobody_to_ask(self, quick: Scene) -> None:
        identity = quick.unknown()
        with pytest.raises(ConfigurationError):
            Operator(quick.guard, object()).probe_now(identity, by="ann")
        assert quick.case(identity).tries == 0


class TestGivingUp:
    def test_a_tombstone_stays(self, scene: Scene) -> None:
        identity = scene.unknown()
        written = Operator(scene.guard).bury(identity, by="ann", reason="written off")
        assert isinstance(written, Applied)
        assert scene.state(identity) is State.EXPIRED
        assert scene.case(identity).record.reason == "operator ann: given up: written off"

    def test_or_nothing(self, scene: Scene) -> None:
        identity = scene.unknown()
        Operator(scene.guard).bury(identity, by="ann", reason="a test", free=True)
        assert scene.harness.record(identity) is None

    def test_only_what_is_unknown(self, scene: Scene) -> None:
        for identity in (scene.held(), scene.completed()):
            written = Operator(scene.guard).bury(identity, by="ann", reason="x")
            assert isinstance(written, Lost)

    @pytest.mark.parametrize("said", [{"by": "", "reason": "x"}, {"by": "ann", "reason": " "}])
    def test_not_without_a_reason(self, quick: Scene, said: Any) -> None:
        with pytest.raises(ConfigurationError):
            Operator(quick.guard).bury(quick.unknown(), **said)


@WITH_OUTBOX
def test_dead_effects_are_listed_tried_again_and_dropped(scene: Scene) -> None:
    operator, ear = Operator(scene.guard), listen(scene.guard)
    for key in ("one", "two"):
        dead_effect(scene, key)
    assert [(each.key, each.error) for each in operator.list_dead()] == [
        ("one", "refused"),
        ("two", "refused"),
    ]
    assert operator.retry_dead("one", by="ann", reason="fixed")
    assert operator.drop_dead("two", by="ann", reason="fixed")
    assert list(operator.list_dead()) == []
    assert not operator.retry_dead("one", by="ann", reason="fixed")  # it is not dead any more
    assert not operator.drop_dead("two", by="ann", reason="fixed")
    assert [(event["act"], event["effect"], event["by"]) for event in ear.all("operator")] == [
        ("retried an effect", "mail", "ann"),
        ("dropped an effect", "mail", "ann"),
    ]
    taken = scene.harness.perform(TakeEffects(Fence(b"f" * 16), ("mail",), 9, MINUTE))
    assert [each.key for each in taken.effects] == ["one"]
