"""One writer thread per process with group commit, and a reading connection per thread.

Operations queue up while the disk syncs. The writer takes all that wait, runs them in one
transaction and replies after its COMMIT. A single operation waits for nobody.
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
from semel.stores.sql.plans import Plan
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
"""Most operations in one transaction: it bounds how long the write lock is held."""

_LOOK: Final = TEXTS["look"].replace(":identity", "?")
"""Its parameter is bound as a bytearray: `batching` says why."""


class SqliteReader:
    """A read-only connection. One thread uses it, any thread may close it: both take its lock."""

    def __init__(self, path: Path, timeout: float, files: OpenFiles) -> None:
        self._path = path
        self._timeout = timeout
        self._files = files
        self.lock = threading.Lock()
        self.cursor: sqlite3.Cursor | None = None
        """One for all reads: to make a cursor takes longer than to read."""

    def open(self) -> sqlite3.Cursor:
        """The cursor; the caller holds the lock."""
        if self.cursor is None:
            self._files.check()
            self.cursor = open_for_reading(self._path, self._timeout).cursor()
        return self.cursor

    def close(self) -> None:
        with self.lock:
            self._drop()

    def freeze(self) -> None:
        """Close it, and keep it closed until ``thaw``."""
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


_WRITERS: weakref.WeakSet[SqliteWriter] = weakref.WeakSet()


def writers() -> list[SqliteWriter]:
    """Every writer of this process, also one that is closing."""
    return list(_WRITERS)


def forget_writers() -> None:
    """In a forked child: the writers' threads exist only in the parent."""
    _WRITERS.clear()


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
        """The file is open and its schema is right, so readers may use it."""
        self.contended = False
        """Another process has the write lock: a claim reads its record before it queues."""
        _WRITERS.add(self)
        self._thread = threading.Thread(target=self._work, name="semel-sqlite", daemon=True)
        self._thread.start()

    # ── for callers ──────────────────────────────────────────────────────────────────────────────

    def look(self, identity: Identity) -> tuple[Record | None, Micros]:
        """The committed record, read in the calling thread. A replay needs nothing else."""
        try:
            reader: SqliteReader = self._local.reader
        except AttributeError:
            reader = self._new_reader()
        try:
            with reader.lock:
                cursor = reader.cursor or reader.open()
                # All rows, though there is one at most: an unfinished read would hold a lock.
                rows = cursor.execute(_LOOK, (bytearray(identity),)).fetchall()
        except sqlite3.Error as error:
            raise outage(error, applied=False) from error
        return (record(rows[0]) if rows else None), self._clock()

    def ask(self, steps: Plan[R]) -> R:
        """Carry out a plan that only reads, in the calling thread."""
        reader: SqliteReader = getattr(self._local, "reader", None) or self._new_reader()
        try:
            with reader.lock:
                return run(reader.open().connection, steps, self._clock())
        except sqlite3.Error as error:
            raise outage(error, applied=False) from error

    def submit(self, jobs: Sequence[WriterJob]) -> bool:
        """Queue jobs; False when the writer is closing and takes no more."""
        with self._lock:
            if self._closing:
                return False
            for job in jobs:
                job.writer = self
            self._jobs.extend(jobs)
            if self._idle:
                self._idle = False
                self._wake.release()
        return True

    def withdraw(self, job: WriterJob) -> StoreUnavailable:
        """Take back a job whose caller stops waiting; returns the error for that caller."""
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
        """A reader for the calling thread."""
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
        """Close every connection and keep it closed: SQLite's locks do not survive a fork.

        A forked child inherits the library's memory of the parent's locks. It would take none of
        its own, and lose its writes when the parent deletes the log.
        """
        # In the same order as the writer thread.
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
            # Do not keep the last batch alive while waiting for the next.
            del batch
        self._drop_connection()

    def _wait(self) -> bool:
        """Wait until something is queued; False when the queue is empty and the writer closes."""
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
        """Take all queued jobs, up to `BATCH`."""
        with self._lock:
            jobs = self._jobs
            batch = [jobs.popleft() for _ in range(min(len(jobs), BATCH))]
            for job in batch:
                job.taken = True
        return [job for job in batch if not job.withdrawn]

    def _write_queued(self) -> list[WriterJob]:
        """Take the write lock first, then the jobs: a job that still waits can be withdrawn."""
        try:
            connection = self._opened()
            self._begin(connection)
        except sqlite3.Error as error:
            # While another process holds the lock, each caller waits until its own deadline.
            return [] if is_busy(error) else self._fail_queued(outage(error, applied=False))
        except Exception as error:
            return self._fail_queued(error)
        batch = self._take()
        try:
            self._transact(connection, batch)
        except Exception as error:
            # A bug. The thread must go on: without it every later caller would wait in vain.
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
        """The connection, after a check that it leads to the files that were opened first."""
        try:
            self._files.check()
        except StoreUnavailable:
            if self._files.lost:
                # If no other process has the file open, SQLite now saves what the lost log holds.
                self.ready = False
                self._drop_connection()
                self._close_readers()
            raise
        if self._connection is None:
            self._connection = open_for_writing(self._path, self._timeout, self._clock())
            self._files.opened()
            self.ready = True
        return self._connection

    def _transact(self, connection: sqlite3.Connection, batch: Sequence[WriterJob]) -> None:
        try:
            run_batch(connection, batch, self._clock())
        except sqlite3.Error as error:
            self._abort(connection, batch, error)
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # The log may hold the commit although its sync failed. Only when the lock could not be
            # had was surely nothing written.
            undone = roll_back(connection) and is_busy(error)
            self._drop_connection()
            _fail(batch, outage(error, applied=False if undone else None))

    def _abort(
        self, connection: sqlite3.Connection, batch: Sequence[WriterJob], error: sqlite3.Error
    ) -> None:
        """Undo the transaction, then run each operation in a transaction of its own."""
        undone = roll_back(connection)
        if not undone:
            self._drop_connection()
        if not undone or len(batch) == 1:
            _fail(batch, outage(error, applied=False if undone else None))
            return
        for job in batch:
            job.reply = job.error = None
            try:
                begin(connection, self._timeout)
            except sqlite3.Error as refusal:
                _fail([job], outage(refusal, applied=False))
            else:
                self._transact(connection, [job])

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._files.closed()
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _fail(batch: Sequence[WriterJob], error: Exception) -> None:
    """Set the error of every job. Each gets a copy: a shared one would collect all tracebacks."""
    for job in batch:
        copied = error
        if isinstance(error, StoreUnavailable):
            copied = StoreUnavailable(str(error), applied=error.applied)
        elif isinstance(error, StoreError):
            copied = type(error)(*error.args)
        if copied is not error:
            copied.__cause__ = error.__cause__
        job.reply, job.error = None, copied


def deliver(batch: Sequence[WriterJob]) -> None:
    """Deliver the jobs, each mailbox once."""
    mail: dict[Mailbox, list[WriterJob]] = {}
    for job in batch:
        mail.setdefault(job.deliver_to, []).append(job)
    for mailbox, jobs in mail.items():
        # An error in a mailbox must not end the writer thread.
        with contextlib.suppress(Exception):
            mailbox.deliver(jobs)
