"""Content-Type: which reader a body has, and the readers of forms, urlencoded and multipart.

The reader of a form gives each field's canonical octets by field name, in the order of the names,
or None where the body is not strictly what it says it is; the caller then compares the raw bytes.

Values of one name keep their order. Names are sorted: every framework hands a form out by name,
and clients build one from a mapping whose order they do not think about.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, AnyStr, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, unquote_to_bytes

from semel.core.frozen import frozen

Reader: TypeAlias = Literal["json", "form", "multipart", "raw"]


@frozen
class Media:
    """How a body is read. `text` is the type with those parameters that may change its meaning."""

    reader: Reader
    text: str
    boundary: bytes = b""

    @property
    def unread(self) -> str:
        """The text where the body is taken as it is: then its boundary does change its meaning."""
        return self.text + (f';boundary="{self.boundary.decode()}"' if self.boundary else "")


def media_type(header: str | None) -> Media:
    """Never fails: what cannot be understood is raw, under the text as it was sent."""
    if header is None:
        return _NONE
    if len(header) > 128 or "boundary" in header:  # random or odd: would only fill the cache
        return _parse(header)
    return _parse_cached(header)


_NONE = Media("raw", "")

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105
_NAMED = rf'({_TOKEN})=(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))'
_ESSENCE = re.compile(rf"\s*({_TOKEN}/{_TOKEN})")
_PARAMETER = re.compile(rf"\s*;\s*(?:{_NAMED})?")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046 5.1.1


def _parse(header: str) -> Media:
    essence = _ESSENCE.match(header)
    parameters = _parameters(_PARAMETER, header.rstrip(), essence.end()) if essence else None
    if essence is None or parameters is None:
        return Media("raw", header.strip())
    kind = essence[1].lower()
    charset = parameters.pop("charset", None)
    # Not UTF-8: nobody here guesses how the application decodes it.
    known = charset is None or charset.lower() in ("utf-8", "utf8")
    reader = _reader(kind, parameters) if known else "raw"
    if reader == "raw" and charset is not None:  # UTF-8 is what JSON and forms are, not XML
        parameters["charset"] = charset
    boundary = parameters.pop("boundary", "") if reader == "multipart" else ""
    text = "".join(f';{name}="{value}"' for name, value in sorted(parameters.items()))
    return Media(reader, kind + text, boundary.encode("latin-1"))


_parse_cached = lru_cache(maxsize=128)(_parse)


def _parameters(
    pattern: re.Pattern[AnyStr], header: AnyStr, at: int
) -> dict[AnyStr, AnyStr] | None:
    """RFC 9110 5.6.6. Values stay escaped; None when malformed or given twice."""
    parameters: dict[Any, AnyStr] = {}
    while at < len(header) and (match := pattern.match(header, at)):
        name, quoted, token = match.groups()
        if name is not None:
            if name.lower() in parameters:
                return None
            parameters[name.lower()] = token if quoted is None else quoted
        at = match.end()
    return parameters if at == len(header) else None


def _reader(kind: str, parameters: Mapping[str, str]) -> Reader:
    if kind == "application/json" or kind.endswith("+json"):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data" and _BOUNDARY.fullmatch(parameters.get("boundary", "")):
        return "multipart"
    return "raw"


# --- forms

Fields: TypeAlias = dict[bytes, bytes]


class Form(NamedTuple):
    """The fields of a form; ``nameless`` are those that are all name, and so may be all data."""

    fields: Fields
    nameless: frozenset[bytes] = frozenset()


def _framed(*parts: bytes) -> bytes:
    """Parts with their number and lengths: no two different sequences give the same octets."""
    framed = [len(parts).to_bytes(8, "big")]
    for part in parts:
        framed += (len(part).to_bytes(8, "big"), part)
    return b"".join(framed)


def _fields(pairs: Sequence[tuple[bytes, bytes]]) -> Fields:
    values: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: _framed(name, *values[name]) for name in sorted(values)}


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


def form_values(body: bytes, name: bytes) -> list[bytes] | None:
    """What an urlencoded form has under one name; None where parsers differ.

    Of one that is not UTF-8, Werkzeug sees no field at all.
    """
    if body.count(b"&") > MAX_FIELDS or _BAD_PERCENT.search(body) or not _is_utf8(body):
        return None
    pairs = [piece.partition(b"=") for piece in body.split(b"&") if piece]
    return [_unescape(value) for each, _, value in pairs if _unescape(each) == name]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unescape(text: bytes) -> bytes:
    text = text.replace(b"+", b" ")
    return unquote_to_bytes(text) if b"%" in text else text


def read_multipart(body: bytes, boundary: bytes) -> Form | None:
    """Each part by name, other parameters (filename), headers and a digest of its content.

    RFC 7578. The boundary is the client's random choice and is nowhere in the result.
    """
    parts = _parts(body, boundary)
    if parts is None:
        return None
    framed = [
        (name, _framed(_flat(parameters), _flat(headers), sha256(content).digest()))
        for name, parameters, headers, content in parts
    ]
    return Form(_fields(framed))


def multipart_values(body: bytes, boundary: bytes, name: bytes) -> list[bytes] | None:
    """The texts under one name; None where parsers differ in what they take for it."""
    parts = _parts(body, boundary)
    found: list[bytes] = []
    for given, parameters, headers, content in parts or ():
        plain = given.replace(b"\\", b"")
        # Django strips a name, and so with all that Unicode has for spaces.
        spelled = {it.decode(errors="replace").strip() for it in (given, plain)}
        spelled |= {unquote(it).strip() for it in spelled}
        # RFC 8187, which some decode: then it is the name.
        if name.decode() not in spelled and b"name*" not in parameters:
            continue
        kind = media_type(headers.pop(b"content-type", b"text/plain").decode("latin-1"))
        # A file, or a content that some decode: Django does so with base64.
        if given != name or parameters or headers or kind.text not in _PLAIN_TEXT:
            return None
        found.append(bytes(content))
    return None if parts is None else found


_PLAIN_TEXT = ("text/plain", 'text/plain;charset="utf-8"', 'text/plain;charset="UTF-8"')


class _Part(NamedTuple):
    name: bytes
    parameters: dict[bytes, bytes]
    headers: dict[bytes, bytes]
    content: memoryview


def _parts(body: bytes, boundary: bytes) -> list[_Part] | None:
    """Strict: no preamble, epilogue or padding, where other parsers differ in what they skip.

    An empty line in front, which Werkzeug's test client sends, is none. The delimiter may not be
    within a line either: Django ends the part there.
    """
    delimiter = b"\r\n--" + boundary  # RFC 2046 5.1.1: the line break belongs to it
    at = len(delimiter) if body.startswith(delimiter) else len(delimiter) - 2
    if not body.startswith((delimiter, delimiter[2:])):
        return None
    parts: list[_Part] = []
    while body.startswith(b"\r\n", at):
        end = body.find(delimiter, at)
        head = body.find(b"\r\n\r\n", at, max(end, 0))
        # A view: files are hashed where they are, not copied first.
        content = memoryview(body)[head + 4 : end]
        part = _part(body[at + 2 : head], content) if head >= 0 else None
        if part is None:
            return None
        parts.append(part)
        at = end + len(delimiter)
    if body.count(delimiter[2:]) != len(parts) + 1:
        return None
    return parts if body[at : at + 5] in (b"--", b"--\r\n") else None


_NAME = re.compile(_TOKEN.encode())
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_DISPOSITION = re.compile(rb" *; *" + _NAMED.encode())  # of tabs Litestar makes another name


def _part(head: bytes, content: memoryview) -> _Part | None:
    """None when a line is malformed, folded or repeated, or not UTF-8: Werkzeug sees no part."""
    if not _is_utf8(head):
        return None
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        malformed = not colon or not _NAME.fullmatch(name) or _CONTROL.search(value)
        if malformed or name in headers:
            return None
        headers[name] = value.strip(b" \t")
    disposition = headers.pop(b"content-disposition", b"")
    kind = disposition.partition(b";")[0]
    parameters = _parameters(_DISPOSITION, disposition, len(kind)) or {}
    if kind.strip().lower() != b"form-data" or b"name" not in parameters:
        return None
    headers.pop(b"content-length", None)  # says nothing that the content does not
    return _Part(parameters.pop(b"name"), parameters, headers, content)


def _flat(mapping: Mapping[bytes, bytes]) -> bytes:
    return _framed(*[part for item in sorted(mapping.items()) for part in item])
