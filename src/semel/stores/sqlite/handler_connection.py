"""The connection given to a handler: one of sqlite3's, inside semel's own transaction.

sqlite3 crashes when a connection is closed while another thread runs a statement on it. So every
use takes the lock ``turn``, and so does the end of the transaction.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self

from semel.stores.base import Clock
from semel.stores.open_transactions import refused
from semel.stores.sqlite.connection import make_durable, opening_error, outage, upgrade

PATIENCE: Final = 1.0
"""Seconds to wait for an interrupted statement. One that calls a Python function may go on."""
_LOOK: Final = 0.005
_NO_MORE: Final = object()


class SqliteHandlerCursor(sqlite3.Cursor):
    """A cursor that takes the turn for every call: SQLite makes rows as they are fetched."""

    connection: SqliteHandlerConnection  # pyright: ignore[reportIncompatibleMethodOverride]

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        with self.connection.turn:
            return super().execute(sql, parameters)

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Self:
        with self.connection.turn:
            return super().executemany(sql, self._given(iter(seq_of_parameters)))

    def _given(self, parameters: Iterator[Any]) -> Iterator[Any]:
        """The parameters. The turn is free while the application makes the next one."""
        turn = self.connection.turn
        while True:
            turn.release()
            try:
                row = next(parameters, _NO_MORE)
            finally:
                turn.acquire()
            _ = self.connection.in_transaction  # raises when it was closed meanwhile
            if row is _NO_MORE:
                return
            yield row

    def fetchone(self) -> Any:
        with self.connection.turn:
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with self.connection.turn:
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with self.connection.turn:
            return super().fetchall()

    def __next__(self) -> Any:
        with self.connection.turn:
            return super().__next__()

    def close(self) -> None:
        with self.connection.turn:
            super().close()

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise refused("executescript(), which commits first")


class SqliteHandlerConnection(sqlite3.Connection):
    """Any thread may use it, one at a time. Only semel ends its transaction."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.turn = threading.RLock()
        self._cursors: weakref.WeakSet[SqliteHandlerCursor] = weakref.WeakSet()
        super().__init__(*arguments, **options)

    def interrupt_others(self) -> bool:
        """Interrupt the running statement and take the turn; False when it does not stop."""
        deadline = time.monotonic() + PATIENCE
        while not self.turn.acquire(timeout=_LOOK):
            if time.monotonic() > deadline:
                return False
            with suppress(sqlite3.Error):
                self.interrupt()
        return True

    def close_cursors(self) -> None:
        """Close every cursor; the caller has the turn. While a cursor has rows left, an interrupt
        stays in force and would stop a ROLLBACK too, and its locks outlive ``close``."""
        for cursor in list(self._cursors):
            with suppress(sqlite3.Error):  # a cursor that is still being made
                sqlite3.Cursor.close(cursor)

    def cursor(self, factory: Any = SqliteHandlerCursor) -> Any:
        if not (isinstance(factory, type) and issubclass(factory, SqliteHandlerCursor)):
            raise refused("cursor(factory), and set row_factory")
        with self.turn:
            made = super().cursor(factory)
            self._cursors.add(made)
            return made

    # sqlite3's own methods would make cursors that take no turn.

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> NoReturn:
        raise refused("commit()")

    def rollback(self) -> NoReturn:
        raise refused("rollback()")

    def close(self) -> NoReturn:
        raise refused("close()")

    def executescript(self, sql_script: str, /) -> NoReturn:
        raise refused("executescript(), which commits first")

    def __enter__(self) -> Self:
        raise refused("`with connection`, which commits")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
        /,
    ) -> Literal[False]:
        raise refused("`with connection`")

    @property
    def isolation_level(self) -> None:
        return None

    @isolation_level.setter
    def isolation_level(self, value: object) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise refused("isolation_level")

    @property
    def autocommit(self) -> int:  # since Python 3.12; this is its "as isolation_level says"
        return -1

    @autocommit.setter
    def autocommit(self, value: object) -> NoReturn:
        raise refused("autocommit")


def open_for_handler(path: Path, timeout: float, clock: Clock) -> SqliteHandlerConnection:
    """Open a connection for handlers, as durable as the writer's, for any thread."""
    try:
        connection = sqlite3.connect(
            path,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            factory=SqliteHandlerConnection,
        )
    except sqlite3.Error as error:
        raise outage(error, applied=False) from error
    try:
        make_durable(connection, path, time.monotonic() + timeout)
        upgrade(connection, timeout, clock())
        connection.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        close(connection)
        raise opening_error(error, path) from error
    except BaseException:
        close(connection)
        raise
    return connection


def close(connection: sqlite3.Connection) -> None:
    """Close a connection, even one whose own ``close`` is refused."""
    with suppress(sqlite3.Error):
        sqlite3.Connection.close(connection)
