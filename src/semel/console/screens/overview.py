"""Overview: what needs a person first, then how the last day went.

Counts are bounded. What is unsettled the store finds by itself, and it is counted up to a limit;
what is settled is estimated from a sample, and the page says so.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from semel.console.screens.sample import Sample, sample
from semel.console.times import Moment
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Glimpse, Micros, State
from semel.operators import counts
from semel.runtime.breaker import Health
from semel.worker.maintenance import LEADER

FRESH: Final = 5.0
"""Seconds for which the figures are shown again: ten people who look cost as much as one."""
MOST: Final = 5_000
"""Unsettled records, or effects of a kind, that are counted."""
WORKERS: Final = 50
ROUTES: Final = 20
"""Rows of the heat map."""
DAY: Final[Micros] = 86_400_000_000
HOUR: Final[Micros] = 3_600_000_000


@frozen
class Figure:
    """A number that leads to its list."""

    what: str
    count: int
    more: bool
    """There are more: counting ended at `MOST`."""
    oldest: Moment | None
    to: str
    query: dict[str, str]
    tone: str
    """``bad`` and ``doubt`` need a person when the number is not 0."""


@frozen
class WorkerRow:
    role: str
    does: str
    host: str
    pid: int
    version: str
    leading: bool
    seen_at: Moment
    late: bool
    """It should have been heard of again by now."""


@frozen
class HeatCell:
    count: int
    """An estimate, where the sample is not everything."""
    shade: int
    """0 to 4: its share of the route."""
    query: dict[str, str]


@frozen
class HeatRow:
    route: str
    application: str
    count: int
    cells: tuple[HeatCell, ...]


@frozen
class HourBar:
    """One hour of the last day: how many records were made, and how many of them need a person."""

    begins: Moment
    count: int
    bad: int


@frozen
class LastDay:
    outcomes: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    hours: tuple[HourBar, ...]
    sampled: int
    total: int
    exact: bool


@frozen
class Overview:
    store: str
    health: Health
    figures: tuple[Figure, ...]
    leader_until: Moment | None
    """Until when somebody leads maintenance, or led; None: nobody ever did."""
    workers: tuple[WorkerRow, ...]
    day: LastDay | None
    """None: the store does not answer."""


def show(view: View) -> Overview:
    """Whether the store answers comes first: without it nothing else can be told."""
    return view.cached("overview", FRESH, lambda: _overview(view))


def _overview(view: View) -> Overview:
    health, url = view.guard.health(), view.guard.backend.url
    if not health.up:
        return Overview(url, health, (), None, (), None)
    store = view.guard.backend.blocking()
    led = store.perform(ops.WhoLeads(LEADER))
    leader = None if led.until is None else Moment(led.until, led.now)
    seen = store.perform(ops.ListWorkers(WORKERS))
    workers = tuple(_worker(each, seen.now) for each in seen.workers)
    figures = (*_unsettled(view), *_effects(view))
    return Overview(url, health, figures, leader, workers, _last_day(sample(view)))


def _worker(seen: ops.WorkerSeen, now: Micros) -> WorkerRow:
    who = seen.worker
    return WorkerRow(
        *(who.role, who.does, who.host, who.pid, who.version, who.leading),
        Moment(seen.seen_at, now),
        seen.until < now,
    )


# ── what is unsettled ─────────────────────────────────────────────────────────────────────────────


def _unsettled(view: View) -> tuple[Figure, ...]:
    found = counts.unsettled(view.guard.backend.blocking(), MOST)

    def figure(what: str, of: ops.KindCount, to: str, tone: str, **query: str) -> Figure:
        return _figure(what, of, found.now, to, query, tone)

    return (
        figure("Unknown: a person must decide", found.dead, "unknown", "bad"),
        figure("Unknown: a probe is asked", found.unknown, "unknown", "doubt"),
        figure("Lease past, not yet swept", found.lapsed, "in-flight", "doubt"),
        figure("In flight", found.in_progress, "in-flight", ""),
        figure("Waiting for a worker", found.pending, "records", "", state="pending"),
    )


def _effects(view: View) -> tuple[Figure, ...]:
    if not view.guard.backend.capabilities.outbox:
        return ()
    found = view.guard.backend.blocking().perform(ops.CountEffects(MOST))
    return (
        _figure("Dead letters", found.dead, found.now, "outbox", {"state": "dead"}, "bad"),
        _figure("Effects to deliver", found.waiting, found.now, "outbox", {"state": "waiting"}, ""),
    )


def _figure(
    what: str, of: ops.KindCount, now: Micros, to: str, query: dict[str, str], tone: str
) -> Figure:
    oldest = None if of.oldest is None else Moment(of.oldest, now)
    return Figure(what, of.count, of.count >= MOST, oldest, to, query, tone)


# ── the last day ──────────────────────────────────────────────────────────────────────────────────

OUTCOMES: Final[dict[str, dict[str, str]]] = {
    "unknown": {"state": "unknown"},
    "5xx": {"state": "completed", "status": "5xx"},
    "retryable": {"state": "failed_retryable"},
    "4xx": {"state": "completed", "status": "4xx"},
    "in flight": {"state": "in_progress"},
    "pending": {"state": "pending"},
    "2xx": {"state": "completed", "status": "2xx"},
    "completed": {"state": "completed"},
    "expired": {"state": "expired"},
}
"""What became of a record, with the filter that lists them; in the order of the columns.

