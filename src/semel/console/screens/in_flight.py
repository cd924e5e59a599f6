"""In flight: what runs now and what waits to, for how long, beside what is usual for its route."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Final

from semel.console.screens.records import RecordRow, row
from semel.console.screens.sample import Sample, sample
from semel.console.times import Span
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Duty, Glimpse, Identity, Micros, State
from semel.operators.doctor import took
from semel.stores.base import Store

SHOWN: Final = 200
MOST: Final = 500
"""Records of each kind that are looked at: past their lease, running, waiting."""
ENOUGH: Final = 5
"""Runs of a route that can say what is usual."""
_DUTIES: Final = (Duty.LEASE, Duty.RESUME, Duty.RUN)


@frozen
class RunningRow:
    """One record that runs, or waits for a worker."""

    record: RecordRow
    age: Span
    usual: Span | None
    """How long half of this route's runs take; None: too few are known."""
    slow: Span | None
    """Of 100 runs, 95 take less."""
    lease_left: Span | None
    standing: str
    """``lapsed``: its lease is past. ``slow``: longer than 95 of 100 runs. ``ok``, or ``waits``."""


@frozen
class InFlightPage:
    rows: tuple[RunningRow, ...]
    found: int
    more: bool
    """There are more than were looked at."""
    counts: dict[str, int]


def show(view: View) -> InFlightPage:
    """What is in flight: past its lease first, then what is slow, then by age."""
    store = view.guard.backend.blocking()
    usual = _usual(sample(view))
    found, more = _read(store, view.now())
    rows = [_in_flight(each, now, usual) for each, now in found]
    rows.sort(key=lambda each: (_ORDER.index(each.standing), -each.age.micros))
    counts = {standing: sum(r.standing == standing for r in rows) for standing in _ORDER}
    return InFlightPage(tuple(rows[:SHOWN]), len(rows), more, counts)


def _read(store: Store, now: Micros) -> tuple[list[tuple[Glimpse, Micros]], bool]:
    """By the index of what is due, however much else is unsettled: first what is past its lease."""
    found: dict[Identity, tuple[Glimpse, Micros]] = {}
    more = False
    for duty in _DUTIES:
        for before in (ops.DuePlace(now, Identity(b"\xff" * 32)), None):
            page = store.perform(ops.ListNewest(duty, MOST, before))
            found |= {each.glimpse.identity: (each.glimpse, page.now) for each in page.found}
            more = more or page.until is not None
    return list(found.values()), more


_ORDER: Final = ("lapsed", "slow", "ok", "waits")
_Usual = dict[str | None, tuple[Micros, Micros]]


def _usual(taken: Sample) -> _Usual:
    """By route: the median of its runs, and what 95 of 100 stay below."""
    runs: dict[str | None, list[timedelta]] = defaultdict(list)
    for each in taken.glimpses:
        ran = took(each)
        if ran is not None:
            runs[_route(each)].append(ran)
    return {
        route: (_micros(times[len(times) // 2]), _micros(times[int(len(times) * 0.95)]))
        for route, times in ((route, sorted(times)) for route, times in runs.items())
        if len(times) >= ENOUGH
    }


def _in_flight(seen: Glimpse, now: Micros, usual: _Usual) -> RunningRow:
    age = now - seen.created_at
    median, slow = usual.get(_route(seen), (None, None))
    left = None if seen.leased_until is None else seen.leased_until - now
    standing = "ok"
    if seen.state is State.PENDING:
        standing = "waits"
    elif left is not None and left <= 0:
        standing = "lapsed"
    elif slow is not None and age > slow:
        standing = "slow"
    usually, slowly, lease = (None if t is None else Span(t) for t in (median, slow, left))
    return RunningRow(row(seen, now), Span(age), usually, slowly, lease, standing)


def _route(seen: Glimpse) -> str | None:
    return None if seen.terms is None else seen.terms.route


def _micros(duration: timedelta) -> Micros:
    return duration // timedelta(microseconds=1)
