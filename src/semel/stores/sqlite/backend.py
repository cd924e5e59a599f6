"""What ``sqlite:///file.db`` names: the blocking store, the async store, and forks."""

from __future__ import annotations

import asyncio
import atexit
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

from semel.core import operations as ops
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError
from semel.stores import base
from semel.stores.background import in_thread
from semel.stores.options import flag, in_url, seconds
from semel.stores.sql.plans import claim_reply, plan
from semel.stores.sqlite.connection import open_for_writing, outage, run, upgrade
from semel.stores.sqlite.transaction import SqliteTransactions
from semel.stores.sqlite.writer import WRITERS, SqliteWriter, WriterJob

R = TypeVar("R")

DEFAULT_TIMEOUT = 5.0
_CAPABILITIES: Final = base.Capabilities(
    durable=True, shared=True, transactions=True, one_writer=True
)
_NOT_HERE: Final = object()

LISTINGS: Final = frozenset(
    {
        *(ops.Due, ops.CountDue, ops.Browse, ops.Scan, ops.Count, ops.ListNewest, ops.ListTerms),
        *(ops.BrowseEffects, ops.ListNewestEffects, ops.FindEffect, ops.BrowseAudit),
        *(ops.CountUnsettled, ops.SampleRecords, ops.CountEffects),
        *(ops.ListBelongings, ops.ListUnlike, ops.WhoLeads),
        *(ops.BrowseNotables, ops.ListWorkers),
    }
)
"""They may read much, and need no write lock. In an event loop they run in a thread."""
_OPENING: Final = ops.WhoLeads("-")
"""Asked of the writer, which opens the file: a list that comes first must not keep it for long."""
_LONG: Final = LISTINGS - {ops.WhoLeads}
_LOOKS: Final = frozenset({ops.Fetch, ops.Recall, ops.ReadRecipe, *LISTINGS})


