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
from semel.core.records import Effect, Glimpse, Micros, State
from semel.runtime.breaker import Health
from semel.worker.maintenance import LEADER

FRESH: Final = 5.0
"""Seconds for which the figures are shown again: ten people who look cost as much as one."""
MOST: Final = 5_000
"""Unsettled records, or effects of a kind, that are counted."""
_STEP: Final = 500
WORKERS: Final = 50
ROUTES: Final = 20
"""Rows of the heat map."""
DAY: Final[Micros] = 86_400_000_000
HOUR: Final[Micros] = 3_600_000_000
_UNSETTLED: Final = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)


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
    found, more, now = _read_unsettled(view)
    unknown = [each for each in found if each.state is State.UNKNOWN]
    dead = [each for each in unknown if each.due_at is None]
    asked = [each for each in unknown if each.due_at is not None]
    running = [each for each in found if each.state is State.IN_PROGRESS]
    lapsed = [each for each in running if (each.leased_until or now) <= now]
    pending = [each for each in found if each.state is State.PENDING]

    def figure(what: str, of: list[Glimpse], to: str, tone: str, **query: str) -> Figure:
        first = min((each.created_at for each in of), default=None)
        oldest = None if first is None else Moment(first, now)
        return Figure(what, len(of), more, oldest, to, query, tone)

    return (
        figure("Unknown: a person must decide", dead, "unknown", "bad"),
        figure("Unknown: a probe is asked", asked, "unknown", "doubt"),
        figure("Lease past, not yet swept", lapsed, "in-flight", "doubt"),
        figure("In flight", running, "in-flight", ""),
        figure("Waiting for a worker", pending, "records", "", state="pending"),
    )


def _read_unsettled(view: View) -> tuple[list[Glimpse], bool, Micros]:
    store = view.guard.backend.blocking()
    found: list[Glimpse] = []
    after = None
    while True:
        page = store.perform(ops.Scan(_UNSETTLED, _STEP, after))
        found += page.glimpses
        after = page.until
        if after is None or len(found) >= MOST:
            return found, after is not None, page.now


def _effects(view: View) -> tuple[Figure, ...]:
    if not view.guard.backend.capabilities.outbox:
        return ()
    dead, waiting = _shelf(view, ops.Shelf.DEAD), _shelf(view, ops.Shelf.WAITING)
    return (
        _of_effects("Dead letters", *dead, "bad", "dead"),
        _of_effects("Effects to deliver", *waiting, "", "waiting"),
    )


def _of_effects(
    what: str, found: list[Effect], more: bool, now: Micros, tone: str, shelf: str
) -> Figure:
    first = min((each.created_at for each in found), default=None)
    oldest = None if first is None else Moment(first, now)
    return Figure(what, len(found), more, oldest, "outbox", {"state": shelf}, tone)


def _shelf(view: View, shelf: ops.Shelf) -> tuple[list[Effect], bool, Micros]:
    store = view.guard.backend.blocking()
    found: list[Effect] = []
    while True:
        after = found[-1].key if found else None
        page = store.perform(ops.BrowseEffects(shelf, _STEP, after))
        found += page.effects
        if len(page.effects) < _STEP or len(found) >= MOST:
            return found, len(page.effects) == _STEP, page.now


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
    counts: dict[tuple[str, str], Counter[str]] = {}
    for each in recent:
        where = ("", "") if each.terms is None else (each.terms.application, each.terms.route)
        counts.setdefault(where, Counter())[outcome(each)] += 1
    used = tuple(name for name in OUTCOMES if any(each[name] for each in counts.values()))
    # Routes with unknown outcomes and errors first, then the busy ones.
    worst = sorted(counts, key=lambda at: (-sum(counts[at][b] for b in _BAD), -counts[at].total()))
    rows = tuple(_heat(at, counts[at], used, taken) for at in worst[:ROUTES])
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
