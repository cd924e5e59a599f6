"""Lists of records and effects: for people filtered, by pages, at a bounded cost.

The store finds unsettled records by itself. For anything else at most ``look`` records are read, in
the order of identities, and the page says how far that went: a list never reads a whole table of
millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.operations.maintenance import Browse, Scan
from semel.core.operations.outbox import BrowseEffects, Effects, Shelf
from semel.core.records import Case, Effect, Glimpse, Identity, Micros, Origin, State
from semel.core.texts import shown

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Backend, Store

LOOK: Final = 20_000
"""Records or effects that a page looks at, unless it is told otherwise."""
_STEP: Final = 1000
"""Records that a page reads in one step."""
CASES_AT_ONCE: Final = 500
EFFECTS_AT_ONCE: Final = 200


@frozen
class RecordFilter:
    """Which records to list: every given field must fit. A ``path`` with ``*`` is a prefix."""

    states: tuple[State, ...] = tuple(State)
    tenant: str | None = None
    method: str | None = None
    path: str | None = None
    older: Micros | None = None
    since: Micros | None = None
    """A time of the store's: only what was made after that."""

    def fits(self, origin: Origin, created_at: Micros, now: Micros) -> bool:
        age = now - created_at
        if self.path is not None and self.path.endswith("*"):
            there = origin.path.startswith(self.path[:-1])
        else:
            there = self.path in (None, origin.path)
        return (
            there
            and (self.tenant is None or origin.tenant == shown(self.tenant))
            and self.method in (None, origin.method)
            and (self.older is None or age >= self.older)
            and (self.since is None or created_at >= self.since)
        )


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
    look: int = LOOK,
) -> Page:
    """Up to ``limit`` records that fit, among the next ``look``."""
    found: list[Glimpse] = []
    looked, store = 0, backend.blocking()
    while True:
        step = store.perform(Scan(wanted.states, min(_STEP, look - looked), after))
        looked += len(step.glimpses) if step.until is None else min(_STEP, look - looked)
        after = step.until
        for seen in step.glimpses:
            if not wanted.fits(seen.origin, seen.created_at, step.now):
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


def cases(
    store: Store, states: tuple[State, ...], *, dead: bool = False
) -> Iterator[tuple[Case, Micros]]:
    """All records in these states, each with the store's time; read by pages."""
    after: Identity | None = None
    while True:
        listed = store.perform(Browse(states, CASES_AT_ONCE, after, dead))
        yield from ((case, listed.now) for case in listed.cases)
        if len(listed.cases) < CASES_AT_ONCE:
            return
        after = listed.cases[-1].record.identity


def effects(guard: Guard, shelf: Shelf, name: str | None = None) -> Iterator[Effect]:
    """All effects on a shelf, or those of one name, read by pages; none without an outbox."""
    if guard.backend.capabilities.outbox:
        for listed in effect_pages(guard.backend.blocking(), shelf, EFFECTS_AT_ONCE):
            yield from (each for each in listed.effects if name in (None, each.name))


def effect_pages(store: Store, shelf: Shelf, size: int) -> Iterator[Effects]:
    after: str | None = None
    while True:
        listed = store.perform(BrowseEffects(shelf, size, after))
        yield listed
        if len(listed.effects) < size:
            return
        after = listed.effects[-1].key