class SqliteBackend(base.PrintableBackend):
    """Records in one file.

    timeout: how long an operation may take in all, in seconds (5).
    foreign_keys: whether SQLite enforces them in the transactions of handlers (off, as in SQLite).
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float | None = None,
        foreign_keys: bool | None = None,
        clock: base.Clock = base.system_clock,
    ) -> None:
        self.url = url
        self.capabilities = _CAPABILITIES
        self._path, options = parse(url)
        asked = options.get("timeout", DEFAULT_TIMEOUT) if timeout is None else timeout
        self.timeout = seconds("timeout", asked)
        self._clock = clock
        self._lock = threading.Lock()
        self._writer: SqliteWriter | None = None
        enforced = options.get("foreign_keys", False) if foreign_keys is None else foreign_keys
        self._transactions = SqliteTransactions(
            self._path, self.timeout, clock, flag("foreign_keys", enforced)
        )
        # Weak: a store refers to its loop, and a loop that ended must not be kept alive.
        self._loops: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, _AsyncSqliteStore]
        self._loops = weakref.WeakValueDictionary()
        _LIVE.add(self)

    def blocking(self) -> base.Store:
        return self

    def awaited(self) -> base.AsyncStore:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        return found or self._loops.setdefault(loop, _AsyncSqliteStore(self, loop))

    def on(self, connection: sqlite3.Connection) -> base.Store:
        """A store inside the caller's own transaction: durable when the caller commits."""
        return SqliteJoinedStore(connection, self._clock)

    def begin(
        self, identity: Identity | None, limit: float | None = None
    ) -> base.Transaction | None:
        """``limit`` is not used: there is no server that could end an idle transaction."""
        return self._transactions.begin(identity)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> base.AsyncTransaction | None:
        return await self._transactions.abegin(identity)

    def ascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        return self._transactions.ascertain(identity)

    async def aascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        return await in_thread(partial(self._transactions.ascertain, identity))

    def migrate(self) -> int:
        now = self._clock()
        connection = open_for_writing(self._path, self.timeout, now, sqlite3.Connection)
        try:
            return upgrade(connection, self.timeout, now)
        finally:
            connection.close()

    def close(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        self._transactions.close()

    async def aclose(self) -> None:
        # In a thread: this loop must still receive the replies that are under way.
        await asyncio.to_thread(self.close)

    # ── operations ───────────────────────────────────────────────────────────────────────────────

    def perform(self, op: StoreOperation[R], /) -> R:
        """The store for threads."""
        answer = self.answer_at_once(op)
        if answer is _NOT_HERE and type(op) in _LONG:
            self.perform(_OPENING)
            answer = self.answer_at_once(op)
        if answer is not _NOT_HERE:
            return cast("R", answer)
        done = threading.Lock()  # used once: the cheapest thing that a thread can wait for
        done.acquire()
        job = WriterJob(op, lambda _: done.release())
        self.submit(job)
        if not done.acquire(timeout=self.timeout):
            raise job.give_up()
        if job.error is not None:
            raise job.error
        return cast("R", job.reply)

    def answer_at_once(self, op: StoreOperation[R]) -> R | object:
        """The reply to a read, or to a claim whose record exists; else ``_NOT_HERE``."""
        writer, kind = self._writer, type(op)
        if writer is None or not writer.ready:
            return _NOT_HERE
        if isinstance(op, ops.Read):
            record, now = writer.look(op.identity)
            return ops.NoRecord(now) if record is None else ops.Found(record, now)
        if isinstance(op, ops.Claim):
            if not writer.contended:
                return _NOT_HERE
            record, now = writer.look(op.identity)
            return _NOT_HERE if record is None else claim_reply(op, record, now)
        return writer.ask(plan(op)) if kind in _LOOKS else _NOT_HERE

    def submit(self, *jobs: WriterJob) -> None:
        while True:
            writer = self._writer
            if writer is None:
                with self._lock:
                    writer = self._writer or SqliteWriter(self._path, self.timeout, self._clock)
                    self._writer = writer
            if writer.submit(jobs):
                return
            # It was closed meanwhile; the next writer takes the job.
            with self._lock:
                if self._writer is writer:
                    self._writer = None

    # ── around a fork ────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """Undo open transactions, and start no writer from here on."""
        self._transactions.freeze()
        self._lock.acquire()

    def thaw(self) -> None:
        self._lock.release()
        self._transactions.thaw()

    def start_anew(self) -> None:
        """In a forked child: the writer thread and the loops exist only in the parent."""
        self._writer = None
        self._transactions.start_anew()
        self._loops = weakref.WeakValueDictionary()
        self._lock = threading.Lock()


class _AsyncSqliteStore:
    """The store of one event loop. It wakes once per batch, and has one timer for all deadlines.

    Operations of one turn of the loop are submitted together, two turns later, so that those of
    other tasks come along: waking the writer costs far more than a turn.
    """

    def __init__(self, backend: SqliteBackend, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._backend = backend
        call_soon: Any = loop.call_soon_threadsafe
        # Raises when the loop is closed: the work is done, and nobody waits.
        self._deliver = partial(call_soon, self._settle)
        self._leaving: list[_LoopJob] = []
        self._waiting: deque[_LoopJob] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        """A future; it is already done when a read has the reply."""
        if type(op) in LISTINGS:
            return self._list(op)
        future: asyncio.Future[Any] = self.loop.create_future()
        if type(op) is not ops.Complete:  # which only the writer can do
            try:
                answer = self._backend.answer_at_once(op)
            except Exception as error:
                future.set_exception(error)
                return future
            if answer is not _NOT_HERE:
                future.set_result(answer)
                return future
        self._send(op, future)
        return future

    async def _list(self, op: StoreOperation[R]) -> R:
        answer = await asyncio.to_thread(self._backend.answer_at_once, op)
        if answer is _NOT_HERE and type(op) in _LONG:
            await self._list(_OPENING)
            answer = await asyncio.to_thread(self._backend.answer_at_once, op)
        if answer is _NOT_HERE:
            self._send(op, future := self.loop.create_future())
            answer = await future
        return cast("R", answer)

    def _send(self, op: StoreOperation[Any], future: asyncio.Future[Any]) -> None:
        """Queue for the writer. A job that is cancelled there is still done; its reply is lost."""
        job = _LoopJob(op, self._deliver)
        job.future, job.sent_at = future, time.monotonic()
        self._waiting.append(job)
        if self._timer is None:
            self._timer = self.loop.call_later(self._backend.timeout, self._check_deadlines)
        if not self._leaving:
            self.loop.call_soon(self.loop.call_soon, self._submit)
        self._leaving.append(job)

    def _submit(self) -> None:
        # A job whose caller has already learnt that it was never begun must not begin.
        leaving = [job for job in self._leaving if not job.future.done()]
        self._leaving = []
        self._backend.submit(*leaving)

    def _settle(self, jobs: Sequence[WriterJob]) -> None:
        for job in cast("Sequence[_LoopJob]", jobs):
            future = job.future
            if future.done():
                continue
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.reply)
        while self._waiting and self._waiting[0].future.done():
            self._waiting.popleft()

    def _check_deadlines(self) -> None:
        self._timer = None
        too_old = time.monotonic() - self._backend.timeout
        while self._waiting:
            job = self._waiting[0]
            if not job.future.done():
                if job.sent_at > too_old:
                    patience = max(0.001, job.sent_at - too_old)
                    self._timer = self.loop.call_later(patience, self._check_deadlines)
                    return
                job.future.set_exception(job.give_up())
            self._waiting.popleft()


class _LoopJob(WriterJob):
    __slots__ = ("future", "sent_at")

    future: asyncio.Future[Any]
    sent_at: float


class SqliteJoinedStore:
    """A store inside the caller's transaction; it never batches."""

    def __init__(self, connection: sqlite3.Connection, clock: base.Clock) -> None:
        self._connection = connection
        self._clock = clock

    def perform(self, op: StoreOperation[R], /) -> R:
        connection = self._connection
        # ``autocommit`` came with Python 3.12; where it is False a transaction is always open.
        autocommit = getattr(connection, "autocommit", None)
        by_itself = autocommit is True or connection.isolation_level is None
        if by_itself and not connection.in_transaction:
            raise ConfigurationError("on(connection) works inside a transaction: BEGIN first")
        try:
            return run(connection, plan(op), self._clock())
        except sqlite3.Error as error:
            raise outage(error, applied=False) from error


# ── the URL ───────────────────────────────────────────────────────────────────────────────────────


def parse(url: str) -> tuple[Path, dict[str, str]]:
    """The file and the options: ``sqlite:///relative.db``, ``sqlite:////absolute/path.db``."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is no IPv6 address
        parts = None
    if parts is None or parts.netloc or not parts.path.startswith("/"):
        raise ConfigurationError("write sqlite:///relative.db or sqlite:////absolute/path.db")
    path = unquote(parts.path)[1:]
    if path == ":memory:" or not path:
        raise ConfigurationError(
            "a SQLite store needs a file, or its records would not survive: use sqlite:///semel.db "
            "(or memory:// in tests)"
        )
    # Absolute at once: a process that changes its folder must not change its store.
    return Path(path).absolute(), in_url(parts.query, ("timeout", "foreign_keys"), "SQLite")


# ── the process ───────────────────────────────────────────────────────────────────────────────────

_LIVE: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()
_frozen: list[SqliteBackend | SqliteWriter] = []


def _before_fork() -> None:
    parts: list[SqliteBackend | SqliteWriter] = [*_LIVE, *WRITERS]
    for part in parts:
        part.freeze()
        _frozen.append(part)


def _after_fork_in_parent() -> None:
    while _frozen:
        _frozen.pop().thaw()


def _after_fork_in_child() -> None:
    while _frozen:
        part = _frozen.pop()
        if isinstance(part, SqliteBackend):
            part.start_anew()
    WRITERS.clear()  # their threads exist only in the parent


def _at_exit() -> None:
    for backend in list(_LIVE):
        backend.close()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
atexit.register(_at_exit)
