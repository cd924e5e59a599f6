"""The store inside the caller's own transaction: executes there, never commits, never retries.

On plain cursors, whatever kind the connection makes: those that bind parameters themselves, as
Django's do, cannot read binary results.
"""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from semel.core.operations.requests import StoreOperation
from semel.stores.postgres import errors
from semel.stores.postgres.connection import DIALECT
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import plan

R = TypeVar("R")


class JoinedStore:
    """Blocking."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def perform(self, op: StoreOperation[R], /) -> R:
        steps = plan(op)
        try:
            asked = next(steps)
            while True:
                cursor: psycopg.Cursor[Any] = psycopg.Cursor(
                    self._connection, row_factory=tuple_row
                )
                cursor.execute(_text(asked.name), asked.params, binary=True)
                asked = steps.send(cursor.fetchall())
        except psycopg.Error as error:
            raise errors.store_error(errors.driver_fault(error), doubt=True) from error
        except StopIteration as done:
            reply: R = done.value
            return reply


class AsyncJoinedStore:
    """Awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def perform(self, op: StoreOperation[R], /) -> R:
        steps = plan(op)
        try:
            asked = next(steps)
            while True:
                cursor: psycopg.AsyncCursor[Any] = psycopg.AsyncCursor(
                    self._connection, row_factory=tuple_row
                )
                await cursor.execute(_text(asked.name), asked.params, binary=True)
                asked = steps.send(await cursor.fetchall())
        except psycopg.Error as error:
            raise errors.store_error(errors.driver_fault(error), doubt=True) from error
        except StopIteration as done:
            reply: R = done.value
            return reply


def _text(name: str) -> bytes:
    return dialect(DIALECT).text(name).encode()
