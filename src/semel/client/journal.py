"""The journal: each call is written to a file before it is sent, so that a crash forgets none.

The file is SQLite (WAL, synchronous=FULL), and several processes may share it. It holds requests,
so only its owner may read it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from semel.client import journal_rows
from semel.client.journal_rows import JournaledCall, Row, is_dead, this_process
from semel.client.model import CallAnswer, LogicalCall
from semel.core.frozen import replace
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable

APPLICATION: Final = 0x53454D4A
"""SQLite's application_id: "SEMJ"."""
VERSION: Final = 1
LEASE: Final = 60.0
"""Seconds that a call is held at least; a call that waits is held longer."""
_PURGED: Final = 100
"""Old rows that are deleted, at most, whenever a call is finished."""
_HEADER: Final = 512
"""Bytes of the smallest page: no database is smaller."""
_SQL: Final = Path(__file__).with_name("sql")


@cache
def _statement(name: str) -> str:
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


class CallJournal:
    """A journal in a file. It opens on first use, and again in a forked child; it may be shared.

    ``keep``: how long finished calls are remembered. ``keep_answers``: the largest body of an
    answer that is kept with them, in bytes; of a larger body only its size is kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep: timedelta = timedelta(days=2),
        keep_answers: int = 64 * 1024,
        timeout: float = 5.0,
    ) -> None:
        if keep <= timedelta(0) or keep_answers < 0 or timeout <= 0:
            raise ConfigurationError("keep, keep_answers and timeout cannot be negative")
        self.path = Path(path)
        self._keep, self._keep_answers, self._timeout = keep, keep_answers, timeout
        self._opened: _Opened | None = None
        self._opening = threading.Lock()

    # ── for people and programs ───────────────────────────────────────────────────────────────────

    def pending(self) -> list[JournaledCall]:
        """All calls without an answer, oldest first, held ones included."""
        return [
            journal_rows.read_row(row, held=self._is_held(row)) for row in self._query("pending")
        ]

    def finished(self, limit: int = 100) -> list[JournaledCall]:
        """The calls that were finished last, with what is kept of their answers."""
        return [
            journal_rows.read_row(row, held=False) for row in self._query("finished", limit=limit)
        ]

    def forget(self, call: LogicalCall) -> None:
        """Delete a call, whatever its outcome: nobody will resume it."""
        self._write("forget", id=call.row)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            with opened.lock:
                opened.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── for the client ────────────────────────────────────────────────────────────────────────────

    def begin(self, call: LogicalCall) -> LogicalCall | JournaledCall:
        """Write the call, and hold it; or return the call that already has its key."""
        written = journal_rows.request_columns(call)
        held = {"held_by": this_process(), "held_until": time.time() + LEASE}
        for row in self._write("begin", **written, **held):
            return replace(call, row=row["id"])
        found = self._query("find", method=call.method, url=call.url, key=call.key)
        if not found:
            return self.begin(call)  # forgotten in between
        is_other = found[0]["fingerprint"] != written["fingerprint"]
        return replace(
            journal_rows.read_row(found[0], held=self._is_held(found[0])), is_other=is_other
        )

    def take(self, entry: JournaledCall) -> LogicalCall | None:
        """Hold a pending call that no living process holds; None if one does, or it is finished."""
        call = entry.call
        found = self._query("find", method=call.method, url=call.url, key=call.key)
        if not found or found[0]["finished_at"] is not None or self._is_held(found[0]):
            return None
        row = found[0]
        seen = {"id": row["id"], "seen_by": row["held_by"], "seen_until": row["held_until"]}
        held = {"held_by": this_process(), "held_until": time.time() + LEASE}
        taken = self._write("take", **seen, **held)
        return replace(journal_rows.read_row(row, held=True).call, resumed=True) if taken else None

    def extend_hold(self, call: LogicalCall, seconds: float) -> None:
        """Hold the call for so many seconds and a lease more; never shortens a hold."""
        needed = time.time() + seconds + LEASE / 2
        held = {"held_by": this_process(), "held_until": needed + LEASE / 2}
        self._write("hold", id=call.row, needed=needed, **held)

    def release(self, call: LogicalCall) -> None:
        """End this process's hold; the call stays pending."""
        self._write("release", id=call.row, held_by=this_process())

    def record_status_url(self, call: LogicalCall, url: str) -> None:
        self._write("status_url", id=call.row, status_url=url)

    def record_answer(self, call: LogicalCall, answer: CallAnswer) -> None:
        """Finish the call with its answer; delete some calls that were finished long ago."""
        now = time.time()
        kept = answer.body if len(answer.body) <= self._keep_answers else None
        with self._using() as connection, _transaction(connection):
            connection.execute(
                _statement("finish"), journal_rows.answer_columns(call, answer, kept, now)
            )
            before = now - self._keep.total_seconds()
            connection.execute(_statement("purge"), {"before": before, "limit": _PURGED})

    def _is_held(self, row: Row) -> bool:
        holder, until = row["held_by"], row["held_until"]
        if not isinstance(holder, str) or not isinstance(until, float):
            return False  # damaged; reading the row says so
        return bool(holder) and until > time.time() and not is_dead(holder)

    # ── the file ──────────────────────────────────────────────────────────────────────────────────

    def _query(self, query: str, **values: Any) -> list[Row]:
        with self._using() as connection:
            return [dict(row) for row in connection.execute(_statement(query), values)]

    def _write(self, query: str, **values: Any) -> list[Row]:
        with self._using() as connection, _transaction(connection):
            return [dict(row) for row in connection.execute(_statement(query), values)]

    @contextmanager
    def _using(self) -> Generator[sqlite3.Connection]:
        opened = self._open()
        with opened.lock:
            try:
                yield opened.connection
            except _ERRORS as error:
                raise _mapped(error, self.path) from error

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and opened.pid == os.getpid():
            return opened
        if opened is not None:
            # A parent's connection must be neither used nor closed here: SQLite would tidy up.
            _INHERITED.append(opened)
            self._opening = threading.Lock()
        with self._opening:
            if self._opened is None or self._opened.pid != os.getpid():
                self._opened = _Opened(self.path, self._timeout)
            return self._opened


