"""One writer thread per process with group commit, and a reading connection per thread.

Claims and completions are nearly all of the traffic: all claims of a batch go as one statement, and
so do all completions. When a row was not as expected, and for everything else, the operation's own
plan runs. Sending it again is safe, because every operation is idempotent per fence. The operations
of one batch are concurrent (none was acknowledged before another was queued), so any order is
legal.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from semel.core.operations.requests import Applied, Claim, Claimed, Complete, StoreOperation
from semel.core.records import (
    DUTY_NUMBERS,
    ON_LAPSE_NUMBERS,
    Identity,
    Micros,
    OnLapse,
    Record,
    State,
)
from semel.core.stored.packed import packed_fingerprint, packed_key
from semel.core.texts import described, shown
from semel.errors import StoreError, StoreUnavailable
from semel.stores.base import Clock
from semel.stores.sql.plans import Plan, plan
from semel.stores.sql.rows import record
from semel.stores.sqlite import connection as file

R = TypeVar("R")

BATCH: Final = 256
"""Most operations in one transaction: it bounds how long the write lock is held."""
SIZES: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows per statement. Each size is prepared once; a batch in between repeats its last row."""

# Short parameters are bound as bytearrays: for each one of type bytes sqlite3 looks for an adapter,
# which takes longer than to copy and bind it.
_LOOK: Final = file.TEXTS["look"].replace(":identity", "?")
_ON_LAPSE: Final = {
    choice: (number, DUTY_NUMBERS["resume" if choice is OnLapse.RESUME else "lease"])
    for choice, number in ON_LAPSE_NUMBERS.items()
}
"""The column values: the choice itself, and who acts when the lease has run out."""


class WriterJob:
    """One queued operation. ``reply`` or ``error`` is set before it is delivered.

    ``deliver``: takes the finished jobs; those of one batch that have the same in one call.
    """

    __slots__ = ("deliver", "error", "op", "reply", "taken", "withdrawn", "writer")

    def __init__(
        self, op: StoreOperation[Any], deliver: Callable[[Sequence[WriterJob]], object]
    ) -> None:
        self.op = op
        self.deliver = deliver
        self.writer: SqliteWriter | None = None
        self.reply: Any = None
        self.error: BaseException | None = None
        self.taken = False
        self.withdrawn = False

    def give_up(self) -> StoreUnavailable:
        """The error for a caller whose time is over. A job that still waits is taken back."""
        if self.writer is None:
            return StoreUnavailable("the operation was never begun", applied=False)
        with self.writer.lock:
            self.withdrawn = not self.taken
        return StoreUnavailable(
            f"SQLite did not answer within {self.writer.timeout:g} s; is its disk slow, or does "
            "another process hold its write lock?",
            applied=False if self.withdrawn else None,
        )


class SqliteReader:
    """A read-only connection. One thread uses it, any thread may close it: both take its lock."""

    def __init__(self, path: Path, timeout: float, files: file.OpenFiles) -> None:
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
            self.cursor = file.open_for_reading(self._path, self._timeout).cursor()
        return self.cursor

    def close(self) -> None:
        """Close the connection; the caller holds the lock."""
        if self.cursor is not None:
            self.cursor.connection.close()
            self.cursor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


WRITERS: Final[weakref.WeakSet[SqliteWriter]] = weakref.WeakSet()
"""Every writer of this process, also one that is closing."""


