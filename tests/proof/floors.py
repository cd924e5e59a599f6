"""Campaigns whose worth is their number go on until the number is reached, within a budget.

What befalls a request by chance may come late. That is no failure of the store: another round is
played. Only a budget that is used up ends it, and then the figures say how far it came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

BUDGET = 900.0
"""Seconds for what was not reached in the rounds that were planned."""


def missing(counts: Mapping[str, int], floors: Mapping[str, int]) -> dict[str, str]:
    """The floors that were not reached, and how far they are off."""
    return {
        name: f"{counts.get(name, 0)} of {floor}"
        for name, floor in floors.items()
        if counts.get(name, 0) < floor
    }


def rounds(
    planned: int, short: Callable[[], Mapping[str, str]], budget: float = BUDGET
) -> Iterator[int]:
    """As many rounds as planned, and then more until nothing is ``short``, within the budget."""
    yield from range(planned)
    number, deadline = planned, time.monotonic() + budget
    while off := short():
        assert time.monotonic() < deadline, f"not reached in {number} rounds: {off}"
        yield number
        number += 1
