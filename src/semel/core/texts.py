"""Texts that every store can keep.

PostgreSQL refuses NUL in text, and nothing can encode a lone surrogate. A write must not fail over
the wording of an exception, so what is kept for people to read is escaped; what is compared must be
kept exactly or not at all.
"""

from __future__ import annotations

import re
from typing import Final

from semel.errors import ConfigurationError

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
_ESCAPED: Final = re.compile(
    r"(?P<before>\\*)(?P<cannot>[\0\ud800-\udfff])|(?P<looks>\\+)(?=x00|ud[89a-f][0-9a-f]{2})"
)


def described(fingerprint: str, *place: str) -> tuple[str, ...]:
    """The texts of a new record as every store can keep them: the fingerprint exactly."""
    said = fingerprint + "".join(place)
    if said.isascii() and "\0" not in said and "\\" not in said:
        return fingerprint, *place  # as most are
    return exact(fingerprint), *map(shown, place)


def shown(text: str) -> str:
    """``text`` for people's eyes; what cannot be stored is written as a backslash escape.

    No two texts are shown alike, for tenants are told apart by it: what only looks like an escape
    has its backslashes doubled.
    """
    if "\\" not in text and text.isascii() and "\0" not in text:
        return text
    return _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    if found["cannot"] is None:
        return found["looks"] * 2
    code = ord(found["cannot"])
    return found["before"] * 2 + ("\\x00" if code == 0 else f"\\u{code:04x}")


def exact(text: str) -> str:
    """``text``, which others will be compared with; escaping could make two of them equal."""
    if _UNSTORABLE.search(text):
        raise ConfigurationError(f"this text holds NUL or a lone surrogate: {text!r}")
    return text


LONGEST = 1024
"""Bytes. PostgreSQL refuses more than 2704 in one entry of an index, and an entry may have two."""


def indexed(text: str) -> str:
    """``text``, exactly, where it is part of an index."""
    if len(exact(text).encode()) > LONGEST:
        raise ConfigurationError(f"this text is longer than {LONGEST} bytes: {text[:64]!r}…")
    return text


def one_line(text: str) -> str:
    """With a blank for each line break and every other character that is not printed."""
    if text.isprintable():
        return text  # as most are
    return "".join(c if c.isprintable() else " " for c in text)
