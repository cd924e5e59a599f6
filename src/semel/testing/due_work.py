"""What workers would do, done once, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semel.core import operations as ops
from semel.errors import ConfigurationError
from semel.worker.deliveries import Deliveries
from semel.worker.maintenance import Maintenance
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from semel.worker.worker import DELIVER, MAINTAIN, RECONCILE, RUN, Worker

if TYPE_CHECKING:
    from semel.guard import Guard
    from semel.worker.worker import Loop

_MOST: Final = 100
"""What is counted at most of each kind of work."""


async def run_due(guard: Guard, app: Any) -> dict[str, int]:
    """One round of each loop; by its name, how much it did. Loops that did nothing are left out.

    In the order in which one makes work for the next: what has lapsed is asked about or run, and
    what a run enqueues is delivered.
    """
    loops: list[tuple[str, Loop]] = [
        (MAINTAIN, Maintenance(guard)),
        (RECONCILE, Reconciler(guard, app)),
    ]
    if app is not None:
        loops.append((RUN, StoredRuns(guard, app)))
    if guard.registry.deliverers:
        loops.append((DELIVER, Deliveries(guard)))
    worker = Worker(loops)
    try:
        rounds = await worker.run_once()
    finally:
        await worker.aclose()
    if app is None:
        await _demand_nothing_left(guard)
    return {name: round_.done for name, round_ in rounds.items() if round_.done}


async def _demand_nothing_left(guard: Guard) -> None:
    """Policies on endpoints are found through the application: without it they are left alone."""
    waiting = (await guard.runtime.backend.awaited().perform(ops.CountDue(_MOST))).routes
    mine = [which[1] for which in waiting if which and which[0] == guard.name]
    if mine:
        raise ConfigurationError(
            f"is due and was left alone: {', '.join(sorted(mine))}. Name your application: "
            "run_once(app)"
        )
