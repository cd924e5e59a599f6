"""Connections of psycopg's own, for event loops: a caller's, and the one that a handler gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import tuple_row

from semel.core.operations.requests import StoreOperation
from semel.stores.open_transactions import refusing
from semel.stores.postgres import errors
from semel.stores.postgres.connection import DIALECT, PostgresConnection
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, adrive

if TYPE_CHECKING:
    from semel.stores.sql.transaction import ConnectionTurn

R = TypeVar("R")


class AsyncJoinedStore:
    """The store inside the caller's own transaction: executes there, never commits or retries.

    On cursors that send a text as it is, whatever kind the connection makes: those that bind
    parameters themselves, as Django's do, cannot read binary results.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def perform(self, op: StoreOperation[R], /) -> R:
        try:
            return await adrive(plan(op), self._execute)
        except psycopg.Error as error:
            raise errors.store_error(errors.driver_fault(error), doubt=True) from error

    async def _execute(self, asked: Statement) -> Rows:
        cursor: psycopg.AsyncRawCursor[Any]
        cursor = psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row)
        query = dialect(DIALECT).queries[asked.name]
        values = [asked.params[name] for name in query.takes]
        await cursor.execute(query.text.encode(), values, binary=True)
        return await cursor.fetchall()


class AsyncPostgresHandlerConnection(psycopg.AsyncConnection[Any]):
    """What a handler gets, over semel's own transaction, which it may not end.

    It is made for one transaction, over a libpq connection that many use one after the other: once
    the transaction is over, every use of it is refused, however late and from whatever thread.
    """

    __aenter__: Any = refusing(
        "`async with connection`, which commits (`async with connection.transaction()` does not)"
    )
    __aexit__: Any = refusing("`async with connection`")
    commit: Any = refusing("commit()")
    rollback: Any = refusing("rollback()")
    close: Any = refusing("close()")
    set_autocommit: Any = refusing("autocommit")
    _set_autocommit: Any = refusing("autocommit")

    def __init__(self, conn: PostgresConnection, turn: ConnectionTurn) -> None:
        super().__init__(conn.pgconn)
        self._turn = turn
        self.prepare_threshold = None  # its names would clash with those of the one before
        conn.hear_notices_first()

    def __del__(self, *_: object) -> None: ...

    @property
    def closed(self) -> bool:
        return self._turn.over or super().closed

    async def wait(self, gen: PQGen[R], *how: Any, **named: Any) -> R:  # psycopg's releases differ
        with self._turn.taken():
            return await super().wait(gen, *how, **named)

    def _check_connection_ok(self) -> None:
        self._turn.check()
        super()._check_connection_ok()
