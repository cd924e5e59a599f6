"""One SQLite file: opens it durably, migrates it, runs plans on it, maps its errors.

`SqliteHandlerConnection` is what a handler is given in a transaction. sqlite3 crashes when a
connection is closed while another thread runs a statement on it. So every use takes the lock
``turn``, and so does the end of the transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from semel.backoff import between
from semel.core.records import Micros
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable
from semel.stores.open_transactions import refused, refusing
from semel.stores.sql import migration
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Rows, Statement

R = TypeVar("R")
C = TypeVar("C", bound=sqlite3.Connection)

DIALECT = dialect("sqlite")
TEXTS = {name: query.text for name, query in DIALECT.queries.items()}
PARTS = {name: query.parts for name, query in DIALECT.queries.items() if query.parts[1:]}
OLDEST = (3, 37, 0)
"""STRICT tables came with 3.37, RETURNING with 3.35."""

PATIENCE: Final = 1.0
"""Seconds to wait for an interrupted statement. One that calls a Python function may go on."""
_LOOK: Final = 0.005
_NO_MORE: Final = object()
_FULL_SYNC = 2
_PAGE = 2048
"""Bytes of a page. A claim writes one page of the index of identities, wherever its own falls: with
SQLite's 4,096 a pair wrote half as much again."""
_LOG_PAGES = 2000
"""The log is copied into the file when it has so many: 4 MB, as by default."""

FileId = tuple[int, int]


class OpenFiles:
    """The database, its log and the log's index; `check` runs before each write.

    SQLite goes on writing to a file that was deleted. Nobody else can read what is written there,
    and it is gone when the last connection closes.
    """

    def __init__(self, path: Path) -> None:
        self._parts = [path]
        self._opened: list[FileId | None] = []
        self.lost: Path | None = None
        """The log that is gone. It has commits that only this process can still read."""

    def opened(self) -> None:
        """Remember the files: a connection is open, so all of them exist."""
        found = self._parts[0].resolve()  # the log lies beside the file, not beside a link to it
        logs = [found.with_name(f"{found.name}-{part}") for part in ("wal", "shm")]
        self._parts = [self._parts[0], *logs]
        self._opened = _file_ids(self._parts)

    def closed(self) -> None:
        """Forget the log: the last connection deletes it. Only the database has to stay."""
        self._opened = self._opened[:1]

    def check(self) -> None:
        """Raise when a file was deleted or replaced; after the loss of a log, always."""
        opened, moved = self._opened, self.lost
        if moved is None:
            found = _file_ids(self._parts[: len(opened)])
            if found == opened:
                return
            pairs = zip(self._parts, found, opened, strict=False)
            moved = next(part for part, now, before in pairs if now != before)
        if moved != self._parts[0]:
            self.lost = moved
        raise StoreUnavailable(
            f"{moved} was deleted or replaced while in use: restart", applied=False
        )


def _file_ids(paths: Sequence[Path]) -> list[FileId | None]:
    """Device and inode of the file at each path; None where there is none."""
    ids: list[FileId | None] = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            ids.append(None)
        else:
            ids.append((found.st_dev, found.st_ino))
    return ids


