"""Lists of records and effects for people: newest first, filtered, by pages, at a bounded cost.

No filter has an index: at most ``look`` records are read for a page, and the page says how far that
went. So a list never reads a whole table of millions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.operations.lists import EffectPlace, ListNewestEffects, NewestEffects
from semel.core.operations.maintenance import Browse, Scan
from semel.core.operations.outbox import BrowseEffects, Effects, Shelf
from semel.core.records import Case, Duty, Effect, Glimpse, Identity, Micros, Origin, State
from semel.core.terms import application_of
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.operators import newest
from semel.operators.newest import ListPlace, NewestRecords, read_place

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.stores.base import Backend, Store

LOOK: Final = 20_000
"""Records or effects that a page looks at, unless it is told otherwise."""
QUICK_LOOK: Final = 2_000
"""What a screen looks at, which must be there at once (`python -m bench.lists`)."""
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
    application: str | None = None
    route: str | None = None
    """As its terms name it, say ``POST /payments``."""
    status: str | None = None
    """Of the kept answer, as ``402`` or ``4xx``."""
    reason: str | None = None
    """A part of it, in small or capital letters."""
    resource: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None and not _STATUS.fullmatch(self.status):
            raise ConfigurationError(f"{self.status!r} is no status such as 402 or 5xx")

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

    def fits_glimpse(self, seen: Glimpse, now: Micros) -> bool:
        terms = seen.terms
        return (
            self.fits(seen.origin, seen.created_at, now)
            and (self.application is None or application_of(terms) == self.application)
            and (self.route is None or (terms is not None and terms.route == self.route))
            and (self.reason is None or self.reason.lower() in (seen.reason or "").lower())
            and (self.resource is None or seen.resource == shown(self.resource))
            and (self.status is None or self._has_status(seen.status))
        )

    def _has_status(self, status: int | None) -> bool:
        wanted, had = self.status or "", str(status or "---")
        return had[:1] == wanted[:1] and wanted[1:] in ("xx", had[1:])


_STATUS: Final = re.compile("[1-5]([0-9]{2}|xx)", re.ASCII)


@frozen
class RecordPage:
    """The records that were found, newest first; ``after``: where to go on, None at the end."""

    glimpses: tuple[Glimpse, ...]
    after: str | None
    looked: int
    """How many records were looked at."""
    now: Micros
    by_due: tuple[Duty, ...] = ()
    """Of these duties there are too many to be sorted: they stand by when they are due."""
    unread: int = 0
    """Answers that were looked at for their status, and are encrypted."""


def page(
    backend: Backend,
    wanted: RecordFilter,
    limit: int,
    after: str | None = None,
    look: int = LOOK,
) -> RecordPage:
    """Up to ``limit`` records that fit, newest first, among the next ``look``.

    `newest` says what that order is. What is unsettled is looked at besides, to be sorted.
    """
    place = None if after is None else read_place(after)
    listed = NewestRecords(backend.blocking(), wanted.states, place, wanted.since)
    found: list[tuple[ListPlace, Glimpse]] = []
    looked, unread = 0, 0
    while True:
        step = listed.step(limit + 1, max(look - looked, 1))
        looked += step.looked
        for each in step.glimpses:
            seen = each[1]
            unread += wanted.status is not None and seen.size is not None and seen.status is None
            if wanted.fits_glimpse(seen, step.now):
                found.append(each)
        # A page that comes to no new place would be read again and again.
        spent = looked >= look and step.place != listed.begins
        if len(found) > limit or step.place is None or spent:
            break
    end = step.place if len(found) <= limit else found[limit - 1][0]
    return RecordPage(
        tuple([seen for _, seen in found[:limit]]),
        None if end is None else end.text,
        looked + listed.sorted,
        step.now,
        listed.by_due,
        unread,
    )


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


# ── effects, newest first ─────────────────────────────────────────────────────────────────────────


@frozen
class EffectFilter:
    """Which effects of a shelf to list: every given field must fit."""

    name: str | None = None
    due: bool = False
    """Only such that could be delivered now."""
    tried: int | None = None
    """Only such tried this often or more."""
    error: str | None = None
    """A part of what the last error says."""

    def fits(self, each: Effect, now: Micros) -> bool:
        if self.due and (each.due_at is None or each.due_at > now or each.delivered_at is not None):
            return False
        named = self.name is None or each.name == shown(self.name)
        failed = self.error is None or self.error in (each.error or "")
        return named and failed and (self.tried is None or each.tries >= self.tried)


@frozen
class EffectPage:
    """The effects that were found, newest first; ``after``: where to go on, None at the end."""

    effects: tuple[Effect, ...]
    after: str | None
    looked: int
    """How many effects were looked at."""
    now: Micros
    by_due: bool = False
    """So many wait that they are not sorted: they stand by when they may be tried."""


def effect_page(
    store: Store,
    shelf: Shelf,
    wanted: EffectFilter,
    limit: int,
    after: str | None = None,
    look: int = LOOK,
) -> EffectPage:
    """Up to ``limit`` effects of a shelf that fit, newest first, among the next ``look``.

    Dead ones stand in the order in which they were written, delivered ones in that of their
    delivery. Waiting ones are sorted by when they were written, up to `SORTED` of them.
    """
    place, behind = (None, None) if after is None else _effect_place(after)
    if shelf is Shelf.WAITING and place is None:
        whole = store.perform(ListNewestEffects(shelf, newest.SORTED, wanted.name))
        if whole.until is None:
            return _sorted_effects(whole, wanted, limit, behind)
    elif behind is not None:
        raise ConfigurationError(_NO_PLACE)  # it is one of what waits
    found: list[tuple[EffectPlace, Effect]] = []
    looked, size = 0, limit + 1
    while True:
        op = ListNewestEffects(shelf, min(size, look - looked, EFFECTS_AT_ONCE), wanted.name, place)
        step = store.perform(op)
        looked, size, place = looked + step.looked, size * 2, step.until
        every = zip(step.places, step.effects, strict=True)
        found += [(at, each) for at, each in every if wanted.fits(each, step.now)]
        if place is None or looked >= look or len(found) > limit:
            break
    end = place if len(found) <= limit else found[limit - 1][0]
    rest = None if end is None else f"{'' if end.due_at is None else end.due_at}.{end.number}"
    shown_now = tuple([each for _, each in found[:limit]])
    return EffectPage(shown_now, rest, looked, step.now, by_due=shelf is Shelf.WAITING)


def _sorted_effects(
    whole: NewestEffects, wanted: EffectFilter, limit: int, behind: tuple[Micros, str] | None
) -> EffectPage:
    """A page of all that wait, by when they were written."""
    every = sorted(whole.effects, key=lambda each: (each.created_at, each.key), reverse=True)
    found = [
        each
        for each in every
        if wanted.fits(each, whole.now) and (behind is None or (each.created_at, each.key) < behind)
    ]
    last = found[limit - 1] if len(found) > limit else None
    rest = None if last is None else f"{last.created_at}-{last.key}"
    return EffectPage(tuple(found[:limit]), rest, whole.looked, whole.now)


_NO_PLACE: Final = "this is no place that a list of effects has ended with"
_EFFECT_PLACE: Final = re.compile(r"(?P<due>[0-9]{0,18})\.(?P<number>[0-9]{1,18})", re.ASCII)
_EFFECT_TIME: Final = re.compile(r"(?P<at>[0-9]{1,18})-(?P<key>.+)", re.ASCII | re.DOTALL)


def _effect_place(after: str) -> tuple[EffectPlace | None, tuple[Micros, str] | None]:
    """Where a page goes on: at a place of the shelf, or behind a time and a key."""
    if found := _EFFECT_PLACE.fullmatch(after):
        due = None if not found["due"] else int(found["due"])
        return EffectPlace(due, int(found["number"])), None
    if found := _EFFECT_TIME.fullmatch(after):
        return None, (int(found["at"]), found["key"])
    raise ConfigurationError(_NO_PLACE)
