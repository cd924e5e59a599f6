"""Fingerprints: the same meaning gives the same text, and nothing else does."""

import gzip
import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from semel.core.records import Fence, HeaderView, Identity, Record, Request, State
from semel.core.request import comparison
from semel.core.request.comparison import (
    MAX_NAMED,
    FieldDifference,
    Prints,
    field_digests,
)
from semel.core.request.fingerprint import (
    MAX_FIELDS,
    Fingerprint,
    FingerprintRule,
    fingerprint,
    label,
    matches,
)
from tests.core.script import a_record

FORM = "application/x-www-form-urlencoded"
NAME = Identity(b"0123456789abcdef" * 2)
SALT = NAME[:16]
OLD, NEW = ("2023", b"o" * 32), ("2024", b"n" * 32)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
objects = st.dictionaries(text, values, max_size=5)


def meant(
    body: bytes | Iterable[bytes],
    content_type: str | None = "application/json",
    *,
    method: str = "POST",
    path: str = "/pay",
    query: bytes = b"",
    encoding: str | None = None,
) -> tuple[Request, Iterable[bytes]]:
    lines = ((b"content-type", content_type), (b"content-encoding", encoding))
    given = [(b"x-amount", "5"), *((name, text) for name, text in lines if text is not None)]
    octets = [(name, text.encode("utf-8", "surrogatepass")) for name, text in given]
    headers = HeaderView(octets)
    chunks = (body,) if isinstance(body, bytes) else body
    return Request(method, path, query, headers, {}), chunks


def sent(content_type: str = "application/json") -> Request:
    return Request("POST", "/pay", b"", HeaderView(((b"content-type", content_type.encode()),)), {})


def made(body: bytes, content_type: str | None = "application/json", **options: Any) -> Fingerprint:
    recipe = options.pop("recipe", FingerprintRule())
    return fingerprint(*meant(body, content_type, **options), recipe)


def encoded(value: object, **options: Any) -> bytes:
    return json.dumps(value, **options).encode()


def differing_fields(
    stored: bytes, mine: Mapping[str, bytes], recipe: FingerprintRule | None = None
) -> FieldDifference:
    return comparison.differing_fields(stored, mine, SALT, recipe or FingerprintRule())


def record_with(evidence: bytes) -> Record:
    return a_record(State.COMPLETED, Fence(bytes(16)), identity=NAME, fields=evidence)


# --- what is hashed


def test_the_text_names_version_kind_and_seal() -> None:
    assert re.fullmatch(r"j1\.[A-Za-z0-9_-]{22}", made(b"{}").text)
    assert label(made(b"{}").text) == "v1.json.sha256"
    sealed = made(b"{}", recipe=FingerprintRule(secrets=(NEW, OLD)))
    assert re.fullmatch(r"j1-2024\.[A-Za-z0-9_-]{22}", sealed.text)
    assert label(sealed.text) == "v1.json.hmac-2024"


def test_the_digest_is_made_as_described() -> None:
    head = b"semel v1 json 4 4 16 0 3\n" + b"POST" + b"/pay" + b"application/json" + b"a=1"
    digest = hashlib.sha256(head + b'{"a":1}' + b"\n7").digest()
    plain = made(b'{"a": 1.0}', query=b"a=1")
    assert plain.text == "j1." + urlsafe_b64encode(digest[:16]).decode().rstrip("=")
    sealed = hmac.digest(NEW[1], digest, "sha256")
    assert made(b'{"a":1}', query=b"a=1", recipe=FingerprintRule(secrets=(NEW,))).text == (
        "j1-2024." + urlsafe_b64encode(sealed[:16]).decode().rstrip("=")
    )


@given(objects, st.randoms(), st.sampled_from([None, 1, 4]), st.booleans())
def test_reordered_and_reformatted_json_means_the_same(
    value: dict[str, object], random: Any, indent: int | None, ascii_only: bool
) -> None:
    names = list(value)
    random.shuffle(names)
    again = {name: value[name] for name in names}
    other = made(encoded(again, indent=indent, ensure_ascii=ascii_only))
    assert made(encoded(value)) == other
    assert other.kind == "json"
    assert set(other.fields) == set(value)


