"""Transactions on a SQLite file: the application's tables and semel's are in one database.

SQLite has one writer at a time. While a transaction is open, every other write to the file waits,
also those of semel's own writer. Transactions of this process stand in line (`FairLock`); for those
of other processes a transaction waits up to the timeout.

A connection that a handler has used is closed with its transaction. So its settings do not reach
the next handler, and a late use finds a closed database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel.core.operations.requests import Found, NoRecord, Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.background import in_thread, keep
from semel.stores.base import Clock
from semel.stores.open_transactions import (
    ENDED,
    OVER,
    SAVEPOINT,
    SHARED,
    HeldIdentities,
    HeldIdentity,
    LazySessions,
)
from semel.stores.sql.plans import plan
from semel.stores.sqlite import connection as file
from semel.stores.sqlite.connection import SqliteHandlerConnection

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions

R = TypeVar("R")
T = TypeVar("T", bound="OpenSqliteTransaction")

_HELD: Final = "another transaction of this process held the write lock too long"
_NO_SAVEPOINT: Final = "no such savepoint"
_FORKED: Final = "the process forked while the transaction was open, which undid it"


class SqliteTransactions:
    """The transactions of one backend in this process: one at a time."""

    def __init__(self, path: Path, timeout: float, clock: Clock, foreign_keys: bool) -> None:
        self._path = path
        self._timeout = timeout
        self._foreign_keys = foreign_keys
        self.clock = clock
        self.sessions = LazySessions("sqlite")
        self.start_anew()

    def start_anew(self) -> None:
        """Hold and remember nothing, as in a forked child."""
        self._lock = threading.Lock()
        self._turns = file.FairLock()
        self._holds = HeldIdentities()
        self._live: set[SqliteHandlerConnection] = set()
        self._idle: SqliteHandlerConnection | None = None
        self._open_reader: sqlite3.Connection | None = None
        self._files = file.OpenFiles(self._path)
        self._open: OpenSqliteTransaction | None = None

    # Twin of SqliteTransactions.abegin, by tools.twins
    def begin(self, identity: Identity | None) -> SqliteTransaction | None:
        """A transaction on the file; None when the key is, or may be, in another one.

        A duplicate in this process gets None at once. When another process holds the file's write
        lock for the whole timeout, it may hold this very key.
        """
        hold = self._holds.take(identity)
        if hold is None:
            return None
        deadline = time.monotonic() + self._timeout
        if not self._turns.acquire(self._timeout):
            raise StoreUnavailable(_HELD, applied=False)
        connection = begun = None
        try:
            connection = self._take() or self._connect()
            while True:
                begun = self._try_begin(SqliteTransaction, connection, identity, hold)
                if begun is not None or _too_late(deadline, identity):
                    return begun
                time.sleep(file.pause())
        finally:
            if begun is None:
                self.give_back(connection)

    async def abegin(self, identity: Identity | None) -> AsyncSqliteTransaction | None:
        hold = self._holds.take(identity)
        if hold is None:
            return None
        deadline = time.monotonic() + self._timeout
        if not await self._turns.aacquire(self._timeout):
            raise StoreUnavailable(_HELD, applied=False)
        connection = begun = None
        try:
            connection = self._take() or await self._aconnect()
            while True:
                begun = self._try_begin(AsyncSqliteTransaction, connection, identity, hold)
                if begun is not None or _too_late(deadline, identity):
                    return begun
                await asyncio.sleep(file.pause())
        finally:
            if begun is None:
                self.give_back(connection)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """Read with the write lock, so after everything that was in doubt."""
        try:
            transaction = self.begin(None)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), applied=None) from error
        if transaction is None:
            raise AssertionError("without a key nobody is in the way")
        try:
            return transaction.perform(Read(identity))
        finally:
            transaction.roll_back()

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    def give_back(
        self,
        connection: SqliteHandlerConnection | None,
        transaction: OpenSqliteTransaction | None = None,
        *,
        reusable: bool = True,
    ) -> None:
        """After a transaction, or when it could not begin: the next in line may begin."""
        if connection is not None and reusable:
            self._keep(connection)
        elif connection is not None:
            self._close(connection)
        if self._open is transaction:
            self._open = None
        self._turns.release()

    def close(self) -> None:
        """Close what is idle; an open transaction closes its own connection."""
        with self._lock:
            if self._idle is not None:
                self._close(self._idle)
                self._idle = None
            self._close_open_reader()

    def _close_open_reader(self) -> None:
        if self._open_reader is not None:
            file.close(self._open_reader)
            self._open_reader = None
            self._files.closed()

    def _try_begin(
        self,
        kind: type[T],
        connection: SqliteHandlerConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> T | None:
        """Begin; None while another process writes.

        SQLite's own busy handler would rest for up to 100 ms and block an event loop or a fork.
        """
        with self._lock:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if file.is_busy(error):
                    return None
                self._close(connection)
                raise file.outage(error, applied=False) from error
            self._check_files(connection)
            begun = kind(self, connection, identity, hold)
            self._open = begun
            return begun

    def _take(self) -> SqliteHandlerConnection | None:
        with self._lock:
            connection, self._idle = self._idle, None
            return connection

    def _keep(self, connection: SqliteHandlerConnection) -> None:
        with self._lock:
            if self._idle is None and connection in self._live and file.roll_back(connection):
                self._idle = connection
            else:
                self._close(connection)

    def _close(self, connection: SqliteHandlerConnection) -> None:
        self._live.discard(connection)
        file.close(connection)

    def _connect(self) -> SqliteHandlerConnection:
        with self._lock:
            self._check_files(None)
            connection = file.open_for_writing(
                self._path, self._timeout, self.clock(), SqliteHandlerConnection
            )
            if self._foreign_keys:
                # Now: inside a transaction SQLite ignores it.
                connection.execute("PRAGMA foreign_keys = ON")
            self._live.add(connection)
            if self._open_reader is None:
                # A reader stays open: closing the last connection to a file folds its log into
                # it, which takes long.
                self._open_reader = file.open_for_reading(self._path, self._timeout)
                self._open_reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
                self._files.opened()
        return connection

    def _check_files(self, connection: SqliteHandlerConnection | None) -> None:
        try:
            self._files.check()
        except StoreUnavailable:
            if connection is not None:
                self._close(connection)
            if self._files.lost:
                self._close_open_reader()  # SQLite then saves what the lost log holds
            raise

    async def _aconnect(self) -> SqliteHandlerConnection:
        opening = keep(in_thread(self._connect))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._keep_opened)
            raise

    def _keep_opened(self, opening: asyncio.Task[SqliteHandlerConnection]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result())

    # ── around a fork ────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """Close every connection and open none until `thaw`; see `SqliteWriter.freeze`.

        An open transaction is undone, and its commit reports it: neither the file's locks nor the
        library's memory of them survive a fork.
        """
        while True:
            if transaction := self._open:
                transaction.sever(_FORKED)
            self._lock.acquire()
            if self._open is None:
                break
            self._lock.release()
        for connection in list(self._live):
            self._close(connection)
        self._idle = None
        self._close_open_reader()

    def thaw(self) -> None:
        self._lock.release()


def _too_late(deadline: float, identity: Identity | None) -> bool:
    """Whether the time is over; then another process may hold this very key. Without a key it is
    an outage."""
    if time.monotonic() < deadline:
        return False
    if identity is None:
        raise StoreUnavailable("another process held the write lock too long", applied=False)
    return True


# ── one transaction ───────────────────────────────────────────────────────────────────────────────


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
            self.savepoint_now()

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

    def perform_now(self, op: StoreOperation[R], /) -> R:
        with self._for_own_statement() as connection:
            return file.run(connection, plan(op), self._transactions.clock())

    def savepoint_now(self) -> None:
        with self._for_own_statement() as connection:
            connection.execute(f"SAVEPOINT {SAVEPOINT}")
        self._has_savepoint = True

    def undo_now(self) -> None:
        self._drop_sessions()
        with self._for_own_statement() as connection:
            connection.execute(f"ROLLBACK TO {SAVEPOINT}")

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
                if _NO_SAVEPOINT in str(error):
                    raise ConfigurationError(ENDED) from None
                raise file.outage(error, applied=False) from error
            finally:
                connection.row_factory, connection.text_factory = rows, texts

    def commit_now(self) -> SemelError | None:
        """Commit; returns the error, if any. A second call returns the same."""
        if not self._turn.acquire(timeout=file.PATIENCE):
            self.roll_back_now(ConfigurationError(SHARED))
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
                connection.execute(f"RELEASE {SAVEPOINT}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if _NO_SAVEPOINT in str(error):
                return ConfigurationError(ENDED)
            # The log may hold the commit although its sync failed. A commit that was refused
            # before that was surely not applied.
            undone = file.roll_back(connection)
            surely = undone and (file.is_busy(error) or isinstance(error, sqlite3.IntegrityError))
            refusal = StoreUnavailable(
                f"SQLite refused the commit: {error}", applied=False if surely else None
            )
            refusal.__cause__ = error
            return refusal
        return None

    def sever(self, why: str) -> bool:
        self._used_by_handler = True
        if not self._connection.interrupt_others():
            return False  # SQLite is inside a Python function of the application
        self._turn.release()
        self.roll_back_now(StoreUnavailable(f"SQLite: {why}", applied=False))
        return True

    def roll_back_now(self, why: SemelError | None = None) -> None:
        """Interrupt a running statement, wait for it to stop, and end the transaction.

        ``why``: the error of a later commit.
        """
        while not self._connection.interrupt_others():
            pass
        try:
            if not self.over:
                rolled_back = "the transaction was rolled back"
                self._error = why or StoreUnavailable(rolled_back, applied=False)
                self._end(reusable=True)
        finally:
            self._turn.release()

    def _end(self, *, reusable: bool) -> None:
        self.over = True
        self._hold = None
        self._connection.close_cursors()
        clean = file.roll_back(self._connection)
        reusable = reusable and clean and not self._used_by_handler
        self._transactions.give_back(self._connection, self, reusable=reusable)


class SqliteTransaction(OpenSqliteTransaction):
    """See `semel.stores.base.Transaction`."""

    perform = OpenSqliteTransaction.perform_now
    savepoint = OpenSqliteTransaction.savepoint_now
    undo = OpenSqliteTransaction.undo_now

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
        return self.perform_now(op)

    async def savepoint(self) -> None:
        self.savepoint_now()

    async def undo(self) -> None:
        self.undo_now()

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
