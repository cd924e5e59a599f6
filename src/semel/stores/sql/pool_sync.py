"""The pool for threads, for any database server: who has a connection, and when it is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from threading import Semaphore, Thread, get_ident
from time import monotonic
from typing import Final, Generic, TypeVar, cast

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.stores.open_transactions import HeldIdentity, LazySessions
from semel.stores.sql.plans import plan
from semel.stores.sql.pooled import (
    PooledConnection,
    PoolStatistics,
    ServerPool,
    ServerSettings,
)
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, drive, retried
from semel.stores.sql.transaction import Exchange, ServerTransaction, TransactionSteps

R = TypeVar("R")
C = TypeVar("C")


L = TypeVar("L", bound=PooledConnection)

_TRIM_EVERY: Final = 10.0
"""Seconds between two looks at what is idle, at most; a short ``max_idle`` is looked at sooner."""


class ConnectionPool(ServerPool, Generic[L]):
    """At most ``pool_size`` connections; the one used last is used next, so that those which are
    not needed grow idle. Whoever uses the pool closes them (`trim`).

    A server's own pool says how a connection is opened, used and checked. ``migrate`` is called
    before the first connection is made.
    """

    def __init__(self, settings: ServerSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self._slots = Semaphore(self._size)
        self._idle: deque[L] = deque()
        self._waiting: set[int] = set()
        self._trim_at = 0.0
        self._closed = False

    def _run(self, conn: L, statement: Statement, deadline: float) -> Rows:
        raise NotImplementedError

    def _alive(self, conn: L, deadline: float) -> bool:
        return not conn.lost()

    def _connect(self, deadline: float) -> L:
        raise NotImplementedError

    def _greet(self, conn: L, deadline: float) -> None:
        """Check that the server is one that keeps what it acknowledges."""
        raise NotImplementedError

    def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = retried(plan(op), self.store_error, doubt=doubt)
        return drive(steps, lambda statement: self.execute(statement, deadline))

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        self._closed = True
        self._drop_idle()

    def execute(self, statement: Statement, deadline: float) -> Rows:
        conn, broken = self._borrow(deadline), True
        try:
            rows = self._run(conn, statement, deadline)
            broken = False
            return rows
        except StatementFault as fault:
            broken = fault.broken
            if fault.contagious:
                self._drop_idle()
            raise
        finally:
            try:
                if broken:
                    conn.close()
                else:
                    self._rest(conn)
            finally:
                self._slots.release()

    def statistics(self) -> PoolStatistics:
        return self._connections.statistics(len(self._idle), len(self._waiting))

    def trim(self) -> None:
        """Close connections that nobody has needed for long; the first is the longest idle."""
        while self._idle:
            try:
                conn = self._idle.popleft()
            except IndexError:  # another thread has taken it
                return
            if conn.idle_since > monotonic() - self._max_idle:
                self._idle.appendleft(conn)
                return
            conn.close()

    def _rest(self, conn: L) -> None:
        """Keep a connection for its next user, unless its time is over."""
        now = conn.idle_since = monotonic()
        if self._closed or conn.expires_at <= now:
            conn.close()
        else:
            self._idle.append(conn)
        if self._trim_at <= now:
            self._trim_at = now + min(_TRIM_EVERY, self._max_idle / 2)
            self.trim()

    def _borrow(self, deadline: float) -> L:
        """A connection, with one of the slots."""
        if not self._slots.acquire(blocking=False):
            self._wait_for_slot(deadline)
        try:
            while conn := self._pop():
                if conn.expires_at > monotonic() and self._alive(conn, deadline):
                    return conn
                conn.close()
            return self._open(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _wait_for_slot(self, deadline: float) -> None:
        me = get_ident()
        self._waiting.add(me)
        try:
            if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
                raise self._none_came_free()
        finally:
            self._waiting.discard(me)

    def _open(self, deadline: float) -> L:
        if self._migrate and not self._ready:
            connected(self._migrate, lambda _: None, deadline)
        conn = self._connect(deadline)
        conn.join(self._connections)
        try:
            self._greet(conn, deadline)
            if not self._ready:
                drive(self._check_schema(), lambda asked: self._run(conn, asked, deadline))
        except BaseException:
            conn.close()
            raise
        return conn

    def _drop_idle(self) -> None:
        while conn := self._pop():
            conn.close()

    def _pop(self) -> L | None:
        try:
            return self._idle.pop()
        except IndexError:  # asking first would race with other threads
            return None


class TransactionPool(ConnectionPool[L]):
    """At most ``pool_size`` transactions at once, on connections of their own: handlers that hold
    all of them must not keep renewals and completions of others waiting."""

    DATABASE: str
    """The server's name, for messages."""
    steps: TransactionSteps[L]

    def __init__(self, settings: ServerSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self.sessions = LazySessions(self.DIALECT)

    def exchange(self, conn: L, exchange: Exchange, deadline: float) -> Rows:
        """Run the exchange to its end, or give up and leave the connection unusable."""
        raise NotImplementedError

    def _send_last(self, conn: L, exchange: Exchange) -> None:
        """Send it; the next user of the connection may read the answer (`_alive`)."""
        raise NotImplementedError

    def begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> ServerTransaction | None:
        """None when another one has the identity's lock."""
        try:
            try:
                return self._begin(identity, hold, limit)
            except StatementFault as fault:
                if not fault.contagious:
                    raise
                self._drop_idle()  # nothing was begun: a new connection may do
                return self._begin(identity, hold, limit)
        except StatementFault as fault:
            raise self.store_error(fault, doubt=False) from None

    def _begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> ServerTransaction | None:
        deadline = self.deadline()
        conn = self._borrow(deadline)
        usable = won = False
        try:
            won = bool(self.exchange(conn, self.steps.begin(conn, identity, limit), deadline)[0][0])
            usable = True
        except StatementFault as fault:
            usable = not fault.broken
            raise
        finally:
            if not won:
                self.give_back(conn, usable=usable, wipe=False)
        return ServerTransaction(self, conn, identity, hold) if won else None

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """On a new connection: those of the pool may have the same trouble as the doubtful one."""
        deadline = self.deadline()
        try:
            conn = self._open(deadline)
            try:
                rows = self.exchange(conn, self.steps.ascertain(conn, identity, deadline), deadline)
            finally:
                conn.close()
        except StatementFault as fault:
            raise self.store_error(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, conn: L, *, usable: bool, wipe: bool) -> None:
        if usable:
            try:
                last = self.steps.wipe(conn) if wipe else self.steps.roll_back(conn)
                self._send_last(conn, last)
                self._rest(conn)
            except StatementFault:
                conn.close()
        else:
            self.steps.cancel(conn)
            conn.close()
        self.free_slot()

    def free_slot(self) -> None:
        """Let another begin. From any thread."""
        self._slots.release()


def connected(connect: Callable[[], C], drop: Callable[[C], None], deadline: float) -> C:
    """Connect until a deadline, in a thread: neither name resolution nor a driver takes one. A
    connection that comes too late is dropped."""
    opening: Future[C] = Future()

    def work() -> None:
        try:
            connection = connect()
        except BaseException as error:
            with suppress(InvalidStateError):  # the caller has given up
                opening.set_exception(error)
            return
        try:
            opening.set_result(connection)
        except InvalidStateError:
            drop(connection)

    Thread(target=work, name="semel-connect", daemon=True).start()
    wait_for([opening], max(0.0, deadline - monotonic()))
    if opening.cancel():
        raise StatementFault("no connection within the time limit")
    return opening.result()
