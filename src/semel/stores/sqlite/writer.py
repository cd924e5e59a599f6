"""One writer thread per process with group commit, and a reading connection per thread.

Writes queue up while the disk syncs; the writer takes all that are waiting, runs them in one
transaction and tells the callers after its COMMIT. Alone, a write waits for nobody.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from semel.core.records import Identity, Micros, Record
from semel.errors import StoreError, StoreUnavailable
from semel.stores.base import Clock
from semel.stores.sql.plan_steps import Plan
from semel.stores.sql.rows import record
from semel.stores.sqlite.batching import Mailbox, WriterJob, run_batch
from semel.stores.sqlite.connection import (
    TEXTS,
    OpenFiles,
    begin,
    is_busy,
    open_for_reading,
    open_for_writing,
    outage,
    roll_back,
    run,
)

R = TypeVar("R")

BATCH: Final = 256
"""Operations in one transaction at most: bounds how long the write lock is held."""


_LOOK: Final = TEXTS["look"].replace(":identity", "?")
"""Its parameter is bound as a bytearray: see `batch`."""


class SqliteReader:
    """A connection that only looks; used by one thread, closed by any: both hold its lock."""

    def __init__(self, path: Path, timeout: float, files: OpenFiles) -> None:
        self._path = path
        self._timeout = timeout
        self._files = files
        self.lock = threading.Lock()
        self.cursor: sqlite3.Cursor | None = None
        """For all looks: to make one takes longer than to look."""

    def open(self) -> sqlite3.Cursor:
        """The cursor, while the lock is held."""
        if self.cursor is None:
            self._files.check()
            self.cursor = open_for_reading(self._path, self._timeout).cursor()
        return self.cursor

    def close(self) -> None:
        with self.lock:
            self._drop()

    def freeze(self) -> None:
        """Closed, and held so until ``thaw``."""
        self.lock.acquire()
        self._drop()

    def thaw(self) -> None:
        self.lock.release()

    def _drop(self) -> None:
        if self.cursor is not None:
            self.cursor.connection.close()
            self.cursor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._drop()


_ENGINES: weakref.WeakSet[SqliteWriter] = weakref.WeakSet()


def engines() -> list[SqliteWriter]:
    """Every engine of this process, also one that is being closed."""
    return list(_ENGINES)


def forget_engines() -> None:
    """In a forked child: their threads stayed with the parent, and they stay frozen."""
    _ENGINES.clear()


class SqliteWriter:
    """The queue, the writer thread and the readers of one file in one process."""

    def __init__(self, path: Path, timeout: float, clock: Clock) -> None:
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: deque[WriterJob] = deque()
        self._idle = False
        self._closing = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._writing = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._files = OpenFiles(path)
        self._local = threading.local()
        self._readers: weakref.WeakSet[SqliteReader] = weakref.WeakSet()
        self._frozen: list[SqliteReader] = []
        self.ready = False
        """The file is open and its schema right, so readers may look at it."""
        self.contended = False
        """Another process has the write lock: a claim looks for its record before it queues."""
        _ENGINES.add(self)
        self._thread = threading.Thread(target=self._work, name="semel-sqlite", daemon=True)
        self._thread.start()

    # ── for callers ──────────────────────────────────────────────────────────────────────────────

    def look(self, identity: Identity) -> tuple[Record | None, Micros]:
        """What is committed, read in the calling thread; the whole way of a replay."""
        try:
            reader: SqliteReader = self._local.reader
        except AttributeError:
            reader = self._new_reader()
        try:
            with reader.lock:
                cursor = reader.cursor or reader.open()
                # All rows, of which there is one at most: then the look holds on to nothing.
                rows = cursor.execute(_LOOK, (bytearray(identity),)).fetchall()
        except sqlite3.Error as error:
            raise outage(error, applied=False) from error
        return (record(rows[0]) if rows else None), self._clock()

    def ask(self, steps: Plan[R]) -> R:
        """The same, by a plan."""
        reader: SqliteReader = getattr(self._local, "reader", None) or self._new_reader()
        try:
            with reader.lock:
                return run(reader.open().connection, steps, self._clock())
        except sqlite3.Error as error:
            raise outage(error, applied=False) from error

    def submit(self, jobs: Sequence[WriterJob]) -> bool:
        """Queue jobs; False when the engine is closing and takes nothing more."""
        with self._lock:
            if self._closing:
                return False
            for job in jobs:
                job.engine = self
            self._jobs.extend(jobs)
            if self._idle:
                self._idle = False
                self._wake.release()
        return True

    def withdraw(self, job: WriterJob) -> StoreUnavailable:
        """Take back a job whose caller waits no longer; what to tell the caller."""
        with self._lock:
            job.withdrawn = not job.taken
        return StoreUnavailable(
            f"SQLite did not answer within {self._timeout:g} s; is its disk slow, or does another "
            "process hold its write lock?",
            applied=False if job.withdrawn else None,
        )

    def close(self) -> None:
        """Wait for what is queued, then close every connection."""
        with self._lock:
            self._closing = True
            if self._idle:
                self._idle = False
                self._wake.release()
        self._thread.join()
        self._close_readers()

    def _new_reader(self) -> SqliteReader:
        """The calling thread's own."""
        reader = self._local.reader = SqliteReader(self._path, self._timeout, self._files)
        with self._lock:
            self._readers.add(reader)
        return reader

    def _close_readers(self) -> None:
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()

    # ── around a fork ────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """Close every connection and keep it so: SQLite's locks do not survive a fork.

        A child that opens the same file finds the library's memory of the parent's locks, takes
        none of its own, and loses its writes when the parent deletes the log.
        """
        # In the order in which the writer takes them.
        self._writing.acquire()
        self._lock.acquire()
        self._frozen = list(self._readers)
        for reader in self._frozen:
            reader.freeze()
        self._drop_connection()

    def thaw(self) -> None:
        for reader in self._frozen:
            reader.thaw()
        self._frozen = []
        self._lock.release()
        self._writing.release()

    # ── the writer thread ────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while self._wait():
            with self._writing:
                batch = self._write_queued()
            deliver(batch)
            # The last batch must not be kept alive while waiting for the next.
            del batch
        self._drop_connection()

    def _wait(self) -> bool:
        """Until something is queued; False when nothing is and the engine is closing."""
        while True:
            with self._lock:
                while self._jobs and self._jobs[0].withdrawn:
                    self._jobs.popleft()
                if self._jobs:
                    return True
                if self._closing:
                    return False
                self._idle = True
            self._wake.acquire()

    def _take(self) -> list[WriterJob]:
        """All that are queued, up to a bound."""
        with self._lock:
            jobs = self._jobs
            batch = [jobs.popleft() for _ in range(min(len(jobs), BATCH))]
            for job in batch:
                job.taken = True
        return [job for job in batch if not job.withdrawn]

    def _write_queued(self) -> list[WriterJob]:
        """Take the write lock first and the jobs then: a job that only waited can be withdrawn."""
        try:
            connection = self._opened()
            self._begin(connection)
        except sqlite3.Error as error:
            # While others hold the lock, it is the callers' own deadlines that end their waiting.
            return [] if is_busy(error) else self._fail_queued(outage(error, applied=False))
        except Exception as error:
            return self._fail_queued(error)
        batch = self._take()
        try:
            self._transact(connection, batch)
        except Exception as error:
            # A bug; but a writer that died of it would leave every later caller waiting.
            self._drop_connection()
            _fail(batch, StoreUnavailable(f"the writer failed: {error!r}"))
        return batch

    def _begin(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            self.contended = True
            begin(connection, self._timeout)
        self.contended = False

    def _fail_queued(self, error: Exception) -> list[WriterJob]:
        batch = self._take()
        _fail(batch, error)
        return batch

    def _opened(self) -> sqlite3.Connection:
        """The connection, to the very files that were opened first."""
        try:
            self._files.check()
        except StoreUnavailable:
            if self._files.lost:
                self._close_all()
            raise
        if self._connection is None:
            self._connection = open_for_writing(self._path, self._timeout, self._clock())
            self._files.opened()
            self.ready = True
        return self._connection

    def _close_all(self) -> None:
        """Where nobody else has the file open, SQLite now saves what the lost log holds."""
        self.ready = False
        self._drop_connection()
        self._close_readers()

    def _transact(self, connection: sqlite3.Connection, batch: Sequence[WriterJob]) -> None:
        try:
            run_batch(connection, batch, self._clock())
        except sqlite3.Error as error:
            self._abort(connection, batch, error)
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # The log may hold the commit although its sync failed; only a lock that was not to be
            # had is surely nothing.
            undone = roll_back(connection) and is_busy(error)
            self._drop_connection()
            _fail(batch, outage(error, applied=False if undone else None))

    def _abort(
        self, connection: sqlite3.Connection, batch: Sequence[WriterJob], error: sqlite3.Error
    ) -> None:
        """Undo the transaction; then give each operation one of its own, to fail or succeed by."""
        undone = roll_back(connection)
        if not undone:
            self._drop_connection()
        if not undone or len(batch) == 1:
            _fail(batch, outage(error, applied=False if undone else None))
            return
        for job in batch:
            self._write_alone(connection, job)

    def _write_alone(self, connection: sqlite3.Connection, job: WriterJob) -> None:
        job.reply = job.error = None
        try:
            begin(connection, self._timeout)
        except sqlite3.Error as error:
            _fail([job], outage(error, applied=False))
        else:
            self._transact(connection, [job])

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._files.closed()
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _fail(batch: Sequence[WriterJob], error: Exception) -> None:
    for job in batch:
        # Each waiter raises an exception of its own: a shared one would collect their tracebacks.
        job.reply, job.error = None, _copy(error)


def _copy(error: Exception) -> Exception:
    if isinstance(error, StoreUnavailable):
        copied: Exception = StoreUnavailable(str(error), applied=error.applied)
    elif isinstance(error, StoreError):
        copied = type(error)(*error.args)
    else:
        return error
    copied.__cause__ = error.__cause__
    return copied


def deliver(batch: Sequence[WriterJob]) -> None:
    """Tell every caller, each mailbox once."""
    mail: dict[Mailbox, list[WriterJob]] = {}
    for job in batch:
        mail.setdefault(job.deliver_to, []).append(job)
    for mailbox, jobs in mail.items():
        # A mailbox that breaks must not take the writer with it.
        with contextlib.suppress(Exception):
            mailbox.deliver(jobs)
