"""Texts that every store can keep.

PostgreSQL refuses NUL in text, and nothing can encode a lone surrogate. A write must not fail over
the wording of an exception, so what is kept for people to read is escaped; what is compared must be
kept exactly or not at all.
"""

from __future__ import annotations

from semel.errors import ConfigurationError


def shown(text: str) -> str:
    """``text`` for people's eyes; what cannot be stored is written as a backslash escape."""
    if text.isascii() and "\0" not in text:
        return text
    storable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return storable.replace("\0", "\\x00")


def exact(text: str) -> str:
    """``text``, which others will be compared with; escaping could make two of them equal."""
    if shown(text) != text:
        raise ConfigurationError(f"this text holds NUL or a lone surrogate: {text!r}")
    return text


LONGEST = 1024
"""Bytes. PostgreSQL refuses more than 2704 in one entry of an index, and an entry may have two."""


def indexed(text: str) -> str:
    """``text``, exactly, where it is part of an index."""
    if len(exact(text).encode()) > LONGEST:
        raise ConfigurationError(f"this text is longer than {LONGEST} bytes: {text[:64]!r}…")
    return text