def connect(path: Path, timeout: float, kind: type[C]) -> C:
    """A connection in autocommit mode. Another thread may close it."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 is needed")
    try:
        return sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False, factory=kind
        )
    except sqlite3.OperationalError as error:
        if not path.parent.is_dir():
            raise ConfigurationError(f"the folder {path.parent} does not exist") from error
        raise outage(error, applied=False) from error


def close(connection: sqlite3.Connection) -> None:
    """Close a connection, even one whose own ``close`` is refused."""
    with suppress(sqlite3.Error):
        sqlite3.Connection.close(connection)


def open_for_writing(path: Path, timeout: float, now: Micros, kind: type[C]) -> C:
    """Open the file; make sure that commits are durable and the schema is up to date."""
    connection = connect(path, timeout, kind)
    try:
        make_durable(connection, path, timeout)
        upgrade(connection, timeout, now)
        # From here on `when_free` waits for the lock, not SQLite.
        connection.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        close(connection)
        if code(error) == sqlite3.SQLITE_READONLY:
            raise ConfigurationError(f"{path} is read-only") from error
        if code(error) == sqlite3.SQLITE_NOTADB:
            raise ConfigurationError(f"{path} is not a SQLite database") from error
        raise outage(error, applied=False) from error
    except BaseException:
        close(connection)
        raise
    return connection


def open_for_reading(path: Path, timeout: float) -> sqlite3.Connection:
    connection = connect(path, timeout, sqlite3.Connection)
    connection.execute("PRAGMA query_only = ON")
    return connection


def make_durable(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Set WAL with synchronous=FULL: NORMAL loses acknowledged commits in a power cut.

    The size of pages counts for a new file only.
    """
    connection.execute(f"PRAGMA page_size = {_PAGE}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    try:
        # Processes that switch a new file to WAL at once get BUSY without the busy timeout.
        mode = when_free(connection, timeout, "PRAGMA journal_mode = WAL").fetchone()[0]
    except UnicodeDecodeError as error:
        # SQLite quotes the damaged bytes in its message, and Python cannot decode them.
        raise StoreCorrupt("the file is damaged: its schema is not text") from error
    connection.execute("PRAGMA synchronous = FULL")
    sync = connection.execute("PRAGMA synchronous").fetchone()[0]
    if mode != "wal" or sync != _FULL_SYNC:
        raise ConfigurationError(
            f"{path} cannot be used: write-ahead logging did not take effect (journal mode "
            f"{mode!r}, synchronous {sync}); is it on a network file system?"
        )


def upgrade(connection: sqlite3.Connection, timeout: float, now: Micros) -> int:
    """Bring the schema up to date. When many processes start at once, one does the work."""
    found = run(connection, migration.schema_version(), now)
    if not migration.pending(DIALECT, found):
        return found.version
    when_free(connection, timeout)
    try:
        version = run(connection, migration.upgrade(DIALECT), now)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return version


def roll_back(connection: sqlite3.Connection) -> bool:
    """Whether nothing of the transaction can remain."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return not connection.in_transaction


def _execute_parts(
    connection: sqlite3.Connection, parts: Sequence[str], params: Mapping[str, object]
) -> Rows:
    """The rows of the last part. Inside the open transaction, all parts run or none."""
    rows: Rows = []
    connection.execute("SAVEPOINT semel_parts")
    try:
        for part in parts:
            rows = connection.execute(part, params).fetchall()
    except sqlite3.Error as error:
        if not spoils_transaction(error):
            connection.execute("ROLLBACK TO SAVEPOINT semel_parts")
            connection.execute("RELEASE SAVEPOINT semel_parts")
        raise
    connection.execute("RELEASE SAVEPOINT semel_parts")
    return rows


def run(
    connection: sqlite3.Connection,
    plan: Generator[Statement, Rows, R] | Generator[Statement | migration.Ddl, Rows, R],
    now: Micros,
) -> R:
    """Carry out a plan or a migration. Errors of SQLite are raised unchanged."""
    try:
        statement = next(plan)
        while True:
            rows: Rows
            if isinstance(statement, migration.Ddl):
                rows = connection.execute(statement.text).fetchall()
            elif (name := statement.name) in PARTS:
                rows = _execute_parts(connection, PARTS[name], {**statement.params, "now": now})
            else:
                params = {**statement.params, "now": now}
                rows = connection.execute(TEXTS[name], params).fetchall()
            statement = plan.send(rows)
    except StopIteration as done:
        reply: R = done.value
        return reply


# ── the write lock ────────────────────────────────────────────────────────────────────────────────


def when_free(
    connection: sqlite3.Connection, timeout: float, statement: str = "BEGIN IMMEDIATE"
) -> sqlite3.Cursor:
    """Run a statement that takes the write lock; try until the timeout while another has it."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(pause())


def pause() -> float:
    """Seconds until the next try for the write lock.

    SQLite's own busy handler rests up to 100 ms between tries. A busy process leaves the lock free
    for microseconds only, so others would starve. Short random pauses find the gap.
    """
    return between(0.0002, 0.002)


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
        except (TimeoutError, asyncio.CancelledError) as error:
            late = not self._leave_line(waiter)
            if late and waiter.future.done() and not waiter.future.cancelled():
                self.release()  # handed over and given up in one turn; a later hand-over notices
            waiter.future.cancel()
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
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


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


def code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error that Python's module raised itself."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    return code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def spoils_transaction(error: sqlite3.Error) -> bool:
    """Whether the error may affect more than its statement (disk full, I/O error …)."""
    return not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)


def outage(error: sqlite3.Error, *, applied: bool | None) -> StoreError | SchemaError:
    """semel's error for one of SQLite. ``applied``: as in `StoreUnavailable`."""
    if code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"the file is damaged: {error}")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreCorrupt(f"the database's own rules forbid this write: {error}")
    if "no such table: semel_" in str(error):
        return SchemaError("the database has no tables of semel: run `semel migrate`")
    if is_busy(error):
        return StoreUnavailable("another process held the write lock too long", applied=applied)
    return StoreUnavailable(f"SQLite: {error}", applied=applied)


# ── the connection given to a handler ─────────────────────────────────────────────────────────────


def _in_turn(name: str) -> Any:
    """sqlite3's method of a cursor, with the turn: SQLite makes rows as they are fetched."""
    method = getattr(sqlite3.Cursor, name)

    def call(self: SqliteHandlerCursor, *given: Any, **named: Any) -> Any:
        with self.connection.turn:
            return method(self, *given, **named)

    return call


class SqliteHandlerCursor(sqlite3.Cursor):
    """A cursor that takes the turn for every call."""

    connection: SqliteHandlerConnection  # pyright: ignore[reportIncompatibleMethodOverride]

    execute: Any = _in_turn("execute")
    fetchone: Any = _in_turn("fetchone")
    fetchmany: Any = _in_turn("fetchmany")
    fetchall: Any = _in_turn("fetchall")
    __next__: Any = _in_turn("__next__")
    close: Any = _in_turn("close")
    executescript: Any = refusing("executescript(), which commits first")

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> Any:
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


class SqliteHandlerConnection(sqlite3.Connection):
    """Any thread may use it, one at a time. Only semel ends its transaction."""

    commit: Any = refusing("commit()")
    rollback: Any = refusing("rollback()")
    close: Any = refusing("close()")
    executescript: Any = refusing("executescript(), which commits first")
    __enter__: Any = refusing("`with connection`, which commits")
    __exit__: Any = refusing("`with connection`")
    isolation_level: Any = property(lambda self: None, refusing("isolation_level"))
    autocommit: Any = property(lambda self: -1, refusing("autocommit"))
    """Since Python 3.12; -1 is its "as isolation_level says"."""

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
