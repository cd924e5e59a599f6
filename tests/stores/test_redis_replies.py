"""The fast parser of completed records makes what the general parser makes."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from semel.core.operations.requests import Applied
from semel.core.records import Identity, OnLapse, State
from semel.errors import StoreCorrupt
from semel.stores.redis import replies
from semel.stores.sql import rows

IDENTITY = Identity(bytes(range(32)))
NUMBER = st.integers(0, 2**53).map(lambda number: b"%d" % number)
SOUND: list[Any] = [
    *(b"completed", bytes(16), b"v1:abc", b"fields", b"unknown", b"1", None, b"2", b"3"),
    *(b"snapshot", None, None, 5),
]
COMPLETED = st.tuples(
    st.just(b"completed"),
    st.binary(min_size=16, max_size=16),
    st.text(max_size=8).map(str.encode),
    st.binary(max_size=8),
    st.sampled_from([choice.value.encode() for choice in OnLapse]),
    *(NUMBER, st.none(), NUMBER, NUMBER, st.binary(max_size=8), st.none(), st.none()),
    st.just(5),
).map(list)
DAMAGE = st.none() | NUMBER | st.binary(max_size=20) | st.sampled_from([1, [], b"expired", b"\xff"])


def outcome(read: Any) -> object:
    try:
        return read()
    except StoreCorrupt:
        return StoreCorrupt


def both_ways(identity: Identity, row: list[Any]) -> tuple[object, object]:
    def general() -> object:
        made = replies._row(identity, row)
        return None if made is None else rows.record(made)

    return outcome(lambda: replies.record(identity, row)), outcome(general)


@given(COMPLETED)
@example(SOUND)
def test_a_completed_record_is_the_same_both_ways(row: list[Any]) -> None:
    fast, general = both_ways(IDENTITY, row)
    assert fast == general
    assert fast is not StoreCorrupt


@given(COMPLETED, st.lists(st.tuples(st.integers(0, 11), DAMAGE), max_size=3))
def test_what_is_wrong_with_a_record_is_seen_both_ways(
    row: list[Any], damage: list[tuple[int, Any]]
) -> None:
    for place, other in damage:
        row[place] = other
    fast, general = both_ways(IDENTITY, row)
    assert fast == general


def test_an_identity_of_another_length_is_refused_both_ways() -> None:
    assert both_ways(Identity(bytes(31)), SOUND) == (StoreCorrupt, StoreCorrupt)


def test_a_completion_is_the_same_with_its_time_as_number_and_as_text() -> None:
    """A script first answers the number it computed, and later the text that is stored."""
    first = replies.written(IDENTITY, [1, 5, b"completed", None, 9])
    again = replies.written(IDENTITY, [1, 5, b"completed", None, b"9"])
    assert first == again == Applied(State.COMPLETED, 5, None, 9)
