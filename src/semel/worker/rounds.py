"""What one round of a background loop did, and when to come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.operations.maintenance import Scan
from semel.core.operations.outbox import BrowseEffects, Shelf
from semel.core.records import Identity, State


@frozen
class Round:
    """One round: how many things it did, and in how many seconds it has more to do.

    ``next_due_in`` None: nothing is known to come; whoever wakes the loop, or the poll, decides.
    Zero or less: there is more at once. ``note``: what it did, for the log line of the round.
    """

    done: int
    next_due_in: float | None = None
    note: str = ""


def counts_note(numbers: Mapping[str, int]) -> str:
    """``forget 40, lapse 2`` for a line of the log; empty where nothing was done."""
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()) if number)


class Loop(Protocol):
    """A background loop, one round at a time. A round that fails raises, and is tried later."""

    async def run_once(self) -> Round: ...


# --- how much waits for somebody: counted in rounds of maintenance, never on the way of a request

_PAGE: Final = 500
_PAGES: Final = 20
"""What is more than this is told as this: then nobody needs to know it to the last one."""

_STATES: Final = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)
_SHELVES: Final = {"waiting_effects": Shelf.WAITING, "dead_effects": Shelf.DEAD}


def survey(outbox: bool) -> Flow[dict[str, int | None]]:
    """Records and effects by what they wait for; without an ``outbox`` nothing of effects."""
    counts: Counter[str] = yield from _records()
    depths: dict[str, int | None] = {state.value: counts[state.value] for state in _STATES}
    depths["dead"] = counts["dead"]
    for name, shelf in _SHELVES.items():
        depths[name] = (yield from _effects(shelf)) if outbox else None
    return depths


def _records() -> Flow[Counter[str]]:
    counts: Counter[str] = Counter()
    after: Identity | None = None
    for _ in range(_PAGES):
        page = yield from ask(Scan(_STATES, _PAGE, after))
        for glimpse in page.glimpses:
            dead = glimpse.state is State.UNKNOWN and glimpse.due_at is None
            counts[glimpse.state.value] += 1
            counts["dead"] += dead
        after = page.until
        if after is None:
            break
    return counts


def _effects(shelf: Shelf) -> Flow[int]:
    count = 0
    after: str | None = None
    for _ in range(_PAGES):
        page = yield from ask(BrowseEffects(shelf, _PAGE, after))
        count += len(page.effects)
        if len(page.effects) < _PAGE:
            break
        after = page.effects[-1].key
    return count
