"""Short forms of keys and fingerprints: what comes out is, letter by letter, what went in."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.core.stored.packed import (
    packed_fingerprint,
    packed_key,
    unpacked_fingerprint,
    unpacked_key,
)
from semel.errors import StoreCorrupt

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
MARK = "j1.Yb0zT8RkQx2vN5c7Wd1e-A"
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_a_uuid_and_a_digest_take_sixteen_bytes_and_a_mark() -> None:
    assert packed_key(KEY) == b"\0" + uuid.UUID(KEY).bytes
    assert len(packed_fingerprint(MARK)) == len(b"j1\0") + 16
    assert packed_fingerprint(MARK.replace("j1", "r1-2024")).startswith(b"r1-2024\0")


@given(st.one_of(TEXTS, st.uuids().map(str), st.uuids().map(lambda each: str(each).upper())))
def test_a_key_comes_out_as_it_went_in(key: str) -> None:
    assert unpacked_key(packed_key(key)) == key


@given(
    st.one_of(
        TEXTS,
        st.builds("{}.{}".format, TEXTS, st.text(LETTERS, min_size=22, max_size=22)),
    )
)
def test_a_fingerprint_comes_out_as_it_went_in(text: str) -> None:
    assert unpacked_fingerprint(packed_fingerprint(text)) == text


@pytest.mark.parametrize(
    "key",
    [
        KEY.upper(),
        KEY.replace("-", ""),
        "{" + KEY + "}",
        KEY[:-1] + "g",
        KEY + "\n",
        "sixteen-letters!",
    ],
)
def test_what_is_not_a_uuid_in_its_usual_form_is_kept_as_text(key: str) -> None:
    assert packed_key(key) == key.encode()


@given(st.lists(st.one_of(TEXTS, st.uuids().map(str)), min_size=2, max_size=2, unique=True))
def test_no_two_keys_are_packed_alike(keys: list[str]) -> None:
    assert packed_key(keys[0]) != packed_key(keys[1])


@pytest.mark.parametrize("kept", [b"\0", b"\0" + bytes(15), b"\0" + bytes(17), b"\xff"])
def test_a_damaged_key_is_a_refusal(kept: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        unpacked_key(kept)


@pytest.mark.parametrize("kept", [b"j1\0", b"j1\0" + bytes(15), b"\xff\0" + bytes(16), b"\xff"])
def test_a_damaged_fingerprint_is_a_refusal(kept: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        unpacked_fingerprint(kept)
