"""Effects: who delivers them, who is asked as a probe, and how one is enqueued.

An application registers deliverers and probes at its guard. It enqueues an effect in its own
transaction, also outside a handler of semel's.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

from semel.core.delivery import Delivery, encode_payload
from semel.core.frozen import frozen
from semel.core.operations.outbox import Enqueue
from semel.core.unknown.evidence import ProbeFunction
from semel.errors import ConfigurationError
from semel.stores.base import Backend

_LONGEST_KEY: Final = 255
"""What fits an Idempotency-Key."""

DeliverFunction: TypeAlias = Callable[[Delivery], str | Awaitable[str | None] | None]
"""Returns the provider's id for the effect, or None. Plain or a coroutine function."""


@frozen
class Deliverer:
    """Who delivers the effects of one name, and how long it is tried."""

    name: str
    function: DeliverFunction
    tries: int
    first_pause: timedelta
    longest_pause: timedelta
    timeout: timedelta
    keep: timedelta

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"effect {self.name!r}: the deliverer must be callable")
        if not isinstance(self.tries, int) or self.tries < 1:
            raise ConfigurationError(f"effect {self.name!r}: tries= must be at least 1")
        for option in ("first_pause", "longest_pause", "timeout", "keep"):
            given = getattr(self, option)
            if not isinstance(given, timedelta):
                raise ConfigurationError(
                    f"effect {self.name!r}: {option}= takes a timedelta, not {given!r}"
                )
            if given <= timedelta(0):
                raise ConfigurationError(f"effect {self.name!r}: {option}= must be above zero")


class Registry:
    """The deliverers and probes that an application has registered at its guard."""

    def __init__(self) -> None:
        self.deliverers: dict[str, Deliverer] = {}
        self.probes: dict[str, ProbeFunction] = {}

    def add_deliverer(self, deliverer: Deliverer) -> None:
        if deliverer.name in self.deliverers:
            raise ConfigurationError(f"effect {deliverer.name!r} has a deliverer already")
        self.deliverers[deliverer.name] = deliverer

    def add_probe(self, name: str, probe: ProbeFunction) -> None:
        if not callable(probe):
            raise ConfigurationError(f"probe {name!r} must be callable")
        if name in self.probes:
            raise ConfigurationError(f"{name!r} has a probe already")
        self.probes[name] = probe


def store_on(backend: Backend, connection: Any) -> Any:
    """The store within the transaction of ``connection``."""
    on: Any = getattr(backend, "on", None)
    if on is None:
        raise ConfigurationError(f"{backend.url} has no transactions to write an effect in")
    return on(connection)


def new_effect(
    application: str,
    name: str,
    payload: Any,
    *,
    key: str | None = None,
    order: str | None = None,
    delay: timedelta = timedelta(0),
) -> Enqueue:
    """The operation that writes an effect.

    ``key`` is the downstream key of every delivery; where it exists already, nothing is written.
    Without one it is drawn.
    """
    if not name:
        raise ValueError("an effect needs a name")
    if delay < timedelta(0):
        raise ValueError("delay= may not be below zero")
    if key is None:
        key = "semel_" + os.urandom(20).hex()
    elif not 0 < len(key) <= _LONGEST_KEY or not key.isascii() or not key.isprintable():
        # It is sent in a header, as it is.
        raise ValueError(f"key= must be 1 to {_LONGEST_KEY} printable ASCII characters")
    micros = delay // timedelta(microseconds=1)
    return Enqueue(key, None, name, encode_payload(payload), order, micros, application)
