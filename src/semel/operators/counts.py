"""How many records there are: what is unsettled exactly, all others by a fair sample.

Identities are digests, spread evenly: a run of them from a random place is a sample of all records,
and the part of all possible identities that it covers tells how many there are. A table that is
smaller than the sample is counted exactly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import ceil, sqrt
from typing import TYPE_CHECKING, Final

from semel.core.frozen import frozen
from semel.core.operations.lists import (
    CountUnsettled,
    RecordGroup,
    SampledRecords,
    SampleRecords,
    UnsettledCounts,
)
from semel.core.records import Identity, Micros, State

if TYPE_CHECKING:
    from semel.stores.base import Store

MOST: Final = 10_000
"""Unsettled records that are counted of each duty; reached, it means so many or more."""
SAMPLE: Final = 20_000
"""Records that a sample reads."""
DAY: Final = 86_400_000_000
_ALL: Final = 2**256


@frozen
class Estimate:
    """A number of records, and how far off it may be: twice the standard error, 0 if exact."""

    count: int
    error: int


@frozen
class GroupEstimate:
    """Records of one route in one state, in the whole store; ``oldest`` and ``newest`` as seen."""

    application: str | None
    route: str | None
    state: State
    records: Estimate
    recent: Estimate
    """Made within the time that was asked for."""
    oldest: Micros
    newest: Micros


@frozen
class RecordSample:
    """What a sample tells of all records."""

    looked: int
    total: Estimate
    groups: tuple[GroupEstimate, ...]
    now: Micros

    @property
    def exact(self) -> bool:
        """Whether every record was counted."""
        return self.total.error == 0

    @property
    def said(self) -> str:
        """In words, for a screen."""
        if self.exact:
            return f"all {self.looked:,} counted"
        return f"sampled {self.looked:,} of about {self.total.count:,}"

    def by_state(self) -> dict[State, Estimate]:
        """Records of all routes, by state."""
        return {
            state: _sum(it.records for it in self.groups if it.state is state) for state in State
        }


def unsettled(store: Store, most: int = MOST) -> UnsettledCounts:
    """What somebody must look after, counted by its index."""
    return store.perform(CountUnsettled(most))


def sample(
    store: Store,
    now: Micros,
    size: int = SAMPLE,
    within: Micros = DAY,
    start: Identity | None = None,
) -> RecordSample:
    """Count a run of ``size`` records. ``within``: how old what counts as recent may be.

    ``now``: by the store's clock. ``start``: where the run begins; anywhere if not said.
    """
    begin = start if start is not None else Identity(os.urandom(32))
    run = store.perform(SampleRecords(size, now - within, begin))
    if run.until is None:  # it came to the end: what lies before it is unknown
        begin = Identity(bytes(32))
        run = store.perform(SampleRecords(size, now - within, None))
    part = 1.0
    if run.until is not None:
        part = (int.from_bytes(run.until) - int.from_bytes(begin)) / _ALL
    return _scaled(run, part, exact=run.until is None)


def _scaled(run: SampledRecords, part: float, *, exact: bool) -> RecordSample:
    """What a run says of all records, of which it covers ``part``."""

    def estimate(count: int) -> Estimate:
        error = 0 if exact else max(1, ceil(2 * sqrt(max(count, 1)) / part))
        return Estimate(round(count / part), error)

    groups = [
        GroupEstimate(
            *(each.application, each.route, each.state),
            *(estimate(each.count), estimate(each.recent)),
            *(each.oldest, each.newest),
        )
        for each in _by_route(run.groups)
    ]
    return RecordSample(run.looked, estimate(run.looked), tuple(groups), run.now)


def _by_route(groups: Iterable[RecordGroup]) -> list[RecordGroup]:
    """One group for each route and state: a route may have had several terms."""
    found: dict[tuple[str | None, str | None, State], RecordGroup] = {}
    for each in groups:
        name = each.application, each.route, each.state
        known = found.get(name, each)
        if known is each:
            found[name] = each
            continue
        found[name] = RecordGroup(
            *name,
            known.count + each.count,
            known.recent + each.recent,
            min(known.oldest, each.oldest),
            max(known.newest, each.newest),
        )
    return sorted(found.values(), key=lambda each: -each.count)


def _sum(estimates: Iterable[Estimate]) -> Estimate:
    """Of independent numbers the squares of errors add up."""
    listed = list(estimates)
    error = sqrt(sum(each.error**2 for each in listed))
    return Estimate(sum(each.count for each in listed), ceil(error))
