"""One SQLite file: opens it durably, migrates it, runs plans on it, maps its errors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from semel.backoff import between
from semel.core.records import Micros
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable
from semel.stores.sql import migration
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Plan, Rows, Statement

R = TypeVar("R")
C = TypeVar("C", bound=sqlite3.Connection)

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
        # From here on `begin` waits for the lock, not SQLite.
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
    """Set WAL with synchronous=FULL: NORMAL loses acknowledged commits in a power cut."""
    try:
        # Processes that switch a new file to WAL at once get BUSY without the busy timeout.
        mode = _when_free(connection, "PRAGMA journal_mode = WAL", timeout).fetchone()[0]
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
    try:
        step = next(steps)
        while True:
            if isinstance(step, Statement):
                rows = execute(connection, step, now)
            else:
                rows = connection.execute(step.text).fetchall()
            step = steps.send(rows)
    except StopIteration as done:
        result: R = done.value
        return result


def begin(connection: sqlite3.Connection, timeout: float) -> None:
    """Take the write lock."""
    _when_free(connection, "BEGIN IMMEDIATE", timeout)


def _when_free(connection: sqlite3.Connection, statement: str, timeout: float) -> sqlite3.Cursor:
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


def roll_back(connection: sqlite3.Connection) -> bool:
    """Whether nothing of the transaction can remain."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return not connection.in_transaction


def execute(connection: sqlite3.Connection, statement: Statement, now: Micros) -> Rows:
    """The rows of a statement. Of one in parts, inside the open transaction, all run or none, and
    the rows are those of the last."""
    params = {**statement.params, "now": now}
    if statement.name not in PARTS:
        return connection.execute(TEXTS[statement.name], params).fetchall()
    rows: Rows = []
    connection.execute("SAVEPOINT semel_parts")
    try:
        for part in PARTS[statement.name]:
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
