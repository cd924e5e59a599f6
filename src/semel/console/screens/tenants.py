"""Tenants: who asks for how much, what is not settled, who misuses keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from semel.console.screens.overview import outcome
from semel.console.screens.sample import Sample, sample
from semel.console.times import Span
from semel.console.view import View
from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.records import Glimpse, Micros, State
from semel.runtime.limits import Limits, Rate

SHOWN: Final = 100
NOTABLES: Final = 1_000
"""The newest of them are looked at."""
FRESH: Final = 30.0
HOUR: Final[Micros] = 3_600_000_000
_MISUSE: Final = ("mismatch", "conflict", "refusal", "suspicious_key")
_UNSETTLED: Final = (State.UNKNOWN, State.IN_PROGRESS, State.PENDING)


@frozen
class TenantRow:
    """One tenant in the sample. Numbers are estimates, where the sample is not everything."""

    tenant: str
    records: int
    last_hour: int
    last_day: int
    unknown: int
    errors: int
    """Records that ended with a 4xx or 5xx answer."""
    misuse: dict[str, int]
    """What the log of notables has of it lately, by kind."""


@frozen
class TenantsPage:
    rows: tuple[TenantRow, ...]
    tenants: int
    sampled: int
    total: int
    exact: bool
    notables: int
    """Lines of the log that were looked at."""
    since: Span | None
    """How far back those reach."""
    limits: dict[str, str]


def show(view: View) -> TenantsPage:
    """Tenants that misuse keys first, then those with unknown outcomes, then the busy ones."""
    return view.cached("tenants", FRESH, lambda: _tenants(view))


def _tenants(view: View) -> TenantsPage:
    taken, misuse, looked, since = sample(view), *_misuse(view)
    found: dict[str, list[Glimpse]] = defaultdict(list)
    for each in taken.glimpses:
        found[each.origin.tenant].append(each)
    names = found.keys() | {name for name in misuse if name}
    rows = [_row(name, found.get(name, []), misuse.get(name, Counter()), taken) for name in names]
    rows.sort(key=lambda each: (-sum(each.misuse.values()), -each.unknown, -each.records))
    limits = _limits(view.guard.limits)
    numbers = (len(rows), len(taken.glimpses), taken.total, taken.exact, looked, since)
    return TenantsPage(tuple(rows[:SHOWN]), *numbers, limits)


def _row(name: str, of: list[Glimpse], misuse: Counter[str], taken: Sample) -> TenantRow:
    def made_within(hours: int) -> int:
        return taken.scaled(sum(each.created_at > taken.now - hours * HOUR for each in of))

    ended = Counter(outcome(each) for each in of)
    return TenantRow(
        name,
        taken.scaled(len(of)),
        made_within(1),
        made_within(24),
        taken.scaled(ended["unknown"]),
        taken.scaled(ended["4xx"] + ended["5xx"]),
        dict(misuse),
    )


def _misuse(view: View) -> tuple[dict[str, Counter[str]], int, Span | None]:
    """By tenant, how often keys were misused, as the newest notables have it."""
    store = view.guard.backend.blocking()
    page = store.perform(ops.BrowseNotables(NOTABLES, kinds=_MISUSE))
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for each in page.entries:
        found[each.tenant][each.kind] += each.count
    oldest = Span(page.now - page.entries[-1].at) if page.entries else None
    return found, len(page.entries), oldest


def _limits(limits: Limits | None) -> dict[str, str]:
    """What each tenant may ask for, in words."""
    if limits is None:
        return {}
    rates = {"new keys": limits.new_keys, "look-ups": limits.lookups}
    said = {name: _rate(rate) for name, rate in rates.items() if rate is not None}
    if limits.active_keys is not None:
        said["keys alive"] = f"{limits.active_keys:,}"
    return said


def _rate(rate: Rate) -> str:
    per = Span(int(rate.per.total_seconds() * 1_000_000))
    burst = "" if rate.burst is None else f", {rate.burst:,} at once"
    return f"{rate.count:,} in {per}{burst}, in each process"
