"""The key of a call in its body, for APIs that want it there: read it, or put it in, once."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlencode

from semel.core.records import HeaderView, Request
from semel.core.request.content_type import media_type
from semel.core.request.key_places import BodyField, KeyPlaces, find_key
from semel.errors import ConfigurationError


def read_key(headers: tuple[tuple[str, str], ...], body: bytes, field: BodyField) -> str | None:
    """The key that the caller has put into the body; an error where a server would refuse it."""
    lines = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers]
    request = Request("POST", "/", b"", HeaderView(lines), None)
    found = find_key(KeyPlaces((field,)), request, body, strict=False)
    if found is None or isinstance(found, str):
        return found
    raise ConfigurationError(f"the key cannot be sent in the body: {found.reason}")


def put_key(headers: tuple[tuple[str, str], ...], body: bytes, field: BodyField, key: str) -> bytes:
    """``body``, which has no key yet, with ``key``. The bytes are made once for all tries."""
    kind = next((text for name, text in headers if name.lower() == "content-type"), None)
    reader = media_type(kind).reader
    if reader == "json" and body:
        return _in_json(body, field, key)
    if reader == "form" and body:
        return body + b"&" + urlencode({field.steps[0]: key}).encode()
    raise ConfigurationError(
        f"the key goes into the body at {field.pointer}: give a body in JSON or an urlencoded "
        "form, or put the key in yourself"
    )


def _in_json(body: bytes, field: BodyField, key: str) -> bytes:
    document: Any = json.loads(body, parse_float=_faithful)
    *steps, last = field.steps
    inner: Any = document
    for step in steps:
        inner = cast("Any", inner.setdefault(step, {})) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise ConfigurationError(f"the body has no room for a key at {field.pointer}")
    inner[last] = key
    return json.dumps(document, allow_nan=False).encode()


def _faithful(token: str) -> float:
    """A number that is written again as it was: an amount must not lose its last digits."""
    number = float(token)
    try:
        same = Decimal(token) == Decimal(repr(number))
    except ArithmeticError:
        same = False
    if not same:
        raise ConfigurationError(
            "the body has a number that would lose digits: put the key in yourself"
        )
    return number