class SqliteWriter:
    """The queue, the writer thread and the readers of one file in one process."""

    def __init__(self, path: Path, timeout: float, clock: Clock) -> None:
        self._path = path
        self.timeout = timeout
        self.lock = threading.Lock()
        self._clock = clock
        self._jobs: deque[WriterJob] = deque()
        self._idle = False
        self._closing = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._writing = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._files = file.OpenFiles(path)
        self._local = threading.local()
        self._readers: weakref.WeakSet[SqliteReader] = weakref.WeakSet()
        self._frozen: list[SqliteReader] = []
        self.ready = False
        """The file is open and its schema is right, so readers may use it."""
        self.contended = False
        """Another process has the write lock: a claim reads its record before it queues."""
        WRITERS.add(self)
        self._thread = threading.Thread(target=self._work, name="semel-sqlite", daemon=True)
        self._thread.start()

    # ── for callers ──────────────────────────────────────────────────────────────────────────────

    def look(self, identity: Identity) -> tuple[Record | None, Micros]:
        """The committed record, read in the calling thread. A replay needs nothing else."""
        reader: SqliteReader = getattr(self._local, "reader", None) or self._new_reader()
        try:
            with reader.lock:
                cursor = reader.cursor or reader.open()
                # All rows, though there is one at most: an unfinished read would hold a lock.
                rows = cursor.execute(_LOOK, (bytearray(identity),)).fetchall()
        except sqlite3.Error as error:
            raise file.outage(error, applied=False) from error
        return (record(rows[0]) if rows else None), self._clock()

    def ask(self, steps: Plan[R]) -> R:
        """Carry out a plan that only reads, in the calling thread."""
        reader: SqliteReader = getattr(self._local, "reader", None) or self._new_reader()
        try:
            with reader.lock:
                return file.run(reader.open().connection, steps, self._clock())
        except sqlite3.Error as error:
            raise file.outage(error, applied=False) from error

    def _new_reader(self) -> SqliteReader:
        """A reader for the calling thread."""
        reader = self._local.reader = SqliteReader(self._path, self.timeout, self._files)
        with self.lock:
            self._readers.add(reader)
        return reader

    def submit(self, jobs: Sequence[WriterJob]) -> bool:
        """Queue jobs; False when the writer is closing and takes no more."""
        with self.lock:
            if self._closing:
                return False
            for job in jobs:
                job.writer = self
            self._jobs.extend(jobs)
            if self._idle:
                self._idle = False
                self._wake.release()
        return True

    def close(self) -> None:
        """Wait for what is queued, then close every connection."""
        with self.lock:
            self._closing = True
            if self._idle:
                self._idle = False
                self._wake.release()
        self._thread.join()
        self._close_readers()

    def _close_readers(self) -> None:
        with self.lock:
            readers = list(self._readers)
        for reader in readers:
            with reader.lock:
                reader.close()

    # ── around a fork ────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """Close every connection and keep it closed: SQLite's locks do not survive a fork.

        A forked child inherits the library's memory of the parent's locks. It would take none of
        its own, and lose its writes when the parent deletes the log.
        """
        # In the same order as the writer thread.
        self._writing.acquire()
        self.lock.acquire()
        self._frozen = list(self._readers)
        for reader in self._frozen:
            reader.lock.acquire()
            reader.close()
        self._drop_connection()

    def thaw(self) -> None:
        for reader in self._frozen:
            reader.lock.release()
        self._frozen = []
        self.lock.release()
        self._writing.release()

    # ── the writer thread ────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        """Write what is queued; ends when the queue is empty and the writer closes."""
        while True:
            with self.lock:
                while self._jobs and self._jobs[0].withdrawn:
                    self._jobs.popleft()
                empty = not self._jobs
                if empty and self._closing:
                    break
                self._idle = empty
            if empty:
                self._wake.acquire()
                continue
            with self._writing:
                batch = self._write_queued()
            deliver(batch)
            # Do not keep the last batch alive while waiting for the next.
            del batch
        self._drop_connection()

    def _take(self) -> list[WriterJob]:
        """Take all queued jobs, up to `BATCH`."""
        batch: list[WriterJob] = []
        with self.lock:
            while self._jobs and len(batch) < BATCH:
                job = self._jobs.popleft()
                if not job.withdrawn:
                    job.taken = True
                    batch.append(job)
        return batch

    def _write_queued(self) -> list[WriterJob]:
        """Take the write lock first, then the jobs: a job that still waits can be withdrawn."""
        try:
            connection = self._begun()
        except Exception as error:
            # While another process holds the lock, each caller waits until its own deadline.
            batch: list[WriterJob] = []
            if not isinstance(error, sqlite3.Error):
                _fail(batch := self._take(), error)
            elif not file.is_busy(error):
                _fail(batch := self._take(), file.outage(error, applied=False))
            return batch
        batch = self._take()
        try:
            self._transact(connection, batch)
        except Exception as error:
            # A bug. The thread must go on: without it every later caller would wait in vain.
            self._drop_connection()
            _fail(batch, StoreUnavailable(f"the writer failed: {error!r}"))
        return batch

    def _begun(self) -> sqlite3.Connection:
        """The connection, with the write lock. It must lead to the files that were opened first."""
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
            self._connection = file.open_for_writing(
                self._path, self.timeout, self._clock(), sqlite3.Connection
            )
            self._files.opened()
            self.ready = True
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not file.is_busy(error):
                raise
            self.contended = True
            file.when_free(self._connection, self.timeout)
        self.contended = False
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
            undone = file.roll_back(connection) and file.is_busy(error)
            self._drop_connection()
            _fail(batch, file.outage(error, applied=False if undone else None))

    def _abort(
        self, connection: sqlite3.Connection, batch: Sequence[WriterJob], error: sqlite3.Error
    ) -> None:
        """Undo the transaction, then run each operation in a transaction of its own."""
        undone = file.roll_back(connection)
        if not undone:
            self._drop_connection()
        if not undone or len(batch) == 1:
            _fail(batch, file.outage(error, applied=False if undone else None))
            return
        for job in batch:
            job.reply = job.error = None
            try:
                file.when_free(connection, self.timeout)
            except sqlite3.Error as refusal:
                _fail([job], file.outage(refusal, applied=False))
            else:
                self._transact(connection, [job])

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._files.closed()
            file.close(connection)


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
    """Deliver the jobs, those of one event loop together."""
    together: dict[Any, list[WriterJob]] = {}
    for job in batch:
        together.setdefault(job.deliver, []).append(job)
    for deliver_all, jobs in together.items():
        # An error in there, or a loop that is closed, must not end the writer thread.
        with contextlib.suppress(Exception):
            deliver_all(jobs)


# ── many operations in one transaction ────────────────────────────────────────────────────────────


def run_batch(connection: sqlite3.Connection, batch: Sequence[WriterJob], now: Micros) -> None:
    """Set the reply or the error of each job. Raises when the whole transaction is spoilt."""
    if len(batch) > 1:
        claims: list[WriterJob] = []
        completions: list[WriterJob] = []
        for job in batch:
            op = job.op
            if type(op) is Complete:
                completions.append(job)
            elif type(op) is Claim and (op.fresh_until is None or op.fresh_until >= now):
                claims.append(job)
        for jobs, many in ((claims, _CLAIM), (completions, _COMPLETE)):
            for start in range(0, len(jobs) - 1, SIZES[-1]):
                _run_many(connection, jobs[start : start + SIZES[-1]], now, many)
            # At once: no later operation may undo what took effect before its reply is set.
            _run_each(connection, jobs, now)
    _run_each(connection, batch, now)


def _run_each(connection: sqlite3.Connection, jobs: Sequence[WriterJob], now: Micros) -> None:
    """Run each job that has neither reply nor error. An error of one undoes only its statement."""
    for job in jobs:
        if job.reply is not None or job.error is not None:
            continue
        try:
            job.reply = file.run(connection, plan(job.op), now)
        except sqlite3.Error as error:
            if file.spoils_transaction(error):
                raise
            job.error = file.outage(error, applied=False)
        except Exception as error:
            job.error = error


class _Many:
    """One statement for many operations of a kind.

    ``values``: the parameters of all rows. ``reply``: to an operation whose row was changed.
    """

    def __init__(
        self,
        query: str,
        values: Callable[[Any, Micros], list[object]],
        reply: Callable[[Any, Micros], object],
    ) -> None:
        compiled = file.DIALECT.queries[query]
        self.width = len(compiled.takes)
        self.texts = {size: compiled.for_rows(size) for size in SIZES}
        self.values = values
        self.reply = reply


def _run_many(
    connection: sqlite3.Connection, jobs: Sequence[WriterJob], now: Micros, many: _Many
) -> None:
    """Run one statement for all of them, and set their replies if it changed every row."""
    ops = [job.op for job in jobs]
    size = next(size for size in SIZES if size >= len(ops))
    try:
        values = many.values(ops, now)
        values += values[-many.width :] * (size - len(ops))
        changed = connection.execute(many.texts[size], values).rowcount
    except sqlite3.Error as error:
        if file.spoils_transaction(error):
            raise
        return
    except Exception:
        # One of them cannot be written at all. Each runs alone next, and only that one fails.
        return
    if changed == len(ops):
        for job in jobs:
            job.reply = many.reply(job.op, now)


def _claim_values(ops: Sequence[Claim], now: Micros) -> list[object]:
    values: list[object] = []
    for op in ops:
        origin = op.origin
        place = (origin.tenant, origin.method, origin.path, origin.key)
        fingerprint, *texts, key = described(op.fingerprint, *place)
        values += (bytearray(op.identity), bytearray(op.fence), packed_fingerprint(fingerprint))
        values += (bytearray(op.fields), *texts, packed_key(key))
        on_lapse, duty = _ON_LAPSE[op.on_lapse]
        values += (on_lapse, now, now + op.lease, duty, op.request, op.terms)
    return values


def _complete_values(ops: Sequence[Complete], now: Micros) -> list[object]:
    values: list[object] = []
    for op in ops:
        expires_at = now + op.retention
        resource = None if op.resource is None else shown(op.resource)
        values += (bytearray(op.identity), bytearray(op.fence), op.snapshot)
        values += (expires_at, expires_at + op.tombstone, resource)
    return values


_CLAIM: Final = _Many(
    "claim_many", _claim_values, lambda op, now: Claimed(now + op.lease, now, now)
)
_COMPLETE: Final = _Many(
    *("complete_many", _complete_values),
    lambda op, now: Applied(State.COMPLETED, now, None, now + op.retention),
)
