"""Transactions for threads, on connections of their own.

They have a pool apart from that of the record operations: handlers that hold all of these must not
keep renewals and completions of others waiting.
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
from semel.stores.postgres.connection import Exchange, Link
from semel.stores.postgres.errors import Fault as Refusal
from semel.stores.postgres.errors import verdict
from semel.stores.postgres.handed_connection import Handout, Turn
from semel.stores.postgres.pool_sync import BlockingPool, ready, wait
from semel.stores.postgres.settings import Settings
from semel.stores.sql.plans import Rows
from semel.stores.sql.statement_retry import Fault

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions

R = TypeVar("R")


class OpenTransaction:
    """What both colours share: the link, whose turn it is on it, and what befell it."""

    def __init__(
        self, link: Link, identity: Identity | None, hold: HeldIdentity, shelf: LazySessions
    ) -> None:
        self._link = link
        self._turn = Turn(link)
        self._handout = Handout(self._turn)
        self._marked = identity is None
        self._broken = False
        self._hold: HeldIdentity | None = hold
        self._shelf = shelf
        self._sessions: JoinedSessions | None = None
        self._fate = threading.Lock()
        self._ends = False
        self._severed: StoreUnavailable | None = None

    @property
    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        return self._handout.connection

    @property
    def session(self) -> Session | AsyncSession:
        self._turn.check()
        if self._sessions is None:
            self._sessions = self._shelf.open(self._handout.another)
        return self._sessions.session

    def sever(self, why: str) -> bool:
        # Before its end has begun the link is nobody else's, so nobody else's line is cut.
        with self._fate:
            if self._ends or self._severed is not None or self._turn.foreign:
                return True
            self._severed = StoreUnavailable(f"PostgreSQL: {why}", applied=False)
            self._hold = None
            hang_up(self._link._pgconn)
            self._forfeit()
            return True

    def _forfeit(self) -> None:
        """Its place in the pool is free, however long its handler hangs on."""
        raise NotImplementedError

    def _begin_end(self) -> None:
        with self._fate:
            self._ends = True

    def _drop_sessions(self) -> None:
        """Before the transaction ends, or goes back, behind their back."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _require_begun(self) -> None:
        """A statement after the handler's own COMMIT would be one by itself, and stay."""
        if self._turn.status == steps.IDLE:
            self._turn.astray = True
            raise ConfigurationError(ENDED)
        if lost := self._lost():
            raise lost

    def _lost(self) -> StoreUnavailable | None:
        """Of no use any more: the number of its socket may be another's by now."""
        if self._severed is not None:
            return self._severed
        if self._broken or self._turn.status not in (steps.IN_TRANSACTION, steps.FAILED):
            self._broken = True
            return StoreUnavailable("PostgreSQL: the connection was lost", applied=False)
        return None

    def _judge(self, fault: Fault) -> SemelError:
        """Whatever happened within the transaction, it was not committed."""
        self._broken = self._broken or fault.broken
        return verdict(fault, doubt=False)

    def _obstacle(self) -> SemelError | None:
        """Why this cannot be committed, as far as is known here."""
        status = self._turn.status
        if self._turn.astray or status == steps.IDLE:
            self._broken = True  # nobody knows what else was done to it
            return ConfigurationError(ENDED)
        if lost := self._lost():
            return lost
        if status == steps.FAILED:
            said = "PostgreSQL: a failed statement has aborted the transaction"
            return StoreUnavailable(said, applied=False)
        return None

    def _unusable(self) -> bool:
        pgconn = self._link._pgconn
        return (
            self._broken
            or self._severed is not None
            or self._link._unsure
            or pgconn.status != pq.ConnStatus.OK
            or pgconn.pipeline_status != pq.PipelineStatus.OFF
            or pgconn.transaction_status not in (steps.IDLE, steps.IN_TRANSACTION, steps.FAILED)
        )

    def _wiped(self) -> bool:
        """Whether a handler had the connection and it must be wiped for the next.

        Behind a pooler the session is not ours, and a handler cannot expect it to be.
        """
        return self._handout.used and not self._link.pooled


class BlockingTransaction(OpenTransaction):
    """See `semel.stores.base.Transaction`."""

    def __init__(
        self, pool: TransactionPool, link: Link, identity: Identity | None, hold: HeldIdentity
    ) -> None:
        super().__init__(link, identity, hold, pool.shelf)
        self._pool = pool
        self._end: SemelError | str | None = None

    def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", self._run(steps.perform(self._link, op))[0][0])

    def savepoint(self) -> None:
        self._run(steps.savepoint(self._link))
        self._marked = True

    def undo(self) -> None:
        self._drop_sessions()
        self._run(steps.undo(self._link))

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
        self._pool.forfeit(self._link)

    def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
            return wait(self._link, exchange, self._pool.deadline())
        except Fault as fault:
            raise self._judge(fault) from None
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
        self._turn.hush()
        if error := self._obstacle():
            return error
        try:
            wait(self._link, steps.commit(self._link, marked=self._marked), self._pool.deadline())
        except Refusal as fault:
            self._broken = True
            return steps.refused_commit(fault)
        except SemelError as error:
            self._broken = getattr(error, "applied", None) is not False
            return error
        return None

    def _leave(self, *, sealed: bool) -> None:
        """Give the connection back, or end it; what is left of the transaction is rolled back."""
        self._hold = None
        if self._turn.foreign:
            return
        if not sealed:
            self._pool.sever(self._link)
            return
        self._turn.hush()
        if not self._unusable():
            try:
                wait(self._link, steps.roll_back(self._link), self._pool.deadline())
            except Fault:
                self._broken = True
        self._pool.give_back(self._link, usable=not self._unusable(), wipe=self._wiped())


