"""The operations of the outbox, and of the inbox that notes events of providers.

A transaction enqueues an effect, which exists if and only if that transaction commits (`Enqueue`).
A worker leases effects under a fence (`TakeEffects`, `RenewEffects`), delivers them, and records
the result (`MarkDelivered`, `MarkFailed`). When its lease is over, another worker may take them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from semel.core.frozen import value
from semel.core.operations.acts import Act
from semel.core.operations.requests import StoreOperation
from semel.core.records import Effect, Fence, Identity, Micros


@value
class Effects:
    """Effects, oldest first; ``next_due``: when the next one may be taken."""

    effects: tuple[Effect, ...]
    now: Micros
    next_due: Micros | None = None


@value
class EffectWritten:
    """Whether the write on an effect was applied: it was not when another worker has it by now.

    Of Enqueue: whether it was written now; when not, its key is there already, which is as good.
    """

    applied: bool
    now: Micros


@value
class Noted:
    """Whether the event had been noted before."""

    before: bool
    now: Micros


@value
class Enqueue(StoreOperation[EffectWritten]):
    """Write an effect into the outbox, due after ``delay``; does nothing where its key exists."""

    key: str
    identity: Identity | None
    name: str
    payload: bytes
    order: str | None = None
    delay: Micros = 0
    application: str = ""


@value
class TakeEffects(StoreOperation[Effects]):
    """Take up to ``limit`` effects that are due, for ``lease``; past it others may take them.

    Only those of ``application``: another's of the same name go to another's receivers. Of effects
    with the same order only the oldest that is neither delivered nor dead is taken.
    ``names``: those this worker has deliverers for. Taking counts as a try (``Effect.tries`` is 1
    on the first), so that tries are bounded too when a delivery takes its worker down.
    """

    fence: Fence
    names: tuple[str, ...]
    limit: int
    lease: Micros
    application: str = ""


@value
class RenewEffects(StoreOperation[EffectWritten]):
    """Extend the lease of every effect that was taken with ``fence``."""

    fence: Fence
    lease: Micros


@value
class MarkDelivered(StoreOperation[EffectWritten]):
    """Record a delivery, with the provider's id for it; the effect is kept for ``retention``.

    It is applied past the lease too, unless another fence has the effect; a second time as well.
    """

    finishing: ClassVar[bool] = True

    key: str
    fence: Fence
    provider_id: str | None
    retention: Micros


@value
class MarkFailed(StoreOperation[EffectWritten]):
    """Record that a delivery failed: due again after ``again_in``, or a dead letter where None."""

    finishing: ClassVar[bool] = True

    key: str
    fence: Fence
    error: str
    again_in: Micros | None


class Shelf(StrEnum):
    """Which effects to list."""

    WAITING = "waiting"
    DEAD = "dead"
    DELIVERED = "delivered"


@value
class BrowseEffects(StoreOperation[Effects]):
    """List effects for an operator or a ledger, by key past ``after``."""

    shelf: Shelf
    limit: int
    after: str | None = None


@value
class FindEffect(StoreOperation[Effects]):
    """The effect of this key, or none."""

    key: str


@value
class Requeue(StoreOperation[EffectWritten]):
    """A dead effect is tried again, from now, with all its tries; or dropped for good.

    Applied also when that is so already: it waits, or with ``drop`` is not there. ``died_at``: the
    death that was decided on; one that has died again since is left.
    """

    key: str
    act: Act
    drop: bool = False
    died_at: Micros | None = None


@value
class NoteEvent(StoreOperation[Noted]):
    """Note an event of a provider, or only ask whether it was noted (``keep`` None)."""

    source: str
    event: str
    keep: Micros | None
