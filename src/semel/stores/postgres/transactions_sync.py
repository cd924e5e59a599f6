"""Transactions for threads, on connections of their own.

They have their own pool: handlers that hold all of its connections must not keep renewals and
completions of others waiting.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from psycopg import pq

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.open_transactions import ENDED, SHARED, HeldIdentity, LazySessions
from semel.stores.postgres import transaction_steps as steps
from semel.stores.postgres.connection import Exchange, PostgresConnection
from semel.stores.postgres.errors import PostgresFault, store_error
from semel.stores.postgres.handler_connection import ConnectionTurn, HandlerConnections
from semel.stores.postgres.pool_sync import PostgresPool, ready, wait
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.plans import Rows
from semel.stores.sql.statement_retry import StatementFault

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions

R = TypeVar("R")


class PostgresTransactionState:
    """What both colours share: the connection, who uses it, and how the transaction stands."""

    def __init__(
        self,
        conn: PostgresConnection,
        identity: Identity | None,
        hold: HeldIdentity,
        shelf: LazySessions,
    ) -> None:
        self._conn = conn
        self._turn = ConnectionTurn(conn)
        self._handler_connections = HandlerConnections(self._turn)
        self._marked = identity is None
        self._broken = False
        self._hold: HeldIdentity | None = hold
        self._shelf = shelf
        self._sessions: JoinedSessions | None = None
        self._end_lock = threading.Lock()
        self._ending_began = False
        self._severed: StoreUnavailable | None = None

    @property
    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        return self._handler_connections.connection

    @property
    def session(self) -> Session | AsyncSession:
        self._turn.check()
        if self._sessions is None:
            self._sessions = self._shelf.open(self._handler_connections.another)
        return self._sessions.session

    def sever(self, why: str) -> bool:
        # Until its end has begun the connection is nobody else's, so nobody else's is cut.
        with self._end_lock:
            if self._ending_began or self._severed is not None or self._turn.forked:
                return True
            self._severed = StoreUnavailable(f"PostgreSQL: {why}", applied=False)
            self._hold = None
            hang_up(self._conn._pgconn)
            self._forfeit()
            return True

    def _forfeit(self) -> None:
        """Free its slot in the pool, however long its handler goes on."""
        raise NotImplementedError

    def _begin_end(self) -> None:
        with self._end_lock:
            self._ending_began = True

    def _drop_sessions(self) -> None:
        """Before the transaction ends or is undone, of which a session would not know."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _require_begun(self) -> None:
        """Refuse a statement after the handler's own COMMIT: it would commit by itself."""
        if self._turn.status == steps.IDLE:
            self._turn.ended_by_handler = True
            raise ConfigurationError(ENDED)
        if lost := self._lost():
            raise lost

    def _lost(self) -> StoreUnavailable | None:
        """The error if the connection is lost: its socket's number may be another's by now."""
        if self._severed is not None:
            return self._severed
        if self._broken or self._turn.status not in (steps.IN_TRANSACTION, steps.FAILED):
            self._broken = True
            return StoreUnavailable("PostgreSQL: the connection was lost", applied=False)
        return None

    def _error_of(self, fault: StatementFault) -> SemelError:
        """The caller's error. Whatever happened within the transaction, it was not committed."""
        self._broken = self._broken or fault.broken
        return store_error(fault, doubt=False)

    def _why_not_commit(self) -> SemelError | None:
        """The error if it is known already that this cannot be committed."""
        status = self._turn.status
        if self._turn.ended_by_handler or status == steps.IDLE:
            self._broken = True  # the handler may have done more to it
            return ConfigurationError(ENDED)
        if lost := self._lost():
            return lost
        if status == steps.FAILED:
            said = "PostgreSQL: a failed statement has aborted the transaction"
            return StoreUnavailable(said, applied=False)
        return None

    def _unusable(self) -> bool:
        pgconn = self._conn._pgconn
        return (
            self._broken
            or self._severed is not None
            or self._conn._unsure
            or pgconn.status != pq.ConnStatus.OK
            or pgconn.pipeline_status != pq.PipelineStatus.OFF
            or pgconn.transaction_status not in (steps.IDLE, steps.IN_TRANSACTION, steps.FAILED)
        )

    def _needs_wipe(self) -> bool:
        """Whether a handler used the session, which must then be wiped for the next.

        Behind a pooler the session is not ours anyway.
        """
        return self._handler_connections.used and not self._conn.pooled


