"""Where a key is found: in headers, in bodies that can be read in one way, by functions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel.core.records import HeaderView, Request
from semel.core.request.key_places import Unreadable, find_key, key_places
from semel.core.request.keys import Malformed
from semel.errors import ConfigurationError

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
DEEP = semel.body("/meta/idempotency_key")
FLAT = semel.body("idempotency_key")


def request(kind: str | None = JSON, *headers: tuple[str, str]) -> Request:
    lines = [*headers] if kind is None else [("content-type", kind), *headers]
    raw = [(name.encode(), text.encode("latin-1")) for name, text in lines]
    return Request("POST", "/x", b"", HeaderView(raw), None)


def find(
    place: Any,
    sent: bytes = b"",
    kind: str | None = JSON,
    *headers: tuple[str, str],
    strict: bool = False,
) -> Any:
    return find_key(key_places(place), request(kind, *headers), sent, strict=strict)


def meta(value: object = KEY) -> bytes:
    return json.dumps({"meta": {"idempotency_key": value}, "amount": 5}).encode()


# --- headers and functions


def test_any_of_several_headers_has_the_key() -> None:
    places = ("X-Key", "Idempotency-Key")
    assert find(places, b"", None, ("idempotency-key", KEY)) == KEY
    assert find(places, b"", None, ("x-key", f'"{KEY}"')) == KEY
    assert find(places, b"", None, ("x-key", KEY), ("idempotency-key", KEY)) == KEY
    assert find(places, b"", None) is None


def test_places_that_disagree_are_refused_and_named() -> None:
    found = find(("X-Key", DEEP), meta("another"), JSON, ("x-key", KEY))
    assert found == Malformed(
        "The request has keys that differ, in the X-Key header and in the body at "
        "/meta/idempotency_key. Send one."
    )


def test_a_malformed_header_is_refused_whatever_the_others_say() -> None:
    found = find(
        ("X-Key", "Idempotency-Key"), b"", None, ("x-key", "a b"), ("idempotency-key", KEY)
    )
    assert isinstance(found, Malformed)
    assert "X-Key" in found.reason


def test_strict_asks_for_quotes_in_headers_and_not_in_bodies() -> None:
    assert isinstance(find("X-Key", b"", None, ("x-key", KEY), strict=True), Malformed)
    assert find(DEEP, meta(), strict=True) == KEY


def test_a_function_says_the_key_or_that_there_is_none() -> None:
    def part(request: semel.Request) -> str | None:
        return (request.headers.get("x-payment") or "").partition(".")[2] or None

    assert find(part, b"", None, ("x-payment", f"v1.{KEY}")) == KEY
    assert find(part, b"", None) is None
    assert isinstance(find(lambda _: "", b"", None), Malformed)
    with pytest.raises(TypeError, match="must return a text or None, not int"):
        find(lambda _: 5, b"", None)


# --- JSON


def test_a_pointer_leads_to_the_key() -> None:
    assert find(DEEP, meta()) == KEY
    assert find(DEEP, meta(), "application/vnd.shop+json; charset=UTF-8") == KEY
    assert find(semel.body("/a~1b/0/k"), json.dumps({"a/b": [{"k": KEY}]}).encode()) == KEY
    assert find(FLAT, b'{"idempotency\\u005fkey": "a key"}') == "a key"
    assert find(FLAT, b' {"idempotency_key": "k", "id": 12345678901234567890, "x": 1e400} ') == "k"


@pytest.mark.parametrize(
    "sent", [b"", b"{}", b'{"meta": {}}', b'{"meta": "text"}', b'{"meta": []}', b'"text"', b"5"]
)
def test_a_pointer_that_finds_nothing_finds_no_key(sent: bytes) -> None:
    assert find(DEEP, sent) is None


@pytest.mark.parametrize("value", [5, None, True, 1.5, [KEY], {"key": KEY}])
def test_a_key_of_another_type_is_refused(value: object) -> None:
    found = find(DEEP, meta(value))
    assert found == Malformed("The key in the body at /meta/idempotency_key is not a text.")


@pytest.mark.parametrize("value", ["", "a" * 256, "k\u00e9y", "a\nb", "\u0000", "\ud800", "\x7f"])
def test_a_key_that_no_header_could_carry_is_refused(value: str) -> None:
    assert isinstance(find(DEEP, meta(value)), Malformed)


def test_what_a_quoted_header_could_carry_is_taken_as_it_is() -> None:
    assert find(DEEP, meta('"a, b"')) == '"a, b"'
    assert find(DEEP, meta("k" * 255)) == "k" * 255


TWICE = b'{"meta": {"idempotency_key": "a", "idempotency_key": "b"}}'
UNREADABLE = {
    "not JSON": b"{",
    "JSON, and more": meta() + b"{}",
    "a name twice": TWICE,
    "an object twice": b'{"meta": {"idempotency_key": "a"}, "meta": {}}',
    "a name twice, elsewhere": b'{"meta": {"idempotency_key": "a"}, "x": {"y": 1, "y": 2}}',
    "a name twice, by an escape": b'{"idempotency_key": "a", "idempotency\\u005fkey": "b"}',
    "Latin-1": '{"meta": {"idempotency_key": "a"}, "x": "\u00e9"}'.encode("latin-1"),
    "UTF-16": meta().decode().encode("utf-16"),
    "UTF-16 without a mark": meta().decode().encode("utf-16-le"),
    "UTF-8 with a mark": b"\xef\xbb\xbf" + meta(),
    "no number": b'{"meta": {"idempotency_key": "a"}, "x": NaN}',
    "a comma more": b'{"meta": {"idempotency_key": "a"},}',
    "a comment": b'{"meta": {"idempotency_key": "a"}} // here',
    "deep": b'{"meta": {"idempotency_key": "a"}, "x": %b%b}' % (b"[" * 100, b"]" * 100),
    "long": b'{"meta": {"idempotency_key": "a"}, "x": [%b0]}' % (b"0," * 100_001),
}


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
def test_json_that_others_may_read_otherwise_is_refused(sent: bytes) -> None:
    assert isinstance(find(DEEP, sent), Unreadable)
    # A key in a header is no proof that the application does not find another in the body.
    assert isinstance(find(("X-Key", DEEP), sent, JSON, ("x-key", "a")), Unreadable)


def test_a_batch_is_refused_as_such() -> None:
    found = find(DEEP, b"[%b,%b]" % (meta("a"), meta("b")))
    assert isinstance(found, Unreadable)
    assert "batch" in found.reason
    assert isinstance(find(DEEP, b"[]"), Unreadable)
    assert find(semel.body("/0/k"), b'[{"k": "a"}]') == "a"


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        (None, ()),
        ("text/plain", ()),
        ("application/xml", ()),
        ("application/json; charset=latin-1", ()),
        ("application/json; charset=utf-16", ()),
        ("application/json; charset=utf-8; charset=utf-16", ()),
        ("nonsense", ()),
        (JSON, (("content-type", "text/plain"),)),
        (JSON, (("content-encoding", "gzip"),)),
        (JSON, (("content-encoding", "identity"), ("content-encoding", "gzip"))),
        (FORM, ()),
    ],
)
def test_a_body_that_is_not_said_to_be_json_in_utf8_is_refused(
    kind: str | None, headers: tuple[tuple[str, str], ...]
) -> None:
    assert isinstance(find(DEEP, meta(), kind, *headers), Unreadable)
    flat = json.dumps({"idempotency_key": KEY}).encode()
    assert isinstance(find(FLAT, flat, kind, *headers), Unreadable)


@given(st.binary(max_size=200))
def test_no_body_breaks_it(sent: bytes) -> None:
    for kind in (JSON, FORM, "multipart/form-data; boundary=b", "text/plain"):
        found = find(FLAT, sent, kind)
        assert found is None or isinstance(found, str | Malformed | Unreadable)


# --- forms


def test_a_field_of_a_form_is_the_key() -> None:
    assert find(FLAT, b"amount=5&idempotency_key=a%20key", FORM) == "a key"
    assert find(FLAT, b"amount=5&idempotency%5Fkey=a+key", FORM) == "a key"
    assert find(semel.body("meta[key]"), b"meta%5Bkey%5D=k", FORM) == "k"
    assert find(FLAT, b"amount=5", FORM) is None


@pytest.mark.parametrize(
    "sent",
    [
        b"idempotency_key=a&idempotency_key=a",
        b"idempotency_key=",
        b"idempotency_key",
        b"idempotency_key=%C3%A9",
        b"idempotency_key=" + b"a" * 256,
    ],
)
def test_a_field_that_is_no_key_is_refused(sent: bytes) -> None:
    assert isinstance(find(FLAT, sent, FORM), Malformed)


def test_a_form_that_parsers_read_differently_is_refused() -> None:
    assert isinstance(find(FLAT, b"idempotency_key=a%", FORM), Unreadable)
    # Starlette's request.json() reads it as JSON, whatever its type says.
    assert isinstance(find(FLAT, b'{"idempotency_key": "a"}', FORM), Unreadable)
    assert isinstance(find(DEEP, b"a=b", FORM), Unreadable)  # a form is flat


def multipart(*parts: tuple[str, bytes]) -> bytes:
    whole = b"".join(b"--b\r\n%b\r\n\r\n%b\r\n" % (head.encode(), body) for head, body in parts)
    return whole + b"--b--\r\n"


NAMED = 'Content-Disposition: form-data; name="idempotency_key"'
MULTIPART = "multipart/form-data; boundary=b"


def test_a_part_of_a_multipart_form_is_the_key() -> None:
    file = 'Content-Disposition: form-data; name="file"; filename="a"; filename*=UTF-8\'\'a'
    typed = NAMED + "\r\nContent-Type: text/plain; charset=utf-8"
    for head in (NAMED, typed, NAMED.replace('"', "")):
        assert find(FLAT, multipart((file, b"\0bytes"), (head, b"a key")), MULTIPART) == "a key"
    assert find(FLAT, multipart((file, b"\0bytes")), MULTIPART) is None


@pytest.mark.parametrize(
    "head",
    [
        NAMED + '; filename="a"',
        NAMED + "\r\nContent-Transfer-Encoding: base64",
        NAMED + "\r\nContent-Type: text/plain; charset=utf-16",
        NAMED + "\r\nContent-Type: application/octet-stream",
        "Content-Disposition: form-data; name=\"x\"; name*=UTF-8''idempotency_key",
        'Content-Disposition: form-data; name="idempotency%5Fkey"',
        'Content-Disposition: form-data; name="idempotency\\_key"',
    ],
)
def test_a_part_that_parsers_read_differently_is_refused(head: str) -> None:
    assert isinstance(find(FLAT, multipart((head, b"a-key")), MULTIPART), Unreadable)


def test_a_part_that_comes_twice_or_a_broken_form_is_refused() -> None:
    twice = multipart((NAMED, b"a"), (NAMED, b"a"))
    assert isinstance(find(FLAT, twice, MULTIPART), Malformed)
    assert isinstance(find(FLAT, b"preamble" + multipart((NAMED, b"a")), MULTIPART), Unreadable)


# --- settings


@pytest.mark.parametrize(
    ("key_from", "sentence"),
    [
        ((), "names no place"),
        ("", "not the name of a header"),
        ("/meta/key", "a place in the body is semel.body"),
        (5, "takes header names"),
        (("X-Key", "x-key"), "names a place twice"),
        ((semel.body("k"), semel.body("k")), "names a place twice"),
    ],
)
def test_a_mistaken_place_is_told_at_the_start(key_from: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        semel.ietf(key_from=key_from)


def test_a_coroutine_function_is_no_place() -> None:
    async def later(request: semel.Request) -> str:
        return "k"

    with pytest.raises(ConfigurationError, match="plain functions"):
        semel.ietf(key_from=later)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "/a~2", 5])
def test_a_mistaken_pointer_is_told_at_once(name: Any) -> None:
    with pytest.raises(ConfigurationError):
        semel.body(name)


@pytest.mark.parametrize("payload", [(), "/params", ("/params",), len])
def test_a_mistaken_payload_is_told_at_the_start(payload: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"payload_from= takes semel\.body"):
        semel.ietf(payload_from=payload)


def test_what_counts_is_said_once() -> None:
    for rule in (semel.FingerprintRule(include=("a",)), semel.FingerprintRule(by=lambda r, b: b)):
        with pytest.raises(ConfigurationError, match="leave by= and include="):
            semel.ietf(payload_from=semel.body("a"), fingerprint=rule)


def test_the_recipe_tells_where_keys_come_from() -> None:
    usual = semel.ietf().recipe()
    assert "from" not in usual
    assert semel.ietf(key_from="idempotency-key").recipe() == usual
    recipes = {
        semel.ietf(key_from="X-Key").recipe(),
        semel.ietf(key_from=("X-Key", "Idempotency-Key")).recipe(),
        semel.ietf(key_from=DEEP).recipe(),
        semel.ietf(key_from=str.upper).recipe(),  # type: ignore[arg-type]
        semel.ietf(payload_from=semel.body("/params")).recipe(),
        usual,
    }
    assert len(recipes) == 6
    # The order is what people are told, and changes no identity.
    both = semel.ietf(key_from=("Idempotency-Key", "x-key")).recipe()
    assert both in recipes
