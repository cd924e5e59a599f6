"""One SQLite file: opens it durably, migrates it, runs plans on it, maps its errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TypeVar

from semel.backoff import between
from semel.core.records import Micros
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable
from semel.stores.sql import migration
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Plan, Rows, Statement

R = TypeVar("R")

DIALECT = dialect("sqlite")
TEXTS = {name: query.text for name, query in DIALECT.queries.items()}
PARTS = {name: query.parts for name, query in DIALECT.queries.items() if query.parts}
OLDEST = (3, 37, 0)
"""STRICT tables came with 3.37, RETURNING with 3.35."""

_FULL_SYNC = 2

FileId = tuple[int, int]


class OpenFiles:
    """The database, its log and the log's index; `check` runs before each write.

    SQLite goes on writing to a file that was deleted. Nobody else can read what is written there,
    and it is gone when the last connection closes.
    """

    def __init__(self, path: Path) -> None:
        self._parts = [path]
        self._opened: tuple[FileId | None, ...] = ()
        self.lost: Path | None = None
        """The log that is gone. It has commits that only this process can still read."""

    def opened(self) -> None:
        """Remember the files: a connection is open, so all of them exist."""
        found = self._parts[0].resolve()  # the log lies beside the file, not beside a link to it
        logs = [found.with_name(f"{found.name}-{part}") for part in ("wal", "shm")]
        self._parts = [self._parts[0], *logs]
        self._opened = tuple(map(_file_id, self._parts))

    def closed(self) -> None:
        """Forget the log: the last connection deletes it. Only the database has to stay."""
        self._opened = self._opened[:1]

    def check(self) -> None:
        """Raise when a file was deleted or replaced; after the loss of a log, always."""
        moved = self.lost
        if moved is None:
            for part, opened in zip(self._parts, self._opened, strict=False):
                if _file_id(part) != opened:
                    moved = part
                    break
            else:
                return
        if moved != self._parts[0]:
            self.lost = moved
        raise StoreUnavailable(
            f"{moved} was deleted or replaced while in use: restart", applied=False
        )


def _file_id(path: Path) -> FileId | None:
    """Device and inode of the file at a path; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    """A connection in autocommit mode. Another thread may close it."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 is needed")
    try:
        return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if not path.parent.is_dir():
            raise ConfigurationError(f"the folder {path.parent} does not exist") from error
        raise outage(error, applied=False) from error


def open_for_writing(path: Path, timeout: float, now: Micros) -> sqlite3.Connection:
    """Open the file; make sure that commits are durable and the schema is up to date."""
    connection = connect(path, timeout)
    try:
        make_durable(connection, path, time.monotonic() + timeout)
        upgrade(connection, timeout, now)
        # From here on `begin` waits for the lock, not SQLite.
        connection.execute("PRAGMA busy_timeout = 0")
    except sqlite3.Error as error:
        connection.close()
        raise opening_error(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path, timeout: float) -> sqlite3.Connection:
    connection = connect(path, timeout)
    connection.execute("PRAGMA query_only = ON")
    return connection


def make_durable(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    """Set WAL with synchronous=FULL: NORMAL loses acknowledged commits in a power cut."""
    mode = _journal_mode(connection, deadline)
    connection.execute("PRAGMA synchronous = FULL")
    sync = connection.execute("PRAGMA synchronous").fetchone()[0]
    if mode != "wal" or sync != _FULL_SYNC:
        raise ConfigurationError(
            f"{path} cannot be used: write-ahead logging did not take effect (journal mode "
            f"{mode!r}, synchronous {sync}); is it on a network file system?"
        )


def _journal_mode(connection: sqlite3.Connection, deadline: float) -> str:
    # Processes that switch a new file to WAL at the same time get BUSY without the busy timeout.
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            _rest()
        except UnicodeDecodeError as error:
            # SQLite quotes the damaged bytes in its message, and Python cannot decode them.
            raise StoreCorrupt("the file is damaged: its schema is not text") from error


def upgrade(connection: sqlite3.Connection, timeout: float, now: Micros) -> int:
    """Bring the schema up to date. When many processes start at once, one does the work."""
    found = _drive(connection, migration.schema_version(), now)
    if not migration.pending(DIALECT, found):
        return found.version
    begin(connection, timeout)
    try:
        version = _drive(connection, migration.upgrade(DIALECT), now)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return version


def _drive(
    connection: sqlite3.Connection,
    steps: Generator[Statement | migration.Ddl, Rows, R],
    now: Micros,
) -> R:
    rows: Rows | None = None
    while True:
        try:
            step = next(steps) if rows is None else steps.send(rows)
        except StopIteration as done:
            result: R = done.value
            return result
        if isinstance(step, Statement):
            rows = execute(connection, step, now)
        else:
            rows = connection.execute(step.text).fetchall()


def begin(connection: sqlite3.Connection, timeout: float) -> None:
    """Take the write lock.

    SQLite's own busy handler rests up to 100 ms between tries. A busy process leaves the lock free
    for microseconds only, so others would starve. Short random rests find the gap.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            _rest()


def _rest() -> None:
    time.sleep(between(0.0002, 0.002))


def roll_back(connection: sqlite3.Connection) -> bool:
    """Whether nothing of the transaction can remain."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return not connection.in_transaction


def execute(connection: sqlite3.Connection, statement: Statement, now: Micros) -> Rows:
    params = {**statement.params, "now": now}
    if statement.name in PARTS:
        return _execute_parts(connection, PARTS[statement.name], params)
    return connection.execute(TEXTS[statement.name], params).fetchall()


def _execute_parts(
    connection: sqlite3.Connection, parts: Sequence[str], params: dict[str, object]
) -> Rows:
    """Run all parts or none inside the open transaction; returns the rows of the last."""
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


def run(connection: sqlite3.Connection, plan: Plan[R], now: Micros) -> R:
    """Carry out a plan. Errors of SQLite are raised unchanged."""
    try:
        statement = next(plan)
        while True:
            statement = plan.send(execute(connection, statement, now))
    except StopIteration as done:
        reply: R = done.value
        return reply


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


def opening_error(error: sqlite3.Error, path: Path) -> Exception:
    if code(error) == sqlite3.SQLITE_READONLY:
        return ConfigurationError(f"{path} is read-only")
    if code(error) == sqlite3.SQLITE_NOTADB:
        return ConfigurationError(f"{path} is not a SQLite database")
    return outage(error, applied=False)
