"""For databases whose UPDATE and DELETE tell nothing: one statement as several that do the same.

What is chosen for many is locked first, with all that the statement asks of a chosen row; it cannot
change from then on. A row that is changed is read after it, one that goes is read before. They are
sent together and share a transaction, so that together they are one step.
"""

from __future__ import annotations

import re
from typing import Final

_BATCH: Final = re.compile(r"WITH due AS MATERIALIZED \( (?P<pick>.*) \) (?P<main>\w+ .*)")
_BRACKETS: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
"""With what is within, which may have conditions of its own."""
_WRITE: Final = re.compile(
    rf"(?P<verb>UPDATE|DELETE FROM) (?P<table>\w+)(?P<set> SET (?:[^()]|{_BRACKETS})*?)?"
    r" WHERE (?P<where>.*) RETURNING (?P<columns>.*)"
)


def without_returning(text: str) -> tuple[str, ...]:
    """The statements that ``text``, its blanks made single, comes to."""
    if batch := _BATCH.fullmatch(text):
        return _picked_first(batch["pick"], batch["main"])
    if write := _WRITE.fullmatch(text):
        return _told(write, changed=" AND ROW_COUNT() > 0")
    return tuple(part.strip() for part in text.split(";"))


def _picked_first(pick: str, main: str) -> tuple[str, ...]:
    write = _WRITE.fullmatch(main)
    if write is None:
        raise ValueError(f"not a write that tells what it did: {main}")
    asked, _, order = pick.rpartition(" ORDER BY ")
    _, _, condition = write["where"].partition(" AND ")
    return f"{asked} AND {condition} ORDER BY {order}", *_told(write, changed="")


def _told(write: re.Match[str], changed: str) -> tuple[str, str]:
    verb, table, where, columns = write.group("verb", "table", "where", "columns")
    told = f"SELECT {columns} FROM {table} WHERE "  # noqa: S608 - a text of our own
    if verb == "UPDATE":
        which, _, _ = where.partition(" AND ")  # what it asks beside is no longer true
        return f"UPDATE {table}{write['set']} WHERE {where}", f"{told}{which}{changed}"
    return f"{told}{where} FOR UPDATE", f"{verb} {table} WHERE {where}"
