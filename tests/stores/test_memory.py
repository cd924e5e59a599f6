"""The memory store's rows and its table of writes: what the contract suite cannot see."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Fence, Identity, State
from semel.core.states import RecordEvent
from semel.stores.memory import MemoryBackend
from semel.stores.memory.records import VERBS
from semel.stores.memory.rows import WRITES, Row, Write
from semel.testing.contract.records import ORIGIN, SNAPSHOT, claim, new_fence, new_identity
from tests.stores.harness import FakeClock


def test_every_kind_of_write_has_its_line() -> None:
    assert set(WRITES) == set(get_args(Write))


def test_every_write_that_somebody_answers_for_is_put_on_record() -> None:
    acts = {kind for kind in WRITES if "act" in kind.__match_args__}
    assert {kind for kind in WRITES if events_of(kind) <= set(VERBS)} == acts
    assert {event for kind in acts for event in events_of(kind)} == set(VERBS)


def events_of(kind: type[Any]) -> set[RecordEvent]:
    if kind is ops.EvictUnknown:
        return {RecordEvent.EVICT_FORCED, RecordEvent.EVICT_FREED}
    return {WRITES[kind].event}


def test_a_copy_has_every_field_but_the_state_it_is_given() -> None:
    row = Row(claim(new_identity(), new_fence()), State.IN_PROGRESS, 2, 1)
    for name in Row.__slots__:
        setattr(row, name, f"the {name}")
    copied = row.copy(State.COMPLETED)
    held = {name: getattr(copied, name) for name in Row.__slots__}
    expected = {name: f"the {name}" for name in Row.__slots__}
    assert held == expected | {"state": State.COMPLETED, "made": None}


def test_a_record_has_the_fields_of_its_row() -> None:
    row = Row(claim(new_identity(), new_fence()), State.IN_PROGRESS, 2, 1)
    names = type(row.record).__match_args__
    for name in names:
        setattr(row, name, f"the {name}")
    row.made = None
    assert {name: getattr(row.record, name) for name in names} == {
        name: f"the {name}" for name in names
    }


@pytest.fixture
def store() -> MemoryBackend:
    return MemoryBackend(clock=FakeClock())


def begun(store: MemoryBackend) -> tuple[Identity, Fence]:
    identity, fence = new_identity(), new_fence()
    store.perform(claim(identity, fence))
    return identity, fence


def completion(identity: Identity, fence: Fence) -> ops.Complete:
    return ops.Complete(identity, fence, SNAPSHOT, 9, 9)


def test_a_write_that_is_interrupted_has_changed_nothing(
    store: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, fence = begun(store)
    own = WRITES[ops.Complete].fill

    def interrupted(op: Any, row: Row, now: int) -> None:
        own(op, row, now)
        raise KeyboardInterrupt

    before = store.perform(ops.Recall(identity))
    with monkeypatch.context() as patch:
        patch.setitem(WRITES, ops.Complete, replace(WRITES[ops.Complete], fill=interrupted))
        with pytest.raises(KeyboardInterrupt):
            store.perform(completion(identity, fence))
    assert store.perform(ops.Recall(identity)) == before
    assert isinstance(store.perform(completion(identity, fence)), ops.Applied)


def test_what_was_read_stays_as_it_was(store: MemoryBackend) -> None:
    identity, fence = begun(store)
    seen = record(store, ops.Read(identity))
    store.perform(completion(identity, fence))
    assert (seen.state, seen.snapshot) == (State.IN_PROGRESS, None)
    assert record(store, ops.Read(identity)).snapshot == SNAPSHOT


def record(store: MemoryBackend, op: ops.StoreOperation[Any]) -> Any:
    found = store.perform(op)
    assert isinstance(found, ops.Found)
    return found.record


def test_a_claim_keeps_the_origin_it_was_given_or_one_that_can_be_stored() -> None:
    given = claim(new_identity(), new_fence())
    odd = replace(given, origin=replace(ORIGIN, path="/\0"))
    assert origin_of(given) is given.origin
    assert origin_of(odd) == replace(ORIGIN, path="/\\x00")


def origin_of(op: ops.Claim) -> Any:
    return Row(op, State.IN_PROGRESS, 2, 1).origin
