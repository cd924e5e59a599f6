"""Acts on many things: which fit a filter, and what came of each.

Who acts on many first sees the list, and agrees to it: what comes to fit later is no part of it. So
these take the names that were agreed to, never a filter, and go on behind what fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semel.core.frozen import frozen
from semel.core.records import Effect, Identity, Micros, State
from semel.core.unknown import settle_unknown
from semel.core.unknown.probe import GivenUp, Inspection
from semel.errors import SemelError, StoreError
from semel.operators.lists import EffectFilter

if TYPE_CHECKING:
    from semel.operators.operator import Operator


def dead_effects(operator: Operator, wanted: EffectFilter, since: Micros = 0) -> list[Effect]:
    """The dead effects that fit and died since then, newest first."""
    found = [
        each
        for each in operator.list_dead()
        if wanted.fits(each, 0) and (each.dead_at or 0) >= since
    ]
    return sorted(found, key=lambda each: -(each.dead_at or 0))


@frozen
class ItemResult:
    """What came of one of them."""

    name: str
    """An effect's key, or an identity in hexadecimal."""
    done: bool
    said: str


def retry_each(
    operator: Operator, deaths: Iterable[tuple[str, Micros]], *, by: str, reason: str
) -> Iterator[ItemResult]:
    """Try dead effects again, one after the other: each by its key, and when it died."""
    for key, died_at in deaths:
        try:
            retried = operator.retry_dead(key, by=by, reason=reason, died_at=died_at)
            said = "it is tried again" if retried else "it is not dead any more, or died again"
        except StoreError as error:
            retried, said = False, f"not retried: {error}"
        yield ItemResult(key, retried, said)


def probe_each(
    operator: Operator,
    identities: Iterable[Identity],
    *,
    by: str,
    reason: str = "",
    within: float | None = None,
) -> Iterator[ItemResult]:
    """Ask the probes of records in doubt, one after the other, and settle by what they say.

    ``within``: seconds after which no further one is asked, where a person waits for the answer.
    """
    end = None if within is None else time.monotonic() + within
    for identity in identities:
        if end is not None and time.monotonic() >= end:
            yield ItemResult(identity.hex(), False, "not asked: the others took too long")
            continue
        try:
            result = operator.probe_now(identity, by=by, reason=reason)
            settled, said = isinstance(result, settle_unknown.Settled), inspection_text(result)
        except SemelError as error:
            settled, said = False, f"not settled: {error}"
        yield ItemResult(identity.hex(), settled, said)


def inspection_text(result: Inspection | None) -> str:
    """What came of asking, or of settling, in one sentence."""
    match result:
        case None | settle_unknown.Passed(state=None):
            return "there is no such record any more"
        case settle_unknown.Settled(state):
            return f"settled: {state.value}"
        case settle_unknown.Undecided(reason) | settle_unknown.Unusable(reason) | GivenUp(reason):
            return f"not settled: {reason}"
        case settle_unknown.Running(state, until):
            end = datetime.fromtimestamp(until // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return f"not settled: it is {state.value}, leased until {end}"
        case settle_unknown.Passed(State.UNKNOWN):
            return "not settled: it has changed since it was looked at"
        case settle_unknown.Passed(state):
            return f"not settled: it is {state} already"
