"""Store operations for the erasure of a tenant: its records are listed, each is erased."""

from __future__ import annotations

from semel.core.frozen import value
from semel.core.operations.acts import Act
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Fence, Identity, Micros, State


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
