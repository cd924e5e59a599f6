"""One transaction of a handler: the connection it is given, and how semel ends it.

The connection is one of sqlite3's, inside semel's own transaction. sqlite3 crashes when a
connection is closed while another thread runs a statement on it. So every use takes the lock
``turn``, and so does the end of the transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.background import in_thread, keep
from semel.stores.open_transactions import ENDED, OVER, SHARED, HeldIdentity, refused
from semel.stores.sql.plans import plan
from semel.stores.sqlite.connection import is_busy, outage, roll_back, run

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions
    from semel.stores.sqlite.transactions import SqliteTransactions

R = TypeVar("R")

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

    def __exit__(self, *_: object) -> Literal[False]:
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


class OpenSqliteTransaction:
    """What the blocking and the async transaction share. Its statements do not wait, since it holds
    the write lock; only a commit waits, for the disk."""

    def __init__(
        self,
        transactions: SqliteTransactions,
        connection: SqliteHandlerConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        self._transactions = transactions
        self._connection = connection
        self._used_by_handler = False
        self._has_savepoint = False
        self._turn = connection.turn
        self._error: SemelError | None = None
        self._hold: HeldIdentity | None = hold
        self._sessions: JoinedSessions | None = None
        self.over = False
        if identity is None:
            self._savepoint()

    @property
    def connection(self) -> sqlite3.Connection:
        if self.over:
            raise ConfigurationError(OVER)
        self._used_by_handler = True
        return self._connection

    @property
    def session(self) -> Session | AsyncSession:
        if self.over:
            raise ConfigurationError(OVER)
        if self._sessions is None:
            self._sessions = self._transactions.sessions.open(self._for_session)
        return self._sessions.session

    def _for_session(self, awaited: bool) -> Any:
        self._used_by_handler = True
        if not awaited:
            return self._connection
        try:
            import aiosqlite
        except ImportError as error:
            raise ConfigurationError(
                f"transaction.session needs aiosqlite in an event loop ({error}): "
                "pip install 'semel[sqlalchemy]'"
            ) from error
        connection = aiosqlite.Connection(lambda: self._connection, iter_chunk_size=64)
        connection._thread.daemon = True
        return connection

    def _drop_sessions(self) -> None:
        """Close the sessions before the transaction ends or goes back without them."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _perform(self, op: StoreOperation[R]) -> R:
        with self._for_own_statement() as connection:
            return run(connection, plan(op), self._transactions.clock())

    def _savepoint(self) -> None:
        with self._for_own_statement() as connection:
            connection.execute("SAVEPOINT semel")
        self._has_savepoint = True

    def _undo(self) -> None:
        self._drop_sessions()
        with self._for_own_statement() as connection:
            _to_savepoint(connection, "ROLLBACK TO semel")

    @contextmanager
    def _for_own_statement(self) -> Generator[sqlite3.Connection]:
        """The connection for a statement of semel's own, without the application's factories."""
        with self._turn:
            if self.over:
                raise self._error or ConfigurationError(OVER)
            if not self._connection.in_transaction:
                raise ConfigurationError(ENDED)
            connection = self._connection
            rows, texts = connection.row_factory, connection.text_factory
            connection.row_factory, connection.text_factory = None, str
            try:
                yield connection
            except sqlite3.Error as error:
                raise outage(error, applied=False) from error
            finally:
                connection.row_factory, connection.text_factory = rows, texts

    def commit_now(self) -> SemelError | None:
        """Commit; returns the error, if any. A second call returns the same."""
        if not self._turn.acquire(timeout=PATIENCE):
            self._interrupt_and_end(ConfigurationError(SHARED))
            return self._error
        try:
            if not self.over:
                self._error = self._committed()
                self._end(reusable=self._error is None)
            return self._error
        finally:
            self._turn.release()

    def _committed(self) -> SemelError | None:
        connection = self._connection
        if not connection.in_transaction:
            return ConfigurationError(ENDED)
        try:
            if self._has_savepoint:
                _to_savepoint(connection, "RELEASE semel")
            connection.execute("COMMIT")
        except ConfigurationError as error:
            return error
        except sqlite3.Error as error:
            # The log may hold the commit although its sync failed. A commit that was refused
            # before that was surely not applied.
            undone = roll_back(connection)
            surely = undone and (is_busy(error) or isinstance(error, sqlite3.IntegrityError))
            refusal = StoreUnavailable(
                f"SQLite refused the commit: {error}", applied=False if surely else None
            )
            refusal.__cause__ = error
            return refusal
        return None

    def roll_back_now(self) -> None:
        self._interrupt_and_end(StoreUnavailable("the transaction was rolled back", applied=False))

    def sever(self, why: str) -> bool:
        self._used_by_handler = True
        if not self._connection.interrupt_others():
            return False  # SQLite is inside a Python function of the application
        self._turn.release()
        self._interrupt_and_end(StoreUnavailable(f"SQLite: {why}", applied=False))
        return True

    def _interrupt_and_end(self, error: SemelError) -> None:
        """Interrupt a running statement, wait for it to stop, and end the transaction."""
        while not self._connection.interrupt_others():
            pass
        try:
            if not self.over:
                self._error = error
                self._end(reusable=True)
        finally:
            self._turn.release()

    def _end(self, *, reusable: bool) -> None:
        self.over = True
        self._hold = None
        self._connection.close_cursors()
        clean = roll_back(self._connection)
        self._transactions.give_back(
            self, self._connection, reusable=reusable and clean and not self._used_by_handler
        )


def _to_savepoint(connection: sqlite3.Connection, statement: str) -> None:
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such savepoint" in str(error):
            raise ConfigurationError(ENDED) from None
        raise


class SqliteTransaction(OpenSqliteTransaction):
    """See `semel.stores.base.Transaction`."""

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._perform(op)

    def savepoint(self) -> None:
        self._savepoint()

    def undo(self) -> None:
        self._undo()

    def flush(self) -> None:
        if self._sessions is not None:
            self._sessions.flush()

    def commit(self) -> None:
        self._drop_sessions()
        if error := self.commit_now():
            raise error

    def roll_back(self) -> None:
        self._drop_sessions()
        self.roll_back_now()


class AsyncSqliteTransaction(OpenSqliteTransaction):
    """See `semel.stores.base.AsyncTransaction`."""

    _committing: asyncio.Task[SemelError | None] | None = None

    async def perform(self, op: StoreOperation[R], /) -> R:
        return self._perform(op)

    async def savepoint(self) -> None:
        self._savepoint()

    async def undo(self) -> None:
        self._undo()

    async def flush(self) -> None:
        if self._sessions is not None:
            await self._sessions.aflush()

    async def commit(self) -> None:
        """Commit in a task of its own, which no cancellation stops; a second call has the same
        outcome."""
        self._drop_sessions()
        if self._committing is None:
            self._committing = keep(in_thread(self.commit_now))
        if error := await asyncio.shield(self._committing):
            raise error

    async def roll_back(self) -> None:
        self._drop_sessions()
        if self._committing is not None:
            with suppress(Exception):
                await asyncio.shield(self._committing)
        self.roll_back_now()
