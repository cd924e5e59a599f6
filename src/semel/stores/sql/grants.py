"""Whether a database's user may do what semel does. No I/O.

A right that is missing shows only when it is first used, say when the reaper first deletes. So each
is tried by a statement that finds no row: the server checks the right, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from semel.stores.base import Finding

_ALL: Final = ("INSERT", "UPDATE", "DELETE")
NEEDED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "semel_record": (_ALL, "state"),
    "semel_effect": (_ALL, "name"),
    "semel_event": (("INSERT", "DELETE"), "source"),
    "semel_leader": (("INSERT", "UPDATE"), "name"),
    "semel_recipe": (("INSERT", "UPDATE"), "route"),
    "semel_terms": (("INSERT",), "route"),
    "semel_audit": (("INSERT",), "verb"),
}
"""Of each table what is done to it, and one of its columns to try that with."""


def missing_grants(denied: Callable[[str], bool]) -> tuple[Finding, ...]:
    """``denied`` tries a statement and says whether the server refused it for want of a right."""
    lacking = [f"{verb} on {table}" for verb, table, text in _tries() if denied(text)]
    if not lacking:
        return ()
    said = f"this user may not {', '.join(lacking)}: grant it, or requests and maintenance fail"
    return (Finding("refused", said),)


def _tries() -> Iterator[tuple[str, str, str]]:
    for table, (verbs, column) in NEEDED.items():
        texts = {  # of names that are written above
            "INSERT": f"INSERT INTO {table} ({column}) SELECT {column} FROM {table} WHERE 1 = 0",  # noqa: S608
            "UPDATE": f"UPDATE {table} SET {column} = {column} WHERE 1 = 0",  # noqa: S608
            "DELETE": f"DELETE FROM {table} WHERE 1 = 0",  # noqa: S608
        }
        yield from ((verb, table, texts[verb]) for verb in verbs)
