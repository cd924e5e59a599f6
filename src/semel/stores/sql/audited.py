"""Statements that put an act on record: a write, and its entry in the audit table, as one step.

The entry is made of the row as it is before the write, under the lock that the write needs anyway;
it is made if and only if the write is. Where a statement may hold several writes they are one
statement; elsewhere the entry comes first, in the same transaction.
"""

from __future__ import annotations

import re
from typing import Final

_WRITE: Final = re.compile(
    r"(?P<head>(?:UPDATE|DELETE FROM) (?P<table>\w+)(?: SET .*?)?) WHERE (?P<where>.*)"
    r" RETURNING (?P<columns>.*)"
)
_SUBJECT: Final = {"semel_record": "CAST(NULL AS text)", "semel_effect": "key"}
"""Of a record its identity says enough; what its path and key say must be possible to erase."""

TAKES: Final = ("actor", "why")
"""The parameters that such a statement takes beside its own."""


def within(text: str, verb: str, after: str) -> str:
    """One statement. ``text``, its blanks made single, tells what it wrote; ``after``: a state."""
    write = _parsed(text)
    table, where = write["table"], write["where"]
    seen = f"SELECT identity, state, {_SUBJECT[table]} AS subject FROM {table} WHERE {where}"  # noqa: S608
    entry = _entry(verb, after, "subject", "seen")
    return (
        f"WITH seen AS MATERIALIZED ({seen} FOR UPDATE), noted AS ({entry}) "
        f"{write['head']} WHERE {where} AND EXISTS (SELECT FROM seen) RETURNING {write['columns']}"
    )


def before(text: str, verb: str, after: str, held: str) -> str:
    """The entry alone, to come before ``text`` in its transaction; ``held`` locks the row."""
    write = _parsed(text)
    entry = _entry(verb, after, _SUBJECT[write["table"]], write["table"])
    return f"{entry} WHERE {write['where']} {held}".rstrip()


def _parsed(text: str) -> re.Match[str]:
    write = _WRITE.fullmatch(text)
    if write is None:
        raise ValueError(f"not a write that tells what it did: {text}")
    return write


def _entry(verb: str, after: str, subject: str, source: str) -> str:
    then = "CAST(NULL AS text)" if after == "-" else f"'{after}'"
    into = "(at, verb, actor, reason, identity, subject, state_before, state_after)"
    said = f"{{now}}, '{verb}', CAST(:actor AS text), CAST(:why AS text)"
    chosen = f"SELECT {said}, identity, {subject}, state, {then} FROM {source}"  # noqa: S608
    return f"INSERT INTO semel_audit {into} {chosen}"
