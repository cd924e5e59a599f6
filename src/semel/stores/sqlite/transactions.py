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
from collections import deque
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from semel.core.operations.requests import Found, NoRecord, Read
from semel.core.records import Identity
from semel.errors import StoreUnavailable
from semel.stores.background import in_thread, keep
from semel.stores.base import Clock
from semel.stores.open_transactions import HeldIdentities, HeldIdentity, LazySessions
from semel.stores.sqlite import connection as file
from semel.stores.sqlite.handler_transaction import (
    AsyncSqliteTransaction,
    OpenSqliteTransaction,
    SqliteHandlerConnection,
    SqliteTransaction,
)

T = TypeVar("T", bound=OpenSqliteTransaction)

_HELD: Final = "another transaction of this process held the write lock too long"
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
        self._turns = FairLock()
        self._holds = HeldIdentities()
        self._live: set[SqliteHandlerConnection] = set()
        self._idle: SqliteHandlerConnection | None = None
        self._open_reader: sqlite3.Connection | None = None
        self._files = file.OpenFiles(self._path)
        self._open: OpenSqliteTransaction | None = None

    # ── threads ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, identity: Identity | None) -> SqliteTransaction | None:
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
                self._give_up(connection)

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

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await in_thread(partial(self.ascertain, identity))

    # ── event loops ──────────────────────────────────────────────────────────────────────────────

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
                self._give_up(connection)

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

    def _give_up(self, connection: SqliteHandlerConnection | None) -> None:
        if connection is not None:
            self._keep(connection)
        self._turns.release()

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
    """Whether the time is over. The process that held the write lock all the time may hold this
    very key, so the caller reports it as taken. Without a key it is an outage.
    """
    if time.monotonic() < deadline:
        return False
    if identity is None:
        raise StoreUnavailable("another process held the write lock too long", applied=False)
    return True


# ── who is next ───────────────────────────────────────────────────────────────────────────────────


class _ThreadWaiter:
    """``hand_over`` gives the lock to this waiter; False when it no longer waits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def hand_over(self) -> bool:
        self.lock.release()
        return True


class _TaskWaiter:
    def __init__(self, owner: FairLock) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def hand_over(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _take(self) -> None:
        if self.future.done():
            self._owner.release()
        else:
            self.future.set_result(None)


class FairLock:
    """A lock for threads and tasks alike, first come, first served. It goes from one holder
    straight to the next in line; nobody can slip in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._line: deque[_ThreadWaiter | _TaskWaiter] = deque()

    def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds."""
        waiter = _ThreadWaiter()
        if self._taken_or_queued(waiter) or waiter.lock.acquire(timeout=timeout):
            return True
        return not self._leave_line(waiter)

    async def aacquire(self, timeout: float) -> bool:  # noqa: ASYNC109 - as `acquire`
        waiter = _TaskWaiter(self)
        if self._taken_or_queued(waiter):
            return True
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            self._give_up(waiter)
            return False
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        return True

    def release(self) -> None:
        """Hand the lock to the next in line who still waits."""
        while True:
            with self._lock:
                if not self._line:
                    self._taken = False
                    return
                waiter = self._line.popleft()
            if waiter.hand_over():
                return

    def _taken_or_queued(self, waiter: _ThreadWaiter | _TaskWaiter) -> bool:
        """True: the lock was free and is now taken. False: the waiter stands in line."""
        with self._lock:
            if self._taken:
                self._line.append(waiter)
                return False
            self._taken = True
            return True

    def _leave_line(self, waiter: _ThreadWaiter | _TaskWaiter) -> bool:
        """False when the lock was handed to it in the meantime."""
        with self._lock:
            try:
                self._line.remove(waiter)
            except ValueError:
                return False
            return True

    def _give_up(self, waiter: _TaskWaiter) -> None:
        if not self._leave_line(waiter) and waiter.future.done() and not waiter.future.cancelled():
            self.release()  # handed over and given up in one turn; a later hand-over notices
        waiter.future.cancel()
