"""Keys that came again with another request: by route and tenant, with the names of the fields.

From the log of notables, which is bounded and may have lost some: these are signs, not a count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Identity, Micros
from semel.operators.story import notable_detail

if TYPE_CHECKING:
    from semel.operators.operator import Operator

LOOK: Final = 5_000
"""Notables that are looked at, unless it is told otherwise."""
_PAGE: Final = 500
_SHOWN: Final = 20
"""Fields, and records, that a group names."""


@frozen
class MismatchGroup:
    """Those of one route and tenant, the newest first."""

    application: str
    route: str
    tenant: str
    count: int
    fields: tuple[tuple[str, int], ...]
    """The names of fields that differed, and how often."""
    first: Micros
    last: Micros
    identities: tuple[Identity, ...]


@frozen
class Mismatches:
    """All groups, the largest first; ``more``: not all were looked at."""

    groups: tuple[MismatchGroup, ...]
    looked: int
    more: bool
    now: Micros


def mismatches(
    operator: Operator, route: str | None = None, tenant: str | None = None, look: int = LOOK
) -> Mismatches:
    """Group the newest mismatches, of one route or tenant or of all."""
    store, before, looked = operator.guard.backend.blocking(), None, 0
    found: dict[tuple[str, str, str], list[ops.NotableEntry]] = {}
    kinds = (ops.NotableKind.MISMATCH.value,)
    while True:
        page = store.perform(ops.BrowseNotables(_PAGE, before, kinds, route=route))
        for each in page.entries:
            if tenant in (None, each.tenant):
                key = (each.application, each.route, each.tenant)
                found.setdefault(key, []).append(each)
        looked, before = looked + len(page.entries), page.until
        if before is None or looked >= look:
            groups = sorted(
                (_group(key, entries) for key, entries in found.items()),
                key=lambda group: (-group.count, -group.last),
            )
            return Mismatches(tuple(groups), looked, before is not None, page.now)


def _group(key: tuple[str, str, str], entries: list[ops.NotableEntry]) -> MismatchGroup:
    fields: Counter[str] = Counter()
    for each in entries:
        for name in field_names(each):
            fields[name] += each.count
    identities = dict.fromkeys(each.identity for each in entries if each.identity is not None)
    return MismatchGroup(
        *key,
        sum(each.count for each in entries),
        tuple(fields.most_common(_SHOWN)),
        min(each.at for each in entries),
        max(each.at for each in entries),
        tuple(identities)[:_SHOWN],
    )


def field_names(entry: ops.NotableEntry) -> tuple[str, ...]:
    """The names of the fields that differed: never a value."""
    said: Any = notable_detail(entry).get("fields", [])
    if not isinstance(said, list):
        return ()
    names = cast("list[object]", said)
    return tuple(each for each in names if isinstance(each, str))