@given(objects, objects)
def test_any_other_value_means_something_else(one: object, other: object) -> None:
    same = encoded(one, sort_keys=True) == encoded(other, sort_keys=True)
    assert (made(encoded(one)).text == made(encoded(other)).text) is same


@pytest.mark.parametrize(
    "other",
    [
        {"method": "PATCH"},
        {"path": "/pay/"},
        {"query": b"a=1"},
        {"encoding": "gzip"},
        {"content_type": "application/merge-patch+json"},
        {"content_type": "application/json; version=2"},
        {"content_type": "text/plain"},
        {"content_type": None},
        {"body": b'{"a":2}'},
        {"body": b'{"a":"1"}'},
        {"body": b'{"a":1,"b":null}'},
        {"body": b""},
    ],
)
def test_every_part_counts(other: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"body": b'{"a":1}', "content_type": "application/json"}
    assert made(**whole).text != made(**whole | other).text


@given(st.text("ab/", max_size=4), st.text("ab/", max_size=4), st.binary(max_size=3))
def test_moving_a_border_between_parts_changes_the_fingerprint(
    a: str, b: str, query: bytes
) -> None:
    assume(b)
    one = made(b"x", None, method=a + b, path="/", query=query)
    assert one.text != made(b"x", None, method=a, path=b + "/", query=query).text
    shifted = made(query + b"x", None, method=a + b, path="/")
    assert (one.text == shifted.text) is (query == b"")


@pytest.mark.parametrize(
    "spelled",
    [
        "Application/JSON",
        "application/json;charset=utf-8",
        'application/json ; Charset="UTF-8"',
        " application/json;",
    ],
)
def test_spellings_of_one_media_type_are_one(spelled: str) -> None:
    assert made(b'{"a":1}', spelled) == made(b'{"a":1}')


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=latin-1",
        "application/json; a=1; a=1",
        "json",
        "a/b; x",
        "",
        '/;"',
    ],
)
def test_a_type_that_leaves_doubt_is_raw_and_counts(content_type: str) -> None:
    result = made(b'{"a":1}', content_type)
    assert result.kind == "raw"
    assert result.text != made(b'{"a":1}', "text/plain").text


def test_vendor_json_is_json() -> None:
    assert made(b'{"a":1.0}', "application/vnd.x+json").kind == "json"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"a":1,"a":2}',
        b"[NaN]",
        b"1" * 10_000,
        b"[" * 100_000,
        rb'"\ud800"',
        b"\xef\xbb\xbf{}",
    ],
    ids=["empty", "name twice", "NaN", "10,000 digits", "100,000 levels", "surrogate", "BOM"],
)
def test_what_is_not_i_json_is_raw_and_never_coerced(body: bytes) -> None:
    result = made(body)
    assert result.kind == "raw"
    assert result.fields == {}
    assert result.text != made(body + b" ").text


@given(values)
def test_raw_never_equals_json(value: object) -> None:
    body = encoded(value)
    assert made(body).text != made(body, "application/json; charset=utf-16").text
    assert made(body).text != made(body, "text/plain").text


def test_a_compressed_body_is_raw_under_its_encoding() -> None:
    body = gzip.compress(b'{"a":1}', mtime=0)
    result = made(body, encoding="GZIP ")
    assert result.kind == "raw"
    assert result == made(body, encoding="gzip")
    assert result.text != made(body, encoding="br").text
    assert made(b'{"a":1}', encoding="identity") == made(b'{"a":1}')


@given(st.binary(max_size=200), st.integers(1, 9))
def test_chunks_do_not_matter(body: bytes, size: int) -> None:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    for content_type in ("application/json", FORM, "text/plain"):
        whole = fingerprint(*meant(body, content_type), FingerprintRule())
        assert fingerprint(*meant(chunks, content_type), FingerprintRule()) == whole