class TransactionPool(BlockingPool):
    """At most ``pool_size`` transactions at once."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.shelf = LazySessions("postgresql")
        self._leaving: dict[Link, Exchange] = {}
        self._forfeited: set[Link] = set()

    def deadline(self) -> float:
        return monotonic() + self._settings.timeout

    def begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> BlockingTransaction | None:
        try:
            try:
                return self._begin(identity, hold, limit)
            except Fault as fault:
                if not fault.contagious:
                    raise
                self._drop_idle()
                # Nothing was begun: a new connection may do.
                return self._begin(identity, hold, limit)
        except Fault as fault:
            raise verdict(fault, doubt=False) from None

    def _begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> BlockingTransaction | None:
        deadline = self.deadline()
        link = self._borrow(deadline)
        usable = won = False
        try:
            won = bool(wait(link, steps.begin(link, identity, limit), deadline)[0][0])
            usable = True
        except Fault as fault:
            usable = not fault.broken
            raise
        finally:
            if not won:
                self.give_back(link, usable=usable)
        return BlockingTransaction(self, link, identity, hold) if won else None

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """On a connection of its own: those of the pool may have met what the doubtful one met."""
        deadline = self.deadline()
        try:
            link = self._open(deadline)
            try:
                patience = max(1, int((deadline - monotonic()) * 900))
                rows = wait(link, steps.ascertain(link, identity, patience), deadline)
            finally:
                link.close()
        except Fault as fault:
            raise verdict(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, link: Link, *, usable: bool, wipe: bool = False) -> None:
        """What is still to be said to the server is said now, and its answer read by the next."""
        if usable and not self._closed:
            leaving = steps.wipe(link) if wipe else steps.roll_back(link)
            try:
                next(leaving)
                self._leaving[link] = leaving
                self._idle.append(link)
            except StopIteration:
                self._idle.append(link)
            except Fault:
                link.close()
        else:
            cancel(link._pgconn)
            link.close()
        self._free_slot(link)

    def sever(self, link: Link) -> None:
        """Somebody is in the middle of a statement: cut the line, and leave the rest to them."""
        hang_up(link._pgconn)
        self._free_slot(link)

    def forfeit(self, link: Link) -> None:
        """The slot of a severed link is free before its user has noticed."""
        self._forfeited.add(link)
        self._slots.release()

    def _free_slot(self, link: Link) -> None:
        if link in self._forfeited:
            self._forfeited.discard(link)
        else:
            self._slots.release()

    def _borrow(self, deadline: float) -> Link:
        if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
            size = self._settings.pool_size
            raise Fault(f"no connection came free within the time limit (pool_size={size})")
        try:
            while link := self._pop():
                if self._has_left(link, deadline):
                    return link
                link.close()
            return self._open(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _has_left(self, link: Link, deadline: float) -> bool:
        leaving = self._leaving.pop(link, None)
        if leaving is None:
            return not ready(link, 0, 0.0) or link.alive()
        try:
            wait(link, leaving, deadline)
        except Fault:
            return False
        return True

    def _drop_idle(self) -> None:
        while link := self._pop():
            self._leaving.pop(link, None)
            link.close()


def cancel(pgconn: pq.abc.PGconn) -> None:
    """End a statement that the server may still be busy with: it keeps the locks until then."""
    if pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status == _ACTIVE:
        with suppress(psycopg.Error):
            threading.Thread(target=_cancel, args=(pgconn.get_cancel(),), daemon=True).start()


_ACTIVE = pq.TransactionStatus.ACTIVE


def _cancel(request: pq.abc.PGcancel) -> None:
    """Several times: one that is there before the statement has begun is no use to anybody, and one
    that comes when the connection is gone does no harm."""
    for pause in (0, 0.05, 0.3, 2, 10):
        sleep(pause)
        with suppress(psycopg.Error):
            request.cancel()


def hang_up(pgconn: pq.abc.PGconn) -> None:
    """Without touching libpq's connection, which another thread is using; it is told by a poll."""
    cancel(pgconn)
    with (
        suppress(OSError, psycopg.Error),
        # Asked now: libpq closes a socket that failed, and its number may be another's by now.
        socket.socket(fileno=os.dup(pgconn.socket)) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