``completed``: with another status, or one that is encrypted.
"""
_BAD: Final = frozenset({"unknown", "5xx"})
_NAMES: Final = {
    State.UNKNOWN: "unknown",
    State.FAILED_RETRYABLE: "retryable",
    State.IN_PROGRESS: "in flight",
    State.PENDING: "pending",
    State.EXPIRED: "expired",
}


def outcome(seen: Glimpse) -> str:
    """The column that a record is counted in."""
    if seen.state is not State.COMPLETED:
        return _NAMES[seen.state]
    named = f"{(seen.status or 0) // 100}xx"
    return named if named in OUTCOMES else "completed"


def _last_day(taken: Sample) -> LastDay:
    recent = [each for each in taken.glimpses if each.created_at > taken.now - DAY]
    found: dict[tuple[str, str], Counter[str]] = {}
    for each in recent:
        where = ("", "") if each.terms is None else (each.terms.application, each.terms.route)
        found.setdefault(where, Counter())[outcome(each)] += 1
    used = tuple(name for name in OUTCOMES if any(each[name] for each in found.values()))
    # Routes with unknown outcomes and errors first, then the busy ones.
    worst = sorted(found, key=lambda at: (-sum(found[at][b] for b in _BAD), -found[at].total()))
    rows = tuple(_heat(at, found[at], used, taken) for at in worst[:ROUTES])
    hours = _hours(recent, taken)
    return LastDay(used, rows, hours, len(taken.glimpses), taken.total, taken.exact)


def _heat(at: tuple[str, str], of: Counter[str], used: tuple[str, ...], taken: Sample) -> HeatRow:
    application, route = at
    total = of.total()
    cells = tuple(
        HeatCell(
            taken.scaled(of[name]),
            0 if not of[name] else 1 + min(3, int(4 * of[name] / total)),
            {**OUTCOMES[name], "route": route, "since": "24h"},
        )
        for name in used
    )
    return HeatRow(route, application, taken.scaled(total), cells)


def _hours(recent: list[Glimpse], taken: Sample) -> tuple[HourBar, ...]:
    """Twenty-four hours, the oldest first; each ends where the next begins."""
    made: Counter[int] = Counter((taken.now - each.created_at) // HOUR for each in recent)
    bad: Counter[int] = Counter(
        (taken.now - each.created_at) // HOUR for each in recent if outcome(each) in _BAD
    )
    return tuple(
        HourBar(
            Moment(taken.now - (ago + 1) * HOUR, taken.now),
            taken.scaled(made[ago]),
            taken.scaled(bad[ago]),
        )
        for ago in range(23, -1, -1)
    )
