"""A transaction that semel begins, as far as both colours share it: its statements, who may use its
connection, and how it stands. Nothing here waits for the server.

Nothing is prepared and nothing is set in the session: a pooler in transaction mode may carry the
next transaction over another server connection, and a handler's DEALLOCATE must not hurt.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from semel.core.operations.requests import Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.open_transactions import (
    ENDED,
    OVER,
    SHARED,
    HeldIdentity,
    LazySessions,
    in_event_loop,
)
from semel.stores.postgres.connection import Exchange, PostgresConnection, query
from semel.stores.postgres.errors import connection_lost
from semel.stores.postgres.psycopg_async import AsyncPostgresHandlerConnection
from semel.stores.postgres.psycopg_sync import PostgresHandlerConnection
from semel.stores.postgres.values import BINARY, encoded
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import StatementFault

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from semel.stores.sqlalchemy_sessions import JoinedSessions

C = TypeVar("C", contravariant=True)

# Whatever the database's default: only here does each statement see what was committed before it,
# and what comes after the lock must see what its last holder did.
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# A shorter limit of the database's own stays.
_LIMIT: Final = b""",
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
              BETWEEN interval '1 microsecond' AND interval '%d milliseconds' THEN NULL
         ELSE set_config('idle_in_transaction_session_timeout', '%d', true) END"""
SAVEPOINT: Final = b"SAVEPOINT semel"
WIPE: Final = b"DISCARD ALL"
"""Leaves nothing of a handler in the session: settings, LISTEN, temporary tables, locks."""
NO_SUCH_SAVEPOINT: Final = ("3B001", "25P01")
IDLE: Final = pq.TransactionStatus.IDLE
IN_TRANSACTION: Final = pq.TransactionStatus.INTRANS
FAILED: Final = pq.TransactionStatus.INERROR


# ── its statements, as exchanges ──────────────────────────────────────────────────────────────────


def begin(conn: PostgresConnection, identity: Identity | None, limit: float | None) -> Exchange:
    """Whether the transaction is begun with the identity's lock. One trip; it waits for nobody.

    What must know what the lock protects comes in a later statement: one statement's snapshot may
    be older than its lock.
    """
    if monotonic() >= conn._check_at:
        yield from conn.handshake()
    if identity is None:
        yield from command(conn, _BEGIN + b"; " + SAVEPOINT)
        return [(True,)]
    result = yield from _result(conn, _BEGIN + b"; " + locking(identity, limit))
    return [(result.get_value(0, 0) == b"t",)]


def locking(identity: Identity, limit: float | None) -> bytes:
    """A statement that tries the lock, and sets how long its transaction may lie idle."""
    asked = b"SELECT pg_try_advisory_xact_lock(%d)" % _lock_of(identity)
    return asked if limit is None else asked + _LIMIT % ((max(1, int(limit * 1000)),) * 2)


def _lock_of(identity: Identity) -> int:
    """The identity's advisory lock: its first 64 bits."""
    return int.from_bytes(identity[:8], "big", signed=True)


def perform(conn: PostgresConnection, op: StoreOperation[object]) -> Exchange:
    """The reply, as the only value of the only row."""
    steps = plan(op)
    asked = next(steps)
    while True:
        text = query(asked.name)
        values, formats = encoded([asked.params[name] for name in text.order])
        send = conn._pgconn.send_query_params
        rows = yield from conn._ask(send, text.text, values, None, formats, BINARY)
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            return [(done.value,)]


def undo(conn: PostgresConnection) -> Exchange:
    try:
        return (yield from command(conn, b"ROLLBACK TO SAVEPOINT semel"))
    except StatementFault as fault:
        if fault.code in NO_SUCH_SAVEPOINT:
            raise ConfigurationError(ENDED) from None
        raise


def commit(conn: PostgresConnection, *, marked: bool) -> Exchange:
    """``marked``: there is a savepoint, which only the transaction that was begun can release.

    In one string: where the first statement fails the second is not carried out.
    """
    text = b"RELEASE SAVEPOINT semel; COMMIT" if marked else b"COMMIT"
    try:
        result = yield from _result(conn, text)
    except StatementFault as fault:
        refusal = refused_commit(fault)
        raise refusal from refusal.__cause__
    if conn._unsure:
        raise StoreUnavailable("PostgreSQL: committed here, but no standby confirmed it")
    if result.command_status != b"COMMIT":  # that of an aborted transaction succeeds with ROLLBACK
        raise StoreUnavailable("PostgreSQL rolled the transaction back", applied=False)
    return []


def roll_back(conn: PostgresConnection) -> Exchange:
    if conn._pgconn.transaction_status != IDLE:
        yield from command(conn, b"ROLLBACK")
    return []