@pytest.mark.parametrize(("content_type", "encoding"), [(None, None), ("application/json", "br")])
def test_raw_bodies_are_hashed_as_they_stream(
    content_type: str | None, encoding: str | None
) -> None:
    alive = 0

    class Chunk(bytearray):
        def __init__(self) -> None:
            nonlocal alive
            super().__init__(1000)
            alive += 1
            assert alive <= 2, "chunks are being collected"

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def stream() -> Iterator[bytes]:
        for _ in range(100):
            yield Chunk()  # type: ignore[misc]

    streamed = fingerprint(*meant(stream(), content_type, encoding=encoding), FingerprintRule())
    assert streamed == made(bytes(100_000), content_type, encoding=encoding)


@given(st.binary(), st.text(max_size=80) | st.none(), st.text(max_size=10) | st.none())
def test_no_request_makes_it_raise(
    body: bytes, content_type: str | None, encoding: str | None
) -> None:
    made(body, content_type, encoding=encoding)
    boundary = "multipart/form-data; boundary=b"
    for kind in ("application/json", FORM, boundary):
        made(body, kind)
    made(b"--b\r\n" + body + b"\r\n--b--", boundary)
    made(b"--b\r\nContent-Disposition:" + body + b"\r\n\r\n\r\n--b--", boundary)


# --- forms


@given(st.lists(st.tuples(text, text), max_size=6), st.randoms())
def test_a_form_is_its_values_by_name(pairs: list[tuple[str, str]], random: Any) -> None:
    def sent(pairs: list[tuple[str, str]], escape: Any) -> Fingerprint:
        return made("&".join(f"{escape(a)}={escape(b)}" for a, b in pairs).encode(), FORM)

    def all_escaped(text: str) -> str:
        return "".join(f"%{octet:02x}" for octet in text.encode())

    names = sorted({name for name, _ in pairs})
    random.shuffle(names)
    regrouped = [pair for name in names for pair in pairs if pair[0] == name]
    result = sent(pairs, quote_plus)
    assert result.kind == "form"
    assert result == sent(regrouped, all_escaped)
    assert set(result.fields) == set(names)


def test_the_order_of_the_values_of_one_name_counts() -> None:
    assert made(b"a=1&a=2&b=3", FORM) == made(b"b=3&a=1&&a=2", FORM)
    assert made(b"a=1&a=2", FORM).text != made(b"a=2&a=1", FORM).text
    assert made(b"a=1&b=2", FORM).text != made(b"a=1%26b=2", FORM).text


@pytest.mark.parametrize("body", [b"a=%", b"a=%4", b"%zz=1"])
def test_a_form_that_parsers_read_differently_is_raw(body: bytes) -> None:
    assert made(body, FORM).kind == "raw"


# --- multipart


def part(name: str, content: bytes, extra: str = "", headers: str = "") -> bytes:
    return (
        f'Content-Disposition: form-data; name="{name}"{extra}{headers}\r\n\r\n'.encode() + content
    )


def multipart(parts: list[bytes], boundary: str = "XyZ", **options: Any) -> Fingerprint:
    body = b"".join(b"--" + boundary.encode() + b"\r\n" + each + b"\r\n" for each in parts)
    closed = body + b"--" + boundary.encode() + b"--\r\n"
    return made(closed, f'multipart/form-data; boundary="{boundary}"', **options)


boundaries = st.text("abcXYZ019'()+_,-./:=?", min_size=8, max_size=70)


@given(boundaries, boundaries, st.lists(st.binary(max_size=30), max_size=3))
def test_the_boundary_does_not_matter(one: str, other: str, contents: list[bytes]) -> None:
    assume(not any(b"--" in content for content in contents))
    parts = [part(f"f{at}", content) for at, content in enumerate(contents)]
    result = multipart(parts, one)
    assume(parts)
    assert result.kind == "multipart"
    assert result == multipart(parts, other)


FILE = part("file", b"\x00\r\n\r\n\xff", '; filename="a.png"', "\r\nContent-Type: image/png")


