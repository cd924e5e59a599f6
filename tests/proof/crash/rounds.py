"""The short life of a worker in a campaign."""

from __future__ import annotations

from collections.abc import Sequence

import semel
from semel.worker.worker import Loop, Worker

ROUNDS = 4
"""What one round finds out, the next may act on: settled, then resumed, then delivered."""


async def work(guard: semel.Guard, loops: Sequence[tuple[str, Loop]]) -> None:
    """As `semel worker --once` does, until a round finds nothing to do."""
    worker = Worker(loops)
    for _ in range(ROUNDS):
        rounds = await worker.run_once()
        if not any(round_.done for round_ in rounds.values()):
            break
    await worker.aclose()
    await guard.aclose()
