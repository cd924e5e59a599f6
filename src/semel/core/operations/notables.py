"""Store operations for notables: what operators want to see later, and no record keeps.

A notable is a short line about something that was decided: a key that came with another payload, a
duplicate that met the first request, a webhook that could not be applied. Nothing depends on it:
whoever writes one may lose it. A batch whose answer was lost may be written twice.

There are at most `MOST_NOTABLES` of them, however many are written, and each has a time after which
it is forgotten. So a list may look at all of them, and only the notables of one identity have an
index.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from semel.core.frozen import value
from semel.core.operations.maintenance import Tended
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity, Micros
from semel.core.texts import shown

MOST_NOTABLES: Final = 100_000
"""How many a store keeps; the oldest go first. Redis divides them among its buckets."""


class NotableKind(StrEnum):
    """What a notable is about."""

    MISMATCH = "mismatch"
    """A key came again with another request. ``detail`` names the fields that differ."""
    CONFLICT = "conflict"
    """A duplicate met the first request while it ran, or while its outcome was unknown."""
    REPLAY = "replay"
    """A duplicate got the answer on record."""
    REFUSAL = "refusal"
    """A request was refused for another reason: ``detail`` has the code."""
    LOST_FENCE = "lost_fence"
    """A handler ended after its lease was lost."""
    SUSPICIOUS_KEY = "suspicious_key"
    """A key looks like personal data, or is short."""
    WEBHOOK = "webhook"
    """A provider sent an event: ``detail`` says what it said, and whether it was applied."""
    DROPPED = "dropped"
    """Notables that were not written: ``detail`` counts them by kind."""


@value
class Notable:
    """One thing that is worth a line. ``count``: how often it was seen in the same moment.

    ``tenant`` and ``route`` are empty where they are not known. ``detail`` is a small JSON object:
    never a key, a body or a header.
    """

    kind: NotableKind
    application: str = ""
    route: str = ""
    tenant: str = ""
    identity: Identity | None = None
    detail: str = "{}"
    count: int = 1


@value
class NotableEntry:
    """A notable as it is on record. ``at``: when it was written, by the store's clock."""

    place: str
    """Where it stands: `BrowseNotables` goes on from there."""
    at: Micros
    kind: str
    application: str
    route: str
    tenant: str
    identity: Identity | None
    detail: str
    count: int


@value
class NotableEntries:
    """Notables, newest first; ``until``: where the next page begins. None: there are no more."""

    entries: tuple[NotableEntry, ...]
    until: str | None
    now: Micros


@value
class NotablesChanged:
    """How many were written, or erased."""

    count: int
    now: Micros


@value
class WriteNotables(StoreOperation[NotablesChanged]):
    """Write a batch, in this order; each is forgotten after ``keep``."""

    notables: tuple[Notable, ...]
    keep: Micros


@value
class BrowseNotables(StoreOperation[NotableEntries]):
    """List notables, newest first, from the one at ``before`` on.

    ``kinds``: only these; empty: all. ``route``, ``identity``: only those of this one.
    """

    limit: int
    before: str | None = None
    kinds: tuple[str, ...] = ()
    identity: Identity | None = None
    route: str | None = None

    def wants(self, entry: NotableEntry) -> bool:
        """Whether the list has this one, for stores that look at each."""
        return (
            (not self.kinds or entry.kind in self.kinds)
            and self.identity in (None, entry.identity)
            and (self.route is None or shown(self.route) == entry.route)
        )


@value
class EraseNotables(StoreOperation[NotablesChanged]):
    """Delete up to ``limit`` notables of a tenant in an application. Fewer: there are no more."""

    tenant: str
    limit: int
    application: str = ""


@value
class Prune(StoreOperation[Tended]):
    """Forget notables past their time and beyond `MOST_NOTABLES`, and workers long gone.

    They are counted as ``notables`` and ``workers``.
    """

    limit: int
