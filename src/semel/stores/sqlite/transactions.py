"""Transactions on a SQLite file: the application's tables and semel's are in one database.

SQLite has one writer at a time: while a transaction is open, every other write to the file waits,
those of semel's own writer included. Transactions of this process come in turn; those of other
processes are waited for up to the time limit.

A connection that a handler had is closed with its transaction: nothing it set is left for the next,
and a late use meets a closed database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from semel.backoff import between
from semel.core.operations.requests import Found, NoRecord, Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.background import in_thread, keep
from semel.stores.base import Clock
from semel.stores.open_transactions import (
    ENDED,
    OVER,
    SHARED,
    HeldIdentities,
    HeldIdentity,
    LazySessions,
)
from semel.stores.sql.plans import plan
from semel.stores.sqlite.connection import (
    OpenFiles,
    is_busy,
    open_for_reading,
    outage,
    roll_back,
    run,
)
from semel.stores.sqlite.fair_lock import FairLock
from semel.stores.sqlite.handler_connection import (
    PATIENCE,
    SqliteHandlerConnection,
    close,
    open_for_handler,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions

R = TypeVar("R")

_HELD = "another transaction of this process held the write lock too long"
_FORKED = "the process forked while the transaction was open, which undid it"


class OpenSqliteTransaction:
    """What both colours share. Its own statements are short: the lock is held, nothing is waited
    for; only a commit waits, for the disk."""

    def __init__(
        self,
        desk: SqliteTransactions,
        connection: SqliteHandlerConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        self._desk = desk
        self._connection = connection
        self._handed = False
        self._marked = False
        self._turn = connection.turn
        self._error: SemelError | None = None
        self._hold: HeldIdentity | None = hold
        self._sessions: JoinedSessions | None = None
        self.over = False
        if identity is None:
            self._mark()

    @property
    def connection(self) -> sqlite3.Connection:
        if self.over:
            raise ConfigurationError(OVER)
        self._handed = True
        return self._connection

    @property
    def session(self) -> Session | AsyncSession:
        if self.over:
            raise ConfigurationError(OVER)
        if self._sessions is None:
            self._sessions = self._desk.shelf.open(self._for_session)
        return self._sessions.session

    def _for_session(self, awaited: bool) -> Any:
        self._handed = True
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
        """Before the transaction ends, or goes back, behind their back."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _perform(self, op: StoreOperation[R]) -> R:
        with self._own() as connection:
            return run(connection, plan(op), self._desk.clock())

    def _mark(self) -> None:
        with self._own() as connection:
            connection.execute("SAVEPOINT semel")
        self._marked = True

    def _undo(self) -> None:
        with self._own() as connection:
            _to_savepoint(connection, "ROLLBACK TO semel")

    @contextmanager
    def _own(self) -> Generator[sqlite3.Connection]:
        """For a statement of semel's own, whatever factories the application has set."""
        with self._turn:
            if self.over:
                raise self._error or ConfigurationError(OVER)
            if not self._connection.in_transaction:
                raise ConfigurationError(ENDED)
            with _plain(self._connection), _judged():
                yield self._connection

    def commit_now(self) -> SemelError | None:
        """What went wrong, if anything did. Asked again, it says the same."""
        if not self._turn.acquire(timeout=PATIENCE):
            self._break_off(ConfigurationError(SHARED))
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
            if self._marked:
                _to_savepoint(connection, "RELEASE semel")
            connection.execute("COMMIT")
        except ConfigurationError as error:
            return error
        except sqlite3.Error as error:
            return _refused_commit(error, undone=roll_back(connection))
        return None

    def roll_back_now(self) -> None:
        self._break_off(StoreUnavailable("the transaction was rolled back", applied=False))

    def sever(self, why: str) -> bool:
        self._handed = True
        if not self._connection.take_over():
            return False  # a function of the application's, called by SQLite, does not return
        self._turn.release()
        self._break_off(StoreUnavailable(f"SQLite: {why}", applied=False))
        return True

    def _break_off(self, error: SemelError) -> None:
        """Whoever is still in the middle of a statement is stopped."""
        while not self._connection.take_over():
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
        self._desk.give_back(
            self, self._connection, reusable=reusable and clean and not self._handed
        )


