"""The store inside the caller's own transaction, for the drivers that applications use.

It executes there, never commits and never tries again. Each statement is sent by itself: a caller's
connection may not allow for several at once.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.errors import ConfigurationError, SemelError
from semel.stores.mysql import protocol
from semel.stores.mysql.errors import NO_SUCH_SAVEPOINT, MysqlFault, driver_fault, store_error
from semel.stores.mysql.handler_connections import (
    AsyncMysqlHandlerConnection,
    MysqlHandlerConnection,
)
from semel.stores.mysql.protocol import ResultSet
from semel.stores.open_transactions import SAVEPOINT
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import adrive, drive

R = TypeVar("R")

_DRIVERS: Final = {"pymysql": False, "MySQLdb": False, "asyncmy": True, "aiomysql": True}
"""And whether they are for event loops."""
_UNKNOWN: Final = (
    "on() takes a connection of PyMySQL or mysqlclient, or in an event loop one of asyncmy or "
    "aiomysql, not {}"
)
_NO_TRANSACTION: Final = (
    "no transaction is open on this connection, and it commits every statement by itself "
    "(autocommit): begin one before on(connection) is used, and commit it afterwards"
)
_LATEST: Final = " LOCK IN SHARE MODE"
"""The caller's isolation level is REPEATABLE READ by default, which reads what was there when the
transaction first read; a locking read reads what is there."""


def joined_store(connection: Any) -> MysqlJoinedStore | AsyncMysqlJoinedStore:
    """In the colour of the connection."""
    if isinstance(connection, AsyncMysqlHandlerConnection):
        return AsyncMysqlJoinedStore(connection, None)
    for kind in type(connection).__mro__:
        driver = kind.__module__.partition(".")[0]
        if driver in _DRIVERS:
            # Not the connection's own class of cursors, whose rows may be dictionaries.
            plain = sys.modules[f"{driver}.cursors"].Cursor
            made = AsyncMysqlJoinedStore if _DRIVERS[driver] else MysqlJoinedStore
            return made(connection, plain)
    raise ConfigurationError(_UNKNOWN.format(type(connection).__name__))


class _JoinedMysqlStore:
    """What both colours share. ``cursor``: the class of cursors, or None for the default one."""

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    def _operation(self, op: StoreOperation[R]) -> Generator[str, Sequence[ResultSet], R]:
        """Texts to send, one statement at a time."""
        steps = plan(op)
        try:
            yield from self._demand_transaction()
            asked = next(steps)
            while True:
                sent = protocol.exchange(asked, separately=True, within=True)
                asked = steps.send((yield from sent))
        except StopIteration as done:
            reply: R = done.value
            return reply
        except MysqlFault as fault:
            raise store_error(fault, doubt=True) from fault.__cause__

    def _demand_transaction(self) -> Generator[str, Sequence[ResultSet], None]:
        """A savepoint outlives its statement only where a transaction does."""
        if isinstance(self._connection, MysqlHandlerConnection | AsyncMysqlHandlerConnection):
            return
        yield f"SAVEPOINT {SAVEPOINT}_on"
        try:
            yield f"RELEASE SAVEPOINT {SAVEPOINT}_on"
        except MysqlFault as fault:
            if fault.code == NO_SUCH_SAVEPOINT:
                raise ConfigurationError(_NO_TRANSACTION) from None
            raise


def _latest(text: str) -> str:
    """A read as one that locks. What decides on an insert must not: of two that lock what is not
    there, neither could insert."""
    reads = text.startswith("SELECT") and " semel_" in text
    return text if not reads or " INTO @" in text or " FOR UPDATE" in text else text + _LATEST


class MysqlJoinedStore(_JoinedMysqlStore):
    """Blocking."""

    def perform(self, op: StoreOperation[R], /) -> R:
        return drive(self._operation(op), self._ask)

    def _ask(self, text: str) -> list[ResultSet]:
        cursor = self._connection.cursor(self._cursor)
        try:
            cursor.execute(_latest(text))
            return [] if cursor.description is None else [_result(cursor, cursor.fetchall())]
        except SemelError:
            raise
        except Exception as error:
            raise driver_fault(error) from error
        finally:
            cursor.close()


class AsyncMysqlJoinedStore(_JoinedMysqlStore):
    """Awaited."""

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await adrive(self._operation(op), self._ask)

    async def _ask(self, text: str) -> list[ResultSet]:
        try:
            async with self._connection.cursor(self._cursor) as cursor:
                await cursor.execute(_latest(text))
                if cursor.description is None:
                    return []
                return [_result(cursor, await cursor.fetchall())]
        except SemelError:
            raise
        except Exception as error:
            raise driver_fault(error) from error


def _result(cursor: Any, rows: Rows) -> ResultSet:
    return [column[0] for column in cursor.description], rows
