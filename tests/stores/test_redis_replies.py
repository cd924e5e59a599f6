"""Records are read as the scripts write them, and what cannot be one is refused."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from semel.core.records import DUTY_NUMBERS, ON_LAPSE_NUMBERS, STATE_NUMBERS, Identity
from semel.errors import StoreCorrupt
from semel.stores.redis import layout
from semel.stores.redis.commands import RECORD, SHARED, sources
from semel.stores.sql import rows

IDENTITY = Identity(bytes(range(32)))
SOUND = (3, 1, 1, bytes(16), 1, 0, 2, 3, 7)
NUMBER = st.sampled_from([0, 1, 2, 3, 2**53])
HEAD = st.tuples(
    st.integers(0, 7),
    st.integers(0, 4),
    st.integers(0, 3),
    st.binary(min_size=16, max_size=16),
    *(NUMBER, NUMBER, NUMBER, NUMBER, st.integers(-(2**63), 2**63 - 1)),
)
ORIGIN = b"v1:abc\0tenant\0POST\0/pay\0key\0fields"


def packed(head: Any, origin: bytes = ORIGIN, reason: bytes = b"", answer: bytes = b"") -> bytes:
    return layout.HEAD.pack(*head, len(origin), len(reason)) + origin + reason + answer


def outcome(read: Any) -> object:
    try:
        return read()
    except StoreCorrupt:
        return StoreCorrupt


def both_ways(identity: Identity, data: bytes) -> tuple[object, object]:
    return outcome(lambda: layout.record(identity, data)), outcome(
        lambda: rows.record(layout.stored(identity, data).row)
    )


@given(HEAD, st.sampled_from([b"", b"settled"]), st.binary(max_size=8))
@example(SOUND, b"", b"answer")
def test_a_record_is_the_same_by_the_fast_way_and_the_general_one(
    head: Any, reason: bytes, answer: bytes
) -> None:
    fast, general = both_ways(IDENTITY, packed(head, ORIGIN, reason, answer))
    assert fast == general
    assert head != SOUND or fast is not StoreCorrupt


@given(HEAD, st.binary(max_size=40), st.integers(0, 120))
@example(SOUND, b"\xff" * 8 + b"\0" * 5, 120)
@example(SOUND, ORIGIN, layout.SIZE - 1)
def test_what_is_wrong_with_a_record_is_seen_both_ways(
    head: Any, origin: bytes, length: int
) -> None:
    data = packed(head, origin)[: length or 1]
    fast, general = both_ways(IDENTITY, data)
    assert fast == general


def test_an_identity_of_another_length_is_refused_both_ways() -> None:
    refused = StoreCorrupt, StoreCorrupt
    assert both_ways(Identity(bytes(31)), packed(SOUND, answer=b"answer")) == refused


def test_scripts_and_python_have_one_layout_and_the_same_numbers() -> None:
    first, rest = sources()[RECORD], sources()[SHARED]
    states = re.search(r"local (PENDING, .+) = (.+)", first)
    assert states is not None
    numbers = dict(zip(states[1].lower().split(", "), map(int, states[2].split(", ")), strict=True))
    assert numbers == {state.value: number for state, number in STATE_NUMBERS.items()}
    assert f"HEAD_SIZE = '>BBBc16I8I8I8I8c8I4I4', {layout.SIZE}" in first
    assert layout.HEAD.format == ">BBB16sQQQQqII"
    assert f"local HAS_ANSWER, HAS_MORE = {layout.HAS_ANSWER}, {layout.HAS_MORE}" in first
    assert f"duty * {layout.RANK} + " in first
    listed = re.search(r"local STATES = \{(.+)\}", rest)
    assert listed is not None
    assert re.findall(r"'(\w+)'", listed[1]) == [state.value for state in STATE_NUMBERS]
    tables: dict[str, dict[str, int]] = {
        "DUTIES": {**DUTY_NUMBERS},
        "CHOICES": {choice.value: number for choice, number in ON_LAPSE_NUMBERS.items()},
    }
    for name, known in tables.items():
        table = re.search(rf"local {name} = \{{(.+)\}}", rest)
        assert table is not None
        pairs = [pair.split(" = ") for pair in table[1].split(", ")]
        assert {word: int(number) for word, number in pairs} == known
