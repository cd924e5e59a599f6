"""Store operations for encrypting anew: what another key has sealed is listed and exchanged."""

from __future__ import annotations

from enum import StrEnum

from semel.core.frozen import value
from semel.core.operations.outbox import EffectWritten
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Fence, Identity, Micros


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
