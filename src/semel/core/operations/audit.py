"""Store operations for the audit: acts are put on record and listed."""

from __future__ import annotations

from semel.core.frozen import value
from semel.core.operations.acts import Act, Verb
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity, Micros


@value
class AuditEntry:
    """One act, as it is on record. ``subject``: an effect's key, a tenant, the id of a key."""

    place: str
    """Where it stands: `BrowseAudit` goes on from there."""
    at: Micros
    verb: str
    by: str
    reason: str
    identity: Identity | None
    subject: str | None
    before: str | None
    after: str | None
    """None with an identity: there is no record any more."""


@value
class AuditEntries:
    """Acts, newest first."""

    entries: tuple[AuditEntry, ...]
    now: Micros


@value
class Remarked:
    """It is on record."""

    now: Micros


@value
class Remark(StoreOperation[Remarked]):
    """Put an act on record that is no single step: before its first step, and after its last."""

    verb: Verb
    act: Act
    subject: str


@value
class BrowseAudit(StoreOperation[AuditEntries]):
    """List acts, newest first, from the one at ``before`` on."""

    limit: int
    before: str | None = None
