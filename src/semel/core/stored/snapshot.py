"""The stored response: bytes in, the same bytes out.

A snapshot without its body is a *receipt*; an *open* receipt belongs to an answer that is still
being streamed. Stores see only the encoded bytes.

Layout: ``S1`` · flags · 96 bits of a SHA-256 of flags and rest · status and length of the headers ·
where the flags say so size and digest, version · headers · body. The checksum turns a damaged row
into a refusal instead of a wrong answer. It comes early, so that the *head* of a large snapshot,
which is all that a store tells of it unless it is fetched, proves the bytes that somebody else has
kept.

A header is its name and its text, each after its length: one byte, or 255 and four more. The place
of a name's length may hold 254, and then the number of a usual name, or 253 and the number of a
usual header.
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
_HEAD: Final = struct.Struct(">2sB12s")
_CHECKSUM: Final = 12
_FIXED: Final = struct.Struct(">HH")  # status, length of the headers
_SIZE: Final = struct.Struct(">Q")
_LONG: Final = struct.Struct(">I")
_START: Final = _HEAD.size + _FIXED.size
"""Where the headers begin, if nothing else comes before them."""

_HAS_BODY, _WHOLE, _OPEN, _DEFLATED, _VERSIONED, _SHADOW, _SIZED = 1, 2, 4, 8, 16, 32, 64
_WHOLE_MAGIC: Final = _MAGIC + bytes((_HAS_BODY | _WHOLE,))
_UNKNOWN: Final = 128

_LINE, _USUAL, _MORE, _MANY = 253, 254, 255, 0xFFFF
"""In the place of a length: a usual header or name follows, or a longer length."""
_NAMES: Final = (
    *(b"content-type", b"content-length", b"location", b"etag", b"cache-control", b"vary"),
    *(b"content-encoding", b"content-language", b"link", b"last-modified", b"allow", b"date"),
)
_LINES: Final[Headers] = (
    (b"content-type", b"application/json"),
    (b"content-type", b"application/json; charset=utf-8"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-type", b"application/problem+json"),
)
"""Usual names and headers by their numbers, which never change; more may be added at the end."""
_NAME_NUMBERS: Final = {name: bytes((_USUAL, number)) for number, name in enumerate(_NAMES)}
_LINE_NUMBERS: Final[dict[Header, bytes]] = {
    line: bytes((_LINE, number)) for number, line in enumerate(_LINES)
}

LARGE: Final = 32 * 1024
"""Stored bytes; of more than this a store tells the head, unless they are fetched."""

HEAD: Final = 64
"""Bytes of a head, which follow its mark."""

UP_TO_STATUS: Final = _HEAD.size + 2
"""Bytes that tell the status: all that a list reads of an answer."""

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
    parts: list[bytes] = []
    body = snapshot.body or b""
    if snapshot.digest or snapshot.size != len(body):
        parts = [_SIZE.pack(snapshot.size), _length(len(snapshot.digest)), snapshot.digest]
        flags |= _SIZED
    if snapshot.schema_version is not None:
        version = snapshot.schema_version.encode()
        parts, flags = [*parts, _length(len(version)), version], flags | _VERSIONED
    if snapshot.body is not None:
        flags |= _HAS_BODY
    if len(body) > COMPRESS_OVER and len(packed := zlib.compress(body, 1)) < len(body):
        body, flags = packed, flags | _DEFLATED
    return _sealed(flags, snapshot.status, b"".join(parts), snapshot.headers, body)


def encode_whole(status: int, headers: Sequence[Header], body: bytes) -> bytes:
    """The same of a whole answer, not large and of no version, as most are."""
    return _sealed(_HAS_BODY | _WHOLE, status, b"", headers, body)


def _sealed(flags: int, status: int, said: bytes, headers: Sequence[Header], body: bytes) -> bytes:
    parts: list[bytes] = []
    for line in headers:
        if line in _LINE_NUMBERS:
            parts.append(_LINE_NUMBERS[line])
            continue
        name, text = line
        parts += (_NAME_NUMBERS.get(name) or _length(len(name)) + name, _length(len(text)), text)
    section = b"".join(parts)
    length = len(section)
    start = _FIXED.pack(status, length if length < _MANY else _MANY)
    if length >= _MANY:
        start += _LONG.pack(length)
    rest, mark = b"%b%b%b%b" % (start, said, section, body), b"%c" % flags
    return b"%b%b%b%b" % (_MAGIC, mark, sha256(mark + rest).digest()[:_CHECKSUM], rest)


def _length(length: int) -> bytes:
    return b"%c" % length if length < _LINE else b"%c%b" % (_MORE, _LONG.pack(length))


def brief(blob: bytes) -> bytes:
    """A large one's head; any other as it is."""
    return _MARK + blob[:HEAD] if len(blob) > LARGE else blob


