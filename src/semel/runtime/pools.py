"""The connections that a store has open, for those who count; and a look at the idle ones.

Maintenance asks, in its thread in every process, and so does a check of the store's health. A
request never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from semel.runtime.events import Events

if TYPE_CHECKING:
    from semel.stores.base import Backend

_told: WeakKeyDictionary[Events, dict[str, tuple[int, int]]] = WeakKeyDictionary()
"""How many each guard was told to have been opened and closed; it is told the rest next time."""


def report_pools(backend: Backend, events: Events) -> None:
    """Close what nobody has needed for long, and tell how many connections there are."""
    pooled: Any = backend
    if not hasattr(backend, "pool_statistics"):
        return
    pooled.trim_pools()
    if not events.heard:
        return
    told = _told.setdefault(events, {})
    for pool, now in pooled.pool_statistics().items():
        opened, closed = told.get(pool, (0, 0))
        if now.opened < opened:  # a forked child, whose pools are new
            opened = closed = 0
        told[pool] = now.opened, now.closed
        events.emit(
            "pool",
            pool=pool,
            size=now.size,
            in_use=now.in_use,
            waiting=now.waiting,
            opened=now.opened - opened,
            closed=max(0, now.closed - closed),
        )
