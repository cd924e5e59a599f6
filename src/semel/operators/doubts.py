"""Unknown outcomes by what they have in common: the route, and why nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.operations.lists import DuePlace, ListNewest
from semel.core.records import Duty, Glimpse, Identity, Micros, OnLapse, State, whole_origin

if TYPE_CHECKING:
    from semel.operators.operator import Operator
    from semel.stores.base import Store

LOOK: Final = 5_000
"""Records in doubt that are looked at, unless it is told otherwise."""
_LAST: Final = Identity(b"\xff" * 32)


@frozen
class DoubtGroup:
    """Records in doubt of one route, for one reason; the oldest first."""

    application: str | None
    route: str
    reason: str
    count: int
    dead: int
    """So many of them nobody will ask about again."""
    oldest: Micros
    glimpses: tuple[Glimpse, ...]

    @property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(each.identity for each in self.glimpses)


@frozen
class Doubts:
    """All groups, those with the most dead letters first; ``more``: not all were looked at."""

    groups: tuple[DoubtGroup, ...]
    looked: int
    more: bool
    now: Micros


def doubts(operator: Operator, look: int = LOOK) -> Doubts:
    """Group what is in doubt; about ``look`` records are read, however many there are."""
    now = operator.now()
    read, more = _read(operator.guard.backend.blocking(), look, now)
    found: dict[tuple[str | None, str, str], list[Glimpse]] = {}
    for seen in read:
        found.setdefault(_group(seen), []).append(seen)
    groups = [_grouped(key, glimpses) for key, glimpses in found.items()]
    groups.sort(key=lambda each: (-each.dead, -each.count, each.oldest))
    return Doubts(tuple(groups), len(read), more, now)


def _read(store: Store, look: int, now: Micros) -> tuple[list[Glimpse], bool]:
    """By the index of what is due, which needs no sorting: first those nobody will ask about again,
    which need a person, then those that a probe is asked about, then those whose lease ended."""
    found: dict[Identity, Glimpse] = {}
    more = False
    never, ended = DuePlace(None, _LAST), DuePlace(now, _LAST)
    for duty, before in ((Duty.ASK, never), (Duty.ASK, None), (Duty.LEASE, ended)):
        page = store.perform(ListNewest(duty, look + 1 - len(found), before))
        seen = [each.glimpse for each in page.found if _in_doubt(each.glimpse, now)]
        found |= {each.identity: each for each in seen}
        more = more or page.until is not None
        if len(found) > look:
            return list(found.values())[:look], True
    return list(found.values()), more


def _in_doubt(seen: Glimpse, now: Micros) -> bool:
    """Whether it is unknown, or will be when the next request or the sweeper comes by."""
    if seen.state is not State.IN_PROGRESS or seen.leased_until is None:
        return seen.state is State.UNKNOWN
    return seen.leased_until <= now and seen.on_lapse is OnLapse.UNKNOWN


def _group(seen: Glimpse) -> tuple[str | None, str, str]:
    terms, origin = seen.terms, whole_origin(seen.origin, seen.terms)
    route = f"{origin.method} {origin.path}"
    if terms is not None and terms.route != "*":
        route = terms.route
    reason = "its lease ended" if seen.state is State.IN_PROGRESS else seen.reason or ""
    return None if terms is None else terms.application, route, reason


def _grouped(key: tuple[str | None, str, str], of: list[Glimpse]) -> DoubtGroup:
    of.sort(key=lambda each: each.created_at)
    dead = sum(each.state is State.UNKNOWN and each.due_at is None for each in of)
    return DoubtGroup(*key, len(of), dead, of[0].created_at, tuple(of))
