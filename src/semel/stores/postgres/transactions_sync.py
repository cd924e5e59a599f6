"""Transactions for threads, on connections of their own.

They have their own pool: handlers that hold all of its connections must not keep renewals and
completions of others waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeVar, cast

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.errors import SemelError, StoreUnavailable
from semel.stores.open_transactions import HeldIdentity, LazySessions
from semel.stores.postgres import transaction as steps
from semel.stores.postgres.connection import Exchange, PostgresConnection
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.pool_sync import PostgresPool, wait
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.transaction import PostgresTransactionState, cancel, hang_up
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import StatementFault, drive

R = TypeVar("R")


class PostgresTransaction(PostgresTransactionState[PostgresConnection]):
    """See `semel.stores.base.Transaction`."""

    def __init__(
        self,
        pool: PostgresTransactionPool,
        conn: PostgresConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        super().__init__(pool, conn, conn, identity, hold)
        self._pool = pool
        self._end: SemelError | str | None = None

    def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", self._run(steps.perform(self._conn, op))[0][0])

    def savepoint(self) -> None:
        self._run(steps.command(self._conn, steps.SAVEPOINT))
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
            self._end = drive(self._ending(commit=True), self._send) or "committed"
        if isinstance(self._end, SemelError):
            raise self._end

    def roll_back(self) -> None:
        self._begin_end()
        if self._end is None:
            self._end = StoreUnavailable("the transaction was rolled back", applied=False)
            with suppress(Exception):
                drive(self._ending(commit=False), self._send)

    def _send(self, exchange: Exchange) -> Rows:
        return wait(self._conn, exchange, self._pool.deadline())

    def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
            return self._send(exchange)
        except StatementFault as fault:
            self._broken = self._broken or fault.broken
            raise store_error(fault, doubt=False) from None  # whatever it was, nothing is committed
        except SemelError:
            raise
        except BaseException:
            self._broken = True  # interrupted, with an answer still to come
            raise
        finally:
            self._turn.give()


class PostgresTransactionPool(PostgresPool):
    """At most ``pool_size`` transactions at once."""

    def __init__(self, settings: PostgresSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self.shelf = LazySessions("postgresql")

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
                self._drop_idle()  # nothing was begun: a new connection may do
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
                rows = wait(conn, steps.ascertain(conn, identity, deadline), deadline)
            finally:
                conn.close()
        except StatementFault as fault:
            raise store_error(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, conn: PostgresConnection, *, usable: bool, wipe: bool = False) -> None:
        """Send the last statement now; the next user of the connection reads its answer."""
        if usable and not self._closed:
            leaving = steps.command(conn, steps.WIPE) if wipe else steps.roll_back(conn)
            try:
                next(leaving)
                conn.unread = leaving
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
        conn.forfeited = True
        self._slots.release()

    def _free_slot(self, conn: PostgresConnection) -> None:
        if not conn.forfeited:
            self._slots.release()

    def _alive(self, conn: PostgresConnection, deadline: float) -> bool:
        leaving, conn.unread = conn.unread, None
        if leaving is None:
            return super()._alive(conn, deadline)
        try:
            wait(conn, leaving, deadline)
        except StatementFault:
            return False
        return True
