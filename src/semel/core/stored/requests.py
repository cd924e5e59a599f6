"""The stored request of a deferred or resumable route: enough to run it again without its client.

Layout: ``Q1`` · CRC-32 of the rest · length of the head · head (JSON) · body. Of the headers only
those are kept that the route names in ``carry=``, those that may have the key, the host, and what
describes the body.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final

from semel.core.frozen import frozen
from semel.core.records import Headers, HeaderView
from semel.core.stored.sealed import demand_opened
from semel.errors import StoreCorrupt

_MAGIC: Final = b"Q1"
_HEAD: Final = struct.Struct(">2sII")
_DAMAGED: Final = (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError)

ALWAYS_CARRIED: Final = ("host", "content-type", "content-encoding", "content-language")


@frozen
class StoredRequest:
    """What a worker sends through the application again."""

    method: str
    root: str
    """The mount prefix, decoded."""
    path: str
    """The path below the mount prefix, decoded."""
    query: bytes
    headers: Headers
    body: bytes
    key: str
    """The key as it was sent."""
    principal: Any
    """What ``principal=`` said of the caller (JSON): `semel.principal` gives it back."""
    scheme: str = "http"


def carried(headers: HeaderView, names: tuple[str, ...]) -> Headers:
    """The headers that are stored."""
    wanted = {name.lower() for name in (*ALWAYS_CARRIED, *names)}
    return tuple(
        (name.encode("latin-1"), line)
        for name in headers
        if name in wanted
        for line in headers.all(name)
    )


def encode(request: StoredRequest) -> bytes:
    """The bytes a store keeps; the principal must be JSON (TypeError, ValueError)."""
    head = {
        "method": request.method,
        "root": request.root,
        "path": request.path,
        "query": request.query.decode("latin-1"),
        "headers": [[k.decode("latin-1"), v.decode("latin-1")] for k, v in request.headers],
        "key": request.key,
        "principal": request.principal,
        "scheme": request.scheme,
    }
    said = json.dumps(head, allow_nan=False).encode()
    checksum = zlib.crc32(request.body, zlib.crc32(said))
    return _HEAD.pack(_MAGIC, checksum, len(said)) + said + request.body


def decode(blob: bytes) -> StoredRequest:
    """The request that was encoded; anything else is StoreCorrupt."""
    try:
        magic, checksum, length = _HEAD.unpack_from(blob)
        said, body = blob[_HEAD.size : _HEAD.size + length], blob[_HEAD.size + length :]
        if magic != _MAGIC:
            demand_opened(blob, "a stored request", _MAGIC)
        if magic != _MAGIC or zlib.crc32(body, zlib.crc32(said)) != checksum:
            raise StoreCorrupt("a stored request is damaged: its checksum does not match")
        head = json.loads(said)
        return StoredRequest(
            method=head["method"],
            root=head["root"],
            path=head["path"],
            query=head["query"].encode("latin-1"),
            headers=tuple((k.encode("latin-1"), v.encode("latin-1")) for k, v in head["headers"]),
            body=body,
            key=head["key"],
            principal=head["principal"],
            scheme=head["scheme"],
        )
    except _DAMAGED as error:
        raise StoreCorrupt(f"a stored request cannot be read: {error}") from error
