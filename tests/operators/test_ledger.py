"""Ledgers: every difference between the provider's list and ours is found, and no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from semel.core.operations.outbox import Enqueue, MarkDelivered, TakeEffects
from semel.core.operations.requests import Advance
from semel.core.records import Fence, Identity
from semel.core.recovery import journal
from semel.core.recovery.journal import Journal, PointKind
from semel.errors import ConfigurationError
from semel.operators.ledger import CallState, LedgerReport, ProviderEntry, compare
from tests.scene import DAY, HOUR, MINUTE, WITH_OUTBOX, Scene


def charged(scene: Scene, **result: Any) -> Identity:
    """An operation whose call has its result on record."""
    identity = scene.held("made", intent="charged")
    written = Journal().reaching("charged", PointKind.CALL, result)
    scene.harness.perform(Advance(identity, scene.fences[identity], journal.encode(written)))
    return identity


def entry(scene: Scene, identity: Identity, **fields: Any) -> ProviderEntry:
    return ProviderEntry(scene.key_of(identity, "charged"), fields)


def compared(scene: Scene, *entries: ProviderEntry, **how: Any) -> LedgerReport:
    return compare(scene.guard, entries, name="charged", **how)


def delivered(scene: Scene, key: str, payload: bytes, provider_id: str | None) -> None:
    fence = Fence(b"f" * 16)
    scene.harness.perform(Enqueue(key, None, "charged", payload))
    scene.harness.perform(TakeEffects(fence, ("charged",), 1, MINUTE))
    scene.harness.perform(MarkDelivered(key, fence, provider_id, HOUR))


def test_what_agrees_is_counted(scene: Scene) -> None:
    one, two = charged(scene, id="ch_1", amount=500), charged(scene, id="ch_2", amount=700)
    theirs = entry(scene, one, id="ch_1", amount=500), entry(scene, two, amount="700")
    report = compared(scene, *theirs)
    assert report == LedgerReport(2, (), (), ())
    assert report.agrees


def test_what_only_the_provider_has(scene: Scene) -> None:
    stranger = ProviderEntry("semel_somebody_else", {"amount": 500})
    report = compared(scene, stranger)
    assert report.missing_here == (stranger,)
    assert not report.agrees


def test_what_only_we_have(scene: Scene) -> None:
    identity = charged(scene, id="ch_1")
    report = compared(scene)
    (ours,) = report.missing_there
    assert (ours.identity, ours.state) == (identity, CallState.MADE)
    assert not report.agrees


def test_what_differs(scene: Scene) -> None:
    identity = charged(scene, id="ch_1", amount=500)
    (found,) = compared(scene, entry(scene, identity, amount=5000, id="ch_1")).differing
    assert found.what == "amount: 5000 there, 500 here"


def test_what_the_provider_did_twice(scene: Scene) -> None:
    identity = charged(scene, id="ch_1")
    report = compared(scene, entry(scene, identity, id="ch_1"), entry(scene, identity, id="ch_2"))
    assert (report.matched, len(report.missing_here)) == (1, 1)


def test_what_was_released_here_and_happened_there(scene: Scene) -> None:
    identity = scene.released()
    (found,) = compared(scene, entry(scene, identity)).differing
    assert "released here" in found.what


@pytest.mark.parametrize("how", [{}, {"intent": "charged"}])
def test_what_is_unknown_here_is_found_to_have_happened(scene: Scene, how: Any) -> None:
    identity = scene.unknown(**how)
    (found,) = compared(scene, entry(scene, identity)).differing
    assert found.ours.state is CallState.IN_DOUBT
    assert "settle it" in found.what


def test_what_is_unknown_or_was_never_called_need_not_be_there(scene: Scene) -> None:
    scene.unknown()
    scene.unknown(intent="charged")
    scene.completed()
    scene.released()
    assert compared(scene).agrees


def test_plain_handlers_match_by_their_derived_keys(scene: Scene) -> None:
    assert compared(scene, entry(scene, scene.completed())).matched == 1


@WITH_OUTBOX
def test_delivered_effects_are_compared_too(scene: Scene) -> None:
    delivered(scene, "key-1", b'{"amount": 500}', "ch_1")
    delivered(scene, "key-2", b"not json", None)
    there = ProviderEntry("key-1", {"provider_id": "ch_1", "amount": 500})
    report = compared(scene, there)
    assert report.matched == 1
    assert [each.key for each in report.missing_there] == ["key-2"]
    (found,) = compared(
        scene, ProviderEntry("key-1", {"provider_id": "ch_9"}), ProviderEntry("key-2", {})
    ).differing
    assert found.what == "provider_id: ch_9 there, ch_1 here"


@WITH_OUTBOX
def test_an_effect_of_a_record_is_one_and_not_two(scene: Scene) -> None:
    identity = scene.completed()
    key = scene.key_of(identity, "charged", "effect")
    delivered(scene, key, b"{}", "ch_1")
    report = compared(scene, ProviderEntry(key, {"provider_id": "ch_1"}))
    assert report == LedgerReport(1, (), (), ())
    assert [each.key for each in compared(scene).missing_there] == [key]


def test_only_what_we_made_in_the_time_given_must_be_there(scene: Scene) -> None:
    old = charged(scene, id="old")
    scene.travel(DAY)
    new = charged(scene, id="new")
    now = datetime.fromtimestamp(scene.recalled(new).now / 1e6, UTC)
    hour = timedelta(hours=1)
    assert [each.identity for each in compared(scene, since=now - hour).missing_there] == [new]
    assert [each.identity for each in compared(scene, until=now - hour).missing_there] == [old]
    # What the provider has is looked for among all of ours, whatever their age.
    assert compared(scene, entry(scene, old), entry(scene, new), since=now - hour).matched == 2


def test_the_caller_may_say_what_is_the_same(quick: Scene) -> None:
    identity = charged(quick, cents=500)

    def same(theirs: ProviderEntry, ours: Any) -> str | None:
        return None if theirs.fields["euros"] * 100 == ours.fields["cents"] else "amount"

    assert compared(quick, entry(quick, identity, euros=5), same=same).agrees
    assert not compared(quick, entry(quick, identity, euros=6), same=same).agrees


def test_pages_follow_each_other(quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.operators.lists.CASES_AT_ONCE", 3)
    all_of_them = [charged(quick, id=n) for n in range(10)]
    assert compared(quick, *(entry(quick, each) for each in all_of_them)).matched == 10


@pytest.mark.parametrize("wrong", [{"name": ""}, {"since": datetime(2024, 1, 1)}])  # noqa: DTZ001
def test_wrong_questions_are_refused(quick: Scene, wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        compare(quick.guard, [], **{"name": "charged", **wrong})
