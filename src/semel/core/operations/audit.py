"""Store operations for the audit, for the erasure of tenants, and for re-encryption.

Like those of `core/operations/requests.py`, each is one atomic step; a list looks at a bounded
page.
"""

from __future__ import annotations

from enum import StrEnum

from semel.core.frozen import value
from semel.core.operations.acts import Act, Verb
from semel.core.operations.outbox import EffectWritten
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Fence, Identity, Micros, State

# ── audit ─────────────────────────────────────────────────────────────────────────────────────────


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


# ── erasure ───────────────────────────────────────────────────────────────────────────────────────


@value
class Belonging:
    """One record of a tenant's."""

    identity: Identity
    state: State
    fence: Fence


@value
class Belongings:
    """Those of the page; ``until``: how far was looked. None: to the end, there are no more."""

    found: tuple[Belonging, ...]
    until: Identity | None
    now: Micros


@value
class ListBelongings(StoreOperation[Belongings]):
    """Of the next ``limit`` records past ``after``, in the order of identities: this tenant's, in
    this application.

    There is no index by tenant, which every request would pay for: who lists them reads the table.
    """

    tenant: str
    limit: int
    after: Identity | None = None
    application: str = ""


@value
class Erase(StoreOperation[Written]):
    """A settled record → a tombstone that says nothing: no answer, no request, no journal, no key,
    path, tenant or digest. It is forgotten when it would have been, and refuses a second run."""

    identity: Identity
    seen: Fence
    act: Act


# ── encryption ────────────────────────────────────────────────────────────────────────────────────


class Part(StrEnum):
    """What of a record may be sealed."""

    REQUEST = "request"
    JOURNAL = "journal"
    SNAPSHOT = "snapshot"


@value
class Exhibit:
    """The bytes of one record that do not begin as wanted; the others are None."""

    identity: Identity
    fence: Fence
    reason: str | None
    request: bytes | None
    journal: bytes | None
    snapshot: bytes | None


@value
class Exhibits:
    """Those of the page; ``until`` as in `Belongings`."""

    found: tuple[Exhibit, ...]
    until: Identity | None
    now: Micros


@value
class ListUnlike(StoreOperation[Exhibits]):
    """Of the next ``limit`` records past ``after``: what does not begin with ``prefix``."""

    prefix: bytes
    limit: int
    after: Identity | None = None


@value
class Reseal(StoreOperation[Written]):
    """Exchange the bytes of one part for others that mean the same; Lost when it has changed."""

    identity: Identity
    seen: Fence
    part: Part
    old: bytes
    new: bytes


@value
class ResealEffect(StoreOperation[EffectWritten]):
    """The same for an effect's payload."""

    key: str
    old: bytes
    new: bytes
