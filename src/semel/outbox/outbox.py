"""An effect in the application's own transaction, without an operation of semel's around it."""

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


def write(
    backend: Backend,
    application: str,
    connection: Any,
    name: str,
    payload: Any,
    *,
    key: str | None = None,
    order: str | None = None,
    delay: timedelta = timedelta(0),
) -> str:
    """Put an effect into the outbox, in the transaction of ``connection``; returns its key.

    It exists if and only if that transaction commits. ``key`` is the downstream key of every
    delivery; one that is in the outbox already writes nothing. Without one it is drawn.
    """
    op = _enqueue(application, name, payload, key, order, delay)
    _joined(backend, connection).perform(op)
    return op.key


async def awrite(
    backend: Backend,
    application: str,
    connection: Any,
    name: str,
    payload: Any,
    *,
    key: str | None = None,
    order: str | None = None,
    delay: timedelta = timedelta(0),
) -> str:
    """`write` on an awaited connection (psycopg's AsyncConnection)."""
    op = _enqueue(application, name, payload, key, order, delay)
    await _joined(backend, connection).perform(op)
    return op.key


def _joined(backend: Any, connection: Any) -> Any:
    on = getattr(backend, "on", None)
    if on is None:
        raise ConfigurationError(f"{backend.url} has no transactions to write an effect in")
    return on(connection)


def _enqueue(
    application: str,
    name: str,
    payload: Any,
    key: str | None,
    order: str | None,
    delay: timedelta,
) -> Enqueue:
    if not name:
        raise ValueError("an effect needs a name")
    if delay < timedelta(0):
        raise ValueError("delay= may not be below zero")
    micros = delay // timedelta(microseconds=1)
    return Enqueue(_key(key), None, name, encode_payload(payload), order, micros, application)


def _key(given: str | None) -> str:
    if given is None:
        return "semel_" + os.urandom(20).hex()
    # It is sent in a header, as it is.
    if not 0 < len(given) <= _LONGEST_KEY or not given.isascii() or not given.isprintable():
        raise ValueError(f"key= must be 1 to {_LONGEST_KEY} printable ASCII characters")
    return given
