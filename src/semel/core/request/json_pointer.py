"""The fields a route includes in its fingerprint or leaves out: names and JSON Pointers (RFC 6901).

A plain name means a top-level member (or a form field); `/a/b` is a pointer.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

from semel.core.request.canonical_json import Value
from semel.errors import ConfigurationError

__all__ = ["Pointer", "drop", "parse_pointer", "pick", "write_pointer"]

Pointer: TypeAlias = tuple[str, ...]

_BAD_ESCAPE = re.compile(r"~(?![01])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")


def parse_pointer(text: str) -> Pointer:
    """The steps down to a field. ValueError, in one sentence, for what is not a pointer."""
    if not text:
        raise ConfigurationError("A field name must not be empty.")
    if not text.startswith("/"):
        return (text,)
    if _BAD_ESCAPE.search(text):
        raise ConfigurationError(f"{text!r} is not a JSON Pointer: write ~ as ~0 and / as ~1.")
    # The order matters: ~01 is ~1, not / (RFC 6901 4).
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))


def write_pointer(pointer: Pointer) -> str:
    """The one spelling of a pointer; a plain name becomes one too."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in pointer)


def drop(value: Value, pointers: Iterable[Pointer]) -> Value:
    """Take the fields out of `value`, which is changed in place."""
    for *steps, last in pointers:
        for parent in _resolve(value, tuple(steps)):
            if isinstance(parent, dict):
                parent.pop(last, None)
            elif isinstance(parent, list) and (index := _index(parent, last)) is not None:
                parent[index] = None  # deleting it would shift the elements that follow
    return value


def pick(value: Value, pointers: Iterable[Pointer]) -> Value:
    """An object of those of the fields that are there, each under its pointer."""
    picked: dict[str, Value] = {}
    for pointer in pointers:
        # A top-level member keeps its name, for people; one that looks like a pointer does not.
        plain = len(pointer) == 1 and not pointer[0].startswith("/")
        for found in _resolve(value, pointer):
            picked[pointer[0] if plain else write_pointer(pointer)] = found
    return picked


def _resolve(value: Value, pointer: Pointer) -> tuple[Value, ...]:
    """What the pointer points at, or nothing: null is a value."""
    for step in pointer:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and (index := _index(value, step)) is not None:
            value = value[index]
        else:
            return ()
    return (value,)


def _index(items: list[Value], step: str) -> int | None:
    index = int(step) if _INDEX.fullmatch(step) else len(items)
    return index if index < len(items) else None
