"""What every store must do: one suite, for semel's own stores and for yours. It needs pytest.

A store author opens the store with `under_test` in a fixture called ``harness``, and takes the
classes of the suite with `suite`. Each test gets the fixture, asks operations of the store, and
compares the replies.

records            claims, the state table, races, bytes, recipes
work               deferred requests, recovery points, inquiries
maintenance        what is due, browsing, sweeping, reaping, leading, retiring
lists              pages for people, newest first
outbox             effects, and events of providers
audit              the audit, erasure, encryption
notables           what operators want to see later, and the workers last seen
declared           what a store says it can do
harness            the store under test
event_loop_thread  an event loop for those who do not await
terms              terms of records that tests make
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from semel.core.operations.requests import Agree
from semel.core.records import Micros
from semel.stores.base import Backend
from semel.testing.contract import (
    audit,
    declared,
    lists,
    maintenance,
    notables,
    outbox,
    records,
    work,
)
from semel.testing.contract.harness import Harness

__all__ = ["EFFECTS", "SUITE", "Harness", "suite", "under_test"]

SUITE: tuple[type, ...] = (
    *(records.StateTable, records.Claims, records.Lives, records.Bytes),
    *(records.Races, records.Recipes),
    *(work.Deferred, work.RecoveryPoints, work.Inquiries),
    *(maintenance.Duties, maintenance.KnownRecords, maintenance.Browsing, maintenance.Scanning),
    *(maintenance.Counting, maintenance.Sweeping, maintenance.Abandoning, maintenance.Reaping),
    *(maintenance.LeaderElection, maintenance.Retiring),
    *(
        lists.NewestFirst,
        lists.CountingForPeople,
        outbox.ProviderEvents,
        audit.Auditing,
        audit.Erasing,
        audit.Resealing,
    ),
    *(notables.Notables, notables.Heartbeats),
)
"""For every store."""
EFFECTS: tuple[type, ...] = (
    *(outbox.Taking, outbox.Ordered, outbox.Delivering, outbox.DeadLetters),
    *(lists.NewestEffectsFirst, audit.AuditingEffects, audit.ResealingEffects),
)
"""For stores with an outbox."""


@contextmanager
def under_test(
    backend: Backend, travel: Callable[[Micros], None], *, colour: str = "sync", slack: Micros = 0
) -> Generator[Harness]:
    """A store that is empty, for one test; see `Harness`. It is closed in the end."""
    harness = Harness(backend, travel, slack, colour)
    try:
        harness.perform(Agree(records.TERMS))
        yield harness
    finally:
        harness.close()


def suite(*, outbox: bool = True) -> dict[str, type]:
    """The classes for pytest to collect, by name: ``globals().update(suite())``.

    ``outbox``: what the store declares in its capabilities. Without one, effects are not asked for,
    and the store must refuse them.
    """
    says: type = declared.WithOutbox if outbox else declared.WithoutOutbox
    chosen = (*SUITE, *(EFFECTS if outbox else ()), says)
    return {f"Test{each.__name__}": type(f"Test{each.__name__}", (each,), {}) for each in chosen}
