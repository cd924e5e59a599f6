"""Lists records for people: filtered, by pages, at a bounded cost.

The store finds unsettled records by itself. For anything else at most ``look`` records are read, in
the order of identities, and the page says how far that went: a list never reads a whole table of
millions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.operations.maintenance import Scan
from semel.core.records import Glimpse, Identity, Micros, State
from semel.core.texts import shown

if TYPE_CHECKING:
    from semel.stores.base import Backend

_STEP: Final = 1000
"""Records that are read in one step."""


@frozen
class RecordFilter:
    """Which records to list: every given field must fit. A ``path`` with ``*`` is a prefix."""

    states: tuple[State, ...] = tuple(State)
    tenant: str | None = None
    method: str | None = None
    path: str | None = None
    older: Micros | None = None
    younger: Micros | None = None

    def fits(self, seen: Glimpse, now: Micros) -> bool:
        origin, age = seen.origin, now - seen.created_at
        return (
            (self.tenant is None or origin.tenant == shown(self.tenant))
            and self.method in (None, origin.method)
            and (self.path is None or _is_at(origin.path, self.path))
            and (self.older is None or age >= self.older)
            and (self.younger is None or age < self.younger)
        )


def _is_at(path: str, wanted: str) -> bool:
    return path.startswith(wanted[:-1]) if wanted.endswith("*") else path == wanted


@frozen
class Page:
    """The records that were found; ``after``: where to go on, None at the end of the table."""

    glimpses: tuple[Glimpse, ...]
    after: Identity | None
    looked: int
    """How many records were looked at."""
    now: Micros


def page(
    backend: Backend,
    wanted: RecordFilter,
    limit: int,
    after: Identity | None = None,
    look: int = 20_000,
) -> Page:
    """Up to ``limit`` records that fit, among the next ``look``."""
    found: list[Glimpse] = []
    looked, store = 0, backend.blocking()
    while True:
        step = store.perform(Scan(wanted.states, min(_STEP, look - looked), after))
        looked += len(step.glimpses) if step.until is None else min(_STEP, look - looked)
        after = step.until
        for seen in step.glimpses:
            if not wanted.fits(seen, step.now):
                continue
            if len(found) == limit:
                return Page(tuple(found), found[-1].identity, looked, step.now)
            found.append(seen)
        if after is None or looked >= look:
            return Page(tuple(found), after, looked, step.now)


def find_by_prefix(backend: Backend, digits: str) -> list[Identity]:
    """The identities that begin with these hexadecimal digits: none, one, or the first two."""
    first = int(digits.ljust(64, "0"), 16)
    last = int(digits.ljust(64, "f"), 16)
    before = None if first == 0 else Identity((first - 1).to_bytes(32, "big"))
    found = backend.blocking().perform(Scan(tuple(State), 2, before)).glimpses
    return [each.identity for each in found if int.from_bytes(each.identity) <= last]
