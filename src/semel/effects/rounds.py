"""What one round of a background loop did, and when to come again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from semel.core.frozen import frozen


@frozen
class Round:
    """One round: how many things it did, and in how many seconds it has more to do.

    ``next_due_in`` None: nothing is known to come; whoever wakes the loop, or the poll, decides.
    Zero or less: there is more at once. ``note``: what it did, for the log line of the round.
    """

    done: int
    next_due_in: float | None = None
    note: str = ""


def told(numbers: Mapping[str, int]) -> str:
    """``forget 40, lapse 2`` for a line of the log; empty where nothing was done."""
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()) if number)


class Loop(Protocol):
    """A background loop, one round at a time. A round that fails raises, and is tried later."""

    async def run_once(self) -> Round: ...
