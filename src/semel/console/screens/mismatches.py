"""Mismatches: keys that were used again for another request, by the names of fields only."""

from __future__ import annotations

from semel.console.times import Moment
from semel.console.view import View
from semel.core.frozen import frozen
from semel.core.records import Micros
from semel.operators.mismatches import MismatchGroup, mismatches


@frozen
class FieldCount:
    name: str
    count: int


@frozen
class MismatchRow:
    """Those of one route and tenant."""

    application: str
    route: str
    tenant: str
    count: int
    fields: tuple[FieldCount, ...]
    first: Moment
    last: Moment
    records: tuple[str, ...]


@frozen
class MismatchesPage:
    rows: tuple[MismatchRow, ...]
    looked: int
    more: bool


def show(view: View) -> MismatchesPage:
    """Grouped by route and tenant, the most first."""
    found = mismatches(view.operator, view.query.text("route"), view.query.text("tenant"))
    rows = tuple(_row(each, found.now) for each in found.groups)
    return MismatchesPage(rows, found.looked, found.more)


def _row(group: MismatchGroup, now: Micros) -> MismatchRow:
    return MismatchRow(
        *(group.application, group.route, group.tenant, group.count),
        tuple(FieldCount(*each) for each in group.fields),
        *(Moment(group.first, now), Moment(group.last, now)),
        tuple(each.hex() for each in group.identities),
    )
