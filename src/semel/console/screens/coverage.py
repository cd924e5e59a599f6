"""Routes: which of them change something, and whether keys count there, as `semel routes` tells."""

from __future__ import annotations

from collections import Counter
from typing import Final

from semel.console.times import Span
from semel.console.view import View
from semel.core.frozen import frozen
from semel.errors import ConfigurationError
from semel.operators.coverage import RouteKeys, audit, key_from
from semel.web.inventory import COMMITS_LATE

_WORST_FIRST: Final = ("ignores", "default", "accepts", "exempt", "enforces")


@frozen
class RouteRow:
    method: str
    path: str
    keys: str
    said: str
    """Where its policy is said: on the endpoint, in a list, or by nobody."""
    policy: str | None
    mode: str | None
    retention: Span | None
    key_from: tuple[str, ...]
    covered: bool
    notes: tuple[str, ...]


@frozen
class RoutesPage:
    rows: tuple[RouteRow, ...]
    counts: dict[str, int]
    known: bool
    """False: the console was not told the application, and knows only what the guard lists."""


def show(view: View) -> RoutesPage:
    """Every route that changes something; those without keys first."""
    known = view.app is not None
    try:
        found = audit(view.app, view.guard)
    except ConfigurationError:
        found, known = [], False
    found.sort(key=lambda each: _WORST_FIRST.index(each.keys))
    return RoutesPage(tuple(map(_row, found)), dict(Counter(each.keys for each in found)), known)


def _row(each: RouteKeys) -> RouteRow:
    policy = each.policy
    seconds = 0 if policy is None else policy.retention.total_seconds()
    return RouteRow(
        each.method,
        each.path,
        each.keys,
        {"tag": "on the endpoint", "listed": "Guard(routes=)"}.get(each.said, "nobody"),
        None if policy is None else policy.name,
        None if policy is None else policy.mode,
        None if policy is None else Span(int(seconds * 1_000_000)),
        key_from(each),
        each.covered(allow_default=False),
        tuple(COMMITS_LATE.format(name) for name in each.late),
    )