class PostgresTransaction(PostgresTransactionState):
    """See `semel.stores.base.Transaction`."""

    def __init__(
        self,
        pool: PostgresTransactionPool,
        conn: PostgresConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        super().__init__(conn, identity, hold, pool.shelf)
        self._pool = pool
        self._end: SemelError | str | None = None

    def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", self._run(steps.perform(self._conn, op))[0][0])

    def savepoint(self) -> None:
        self._run(steps.savepoint(self._conn))
        self._marked = True

    def undo(self) -> None:
        self._drop_sessions()
        self._run(steps.undo(self._conn))

    def flush(self) -> None:
        if self._sessions is not None:
            self._sessions.flush()

    def commit(self) -> None:
        self._begin_end()
        if self._end is None:
            self._end = StoreUnavailable("PostgreSQL: the commit was interrupted", applied=None)
            self._end = self._commit() or "committed"
        if isinstance(self._end, SemelError):
            raise self._end

    def roll_back(self) -> None:
        self._begin_end()
        if self._end is None:
            self._end = StoreUnavailable("the transaction was rolled back", applied=False)
            self._drop_sessions()
            with suppress(Exception):
                self._leave(sealed=self._turn.end())

    def _forfeit(self) -> None:
        self._pool.forfeit(self._conn)

    def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
            return wait(self._conn, exchange, self._pool.deadline())
        except StatementFault as fault:
            raise self._error_of(fault) from None
        except SemelError:
            raise
        except BaseException:
            self._broken = True  # interrupted, with an answer still to come
            raise
        finally:
            self._turn.give()

    def _commit(self) -> SemelError | None:
        self._drop_sessions()
        sealed = self._turn.end()
        try:
            error = self._send_commit() if sealed else ConfigurationError(SHARED)
        except BaseException:
            self._broken = True
            raise
        finally:
            self._leave(sealed=sealed)
        return error

    def _send_commit(self) -> SemelError | None:
        self._turn.unhook()
        if error := self._why_not_commit():
            return error
        try:
            wait(self._conn, steps.commit(self._conn, marked=self._marked), self._pool.deadline())
        except PostgresFault as fault:
            self._broken = True
            return steps.refused_commit(fault)
        except SemelError as error:
            self._broken = getattr(error, "applied", None) is not False
            return error
        return None

    def _leave(self, *, sealed: bool) -> None:
        """Give the connection back, or end it; what is left of the transaction is rolled back."""
        self._hold = None
        if self._turn.forked:
            return
        if not sealed:
            self._pool.sever(self._conn)
            return
        self._turn.unhook()
        if not self._unusable():
            try:
                wait(self._conn, steps.roll_back(self._conn), self._pool.deadline())
            except StatementFault:
                self._broken = True
        self._pool.give_back(self._conn, usable=not self._unusable(), wipe=self._needs_wipe())


class PostgresTransactionPool(PostgresPool):
    """At most ``pool_size`` transactions at once."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self.shelf = LazySessions("postgresql")
        self._unread: dict[PostgresConnection, Exchange] = {}
        self._forfeited: set[PostgresConnection] = set()

    def deadline(self) -> float:
        return monotonic() + self._settings.timeout

    def begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> PostgresTransaction | None:
        try:
            try:
                return self._begin(identity, hold, limit)
            except StatementFault as fault:
                if not fault.contagious:
                    raise
                self._drop_idle()
                # Nothing was begun: a new connection may do.
                return self._begin(identity, hold, limit)
        except StatementFault as fault:
            raise store_error(fault, doubt=False) from None

    def _begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> PostgresTransaction | None:
        deadline = self.deadline()
        conn = self._borrow(deadline)
        usable = won = False
        try:
            won = bool(wait(conn, steps.begin(conn, identity, limit), deadline)[0][0])
            usable = True
        except StatementFault as fault:
            usable = not fault.broken
            raise
        finally:
            if not won:
                self.give_back(conn, usable=usable)
        return PostgresTransaction(self, conn, identity, hold) if won else None

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """On a new connection: those of the pool may have the same trouble as the doubtful one."""
        deadline = self.deadline()
        try:
            conn = self._open(deadline)
            try:
                patience = max(1, int((deadline - monotonic()) * 900))
                rows = wait(conn, steps.ascertain(conn, identity, patience), deadline)
            finally:
                conn.close()
        except StatementFault as fault:
            raise store_error(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, conn: PostgresConnection, *, usable: bool, wipe: bool = False) -> None:
        """Send the last statement now; the next user of the connection reads its answer."""
        if usable and not self._closed:
            leaving = steps.wipe(conn) if wipe else steps.roll_back(conn)
            try:
                next(leaving)
                self._unread[conn] = leaving
                self._idle.append(conn)
            except StopIteration:
                self._idle.append(conn)
            except StatementFault:
                conn.close()
        else:
            cancel(conn._pgconn)
            conn.close()
        self._free_slot(conn)

    def sever(self, conn: PostgresConnection) -> None:
        """Cut a connection that somebody is using for a statement; the rest is left to them."""
        hang_up(conn._pgconn)
        self._free_slot(conn)

    def forfeit(self, conn: PostgresConnection) -> None:
        """Free the slot of a severed connection before its user has noticed."""
        self._forfeited.add(conn)
        self._slots.release()

    def _free_slot(self, conn: PostgresConnection) -> None:
        if conn in self._forfeited:
            self._forfeited.discard(conn)
        else:
            self._slots.release()

    def _borrow(self, deadline: float) -> PostgresConnection:
        if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
            size = self._settings.pool_size
            raise StatementFault(
                f"no connection came free within the time limit (pool_size={size})"
            )
        try:
            while conn := self._pop():
                if self._is_ready(conn, deadline):
                    return conn
                conn.close()
            return self._open(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _is_ready(self, conn: PostgresConnection, deadline: float) -> bool:
        leaving = self._unread.pop(conn, None)
        if leaving is None:
            return not ready(conn, 0, 0.0) or conn.alive()
        try:
            wait(conn, leaving, deadline)
        except StatementFault:
            return False
        return True

    def _drop_idle(self) -> None:
        while conn := self._pop():
            self._unread.pop(conn, None)
            conn.close()


def cancel(pgconn: pq.abc.PGconn) -> None:
    """Cancel a statement that the server may still be busy with: it keeps locks until its end."""
    if pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status == _ACTIVE:
        with suppress(psycopg.Error):
            threading.Thread(target=_cancel, args=(pgconn.get_cancel(),), daemon=True).start()


_ACTIVE = pq.TransactionStatus.ACTIVE


def _cancel(request: pq.abc.PGcancel) -> None:
    """Several times: a request that arrives before the statement has begun has no effect, and one
    that arrives when the connection is gone does no harm."""
    for pause in (0, 0.05, 0.3, 2, 10):
        sleep(pause)
        with suppress(psycopg.Error):
            request.cancel()


def hang_up(pgconn: pq.abc.PGconn) -> None:
    """Shut down the socket without touching libpq's connection, which another thread is using."""
    cancel(pgconn)
    with (
        suppress(OSError, psycopg.Error),
        # Asked now, not before: libpq closes a socket that failed, and its number may be reused.
        socket.socket(fileno=os.dup(pgconn.socket)) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