def is_head(blob: bytes) -> bool:
    """It has to be fetched."""
    return blob[:1] == _MARK


def begins(blob: bytes, head: bytes) -> bool:
    """``blob`` is what ``head`` is the head of, if it is whole."""
    return blob.startswith(head[1:]) and len(head) > HEAD


def status_in(start: bytes) -> int | None:
    """The status, from the first `UP_TO_STATUS` bytes; None where they are encrypted or no answer.

    Nothing proves it: it is for lists, and never sent.
    """
    if start[:2] != _MAGIC or len(start) < UP_TO_STATUS:
        return None
    return int.from_bytes(start[_HEAD.size : UP_TO_STATUS])


def decode(blob: bytes) -> Snapshot:
    """The snapshot that was encoded; anything else is StoreCorrupt."""
    try:
        magic, flags, checksum = _HEAD.unpack_from(blob)
        if magic != _MAGIC:
            demand_opened(blob, "a stored response", _MAGIC)
        rest = blob[_HEAD.size :]
        hashed = sha256(blob[2:3])
        hashed.update(rest)
        if magic != _MAGIC or hashed.digest()[:_CHECKSUM] != checksum:
            raise StoreCorrupt("a stored response is damaged: its checksum does not match")
        if flags & _UNKNOWN:  # the body may be packed in a way that is not known here
            raise SchemaTooNew(f"a stored response {NEWER}")
        status, length = _FIXED.unpack_from(rest)
        at, size, version, digest = _FIXED.size, None, None, b""
        if length == _MANY:
            (length,), at = _LONG.unpack_from(rest, at), at + _LONG.size
        if flags & _SIZED:
            (size,), at = _SIZE.unpack_from(rest, at), at + _SIZE.size
            digest, at = _counted(rest, at)
        if flags & _VERSIONED:
            version, at = _counted(rest, at)
        body = rest[at + length :] if flags & _HAS_BODY else None
        if body is not None and flags & _DEFLATED:
            body = zlib.decompress(body)
        return Snapshot(
            status=status,
            headers=_headers(rest[at : at + length]),
            body=body,
            size=len(body or b"") if size is None else size,
            digest=digest,
            whole=bool(flags & _WHOLE),
            open=bool(flags & _OPEN),
            schema_version=None if version is None else version.decode(),
            shadow=bool(flags & _SHADOW),
        )
    except (struct.error, zlib.error, UnicodeDecodeError, IndexError) as error:
        raise StoreCorrupt(f"a stored response cannot be read: {error}") from error


def decode_whole(blob: bytes) -> tuple[int, Headers, bytes] | None:
    """Status, headers and body of what `encode_whole` has encoded; None of all else."""
    if len(blob) < _START or blob[:3] != _WHOLE_MAGIC:
        return None
    status, length = _FIXED.unpack_from(blob, _HEAD.size)
    if length == _MANY:
        return None
    if sha256(blob[2:3] + blob[_HEAD.size :]).digest()[:_CHECKSUM] != blob[3 : _HEAD.size]:
        return None
    end = _START + length
    try:
        return status, _known_headers(blob[_START:end]), blob[end:]
    except (struct.error, IndexError):
        return None


def _headers(section: bytes) -> Headers:
    headers: list[Header] = []
    at, end = 0, len(section)
    while at < end:
        if section[at] == _LINE:
            headers.append(_LINES[section[at + 1]])
            at += 2
            continue
        if section[at] == _USUAL:
            name, at = _NAMES[section[at + 1]], at + 2
        else:
            name, at = _counted(section, at)
        text, at = _counted(section, at)
        headers.append((name, text))
    return tuple(headers)


def _counted(section: bytes, at: int) -> tuple[bytes, int]:
    """What stands after its length, and where it ends."""
    length, at = section[at], at + 1
    if length == _MORE:
        (length,), at = _LONG.unpack_from(section, at), at + _LONG.size
    return section[at : at + length], at + length


_known_headers: Final = lru_cache(128)(_headers)
"""Most answers of a route have the same headers."""