class _Opened:
    """A connection of this process."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        _make_private(path)
        try:
            self.connection = sqlite3.connect(
                path, timeout=timeout, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _mapped(error, path) from error
        try:
            self.connection.row_factory = sqlite3.Row
            self._prepare(path, time.monotonic() + timeout)
        except _ERRORS as error:
            self.connection.close()
            raise _mapped(error, path) from error
        except BaseException:
            self.connection.close()
            raise

    def _prepare(self, path: Path, deadline: float) -> None:
        """Set the file up, or check that it is a whole journal of this version."""
        mode = _journal_mode(self.connection, deadline)
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA secure_delete = ON")
        if mode != "wal":
            raise ConfigurationError(f"{path} cannot be used: is it on a network file system?")
        with _transaction(self.connection):
            _create_or_check(self.connection, path)


_INHERITED: list[_Opened] = []
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What the driver raises; the second if a damaged file puts odd bytes into its message."""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _make_private(path: Path) -> None:
    """Create the file for its owner only; SQLite gives its companions the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        found = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"the journal {path} cannot be opened: {error.strerror}"
        ) from error
    if 0 < found.st_size < _HEADER:
        raise _damaged(path)  # SQLite would take the stump for an empty file, and begin anew
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"the journal {path} holds requests, and others may read it: chmod 600 {path}"
        )


def _journal_mode(connection: sqlite3.Connection, deadline: float) -> str:
    # Processes that switch a new file at the same time get BUSY at once, without the busy timeout.
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if empty and not application and not version:
        for statement in _schema():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        return
    if application != APPLICATION:
        raise ConfigurationError(f"{path} is no journal of semel's; nothing in it was changed")
    if version != VERSION:
        raise SchemaError(f"the journal {path} has version {version}, this semel reads {VERSION}")
    made = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master").fetchall()}
    checked = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if made != set(_schema()) or checked != "ok":
        raise _damaged(path)


def _schema() -> list[str]:
    """The statements, as SQLite remembers them: from CREATE on."""
    parts = _statement("schema").split(";\n")
    return [part[part.index("CREATE") :] for part in parts if "CREATE" in part]


def _damaged(path: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"the journal {path} is damaged: calls in it may be pending. Move it away, look at it by "
        "hand, and start with a new one"
    )


def _mapped(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    """The error of semel for one of the driver; a damaged file is not an outage that passes."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    # The driver's own errors have no code: it could not decode what SQLite gave it.
    if code in (sqlite3.SQLITE_OK, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path)
    return StoreUnavailable(f"the journal {path} cannot be written or read: {error}")
