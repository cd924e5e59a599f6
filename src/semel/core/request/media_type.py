"""Content-Type, as far as a fingerprint needs it: which reader, and one spelling of it."""

import re
from functools import lru_cache
from typing import Literal, TypeAlias

from semel.core.frozen import frozen

__all__ = ["Media", "Reader", "media_type"]

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
_ESSENCE = re.compile(rf"\s*({_TOKEN}/{_TOKEN})")
_PARAMETER = re.compile(rf'\s*;\s*(?:({_TOKEN})=(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})))?')
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046 5.1.1


def _parse(header: str) -> Media:
    essence = _ESSENCE.match(header)
    parameters = _parameters(header, essence.end()) if essence else None
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


def _parameters(header: str, at: int) -> dict[str, str] | None:
    """RFC 9110 5.6.6. Values stay escaped; None when malformed or given twice."""
    parameters: dict[str, str] = {}
    header = header.rstrip()
    while at < len(header) and (match := _PARAMETER.match(header, at)):
        name, quoted, token = match.groups()
        if name is not None:
            if name.lower() in parameters:
                return None
            parameters[name.lower()] = token if quoted is None else quoted
        at = match.end()
    return parameters if at == len(header) else None


def _reader(kind: str, parameters: dict[str, str]) -> Reader:
    if kind == "application/json" or kind.endswith("+json"):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data" and _BOUNDARY.fullmatch(parameters.get("boundary", "")):
        return "multipart"
    return "raw"
