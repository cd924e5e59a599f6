"""Stored requests: what is read is what was written, and anything else is refused as damaged."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, cast

import pytest

from semel.core.exchange.exchange import WorkerRun
from semel.core.records import Case, Fence
from semel.core.stored.requests import StoredRequest, decode, encode
from semel.errors import StoreCorrupt
from semel.web.worker_runs import asgi_scope, wsgi_environ

REQUEST = StoredRequest(
    method="POST",
    root="/v1",
    path="/jobs/caf%C3%A9",
    query=b"x=\xff",
    headers=((b"content-type", b"text/plain"), (b"x-odd", b"\xe9\xff")),
    body=b"\x00body",
    key="a-key-of-enough-length",
    principal={"user": "\u00e9\ud800"},
)


def with_head(said: bytes) -> bytes:
    """A request with any head, and the checksum that belongs to it."""
    return struct.pack(">2sII", b"Q1", zlib.crc32(said), len(said)) + said


def head(**changed: Any) -> bytes:
    size = struct.unpack_from(">2sII", encode(REQUEST))[2]
    return with_head(json.dumps(json.loads(encode(REQUEST)[10 : 10 + size]) | changed).encode())


def test_what_is_read_is_what_was_written() -> None:
    assert decode(encode(REQUEST)) == REQUEST


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"Q1",
        b"Q0" + encode(REQUEST)[2:],
        encode(REQUEST)[:-1],
        encode(REQUEST) + b"x",
        with_head(b"{"),
        with_head(b"[]"),
        with_head(b"{}"),
        with_head(b"[" * 100_000),
        head(query=5),
        head(query="\u20ac"),
        head(headers={"a": 1}),
        head(headers=[["one"]]),
    ],
)
def test_anything_else_is_damaged(blob: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode(blob)


def run_with(*headers: tuple[bytes, bytes]) -> WorkerRun:
    request = StoredRequest("POST", "", "/jobs", b"", headers, b"body", REQUEST.key, None)
    case = cast("Case", None)  # nobody asks for it here
    return WorkerRun(case, Fence(b"f" * 16), request, 0.0)


def test_headers_that_a_worker_makes_itself_are_not_doubled() -> None:
    run = run_with(
        (b"idempotency-key", REQUEST.key.encode()),
        (b"content-length", b"4"),
        (b"transfer-encoding", b"chunked"),
        (b"host", b"shop.example"),
    )
    said = asgi_scope(run)["headers"]
    assert sorted(said) == [
        (b"content-length", b"4"),
        (b"host", b"shop.example"),
        (b"idempotency-key", REQUEST.key.encode()),
    ]
    environ = wsgi_environ(run)
    assert environ["HTTP_IDEMPOTENCY_KEY"] == REQUEST.key
    assert environ["HTTP_HOST"] == "shop.example"
    assert wsgi_environ(run_with())["HTTP_HOST"] == "semel-worker"
