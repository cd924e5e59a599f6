"""Enqueues an effect in the application's own transaction, outside a handler of semel's."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

from semel.core.delivery import encode_payload
from semel.core.operations.outbox import Enqueue
from semel.errors import ConfigurationError
from semel.stores.base import Backend

_LONGEST_KEY: Final = 255
"""What fits an Idempotency-Key."""


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
