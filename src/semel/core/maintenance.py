"""Maintenance: leases that are past lapse, requests nobody ran are answered, old records go.

Every step touches a bounded batch and waits for no lock, so that no request waits for it; a round
is a bounded number of batches of each kind.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from semel.core import replay, snapshot
from semel.core.contract import StoreOperation
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen
from semel.core.model import Micros
from semel.core.policy import Policy
from semel.core.problems import refuse
from semel.core.runner import Rest
from semel.core.snapshot import Snapshot
from semel.core.upkeep import Abandon, Reap, Sweep, Tended

BATCH: Final = 100
"""Records a step may touch: in SQLite, where there is one writer at a time, some milliseconds."""

BATCHES: Final = 100
"""Steps of one kind in a round; what is left is the next round's, which follows soon."""

REST: Final[Micros] = 30_000
"""Between two steps. SQLite's lock is not fair: who waits for it looks again after up to 25 ms, and
without a rest would find it taken again and again."""


@frozen
class Upkeep:
    """What a round did, by event; ``more``: it was cut short."""

    counts: dict[str, int]
    more: bool


def tend(policy: Policy, batch: int = BATCH, batches: int = BATCHES) -> Flow[Upkeep]:
    """One round: lapse, abandon, expire and forget; times a record has none of are ``policy``'s."""
    times = (policy.retention_micros, policy.tombstone_micros)
    steps: tuple[StoreOperation[Tended], ...] = (
        Sweep(batch, policy.retention_micros),
        Abandon(batch, _abandoned(policy), *times),
        Reap(batch),
    )
    counts: Counter[str] = Counter()
    more = False
    try:
        for step in steps:
            more |= yield from _repeat(step, batches, counts)
    except Interrupted:
        more = True  # what was done is told all the same
    return Upkeep(dict(counts), more)


def _repeat(step: StoreOperation[Tended], batches: int, counts: Counter[str]) -> Flow[bool]:
    """Whether there was more to do at the end."""
    for number in range(batches):
        if number:
            yield from ask(Rest(REST))
        tended = yield from ask(step)
        counts.update(tended.counts)
        if not tended.more:
            return False
    return True


def _abandoned(policy: Policy) -> bytes:
    """The answer of a request that nobody ran: nothing was executed."""
    answer = refuse("abandoned")
    kept = Snapshot(
        answer.status,
        replay.kept_headers(answer.headers),
        answer.body,
        len(answer.body),
        schema_version=policy.schema_version,
    )
    return snapshot.encode(kept)
