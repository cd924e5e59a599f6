"""What a form means: its fields by name, whether urlencoded or multipart.

A reader gives each field's canonical octets by field name, in the order of the names, or None
where the body is not strictly what it says it is; the caller then compares the raw bytes.

Values of one name keep their order. Names are sorted: every framework hands a form out by name,
and clients build one from a mapping whose order they do not think about.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

__all__ = ["MAX_FIELDS", "Fields", "Form", "frame", "read_multipart", "read_urlencoded"]

Fields: TypeAlias = dict[bytes, bytes]


class Form(NamedTuple):
    """The fields of a form; ``nameless`` are those that are all name, and so may be all data."""

    fields: Fields
    nameless: frozenset[bytes] = frozenset()


def frame(*parts: bytes) -> bytes:
    """Parts with their number and lengths: no two different sequences give the same octets."""
    framed = [len(parts).to_bytes(8, "big")]
    for part in parts:
        framed += (len(part).to_bytes(8, "big"), part)
    return b"".join(framed)


def _fields(pairs: Sequence[tuple[bytes, bytes]]) -> Fields:
    values: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: frame(name, *values[name]) for name in sorted(values)}


# --- application/x-www-form-urlencoded

MAX_FIELDS = 100_000
"""More take long to tell apart."""

_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_urlencoded(body: bytes) -> Form | None:
    """The pairs as octets, by the parser of the URL standard; parsers differ on a stray `%`."""
    if body.count(b"&") > MAX_FIELDS or _BAD_PERCENT.search(body):
        return None
    pairs = [piece.partition(b"=") for piece in body.split(b"&") if piece]
    nameless = frozenset([_unescape(name) for name, equals, _ in pairs if not equals])
    return Form(
        _fields([(_unescape(name), _unescape(value)) for name, _, value in pairs]), nameless
    )


def _unescape(text: bytes) -> bytes:
    text = text.replace(b"+", b" ")
    return unquote_to_bytes(text) if b"%" in text else text


# --- multipart/form-data (RFC 7578)

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NAME = re.compile(_TOKEN)
_PARAMETER = re.compile(rb'\s*;\s*(%b)=(?:"((?:[^"\\]|\\.)*)"|(%b))' % (_TOKEN, _TOKEN))


def read_multipart(body: bytes, boundary: bytes) -> Form | None:
    """Each part by name, other parameters (filename), headers and a digest of its content.

    The boundary is the client's random choice and is nowhere in the result.
    """
    pairs: list[tuple[bytes, bytes]] = []
    for part in _parts(body, boundary):
        if part is None:
            return None
        pairs.append(part)
    return Form(_fields(pairs))


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes] | None]:
    """The name and canonical octets of each part; None, and nothing more, once it is malformed.

    Strict: no preamble, epilogue or padding, where other parsers differ in what they skip. An
    empty line in front, which Werkzeug's test client sends, is none.
    """
    delimiter = b"\r\n--" + boundary  # RFC 2046 5.1.1: the line break belongs to it
    at = len(delimiter) if body.startswith(delimiter) else len(delimiter) - 2
    whole = body.startswith((delimiter, delimiter[2:]))
    while whole and body.startswith(b"\r\n", at):
        end = body.find(delimiter, at)
        head = body.find(b"\r\n\r\n", at, max(end, 0))
        whole = head >= 0
        if whole:
            # A view: files are hashed where they are, not copied first.
            yield _part(body[at + 2 : head], memoryview(body)[head + 4 : end])
        at = end + len(delimiter)
    if not (whole and body[at : at + 5] in (b"--", b"--\r\n")):
        yield None


def _part(head: bytes, content: memoryview) -> tuple[bytes, bytes] | None:
    headers = _headers(head)
    disposition = _disposition(headers.pop(b"content-disposition", b""))
    name = disposition.pop(b"name", None)
    if name is None:
        return None
    headers.pop(b"content-length", None)  # says nothing that the content does not
    return name, frame(_flat(disposition), _flat(headers), sha256(content).digest())


def _flat(mapping: Mapping[bytes, bytes]) -> bytes:
    return frame(*[part for item in sorted(mapping.items()) for part in item])


def _headers(head: bytes) -> dict[bytes, bytes]:
    """Empty, so without a disposition, when a line is malformed, folded or repeated."""
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not _NAME.fullmatch(name) or name in headers:
            return {}
        headers[name] = value.strip(b" \t")
    return headers


def _disposition(value: bytes) -> dict[bytes, bytes]:
    """The parameters of `form-data; name="…"`; escapes stay as they were sent."""
    kind, _, _ = value.partition(b";")
    parameters: dict[bytes, bytes] = {}
    at = len(kind)
    while match := _PARAMETER.match(value, at):
        name, quoted, token = match.groups()
        if name.lower() in parameters:
            return {}
        parameters[name.lower()] = token if quoted is None else quoted
        at = match.end()
    return parameters if at == len(value) and kind.strip().lower() == b"form-data" else {}
