"""Canonical JSON: equal to RFC 8785 where it answers, and silent where JSON is ambiguous."""

import json
import math
import sys

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from semel.core.request import canonical_json
from semel.core.request.canonical_json import MAX_DEPTH, Canonical, canonicalise, usual_form

LARGEST = 2**53 - 1
text = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-LARGEST, LARGEST) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=6),
    max_leaves=30,
)


def read(body: bytes) -> Canonical | None:
    """By the long way; the short one says the same, or nothing."""
    result = canonicalise(body)
    assert usual_form(body) in (None, result)
    return result


def written(body: bytes) -> bytes | None:
    result = read(body)
    return None if result is None else result.data


def canonical_of(body: bytes) -> Canonical:
    result = read(body)
    assert result is not None
    return result


@given(values, st.booleans(), st.sampled_from([None, 0, 3]))
def test_every_i_json_document_is_written_as_the_oracle_writes_it(
    value: object, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert written(body) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_prints_as_ecmascript_prints_it(number: float) -> None:
    expected = rfc8785.dumps(number)
    assert written(repr(number).encode()) == expected
    assert written(f"{number:.17g}".encode()) in (expected, None)  # None: an integer > 2^53
    assert written(f"{number:.16e}".encode()) == expected


@pytest.mark.parametrize("exponent", range(-324, 309))
def test_powers_of_ten_print_as_the_oracle_prints_them(exponent: int) -> None:
    token = f"-1.5e{exponent}"
    if exponent == -324:  # between two doubles: the digits are lost
        assert written(token.encode()) is None
    elif math.isfinite(float(token)) and exponent > -308:
        assert written(token.encode()) == rfc8785.dumps(float(token))


@given(st.dictionaries(text, scalars, max_size=8), st.randoms())
def test_order_and_whitespace_do_not_matter(value: dict[str, object], random: object) -> None:
    names = list(value)
    random.shuffle(names)  # type: ignore[attr-defined]
    shuffled = {name: value[name] for name in names}
    spaced = json.dumps(shuffled, indent=2, separators=(" ,\t", "\r\n: ")).encode()
    assert written(b" \n" + spaced + b"\t\r ") == written(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"1.0"),
        (b"1", b"10e-1"),
        (b"-0", b"0"),
        (b"-0.0", b"0"),
        (b"0e-5", b"0"),
        (b"1e20", b"100000000000000000000.0"),
        (b"0.1", b"0.10000000000000001"),
        (b"0.00001", b"1e-5"),
        (rb'"\u00e9\/\ud83d\ude00"', '"é/😀"'.encode()),
        (rb'{"\u0061":1}', b'{"a":1}'),
    ],
)
def test_two_spellings_of_one_value_are_one(one: bytes, other: bytes) -> None:
    assert written(one) == written(other) is not None


NOT_I_JSON = {
    "empty": b"",
    "blank": b" \n",
    "cut short": b'{"a":1',
    "more than one value": b"1 2",
    "name twice": b'{"a":1,"a":1}',
    "name twice, spelled differently": rb'{"a":1,"\u0061":2}',
    "name twice, deep inside": b'[{"b":{"a":1,"c":2,"a":3}}]',
    "name twice, beside an escape": rb'{"a":"\n","b":1,"b":1}',
    "name twice, beside an escaped quote": rb'{"a":"\u0022\u0022","b":1,"b":1}',
    "NaN": b"[NaN]",
    "Infinity": b"Infinity",
    "-Infinity": b'{"a":-Infinity}',
    "2^53": b"9007199254740992",
    "-2^53": b"-9007199254740992",
    "seventeen digits": b"10000000000000001",
    "10,000 digits": b"1" * 10_000,
    "10,000 digits, negative, inside": b"[-" + b"1" * 10_000 + b"]",
    "overflow": b"1e400",
    "underflow": b"1e-400",
    "absurd exponent": b"1e-99999999999999999999999",
    "digits that a double loses": b"0.1000000000000000055",
    "an odd integer past 2^53, as a real": b"9007199254740993.0",
    "10,000 decimals": b"0." + b"3" * 10_000,
    "lone high surrogate": rb'"\ud83d"',
    "lone low surrogate": rb'"\ude00 "',
    "lone surrogate in a name": rb'{"\ud83d":1,"a":2}',
    "surrogates in UTF-8": b'"\xed\xa0\xbd\xed\xb8\x80"',
    "not UTF-8": b'"\xff"',
    "overlong": b'"\xc0\xaf"',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "control character": b'"\x01"',
    "no-break space around": b"\xc2\xa01",
    "vertical tab around": b"\x0b1",
    "leading zero": b"01",
    "no fraction": b"1.",
    "trailing comma": b"[1,]",
    "single quotes": b"{'a':1}",
}