@pytest.mark.parametrize(
    "other",
    [
        part("file", b"\x00\r\n\r\n\xfe", '; filename="a.png"', "\r\nContent-Type: image/png"),
        part("file", b"\x00\r\n\r\n\xff", '; filename="b.png"', "\r\nContent-Type: image/png"),
        part("file", b"\x00\r\n\r\n\xff", "", "\r\nContent-Type: image/png"),
        part("file", b"\x00\r\n\r\n\xff", '; filename="a.png"', "\r\nContent-Type: image/gif"),
        part("file", b"\x00\r\n\r\n\xff", '; filename="a.png"'),
        part("photo", b"\x00\r\n\r\n\xff", '; filename="a.png"', "\r\nContent-Type: image/png"),
    ],
)
def test_everything_else_about_a_part_matters(other: bytes) -> None:
    assert multipart([FILE]).kind == multipart([other]).kind == "multipart"
    assert multipart([FILE]).text != multipart([other]).text


def test_parts_of_one_name_keep_their_order_and_names_do_not() -> None:
    a, b, c = part("x", b"1"), part("x", b"2"), part("y", b"3")
    assert multipart([a, b, c]) == multipart([c, a, b])
    assert multipart([a, b]).text != multipart([b, a]).text
    assert set(multipart([a, b, c]).fields) == {"x", "y"}


def test_a_length_and_the_spelling_of_a_part_do_not_matter() -> None:
    plain = b"content-disposition:form-data;name=x\r\nContent-Length: 1\r\n\r\n1"
    assert multipart([plain]) == multipart([part("x", b"1")])