def ascertain(conn: PostgresConnection, identity: Identity, deadline: float) -> Exchange:
    """Wait until nobody has the identity's lock, then read."""
    milliseconds = max(1, int((deadline - monotonic()) * 900))
    text = b"; SET LOCAL lock_timeout = %d; SELECT pg_advisory_xact_lock(%d)"
    yield from command(conn, _BEGIN + text % (milliseconds, _lock_of(identity)))
    rows = yield from perform(conn, Read(identity))
    yield from roll_back(conn)
    return rows


def command(conn: PostgresConnection, text: bytes) -> Exchange:
    """Statements without parameters in one trip, without rows."""
    yield from _result(conn, text)
    return []


def _result(conn: PostgresConnection, text: bytes) -> Generator[int, None, PGresult]:
    """The result of the last of some statements without parameters."""
    try:
        conn._pgconn.send_query(text)
        return (yield from conn._last_result())
    except psycopg.Error as error:
        raise connection_lost(error) from None


def refused_commit(fault: StatementFault) -> SemelError:
    """What became of a COMMIT that was not answered with success."""
    if fault.doubt:
        return StoreUnavailable(f"PostgreSQL: {fault}, at COMMIT", applied=None)
    if fault.code in NO_SUCH_SAVEPOINT:
        return ConfigurationError(ENDED)
    state = str(fault.code or "XX000")
    error = StoreUnavailable(f"PostgreSQL refused the commit: {fault} ({state})", applied=False)
    try:
        error.__cause__ = psycopg.errors.lookup(state)(str(fault))
    except KeyError:
        error.__cause__ = psycopg.DatabaseError(str(fault))
    return error


# ── who uses its connection, and how it stands ────────────────────────────────────────────────────


class ConnectionTurn:
    """Lets one user at a time use a libpq connection, which cannot serve two at once.

    Ending the transaction takes the last turn: later users are refused, and a user in the middle
    of a statement is noticed.
    """

    def __init__(self, conn: PostgresConnection) -> None:
        self.conn = conn
        self.over = False
        self.ended_by_handler = False
        """The handler ended the transaction itself."""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def status(self) -> int:
        return self.conn._pgconn.transaction_status

    @property
    def forked(self) -> bool:
        """In a forked child: the socket is still the parent's."""
        return os.getpid() != self._pid

    def check(self) -> None:
        if self.over or self.forked:
            raise ConfigurationError(OVER)
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def take(self) -> None:
        self.check()
        if not self._lock.acquire(blocking=False):
            raise ConfigurationError(OVER if self.over else SHARED)

    def give(self) -> None:
        if not self.over:
            self._lock.release()

    @contextmanager
    def taken(self) -> Generator[None]:
        """For a handler's statement."""
        self.take()
        try:
            yield
        finally:
            self.ended_by_handler = self.ended_by_handler or self.status == IDLE
            self.give()
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def end(self) -> bool:
        """Nobody uses the connection from now on; False when somebody is in the middle of it."""
        self.over = True
        if self.forked or not self._lock.acquire(blocking=False):
            return False
        self.conn._pgconn.notice_handler = self.conn._noticed
        self.conn._pgconn.notify_handler = None
        return True

    def listen(self, connection: psycopg.BaseConnection[Any]) -> None:
        """Get the server's notices first: one reports a commit that no standby confirmed."""
        pgconn, ours = self.conn._pgconn, self.conn._noticed
        theirs = pgconn.notice_handler

        def both(notice: PGresult) -> None:
            ours(notice)
            if theirs is not None:
                theirs(notice)

        pgconn.notice_handler = both
        connection.prepare_threshold = None  # its names would clash with those of the one before


class LendingPool(Protocol[C]):
    """The pool that a transaction has its connection from."""

    shelf: LazySessions

    def give_back(self, lent: C, /, *, usable: bool, wipe: bool) -> None: ...

    def sever(self, lent: C, /) -> None:
        """Cut a connection that somebody is using for a statement; the rest is left to them."""
        ...

    def forfeit(self, lent: C, /) -> None:
        """Free the slot of a severed connection before its user has noticed. From any thread."""
        ...