@contextmanager
def _plain(connection: sqlite3.Connection) -> Generator[None]:
    rows, texts = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = rows, texts


@contextmanager
def _judged() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise outage(error, applied=False) from error


def _to_savepoint(connection: sqlite3.Connection, statement: str) -> None:
    try:
        connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such savepoint" in str(error):
            raise ConfigurationError(ENDED) from None
        raise


def _refused_commit(error: sqlite3.Error, *, undone: bool) -> SemelError:
    """The log may hold the commit although its sync failed; what was refused before is nothing."""
    surely = undone and (is_busy(error) or isinstance(error, sqlite3.IntegrityError))
    refusal = StoreUnavailable(
        f"SQLite refused the commit: {error}", applied=False if surely else None
    )
    refusal.__cause__ = error
    return refusal


class SqliteTransaction(OpenSqliteTransaction):
    """See `semel.stores.base.Transaction`."""

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._perform(op)

    def savepoint(self) -> None:
        self._mark()

    def undo(self) -> None:
        self._drop_sessions()
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
        self._mark()

    async def undo(self) -> None:
        self._drop_sessions()
        self._undo()

    async def flush(self) -> None:
        if self._sessions is not None:
            await self._sessions.aflush()

    async def commit(self) -> None:
        """Carried through in a task of its own; asked again, it answers with the same outcome."""
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