DELIMITED = b"--b\r\n" + part("x", b"1") + b"\r\n--b"
MALFORMED = {
    "nothing": b"",
    "preamble": b"hello\r\n" + DELIMITED + b"--",
    "another boundary first": b"--c" + DELIMITED[3:] + b"--",
    "epilogue": DELIMITED + b"--\r\nmore",
    "not closed": DELIMITED,
    "cut short": DELIMITED[:-3],
    "padding": DELIMITED.replace(b"--b\r\n", b"--b \r\n") + b"--",
    "bare line feeds": DELIMITED.replace(b"\r\n", b"\n") + b"--",
    "no name": DELIMITED.replace(b'; name="x"', b"") + b"--",
    "name twice": DELIMITED.replace(b'; name="x"', b'; name="x"; name="y"') + b"--",
    "not form-data": DELIMITED.replace(b"form-data", b"attachment") + b"--",
    "no headers": b"--b\r\n\r\n1\r\n--b--",
    "no blank line": b'--b\r\nContent-Disposition: form-data; name="x"\r\n--b--',
    "folded header": DELIMITED.replace(b"; name", b";\r\n name") + b"--",
    "header twice": DELIMITED.replace(b"\r\n\r\n", b"\r\nA: 1\r\nA: 2\r\n\r\n") + b"--",
    "boundary inside content": b"--b\r\n" + part("x", b"1\r\n--bc") + b"\r\n--b--",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_multipart_is_raw(body: bytes) -> None:
    assert made(body, "multipart/form-data; boundary=b").kind == "raw"


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_where_multipart_is_not_read_the_boundary_matters(encoding: str | None) -> None:
    """Applications that skip what stands before and after read one amount, or the other."""
    one, other = (
        b"--%b\r\n%b\r\n--%b--\r\n" % (boundary, part("amount", amount), boundary)
        for boundary, amount in ((b"A", b"1"), (b"B", b"1000"))
    )
    texts = {
        made(one + other, f"multipart/form-data; boundary={boundary}", encoding=encoding).text
        for boundary in ("A", "B")
    }
    assert len(texts) == 2


def test_a_charset_matters_where_the_body_is_not_read() -> None:
    body = '<?xml version="1.0" encoding="latin-1"?><name>é</name>'.encode()
    kinds = ("text/xml", "text/xml; charset=utf-8", "text/xml; charset=latin-1")
    assert len({made(body, kind).text for kind in kinds}) == 3


@pytest.mark.parametrize(
    "parameters", ["", "; boundary=", '; boundary="a "', "; boundary=" + "b" * 71]
)
def test_multipart_without_a_proper_boundary_is_raw(parameters: str) -> None:
    assert made(DELIMITED + b"--", "multipart/form-data" + parameters).kind == "raw"


# --- choosing what matters


def test_excluded_fields_do_not_matter() -> None:
    recipe = FingerprintRule(
        exclude=("sent_at", "/card/trace", "/items/0", "/~1odd", "absent", "/a/b/c")
    )
    one = made(
        b'{"sent_at":1,"card":{"trace":1,"no":2},"items":[1,2],"/odd":1,"a":7}', recipe=recipe
    )
    other = made(b'{"card":{"no":2,"trace":[]},"items":[9,2],"a":7}', recipe=recipe)
    assert one == other
    assert set(one.fields) == {"card", "items", "a"}
    assert one.text != made(b'{"card":{"no":3},"items":[9,2],"a":7}', recipe=recipe).text
    assert one.text != made(b'{"card":{"no":2},"items":[9],"a":7}', recipe=recipe).text


def test_excluding_an_element_does_not_move_the_others() -> None:
    recipe = FingerprintRule(exclude=("/0", "/1"))
    assert made(b"[1,2,3]", recipe=recipe) == made(b"[8,9,3]", recipe=recipe)
    assert made(b"[1,2,3]", recipe=recipe).text != made(b"[1,2,4]", recipe=recipe).text


def test_only_included_fields_matter() -> None:
    recipe = FingerprintRule(include=("amount", "/card/no", "/absent"))
    one = made(b'{"amount":1,"card":{"no":2,"x":1},"y":0}', recipe=recipe)
    assert one == made(b'{"card":{"no":2.0},"amount":1,"z":[]}', recipe=recipe)
    assert set(one.fields) == {"amount", "/card/no"}
    assert one.text != made(b'{"amount":1,"card":{"no":3}}', recipe=recipe).text
    assert one.text != made(b'{"amount":1,"card":{}}', recipe=recipe).text
    null = made(b'{"amount":1,"card":{"no":null}}', recipe=recipe)
    assert null.text != made(b'{"amount":1,"card":{}}', recipe=recipe).text


def test_a_name_given_twice_is_noticed_whatever_is_left_out() -> None:
    recipe = FingerprintRule(exclude=("a",))
    assert made(b'{"a":1,"a":2,"b":1}', recipe=recipe).kind == "raw"


def test_form_fields_are_chosen_by_name() -> None:
    out = FingerprintRule(exclude=("t", "/a/b"))
    assert made(b"a=1&t=2", FORM, recipe=out) == made(b"t=3&a=1&t=4", FORM, recipe=out)
    only = FingerprintRule(include=("a",))
    assert made(b"a=1&t=2", FORM, recipe=only) == made(b"a=1", FORM, recipe=only)
    one, other = (
        multipart([part("a", b"1"), part("t", b"2")], recipe=out),
        multipart([part("a", b"1")]),
    )
    assert one.text == other.text


def test_a_raw_body_counts_whole() -> None:
    recipe = FingerprintRule(exclude=("t",))
    assert (
        made(b"t=1", "text/plain", recipe=recipe).text
        != made(b"t=2", "text/plain", recipe=recipe).text
    )


def test_a_function_may_decide_what_matters() -> None:
    recipe = FingerprintRule(
        by=lambda request, body: request.headers["X-Amount"].encode() + body[:1]
    )
    one = made(b"ab", None, query=b"a", recipe=recipe)
    assert one.kind == "by"
    assert one == made(b"ac", "text/plain", query=b"b", encoding="gzip", recipe=recipe)
    assert one.text != made(b"b", None, recipe=recipe).text
    assert one.text != made(b"ab", None, path="/other", recipe=recipe).text
    assert one.text != made(b"5a", None).text


def test_a_function_that_returns_no_bytes_is_told_so() -> None:
    recipe = FingerprintRule(by=lambda request, body: "text")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="returned str, not bytes"):
        made(b"", recipe=recipe)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"include": ()}, "all requests equal"),
        ({"include": "amount"}, "include= takes a tuple"),
        ({"exclude": "amount"}, "exclude= takes a tuple"),
        ({"exclude": ("",)}, "must not be empty"),
        ({"exclude": ("/a~2b",)}, "not a JSON Pointer"),
        ({"include": ("a",), "by": lambda request, body: body}, "decides alone"),
        ({"exclude": ("a",), "by": lambda request, body: body}, "decides alone"),
        ({"secrets": (("a.b", b"x" * 32),)}, "key id"),
        ({"secrets": (("", b"x" * 32),)}, "key id"),
        ({"secrets": (("a", b""),)}, "16 bytes or more"),
        ({"secrets": (("a", b"x" * 32), ("a", b"y" * 32))}, "same key id"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        FingerprintRule(**options)
    assert "xxxx" not in str(refused.value)


def decide(request: Request, body: bytes) -> bytes:
    return body


def test_a_description_is_stable_and_knows_no_secrets() -> None:
    assert FingerprintRule().describe() == FingerprintRule(secrets=(NEW,)).describe() == "v1"
    one = FingerprintRule(exclude=("b", "/a"), include=("x y",), secrets=(NEW,))
    assert one.describe() == 'v1 include=["/x y"] exclude=["/a","/b"]'
    assert one.describe() == FingerprintRule(exclude=("a", "/b", "b"), include=("/x y",)).describe()
    assert FingerprintRule(by=decide).describe().endswith(".decide")
    assert "nnnn" not in repr(one)


# --- matching


def test_a_rotated_secret_is_still_accepted() -> None:
    meaning = meant(b'{"a":1}')
    before, after = FingerprintRule(secrets=(OLD,)), FingerprintRule(secrets=(NEW, OLD))
    stored, mine = fingerprint(*meaning, before).text, fingerprint(*meaning, after)
    assert stored != mine.text
    assert matches(stored, after, mine)
    assert not matches(stored, FingerprintRule(secrets=(NEW,)), mine)
    other = fingerprint(*meant(b'{"a":2}'), before).text
    assert not matches(other, after, mine)


def test_records_from_before_the_first_secret_still_match() -> None:
    meaning, sealed = meant(b'{"a":1}'), FingerprintRule(secrets=(NEW,))
    mine = fingerprint(*meaning, sealed)
    assert matches(fingerprint(*meaning, FingerprintRule()).text, sealed, mine)
    assert not matches(made(b'{"a":2}').text, sealed, mine)


def test_matching_does_not_read_the_body_again() -> None:
    meaning, recipe = meant(iter([b'{"a":1}'])), FingerprintRule(secrets=(NEW, OLD))
    mine = fingerprint(*meaning, recipe)
    assert matches(made(b'{"a":1}', recipe=FingerprintRule(secrets=(OLD,))).text, recipe, mine)


def test_a_digest_of_another_kind_or_under_another_label_never_matches() -> None:
    meaning, recipe = meant(b'{"a":1}'), FingerprintRule(secrets=(NEW, OLD))
    mine = fingerprint(*meaning, recipe)
    assert not matches(mine.text.replace("j1", "r1"), recipe, mine)
    assert not matches(mine.text.replace("j1", "j2"), recipe, mine)
    assert not matches(mine.text.replace("2024", "2023"), recipe, mine)
    assert not matches(mine.text.replace("-", "", 1), recipe, mine)


@given(st.text() | st.text("j1.r-2024f", max_size=40))
def test_no_stored_text_makes_matching_raise(stored: str) -> None:
    recipe = FingerprintRule(secrets=(NEW, OLD))
    assert not matches(stored, recipe, made(b"{}", recipe=recipe))


def test_a_body_of_very_many_values_is_compared_by_its_bytes() -> None:
    """Reading a million would keep every thread of the process waiting."""
    kinds: dict[str, Callable[[int], Fingerprint]] = {
        "json": lambda count: made(b"[" + b"1," * (count - 2) + b"1]"),
        "form": lambda count: made(b"a=1&" * (count - 1) + b"a=1", FORM),
    }
    for kind, of_values in kinds.items():
        assert [of_values(100_000).kind, of_values(100_002).kind] == [kind, "raw"]
    assert made(b"[" * 1_000_000).kind == "raw"


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_of_a_large_body_nothing_is_read_after_it_was_prepared(size: int) -> None:
    """What comes then is done in the thread of the event loop."""
    reads: list[int] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            reads.append(size)
            yield from (b'{"a":"', b"x" * size, b'"}')

    prints = Prints(sent(), Body(), FingerprintRule())
    prints.prepare()
    read = len(reads)
    evidence = prints.evidence(NAME)
    assert prints.differing(record_with(evidence)) == FieldDifference()
    assert len(reads) == read
    assert evidence == Prints(sent(), Body(), FingerprintRule()).evidence(NAME)


def test_the_trace_of_a_large_body_is_no_other_bodys() -> None:
    """It is made from the digest, which as a body is another request."""
    large = b"x" * 100_000
    bodies = (large, hashlib.sha256(large).digest(), large + b"x", large[1:])
    traces = {
        Prints(sent("a/b"), (body,), FingerprintRule()).evidence(NAME)[:16] for body in bodies
    }
    assert len(traces) == 4


# --- which fields differ

names = st.text("abcdefgh_", min_size=1, max_size=3)
fields = st.dictionaries(names, st.integers(0, 9), max_size=8)


def told(body: dict[str, int]) -> Mapping[str, bytes]:
    return made(json.dumps(body).encode()).fields


@given(fields, fields, st.sampled_from([FingerprintRule(), FingerprintRule(secrets=(NEW,))]))
def test_exactly_the_fields_that_were_added_or_changed_are_named(
    one: dict[str, int], other: dict[str, int], recipe: FingerprintRule
) -> None:
    difference = differing_fields(field_digests(told(one), SALT, recipe), told(other), recipe)
    if one:
        assert set(difference.named) == {name for name in other if one.get(name) != other[name]}
        assert difference.missing == max(0, len(one) - len(other))
    else:
        assert difference == FieldDifference()


def test_changed_and_added_members_are_named_and_missing_ones_counted() -> None:
    stored = field_digests(made(b'{"amount":4242,"to":"a","note":"x"}').fields, SALT)
    changed = differing_fields(stored, made(b'{"amount":1000,"to":"a","memo":"x"}').fields)
    assert changed == FieldDifference(("amount", "memo"))
    assert differing_fields(stored, made(b'{"to":"a","note":"x"}').fields) == FieldDifference((), 1)


CARD = "4111111111111111"
DATA_AS_NAMES = {
    "JSON sent as a form": (b'{"card":"%b"}' % CARD.encode(), FORM),
    "a form without a name": (b"AnnExample", FORM),
    "among others": (b"amount=5&AnnExample", FORM),
    "an object keyed by data": (b'{"%b":1,"AnnExample":2}' % CARD.encode(), "application/json"),
    "a part": (
        b'--b\r\nContent-Disposition: form-data; name="AnnExample"\r\n\r\n1\r\n--b--\r\n',
        "multipart/form-data; boundary=b",
    ),
}


@pytest.mark.parametrize(("body", "kind"), DATA_AS_NAMES.values(), ids=DATA_AS_NAMES)
def test_names_of_fields_are_not_stored(body: bytes, kind: str) -> None:
    """They may be data; and a refusal tells no names but those of the request that is refused."""
    stored = field_digests(made(body, kind).fields, SALT)
    for data in (CARD, "AnnExample", "card", "amount"):
        assert data.encode() not in stored
    assert differing_fields(stored, made(b'{"other":1}').fields).named in ((), ("other",))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"card":"%b"}' % CARD.encode(), FORM),
        (b"AnnExample", FORM),
        (b"AnnExample&x=", FORM),
        (b'{"%b":1}' % CARD.encode(), "application/json"),
        (b'{"ann@example.com":1,"+49 30 123456":2,"two words":3}', "application/json"),
        (b'{"%b":1}' % (b"x" * 65), "application/json"),
    ],
)
def test_what_may_be_data_is_not_named(body: bytes, kind: str) -> None:
    stored = field_digests(made(b"x=", FORM).fields, SALT)
    assert differing_fields(stored, made(body, kind).fields).named == ()