class PostgresTransactionState(Generic[C]):
    """What both colours share: the connection, who uses it, how it stands, and how it ends."""

    def __init__(
        self,
        lender: LendingPool[C],
        lent: C,
        conn: PostgresConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        self._lender = lender
        self._lent = lent
        self._conn = conn
        self._turn = ConnectionTurn(conn)
        self._marked = identity is None
        self._broken = False
        self._hold: HeldIdentity | None = hold
        self._made: dict[bool, PostgresHandlerConnection | AsyncPostgresHandlerConnection] = {}
        self._used = False
        """A handler had the session, which must then be wiped for the next."""
        self._sessions: JoinedSessions | None = None
        self._end_lock = threading.Lock()
        self._ending_began = False
        self._severed: StoreUnavailable | None = None

    @property
    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        """One for each colour, made when first asked for."""
        self._turn.check()
        awaited = in_event_loop()
        if awaited not in self._made:
            self._made[awaited] = self._another(awaited)
        return self._made[awaited]

    @property
    def session(self) -> Session | AsyncSession:
        self._turn.check()
        if self._sessions is None:
            self._sessions = self._lender.shelf.open(self._another)
        return self._sessions.session

    def _another(self, awaited: bool) -> PostgresHandlerConnection | AsyncPostgresHandlerConnection:
        """A session has one that is not the handler's own."""
        self._used = True
        if awaited:
            return AsyncPostgresHandlerConnection(self._turn)
        return PostgresHandlerConnection(self._turn)

    def sever(self, why: str) -> bool:
        # Until its end has begun the connection is nobody else's, so nobody else's is cut.
        with self._end_lock:
            if self._ending_began or self._severed is not None or self._turn.forked:
                return True
            self._severed = StoreUnavailable(f"PostgreSQL: {why}", applied=False)
            self._hold = None
            hang_up(self._conn._pgconn)
            self._lender.forfeit(self._lent)  # however long its handler goes on
            return True

    def _begin_end(self) -> None:
        with self._end_lock:
            self._ending_began = True

    def _ending(self, *, commit: bool) -> Generator[Exchange, Rows, SemelError | None]:
        """End the transaction and give its connection back; returns why it is not committed."""
        self._drop_sessions()
        sealed = self._turn.end()
        error: SemelError | None
        error = StoreUnavailable("the transaction was rolled back", applied=False)
        try:
            if commit:
                error = (yield from self._committing()) if sealed else ConfigurationError(SHARED)
            self._hold = None  # its key can be asked for again before the answer to a ROLLBACK
            if sealed and not self._unusable():
                yield roll_back(self._conn)  # what is left of it
        except StatementFault:
            self._broken = True
        except BaseException:
            self._broken = True
            raise
        finally:
            self._leave(sealed=sealed)
        return error

    def _committing(self) -> Generator[Exchange, Rows, SemelError | None]:
        if error := self._why_not_commit():
            return error
        try:
            yield commit(self._conn, marked=self._marked)
        except StatementFault as fault:
            self._broken = True
            return refused_commit(fault)
        except SemelError as error:
            # In a loop, the connection counts as broken after any error but a fault; this is an
            # answer.
            self._broken = getattr(error, "applied", None) is not False
            return error
        return None

    def _leave(self, *, sealed: bool) -> None:
        self._hold = None
        if sealed:
            usable = not self._unusable()
            self._lender.give_back(self._lent, usable=usable, wipe=self._needs_wipe())
        elif not self._turn.forked:
            self._lender.sever(self._lent)

    def _drop_sessions(self) -> None:
        """Before the transaction ends or is undone, of which a session would not know."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            with suppress(Exception):
                sessions.leave()

    def _require_begun(self) -> None:
        """Refuse a statement after the handler's own COMMIT: it would commit by itself."""
        if self._turn.status == IDLE:
            self._turn.ended_by_handler = True
            raise ConfigurationError(ENDED)
        if lost := self._lost():
            raise lost

    def _lost(self) -> StoreUnavailable | None:
        """The error if the connection is lost: its socket's number may be another's by now."""
        if self._severed is not None:
            return self._severed
        if self._broken or self._turn.status not in (IN_TRANSACTION, FAILED):
            self._broken = True
            return StoreUnavailable("PostgreSQL: the connection was lost", applied=False)
        return None

    def _why_not_commit(self) -> SemelError | None:
        """The error if it is known already that this cannot be committed."""
        status = self._turn.status
        if self._turn.ended_by_handler or status == IDLE:
            self._broken = True  # the handler may have done more to it
            return ConfigurationError(ENDED)
        if lost := self._lost():
            return lost
        if status == FAILED:
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
            or pgconn.transaction_status not in (IDLE, IN_TRANSACTION, FAILED)
        )

    def _needs_wipe(self) -> bool:
        """Behind a pooler the session is not ours anyway."""
        return self._used and not self._conn.pooled


def cancel(pgconn: pq.abc.PGconn) -> None:
    """Cancel a statement that the server may still be busy with: it keeps locks until its end."""
    busy = pgconn.transaction_status == pq.TransactionStatus.ACTIVE
    if busy and pgconn.status == pq.ConnStatus.OK:
        with suppress(psycopg.Error):
            threading.Thread(target=_cancel, args=(pgconn.get_cancel(),), daemon=True).start()


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
