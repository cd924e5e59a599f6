"""A key in a form is taken only where every framework's parser finds the same one.

The application reads the body again, with a parser of its own. Here the parsers of the frameworks
read what semel has read, forms that were twisted at random included: where semel finds a key, each
of them finds that key and no other; where it finds none, none of them does. What semel refuses, and
what a parser refuses, runs nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import litestar
import pytest
from django.core.handlers.wsgi import WSGIRequest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request as StarletteRequest
from werkzeug.wrappers import Request as WerkzeugRequest

import semel
from semel.core.records import HeaderView, Request
from semel.core.request.key_places import Unreadable, find_key, key_places
from semel.core.request.keys import Malformed

PLACES = key_places(semel.body("key"))
FILE = "(a file)"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=XbX"
JSON = "application/json"

pytestmark = pytest.mark.usefixtures("django_is_set_up")


@pytest.fixture(scope="module")
def django_is_set_up() -> None:
    import django
    from django.conf import settings as project

    if not project.configured:
        project.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="a secret of tests")
    django.setup()


# ── readers ───────────────────────────────────────────────────────────────────────────────────────


def environ(kind: str, body: bytes) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/x",
        "SERVER_NAME": "shop",
        "SERVER_PORT": "80",
        "CONTENT_TYPE": kind,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
    }


def by_django(kind: str, body: bytes) -> list[Any]:
    read = WSGIRequest(environ(kind, body))
    return [*read.POST.getlist("key"), *([FILE] if "key" in read.FILES else [])]


def by_werkzeug(kind: str, body: bytes) -> list[Any]:
    read = WerkzeugRequest(environ(kind, body))
    return [*read.form.getlist("key"), *([FILE] if "key" in read.files else [])]


def asgi(kind: str, body: bytes) -> tuple[dict[str, Any], Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", kind.encode("latin-1"))]
    scope = {"type": "http", "method": "POST", "path": "/x", "query_string": b""}
    return {**scope, "headers": headers}, receive


def by_starlette(kind: str, body: bytes) -> list[Any]:
    async def read() -> list[Any]:
        form = await StarletteRequest(*asgi(kind, body)).form()
        return [each if isinstance(each, str) else FILE for each in form.getlist("key")]

    return asyncio.run(read())


def by_litestar(kind: str, body: bytes) -> list[Any]:
    scope, receive = asgi(kind, body)
    app = litestar.Litestar([])
    whole: Any = {**scope, "app": app, "litestar_app": app, "state": {}, "path_params": {}}

    async def read() -> list[Any]:
        form = await litestar.Request[Any, Any, Any](whole, receive=receive).form()
        return [each if isinstance(each, str) else FILE for each in form.getall("key", [])]

    return asyncio.run(read())


def by_the_standard_library(kind: str, body: bytes) -> list[Any]:
    if kind == JSON:
        document = json.loads(body)
        return [document["key"]] if isinstance(document, dict) and "key" in document else []
    pairs = parse_qsl(body.decode(), keep_blank_values=True)
    return [value for name, value in pairs if name == "key"]


READERS: dict[str, list[Callable[[str, bytes], list[Any]]]] = {
    FORM: [by_django, by_werkzeug, by_starlette, by_the_standard_library],
    MULTIPART: [by_django, by_werkzeug, by_starlette, by_litestar],
    JSON: [by_the_standard_library],
}


def found(kind: str, body: bytes) -> str | Malformed | Unreadable | None:
    headers = HeaderView(((b"content-type", kind.encode("latin-1")),))
    return find_key(PLACES, Request("POST", "/x", b"", headers, None), body, strict=False)


def disagreements(kind: str, body: bytes) -> list[str]:
    """The parsers that find other keys than semel; one that refuses the body runs nothing."""
    key = found(kind, body)
    if not body or isinstance(key, Malformed | Unreadable):
        return []
    wrong: list[str] = []
    for reader in READERS[kind]:
        try:
            theirs = reader(kind, body)
        except Exception:
            continue
        if theirs != ([] if key is None else [key]):
            wrong.append(f"{reader.__name__} finds {theirs}, and semel {key!r}")
    return wrong


# ── forms ─────────────────────────────────────────────────────────────────────────────────────────


def parts(*each: tuple[bytes, bytes]) -> bytes:
    return b"".join(b"--XbX\r\n%b\r\n\r\n%b\r\n" % part for part in each) + b"--XbX--\r\n"


DATA = b"Content-Disposition: form-data; "
NAMED = DATA + b'name="key"'
SEEDS: list[tuple[str, bytes]] = [
    (FORM, b"key=order-1001&amount=5"),
    (FORM, b"%6bey=order-1001"),
    (FORM, b"amount=5;key=order"),
    (FORM, b"key=a+b%20c&x"),
    (FORM, b"key&key=x"),
    (MULTIPART, parts((NAMED, b"order-1001"), (DATA + b'name="amount"', b"5"))),
    (MULTIPART, parts((DATA + b"name=key", b"order-1001"))),
    (MULTIPART, parts((DATA + b'name="k"; name="key"', b"order-1001"))),
    (MULTIPART, parts((DATA + b"name*=utf-8''key", b"order-1001"))),
    (MULTIPART, parts((NAMED + b'; filename="a"', b"order-1001"))),
    (MULTIPART, parts((NAMED + b"\r\nContent-Transfer-Encoding: base64", b"YWJj"))),
    (MULTIPART, parts((DATA + b'name="_charset_"', b"utf-16"), (NAMED, b"order-1001"))),
    (JSON, b'{"key": "order-1001", "amount": 5}'),
    (JSON, b'{"a": {"key": "x"}, "key": "order"}'),
]
PIECES = [
    *(b"key", b"k%65y", b"=", b"&", b";", b"+", b"%", b"%00", b"\r\n", b"\n", b"\r", b"--XbX"),
    *(b"--XbX--", b'"', b"\\", b"name=", b"name*=utf-8''", b"filename=", DATA, b" ", b"\t"),
    *(b"\0", b"\xff", b"\x85", b"\x0b", b"[", b"{", b"charset=", b":", b"'", b",", b"%C3%A9"),
    *(b"\xc3\xa9", b"\xc2\xa0", b"Content-Type: text/plain", b"(c)", b'"key"', b"null", b"1e400"),
    *(b'"k\\u0065y"', b"\xef\xbb\xbf", b"NaN", b"\\ud800", b"]", b"}"),
]
TWISTS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 6), st.sampled_from(PIECES), st.booleans()),
    max_size=3,
)


def twisted(body: bytes, twists: list[tuple[int, int, bytes, bool]]) -> bytes:
    """Pieces put in, or some bytes of it doubled or taken out."""
    for place, length, piece, puts in twists:
        at = place % (len(body) + 1)
        if puts:
            body = body[:at] + piece + body[at + length // 4 :]
        elif length % 2:
            body = body[:at] + body[at + length :]
        else:
            body = body[: at + length] + body[at:]
    return body


@pytest.mark.parametrize("kind", READERS)
def test_what_parsers_read_of_twisted_forms(kind: str) -> None:
    seeds = [body for each, body in SEEDS if each == kind]

    @settings(max_examples=400)
    @given(st.sampled_from(seeds), TWISTS)
    def read_alike(body: bytes, twists: list[tuple[int, int, bytes, bool]]) -> None:
        sent = twisted(body, twists)
        assert disagreements(kind, sent) == [], sent

    read_alike()


DIFFER = {
    "Werkzeug sees nothing of a form that is not UTF-8": (FORM, b"key=order-1001&a\xff=5"),
    "Django ends a part at the delimiter wherever it is": (
        MULTIPART,
        parts((NAMED, b"order--XbX1001")),
    ),
    "after a bare line feed too": (
        MULTIPART,
        b"--XbX\r\n" + DATA + b'name="a"\r\n\r\n1\n' + parts((NAMED, b"order-1001")),
    ),
    "Django strips names": (MULTIPART, parts((DATA + b'name=" key"', b"order-1001"))),
    "of all that Unicode has for spaces": (
        MULTIPART,
        parts((DATA + b'name="key\xc2\xa0"', b"order-1001")),
    ),
    "and then finds two": (
        MULTIPART,
        parts((NAMED, b"order-1001"), (DATA + b'name="key "', b"order-1002")),
    ),
    "Werkzeug sees no part with a line feed in its head": (
        MULTIPART,
        parts((DATA.replace(b": ", b":\n") + b'name="key"', b"order-1001")),
    ),
    "nor one that is not UTF-8": (
        MULTIPART,
        parts((DATA + b'name="a\xff"', b"1"), (NAMED, b"order-1001")),
    ),
    "Litestar takes a tab for a part of the name": (
        MULTIPART,
        parts((DATA + b"\tname=key", b"order-1001")),
    ),
}


@pytest.mark.parametrize("case", DIFFER)
def test_a_form_that_parsers_read_in_different_ways_is_refused(case: str) -> None:
    kind, body = DIFFER[case]
    assert isinstance(found(kind, body), Unreadable)


def test_two_requests_that_django_tells_apart_are_told_apart() -> None:
    """The boundary is no part of the fingerprint; where it splits a part for some, it is."""
    from semel.core.request.content_type import read_multipart

    sent = parts((DATA + b'name="amount"', b"5--Y6"))
    assert read_multipart(sent, b"XbX") is not None
    assert read_multipart(sent.replace(b"--XbX", b"--Y"), b"Y") is None
