"""The stored response: bytes in, the same bytes out.

A snapshot without its body is a *receipt*; an *open* receipt belongs to an answer that is still
being streamed. Stores see only the encoded bytes.

Layout: ``S1`` · flags · half a SHA-256 of flags and rest · status, size and lengths · version ·
digest · headers · body. The checksum turns a damaged row into a refusal instead of a wrong answer.
It comes early, so that the *head* of a large snapshot, which is all that a store tells of it unless
it is fetched, proves the bytes that somebody else has kept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import Header, Headers, Response
from semel.core.stored.sealed import NEWER, demand_opened
from semel.errors import SchemaTooNew, StoreCorrupt

_MAGIC: Final = b"S1"
_HEAD: Final = struct.Struct(">2sB16s")
_FIXED: Final = struct.Struct(">HQHHH")  # status, size, header count, version and digest lengths
_PAIR: Final = struct.Struct(">HI")
_START: Final = _HEAD.size + _FIXED.size
"""Where the headers begin, if there is neither version nor digest."""

_HAS_BODY, _WHOLE, _OPEN, _DEFLATED, _VERSIONED, _SHADOW = 1, 2, 4, 8, 16, 32
_WHOLE_MAGIC: Final = _MAGIC + bytes((_HAS_BODY | _WHOLE,))
_KNOWN: Final = _HAS_BODY | _WHOLE | _OPEN | _DEFLATED | _VERSIONED | _SHADOW

LARGE: Final = 32 * 1024
"""Stored bytes; of more than this a store tells the head, unless they are fetched."""

HEAD: Final = 64
"""Bytes of a head, which follow its mark."""

_MARK: Final = b"\0"
"""No snapshot begins like this."""

COMPRESS_OVER: Final = 16 * 1024
"""Below this, compressing costs more time than the bytes are worth."""


@frozen
class Snapshot:
    """A stored response; ``body`` is None in a receipt."""

    status: int
    headers: Headers
    body: bytes | None
    size: int = 0
    digest: bytes = b""
    whole: bool = True
    open: bool = False
    schema_version: str | None = None
    shadow: bool = False
    """Of a run in shadow: others may have run beside it (`core/exchange/shadow.py`)."""

    def response(self) -> Response | None:
        """The answer to send again, or None when only a receipt was kept."""
        if self.body is None:
            return None
        return Response(self.status, self.headers, self.body)


def encode(snapshot: Snapshot) -> bytes:
    """The bytes a store keeps."""
    flags = _WHOLE * snapshot.whole | _OPEN * snapshot.open | _SHADOW * snapshot.shadow
    if snapshot.schema_version is not None:
        flags |= _VERSIONED
    body = snapshot.body or b""
    if snapshot.body is not None:
        flags |= _HAS_BODY
    if len(body) > COMPRESS_OVER and len(packed := zlib.compress(body, 1)) < len(body):
        body, flags = packed, flags | _DEFLATED
    version = (snapshot.schema_version or "").encode()
    head = (snapshot.status, snapshot.size, len(snapshot.headers), len(version))
    start = _FIXED.pack(*head, len(snapshot.digest)) + version + snapshot.digest
    return _sealed(flags, start, snapshot.headers, body)


def encode_whole(status: int, headers: Sequence[Header], body: bytes) -> bytes:
    """The same of a whole answer, not large and of no version, as most are."""
    start = _FIXED.pack(status, len(body), len(headers), 0, 0)
    return _sealed(_HAS_BODY | _WHOLE, start, headers, body)


def _sealed(flags: int, start: bytes, headers: Sequence[Header], body: bytes) -> bytes:
    parts = [start]
    for name, text in headers:
        parts += (_PAIR.pack(len(name), len(text)), name, text)
    parts.append(body)
    rest, mark = b"".join(parts), b"%c" % flags
    return b"%b%b%b%b" % (_MAGIC, mark, sha256(mark + rest).digest()[:16], rest)


def brief(blob: bytes) -> bytes:
    """A large one's head; any other as it is."""
    return _MARK + blob[:HEAD] if len(blob) > LARGE else blob


def is_head(blob: bytes) -> bool:
    """It has to be fetched."""
    return blob[:1] == _MARK


def begins(blob: bytes, head: bytes) -> bool:
    """``blob`` is what ``head`` is the head of, if it is whole."""
    return blob.startswith(head[1:]) and len(head) > HEAD


def decode(blob: bytes) -> Snapshot:
    """The snapshot that was encoded; anything else is StoreCorrupt."""
    try:
        magic, flags, checksum = _HEAD.unpack_from(blob)
        if magic != _MAGIC:
            demand_opened(blob, "a stored response", _MAGIC)
        rest = blob[_HEAD.size :]
        hashed = sha256(blob[2:3])
        hashed.update(rest)
        if magic != _MAGIC or hashed.digest()[:16] != checksum:
            raise StoreCorrupt("a stored response is damaged: its checksum does not match")
        if flags & ~_KNOWN:  # the body may be packed in a way that is not known here
            raise SchemaTooNew(f"a stored response {NEWER}")
        status, size, count, version_length, digest_length = _FIXED.unpack_from(rest)
        version_end = _FIXED.size + version_length
        digest_end = version_end + digest_length
        version = rest[_FIXED.size : version_end].decode()
        headers, length = _headers(rest[digest_end:], count)
        body = rest[digest_end + length :] if flags & _HAS_BODY else None
        return Snapshot(
            status=status,
            headers=headers,
            body=body if body is None or not flags & _DEFLATED else zlib.decompress(body),
            size=size,
            digest=rest[version_end:digest_end],
            whole=bool(flags & _WHOLE),
            open=bool(flags & _OPEN),
            schema_version=version if flags & _VERSIONED else None,
            shadow=bool(flags & _SHADOW),
        )
    except (struct.error, zlib.error, UnicodeDecodeError, IndexError) as error:
        raise StoreCorrupt(f"a stored response cannot be read: {error}") from error


def decode_whole(blob: bytes) -> tuple[int, Headers, bytes] | None:
    """Status, headers and body of what `encode_whole` has encoded; None of all else."""
    if len(blob) < _START or blob[:3] != _WHOLE_MAGIC:
        return None
    status, size, count, version_length, digest_length = _FIXED.unpack_from(blob, _HEAD.size)
    end = len(blob) - size
    if version_length or digest_length or end < _START:
        return None
    if sha256(blob[2:3] + blob[_HEAD.size :]).digest()[:16] != blob[3 : _HEAD.size]:
        return None
    try:
        headers, length = _known_headers(blob[_START:end], count)
    except struct.error:
        return None
    return (status, headers, blob[end:]) if _START + length == end else None


def _headers(section: bytes, count: int) -> tuple[Headers, int]:
    """The headers at the start of a section, and how long they are there."""
    headers: list[Header] = []
    at = 0
    for _ in range(count):
        name_length, value_length = _PAIR.unpack_from(section, at)
        at += _PAIR.size
        name = section[at : at + name_length]
        at += name_length
        headers.append((name, section[at : at + value_length]))
        at += value_length
    return tuple(headers), at


_known_headers: Final = lru_cache(128)(_headers)
"""Most answers of a route have the same headers."""
