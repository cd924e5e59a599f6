"""Whether a guard can do its work now: for readiness probes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from semel.core.contract import Read
from semel.core.frozen import frozen
from semel.core.model import Identity
from semel.errors import SemelError

if TYPE_CHECKING:
    from semel.guard import Guard

_NOBODY: Final = Identity(b"\0" * 32)
"""No key has this identity: reading it costs one trip and finds nothing."""


@frozen
class Health:
    """``ok``: keyed requests are served. ``error``: in a word, why not; safe to show."""

    ok: bool
    store: str
    """Where it is, without password."""
    circuit: str
    """``open`` while requests are refused without asking a store that is out."""
    seconds: float
    error: str | None = None


def examine(guard: Guard) -> Health:
    """Ask the store."""
    asked = time.monotonic()
    try:
        guard.backend.blocking().perform(Read(_NOBODY))
    except SemelError as error:
        return _told(guard, asked, error)
    return _told(guard, asked, None)


async def aexamine(guard: Guard) -> Health:
    """`examine`, awaited."""
    asked = time.monotonic()
    try:
        await guard.backend.awaited().perform(Read(_NOBODY))
    except SemelError as error:
        return _told(guard, asked, error)
    return _told(guard, asked, None)


def _told(guard: Guard, asked: float, error: SemelError | None) -> Health:
    breaker = guard.breaker
    if error is None and breaker is not None:
        breaker.succeeded()  # the first news that the store is back may be this one
    circuit = "closed" if breaker is None else breaker.circuit
    seconds, why = time.monotonic() - asked, None if error is None else type(error).__name__
    guard.events.emit("store.health", error=error, up=error is None, seconds=seconds, circuit=circuit)
    return Health(error is None, guard.backend.url, circuit, seconds, why)