@pytest.mark.parametrize("body", NOT_I_JSON.values(), ids=NOT_I_JSON.keys())
def test_what_is_not_i_json_is_not_read(body: bytes) -> None:
    assert canonicalise(body) is None
    assert canonicalise(body, lambda value: value) is None


@pytest.mark.parametrize("number", [LARGEST, -LARGEST, 10**15, 0])
def test_integers_that_a_double_holds_are_read(number: int) -> None:
    assert written(str(number).encode()) == str(number).encode()


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"]":'])
def test_a_hundred_thousand_levels_are_refused_and_not_a_crash(opening: bytes) -> None:
    assert canonicalise(opening * 100_000) is None


def test_depth_is_counted_in_brackets_outside_of_strings() -> None:
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert written(deepest) == deepest
    assert written(b"[" + deepest + b"]") is None
    brackets = json.dumps(['\\"[{' * 100, "}]\\", "[" * 100]).encode()
    assert written(brackets) == brackets.replace(b", ", b",")
    hidden = b'["' + b"]" * 200 + b'",' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]"
    assert written(hidden) is None


def test_the_answer_does_not_depend_on_a_raised_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        assert canonicalise(b"[" * 100_000 + b"]" * 100_000) is None
    finally:
        sys.setrecursionlimit(limit)


def test_names_sort_by_utf16_code_units() -> None:
    # The example of RFC 8785 3.2.3: U+1F600 starts with the code unit D83D, so before FB33.
    body = '{"\ufb33":1,"😀":2,"\u20ac":3,"\\r":4,"ö":5,"1":6}'
    assert written(body.encode()) == '{"\\r":4,"1":6,"ö":5,"\u20ac":3,"😀":2,"\ufb33":1}'.encode()
    nested = '[{"\ufb33":1,"\\ud83d\\ude00":2}]'
    assert written(nested.encode()) == '[{"😀":2,"\ufb33":1}]'.encode()


def test_the_members_of_an_object_make_up_its_text() -> None:
    result = canonical_of(b'{ "b": [1.0, {"d":1,"c":2}], "a": "x" }')
    assert result.members == {"a": b'"a":"x"', "b": b'"b":[1,{"c":2,"d":1}]'}
    assert list(result.members) == ["a", "b"]
    assert result.data == b"{" + b",".join(result.members.values()) + b"}"
    assert canonical_of(b"[1]").members == {}


@given(values)
def test_the_cached_encoder_writes_what_the_public_one_writes(value: object) -> None:
    value = json.loads(json.dumps(value))
    assert canonical_json._encode(value) == canonical_json._ENCODER.encode(value)  # type: ignore[arg-type]


@given(st.binary() | st.text('[]{}":,\\0123e.- \nu').map(str.encode))
def test_no_bytes_make_it_raise_and_its_output_is_a_fixed_point(body: bytes) -> None:
    result = canonicalise(body)
    if result is not None:
        assert written(result.data) == result.data


@given(values, values)
def test_different_values_are_written_differently(one: object, other: object) -> None:
    same = rfc8785.dumps(one) == rfc8785.dumps(other)  # type: ignore[arg-type]
    assert (written(json.dumps(one).encode()) == written(json.dumps(other).encode())) == same


def test_what_it_holds_is_not_in_its_repr() -> None:
    assert "4242" not in repr(canonicalise(b'{"card":"4242"}'))


@given(
    st.dictionaries(
        st.text(max_size=5), st.text(max_size=5) | st.integers() | st.floats(), max_size=4
    )
)
def test_few_steps_give_what_many_give(document: dict[str, object]) -> None:
    for body in (json.dumps(document).encode(), json.dumps(document, ensure_ascii=False).encode()):
        assert read(body) == canonicalise(body, lambda value: value)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"b":{"c":[1,2.5,null,true]},"d":"x"} \n',
        b'{"a":12345678901234,"b":1.50,"c":1e3}',
        b"{}",
    ],
)
def test_usual_documents_go_the_short_way(body: bytes) -> None:
    assert usual_form(body) == canonical_of(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":1234567890123456}',
        b'{"a":NaN}',
        b'{"a":1} x',
        b'{"a":0.00001}',
        b'{"\\u0061":1}',
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[1]",
        b"{",
    ],
)
def test_all_others_do_not(body: bytes) -> None:
    assert usual_form(body) is None
