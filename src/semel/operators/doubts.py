"""Unknown outcomes by what they have in common: the route, and why nobody knows."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.records import Case, Identity, Micros, State

if TYPE_CHECKING:
    from semel.operators.operator import Operator

LOOK: Final = 5_000
"""Records in doubt that are looked at, unless it is told otherwise."""
SHOWN: Final = 50
"""Records of one group that are named."""


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
    cases: tuple[Case, ...]
    """The first of them, `SHOWN` at most."""
    identities: tuple[Identity, ...]
    """All of them."""


@frozen
class Doubts:
    """All groups, those with the most dead letters first; ``more``: not all were looked at."""

    groups: tuple[DoubtGroup, ...]
    looked: int
    more: bool
    now: Micros


def doubts(operator: Operator, look: int = LOOK) -> Doubts:
    """Group what is in doubt; at most ``look`` records are read."""
    read = list(islice(operator.list_unknown(), look + 1))
    found: dict[tuple[str | None, str, str], list[Case]] = {}
    for case, _ in read[:look]:
        found.setdefault(_group(case), []).append(case)
    groups = [_grouped(key, cases) for key, cases in found.items()]
    groups.sort(key=lambda each: (-each.dead, -each.count, each.oldest))
    now = read[0][1] if read else operator.now()
    return Doubts(tuple(groups), min(len(read), look), len(read) > look, now)


def _group(case: Case) -> tuple[str | None, str, str]:
    terms, origin = case.terms, case.origin
    route = f"{origin.method} {origin.path}"
    if terms is not None and terms.route != "*":
        route = terms.route
    reason = case.record.reason or ""
    if case.record.state is State.IN_PROGRESS:
        reason = "its lease ended"
    return None if terms is None else terms.application, route, reason


def _grouped(key: tuple[str | None, str, str], cases: list[Case]) -> DoubtGroup:
    cases.sort(key=lambda case: case.record.created_at)
    dead = sum(case.record.state is State.UNKNOWN and case.due_at is None for case in cases)
    oldest = cases[0].record.created_at
    identities = tuple(case.record.identity for case in cases)
    return DoubtGroup(*key, len(cases), dead, oldest, tuple(cases[:SHOWN]), identities)
