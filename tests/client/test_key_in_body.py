"""The key of a call is put into its body once, and nothing else of the body changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.client.key_in_body import put_key, read_key
from semel.errors import ConfigurationError

DEEP = semel.body("/meta/key")
FLAT = semel.body("key")
JSON = (("Content-Type", "application/json"),)
FORM = (("content-type", "application/x-www-form-urlencoded"),)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text(), values).filter(lambda d: "meta" not in d))
def test_only_the_key_is_added(document: dict[str, object]) -> None:
    made = put_key(JSON, json.dumps(document).encode(), DEEP, "a key")
    assert json.loads(made) == {**document, "meta": {"key": "a key"}}
    assert read_key(JSON, made, DEEP) == "a key"


def test_members_beside_the_key_stay() -> None:
    made = put_key(JSON, b'{"meta": {"at": 12345678901234567890123}, "a": 1.10}', DEEP, "k")
    expected = {"meta": {"at": 12345678901234567890123, "key": "k"}, "a": 1.1}
    assert json.loads(made) == expected


def test_a_form_gets_a_field() -> None:
    made = put_key(FORM, b"amount=5", FLAT, "a key & more")
    assert made == b"amount=5&key=a+key+%26+more"
    assert read_key(FORM, made, FLAT) == "a key & more"


@pytest.mark.parametrize(
    ("headers", "body", "field"),
    [
        (JSON, b"[]", DEEP),
        (JSON, b'{"meta": 5}', DEEP),
        (JSON, b'{"amount": 0.12345678901234567890123}', FLAT),
        (JSON, b'{"amount": 1e400}', FLAT),
        (JSON, b"", FLAT),
        ((), b"", FLAT),
        ((("content-type", "text/plain"),), b"text", FLAT),
        ((("content-type", "multipart/form-data; boundary=b"),), b"--b--", FLAT),
    ],
)
def test_a_body_without_room_for_a_key_is_refused(
    headers: tuple[tuple[str, str], ...], body: bytes, field: semel.BodyField
) -> None:
    with pytest.raises(ConfigurationError):
        put_key(headers, body, field, "k")


@pytest.mark.parametrize("body", [b'{"key": 5}', b'{"key": "a", "key": "b"}', b"no JSON"])
def test_a_body_that_a_server_would_refuse_is_not_sent(body: bytes) -> None:
    with pytest.raises(ConfigurationError, match="the key cannot be sent in the body"):
        read_key(JSON, body, FLAT)
