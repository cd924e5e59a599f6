"""What the console answers: pages, JSON, files; each with the headers that keep browsers strict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from semel.console.times import Moment, Span
from semel.core.records import Response

CONTENT_SECURITY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""No script and no style but our files, and no text that becomes HTML in the browser."""

_EVERYWHERE: Final = (
    ("Content-Security-Policy", CONTENT_SECURITY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Robots-Tag", "noindex, nofollow"),
    ("Vary", "Accept, Cookie"),
)


def response(
    status: int,
    kind: str,
    body: bytes,
    headers: Iterable[tuple[str, str]] = (),
    cache: str = "no-store",
) -> Response:
    """An answer with the headers that every answer of the console has."""
    own = (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", cache))
    pairs = (*own, *_EVERYWHERE, *headers)
    return Response(status, tuple((_octets(n), _octets(v)) for n, v in pairs), body)


def _octets(text: str) -> bytes:
    """Text for a header; a line break in it would begin another header."""
    if not text.isprintable():
        raise ValueError("a header has a control character")
    return text.encode("latin-1")


def page(status: int, html: str, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return response(status, "text/html; charset=utf-8", html.encode("utf-8", "replace"), headers)


def document(
    status: int, value: Any, headers: Iterable[tuple[str, str]] = (), problem: bool = False
) -> Response:
    kind = "application/problem+json" if problem else "application/json"
    text = json.dumps(as_json(value), separators=(",", ":"), allow_nan=False)
    return response(status, kind, text.encode(), headers)


def redirect(to: str, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """To another page, by a relative link, with GET."""
    return response(303, "text/plain; charset=utf-8", b"", (("Location", to), *headers))


def as_json(value: Any) -> Any:
    """What a screen has returned, as JSON: times as ISO texts, durations in seconds, bytes as hex.

    A frozen class becomes an object of its fields, which are written out as well.
    """
    if isinstance(value, Moment):
        return value.iso
    if isinstance(value, Span):
        return value.seconds
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    given: Any = value
    if isinstance(value, Mapping):
        return {str(as_json(key)): as_json(each) for key, each in given.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(each) for each in given]
    if hasattr(value, "__match_args__"):
        return {name: as_json(getattr(value, name)) for name in given.__match_args__}
    raise TypeError(f"a screen returned {type(given).__name__}, which JSON has no form for")
