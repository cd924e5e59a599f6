"""Whether the store answers: for checks of readiness."""

from __future__ import annotations

import time
from typing import Final

from semel.core.frozen import frozen
from semel.core.operations.requests import Read
from semel.core.records import Identity
from semel.errors import SemelError, StoreUnavailable
from semel.runtime.breaker import Circuit
from semel.runtime.runtime import Runtime

QUESTION: Final = Read(Identity(b"\0" * 32))
"""No key has this identity: it costs one trip, changes nothing and finds nothing."""


@frozen
class Health:
    """Whether the store answered, and what the breaker makes of it."""

    up: bool
    circuit: Circuit
    """``open``: requests are refused at once."""
    seconds: float
    """How long the answer took."""
    error: str | None = None
    """In a sentence, why there was none."""


def look(runtime: Runtime) -> Health:
    """Ask the store something, and say whether it answered."""
    asked = time.monotonic()
    try:
        runtime.backend.blocking().perform(QUESTION)
    except SemelError as error:
        return _report(runtime, asked, error)
    return _report(runtime, asked, None)


async def alook(runtime: Runtime) -> Health:
    """`look`, awaited."""
    asked = time.monotonic()
    try:
        await runtime.backend.awaited().perform(QUESTION)
    except SemelError as error:
        return _report(runtime, asked, error)
    return _report(runtime, asked, None)


def _report(runtime: Runtime, asked: float, error: SemelError | None) -> Health:
    """Tell the breaker and the subscribers how the store answered.

    An answer closes the breaker. Only a store that gave no answer counts as out: a missing schema
    is an answer.
    """
    breaker = runtime.breaker
    if error is None:
        breaker.succeeded()
    elif isinstance(error, StoreUnavailable):
        breaker.failed(asked)
    reason = None if error is None else str(error) or type(error).__name__
    health = Health(error is None, breaker.circuit, time.monotonic() - asked, reason)
    up, seconds, circuit = health.up, health.seconds, health.circuit
    runtime.events.emit("store.health", up=up, seconds=seconds, circuit=circuit)
    return health