class SqliteTransactions:
    """The transactions of one backend in this process: one at a time."""

    def __init__(self, path: Path, timeout: float, clock: Clock, foreign_keys: bool) -> None:
        self._path = path
        self._timeout = timeout
        self._foreign_keys = foreign_keys
        self.clock = clock
        self.shelf = LazySessions("sqlite")
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._gate = FairLock()
        self._holds = HeldIdentities()
        self._live: set[SqliteHandlerConnection] = set()
        self._idle: SqliteHandlerConnection | None = None
        self._anchor: sqlite3.Connection | None = None
        self._files = OpenFiles(self._path)
        self._open: OpenSqliteTransaction | None = None

    # ── threads ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, identity: Identity | None) -> SqliteTransaction | None:
        hold = self._holds.take(identity)
        if hold is None:
            return None
        deadline = time.monotonic() + self._timeout
        if not self._gate.enter(self._timeout):
            raise StoreUnavailable(_HELD, applied=False)
        connection = begun = None
        try:
            connection = self._take() or self._connect()
            while True:
                begun = self._attempt(SqliteTransaction, connection, identity, hold)
                if begun is not None or _too_late(deadline, identity):
                    return begun
                time.sleep(_rest())
        finally:
            if begun is None:
                self._abandon(connection)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """Read with the write lock: after whatever was in doubt."""
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

    # ── event loops ──────────────────────────────────────────────────────────────────────────────

    async def abegin(self, identity: Identity | None) -> AsyncSqliteTransaction | None:
        hold = self._holds.take(identity)
        if hold is None:
            return None
        deadline = time.monotonic() + self._timeout
        if not await self._gate.aenter(self._timeout):
            raise StoreUnavailable(_HELD, applied=False)
        connection = begun = None
        try:
            connection = self._take() or await self._aconnect()
            while True:
                begun = self._attempt(AsyncSqliteTransaction, connection, identity, hold)
                if begun is not None or _too_late(deadline, identity):
                    return begun
                await asyncio.sleep(_rest())
        finally:
            if begun is None:
                self._abandon(connection)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        try:
            transaction = await self.abegin(None)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), applied=None) from error
        if transaction is None:
            raise AssertionError("without a key nobody is in the way")
        try:
            return await transaction.perform(Read(identity))
        finally:
            await transaction.roll_back()

    # ── connections ──────────────────────────────────────────────────────────────────────────────

    def give_back(
        self,
        transaction: OpenSqliteTransaction,
        connection: SqliteHandlerConnection,
        *,
        reusable: bool,
    ) -> None:
        if reusable:
            self._keep(connection)
        else:
            self._close(connection)
        if self._open is transaction:
            self._open = None
        self._gate.leave()

    def close(self) -> None:
        """What is idle; an open transaction closes its own connection."""
        with self._lock:
            if self._idle is not None:
                self._close(self._idle)
                self._idle = None
            self._drop_anchor()

    def _drop_anchor(self) -> None:
        if self._anchor is not None:
            close(self._anchor)
            self._anchor = None
            self._files.closed()

    def _attempt(
        self,
        kind: type[T],
        connection: SqliteHandlerConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> T | None:
        """Begin; None while another process writes.

        SQLite's own busy handler would rest for up to 100 ms, and hold up a loop or a fork.
        """
        with self._lock:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if is_busy(error):
                    return None
                self._close(connection)
                raise outage(error, applied=False) from error
            self._check_files(connection)
            begun = kind(self, connection, identity, hold)
            self._open = begun
            return begun

    def _abandon(self, connection: SqliteHandlerConnection | None) -> None:
        if connection is not None:
            self._keep(connection)
        self._gate.leave()

    def _take(self) -> SqliteHandlerConnection | None:
        with self._lock:
            connection, self._idle = self._idle, None
            return connection

    def _keep(self, connection: SqliteHandlerConnection) -> None:
        with self._lock:
            if self._idle is None and connection in self._live and roll_back(connection):
                self._idle = connection
            else:
                self._close(connection)

    def _close(self, connection: SqliteHandlerConnection) -> None:
        self._live.discard(connection)
        close(connection)

    def _connect(self) -> SqliteHandlerConnection:
        with self._lock:
            self._check_files(None)
            connection = open_for_handler(self._path, self._timeout, self.clock)
            if self._foreign_keys:
                # Now: within a transaction, SQLite takes no notice of it.
                connection.execute("PRAGMA foreign_keys = ON")
            self._live.add(connection)
            if self._anchor is None:
                # Closing the last connection to a file folds its log into it, which takes long.
                self._anchor = open_for_reading(self._path, self._timeout)
                self._anchor.execute("SELECT count(*) FROM sqlite_master").fetchone()
                self._files.opened()
        return connection

    def _check_files(self, connection: SqliteHandlerConnection | None) -> None:
        try:
            self._files.check()
        except StoreUnavailable:
            if connection is not None:
                self._close(connection)
            if self._files.lost:
                self._drop_anchor()  # as `Engine._close_all`
            raise

    async def _aconnect(self) -> SqliteHandlerConnection:
        opening = keep(in_thread(self._connect))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._opened_for_nobody)
            raise

    def _opened_for_nobody(self, opening: asyncio.Task[SqliteHandlerConnection]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._keep(opening.result())

    # ── around a fork ────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """Every connection is closed and none is opened: see `Engine.freeze`.

        A transaction that is open is undone, and says so when it is to be committed: neither the
        file's locks nor the library's memory of them survive a fork.
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
        self._drop_anchor()

    def thaw(self) -> None:
        self._lock.release()

    def start_anew(self) -> None:
        self._reset()


T = TypeVar("T", bound=OpenSqliteTransaction)


def _too_late(deadline: float, identity: Identity | None) -> bool:
    """Who has held the file's write lock all the time, in another process, may hold this very key.

    Without a key it is an outage.
    """
    if time.monotonic() < deadline:
        return False
    if identity is None:
        raise StoreUnavailable("another process held the write lock too long", applied=False)
    return True


def _rest() -> float:
    """Short and random: a busy process leaves the lock free for microseconds only."""
    return between(0.0002, 0.002)
