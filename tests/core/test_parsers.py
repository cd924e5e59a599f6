"""What comes from outside is read by parsers that never fall: each of them, in one table.

Given anything at all, a parser gives a value or raises what it declares, and takes time in
proportion to what it is given. What goes in comes out again has tests beside each format.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.client.responses import retry_after
from semel.core.exchange.replay import accepts
from semel.core.operations.audit import BrowseAudit
from semel.core.records import Identity
from semel.core.recovery import journal
from semel.core.request.canonical_json import canonicalise
from semel.core.request.content_type import media_type, read_multipart, read_urlencoded
from semel.core.request.fingerprint import parse_pointer, write_pointer
from semel.core.request.keys import canonical_path, parse_key
from semel.core.stored import requests, sealed, snapshot
from semel.errors import ConfigurationError, StoreError
from semel.outbox import signatures
from semel.stores import open_backend
from semel.stores.memory import MemoryBackend
from semel.stores.options import count, seconds
from semel.stores.redis import layout, replies
from semel.stores.sql import rows

LATIN = st.text(st.characters(max_codepoint=255))
"""What a header can hold."""
SECRET = bytes(range(32))
NOBODY = Identity(bytes(32))


def near(*pieces: str) -> st.SearchStrategy[str]:
    """Texts made of what the parser looks for, and of anything between."""
    return st.lists(st.sampled_from(pieces) | st.text(max_size=4), max_size=12).map("".join)


def near_bytes(*pieces: bytes) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(pieces) | st.binary(max_size=4), max_size=12).map(b"".join)


def verify(header: str) -> object:
    return signatures.verify((SECRET,), header, "1700000000", header, b"body", now=1_700_000_000.0)


def damaged(encode: Callable[[], bytes]) -> st.SearchStrategy[bytes]:
    """Bytes that were right, with some of them exchanged."""
    whole = encode()
    places = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)

    def exchanged(changes: list[tuple[int, int]]) -> bytes:
        blob = bytearray(whole)
        for place, octet in changes:
            blob[place] = octet
        return bytes(blob)

    return st.binary() | places.map(exchanged)


def checksummed(magic: bytes) -> st.SearchStrategy[bytes]:
    """A journal whose checksum is right and whose content is anything that JSON can say."""
    inner = near_bytes(b"[", b"]", b'"a"', b'"call"', b",", b"null", b"1", b"{", b"}", b":")
    return inner.map(lambda rest: magic + zlib.crc32(rest).to_bytes(4, "big") + rest)


JOURNAL = journal.Journal((journal.Point("charged", journal.PointKind.CALL, True, {"id": 1}),))
REQUEST = requests.StoredRequest("POST", "", "/a", b"", ((b"a", b"b"),), b"{}", "key", None)
SNAPSHOT = snapshot.Snapshot(200, ((b"a", b"b"),), b"body")
CELLS = st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=40) | st.booleans()
WORDS = ("pending", "completed", "in_progress", "unknown", "release", "resume")
CELL = CELLS | st.sampled_from((*WORDS, bytes(32), bytes(16)))
ROW = st.lists(CELL, max_size=24)
URLS = ("://", "/", "@", ":", "?", "&", "=", "[", "]", "%", "host", "pool_size", "timeout", "9" * 9)


def url_of(scheme: str) -> st.SearchStrategy[str]:
    return near(*URLS).map(lambda rest: f"{scheme}://{rest}")


def long_url(scheme: str, size: int) -> str:
    return f"{scheme}://h/" + "9" * size


OF_A_ROW: tuple[Callable[[Any], object], ...] = (*(rows.case, rows.glimpse, rows.effect),)
OF_ROWS: tuple[Callable[[Any], object], ...] = (
    *(rows.record_and_now, rows.case_and_now, rows.ANSWER.only, rows.DUE.only),
    *(rows.EFFECT_STATE.only, rows.now_in, rows.written, rows.RECIPE.only),
)
SOUND = layout.HEAD.pack(2, 1, 0, bytes(16), 1, 2, 0, 0, 0, 5, 0) + bytes(5)
"""A record in progress, as Redis has it."""
OF_REDIS: dict[str, Callable[[Any], object]] = {
    "written": lambda given: replies.written(NOBODY, given),
    "record": lambda given: layout.record(NOBODY, given),
    "case": lambda given: replies.case(layout.stored(NOBODY, SOUND), {}, given),
    "glimpse": lambda given: replies.glimpse(layout.stored(NOBODY, SOUND), {}, given),
    "state": replies.state,
    "time": replies.time,
    "text": replies.text,
}


@dataclass(frozen=True)
class Parser:
    """``raises``: what it declares; ``evil``: makes an input of about so many bytes that a careless
    parser would take long over."""

    parse: Callable[[Any], object]
    given: st.SearchStrategy[Any]
    evil: Callable[[int], Any]
    raises: tuple[type[Exception], ...] = ()


PARSERS: dict[str, Parser] = {
    "Idempotency-Key": Parser(
        lambda value: parse_key([value]),
        near_bytes(b'"', b"\\", b";", b"=", b",", b" ", b"a") | st.binary(),
        lambda size: b'"' + b"\\\\" * (size // 2),
    ),
    "path": Parser(canonical_path, st.binary(), lambda size: b"/" * size),
    "JSON": Parser(
        canonicalise,
        near_bytes(b"{", b"}", b"[", b"]", b'"', b":", b",", b"1e", b"-", b"\\u", b"null"),
        lambda size: b"[" * size,
    ),
    "form": Parser(
        read_urlencoded, near_bytes(b"%", b"&", b"=", b"+", b"%41"), lambda size: b"&a=" * size
    ),
    "multipart": Parser(
        lambda body: read_multipart(body, b"x"),
        near_bytes(b"--x", b"\r\n", b"--", b"Content-Disposition: form-data; name=", b'"', b"a"),
        lambda size: b"--x\r\nContent-Disposition: form-data" + b'; a="' + b"\\" * size,
    ),
    "Content-Type": Parser(
        media_type,
        near("multipart/form-data", ";", "boundary=", '"', "\\", "charset=", " ") | LATIN,
        lambda size: "a/b" + "; " * size,
    ),
    "Accept-Encoding": Parser(
        lambda header: accepts(header, "gzip"),
        near("gzip", ";q=", "0", ",", "*") | LATIN,
        lambda size: "gzip;" * size,
    ),
    "Retry-After": Parser(
        lambda value: retry_after(value, value, 1.0e9),
        near("Mon", ", ", "06 Nov", " 1994", "08:49:37", " GMT", "1", "-") | LATIN,
        lambda size: "9" * size,
    ),
    "webhook signature": Parser(
        verify, near("v1,", " ", "a", "=") | LATIN, lambda size: "v1,a " * (size // 5)
    ),
    "webhook secret": Parser(
        signatures.secret,
        near("whsec_", "a", "=", "/"),
        lambda size: "whsec_" + "=" * size,
        (ConfigurationError,),
    ),
    "snapshot": Parser(
        snapshot.decode,
        damaged(lambda: snapshot.encode(SNAPSHOT)),
        lambda size: snapshot.encode(SNAPSHOT)[:6] + b"\xff" * size,
        (StoreError,),
    ),
    "stored request": Parser(
        requests.decode,
        damaged(lambda: requests.encode(REQUEST)),
        lambda size: requests.encode(REQUEST)[:6] + b"[" * size,
        (StoreError,),
    ),
    "journal": Parser(
        journal.decode,
        damaged(lambda: journal.encode(JOURNAL)) | checksummed(b"J1"),
        lambda size: b"J1" + zlib.crc32(b"[" * size).to_bytes(4, "big") + b"[" * size,
        (StoreError,),
    ),
    "sealed value": Parser(
        sealed.parse, near_bytes(b"E1", b"\x03", b"abc"), lambda size: b"E1\xff" * size
    ),
    **{
        f"row of SQL: {parse.__name__}": Parser(
            parse, ROW, lambda size: [bytes(32), "completed", bytes(16), "v" * size], (StoreError,)
        )
        for parse in OF_A_ROW
    },
    **{
        f"rows of SQL: {parse.__name__}": Parser(
            parse, st.lists(ROW, max_size=2), lambda size: [[1, b"v" * size]], (StoreError,)
        )
        for parse in OF_ROWS
    },
    **{
        f"answer of Redis: {name}": Parser(
            parse,
            ROW | st.lists(ROW | CELLS, max_size=14) | CELLS,
            lambda size: [0, b"9" * size, None],
            (StoreError,),
        )
        for name, parse in OF_REDIS.items()
    },
    "JSON Pointer": Parser(
        parse_pointer, near("/", "~", "0", "1"), lambda size: "/~0" * size, (ConfigurationError,)
    ),
    "place in the audit": Parser(
        lambda place: MemoryBackend().perform(BrowseAudit(1, place)),
        near("1", "-", "²", "٣"),
        lambda size: "9" * size,
        (ConfigurationError,),
    ),
    "number of seconds": Parser(
        lambda text: seconds("timeout", text),
        near("1", "e", ".", "nan", "inf", "_"),
        lambda size: "9" * size,
        (ConfigurationError,),
    ),
    "whole number": Parser(
        lambda text: count("pool_size", text),
        near("1", "٣", "²", "_", "-"),
        lambda size: "9" * size,
        (ConfigurationError,),
    ),
    **{
        f"{scheme} URL": Parser(
            open_backend,
            url_of(scheme),
            partial(long_url, scheme),
            (ConfigurationError,),
        )
        for scheme in ("sqlite", "postgresql", "mysql", "redis", "rediscluster", "django", "memory")
    },
    "store URL": Parser(
        open_backend, near(*URLS, "sqlite", "redis"), lambda size: ":" * size, (ConfigurationError,)
    ),
}

EACH = pytest.mark.parametrize("name", PARSERS)


EXPLORED = settings().max_examples > 100
"""Whether new examples are looked for: then many, else the same few each time."""


@EACH
@given(data=st.data())
@settings(max_examples=settings().max_examples // 3 if EXPLORED else 15)
def test_no_input_makes_a_parser_fall(name: str, data: st.DataObject) -> None:
    parser = PARSERS[name]
    with suppress(*parser.raises):
        parser.parse(data.draw(parser.given))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("store URL", "sqlite://["),
        ("redis URL", "redis://h/²"),
        ("redis URL", "redis://h/" + "9" * 5000),
        ("place in the audit", "²"),
        ("place in the audit", "9" * 5000),
        ("whole number", "²"),
    ],
)
def test_what_made_a_parser_fall_once_does_so_no_more(name: str, found: str) -> None:
    with pytest.raises(PARSERS[name].raises):
        PARSERS[name].parse(found)


SMALL, LARGE = 1 << 10, 1 << 19
TOO_LONG = 60.0
"""Seconds of computing. None takes one on a machine of today."""


@EACH
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_long_input_is_read_in_good_time(name: str, size: int) -> None:
    """512 KiB of the worst; a parser that looks at each pair of bytes would take minutes, were it
    in C, and hours in Python."""
    parser = PARSERS[name]
    evil = parser.evil(size)
    started = time.thread_time()
    with suppress(*parser.raises):
        parser.parse(evil)
    assert time.thread_time() - started < TOO_LONG


@given(st.lists(st.text(), min_size=1).map(tuple))
@example(("~1", "/", ""))
def test_a_pointer_comes_out_as_it_went_in(pointer: tuple[str, ...]) -> None:
    assert parse_pointer(write_pointer(pointer)) == pointer


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


@given(
    st.lists(st.tuples(st.text(), st.sampled_from(journal.PointKind), VALUES), max_size=3),
    st.booleans(),
)
def test_a_journal_comes_out_as_it_went_in(
    points: list[tuple[str, journal.PointKind, Any]], intent: bool
) -> None:
    kept = journal.Journal(tuple(journal.Point(n, kind, True, said) for n, kind, said in points))
    kept = kept.intending("last") if intent else kept
    assert journal.decode(journal.encode(kept)) == kept


@given(
    st.builds(
        requests.StoredRequest,
        st.text(),
        st.text(),
        st.text(),
        st.binary(),
        st.lists(st.tuples(st.binary(), st.binary())).map(tuple),
        st.binary(),
        st.text(),
        VALUES,
    )
)
def test_a_stored_request_comes_out_as_it_went_in(request: requests.StoredRequest) -> None:
    assert requests.decode(requests.encode(request)) == request