def test_digests_depend_on_salt_and_secret() -> None:
    one = {"a": b"1"}
    secrets = [
        FingerprintRule(),
        FingerprintRule(secrets=(("k", b"x" * 32),)),
        FingerprintRule(secrets=(("k", b"y" * 32),)),
    ]
    made = {
        field_digests(one, salt, recipe)[-4:] for salt in (SALT, b"other") for recipe in secrets
    }
    assert len(made) == 6


def test_digests_survive_rotation_and_an_unknown_secret_names_nothing() -> None:
    stored = field_digests(told({"a": 1, "b": 2}), SALT, FingerprintRule(secrets=(OLD,)))
    mine, rotated = told({"a": 1, "b": 3}), FingerprintRule(secrets=(NEW, OLD))
    assert differing_fields(stored, mine, rotated).named == ("b",)
    assert differing_fields(stored, mine, FingerprintRule(secrets=(NEW,))) == FieldDifference()
    assert differing_fields(stored, mine) == FieldDifference()


def test_many_fields_are_cut_and_what_was_cut_is_not_guessed_at() -> None:
    many = {f"f{at:03}": 1 for at in range(100)}
    stored = field_digests(told(many), SALT)
    assert len(told(many)) == MAX_FIELDS + 1
    assert len(stored) < MAX_FIELDS * 7
    assert differing_fields(stored, told(many)) == FieldDifference()
    assert differing_fields(stored, told(many | {"f003": 2, "f099": 2})).named == ("f003",)
    without = {name: value for name, value in many.items() if name > "f009"}
    assert differing_fields(stored, told(without)) == FieldDifference()
    assert differing_fields(stored, told({"x": 0})) == FieldDifference()
    few = field_digests(told({"f000": 0}), SALT)
    assert len(differing_fields(few, told(many)).named) == MAX_NAMED


def test_a_long_value_is_kept_as_its_digest_and_still_compared() -> None:
    long = [made(b'{"note":"%b%b"}' % (b"x" * 1_000_000, end)) for end in (b"a", b"b")]
    assert [len(octets) for one in long for octets in one.fields.values()] == [32, 32]
    stored = field_digests(long[0].fields, SALT)
    assert differing_fields(stored, long[0].fields) == FieldDifference()
    assert differing_fields(stored, long[1].fields).named == ("note",)


def test_no_fields_no_digests() -> None:
    assert field_digests({}, SALT) == b""
    assert differing_fields(b"", {"a": b"1"}) == FieldDifference()


@given(st.binary(max_size=80), fields)
def test_garbage_names_nothing_or_something_but_never_raises(
    stored: bytes, mine: dict[str, int]
) -> None:
    assert differing_fields(stored[:3], told(mine)) == FieldDifference()
    for garbage in (stored, b"\x02" + stored, b"\x02\x01\x00\x00" + stored):
        assert len(differing_fields(garbage, told(mine)).named) <= MAX_NAMED


@given(fields, st.integers(1, 40))
def test_digests_cut_short_are_not_believed(mine: dict[str, int], cut: int) -> None:
    whole = field_digests({"name": b"1"}, SALT)
    assert differing_fields(whole[: -min(cut, len(whole))], told(mine)) == FieldDifference()


def test_what_a_request_held_is_not_in_any_repr() -> None:
    shown = repr(made(b'{"card":"4242"}')) + repr(meant(b'{"card":"4242"}', query=b"4242")[0])
    assert "4242" not in shown


@given(objects, st.sampled_from(["application/json", "application/hal+json", "text/plain"]))
def test_few_steps_give_what_many_give(document: dict[str, Any], kind: str) -> None:
    body = json.dumps(document).encode()
    request, chunks = meant(body, kind)
    assert fingerprint(request, body, FingerprintRule()) == fingerprint(
        request, chunks, FingerprintRule()
    )
