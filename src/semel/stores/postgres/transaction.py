"""What PostgreSQL is sent for each step of a transaction that semel begins: its `TransactionSteps`.

Nothing is prepared and nothing is set in the session: a pooler in transaction mode may carry the
next transaction over another server connection, and a handler's DEALLOCATE must not hurt.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

import psycopg
from psycopg import pq

from semel.core.operations.requests import Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.open_transactions import ENDED, SAVEPOINT
from semel.stores.postgres.connection import Exchange, PostgresConnection, query
from semel.stores.postgres.psycopg_async import AsyncPostgresHandlerConnection
from semel.stores.postgres.psycopg_sync import PostgresHandlerConnection
from semel.stores.postgres.values import BINARY, encoded
from semel.stores.sql.plans import plan
from semel.stores.sql.statements import StatementFault
from semel.stores.sql.transaction import ConnectionTurn, Standing

# Whatever the database's default: only here does each statement see what was committed before it,
# and what comes after the lock must see what its last holder did.
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# A shorter limit of the database's own stays.
_LIMIT: Final = b""",
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
              BETWEEN interval '1 microsecond' AND interval '%d milliseconds' THEN NULL
         ELSE set_config('idle_in_transaction_session_timeout', '%d', true) END"""
_SAVE: Final = b"SAVEPOINT " + SAVEPOINT.encode()
NO_SUCH_SAVEPOINT: Final = ("3B001", "25P01")
IDLE: Final = pq.TransactionStatus.IDLE
IN_TRANSACTION: Final = pq.TransactionStatus.INTRANS
FAILED: Final = pq.TransactionStatus.INERROR
_STANDINGS: Final[dict[int, Standing]] = {
    IDLE: Standing.ENDED,
    IN_TRANSACTION: Standing.OPEN,
    FAILED: Standing.FAILED,
}


# ── its statements, as exchanges ──────────────────────────────────────────────────────────────────


def begin(conn: PostgresConnection, identity: Identity | None, limit: float | None) -> Exchange:
    """Whether the transaction is begun with the identity's lock. One trip; it waits for nobody.

    What must know what the lock protects comes in a later statement: one statement's snapshot may
    be older than its lock.
    """
    if monotonic() >= conn._check_at:
        yield from conn.handshake()
    if identity is None:
        yield from command(conn, _BEGIN + b"; " + _SAVE)
        return [(True,)]
    result = yield from conn.result_of(_BEGIN + b"; " + locking(identity, limit))
    return [(result.get_value(0, 0) == b"t",)]


def locking(identity: Identity, limit: float | None) -> bytes:
    """A statement that tries the lock, and sets how long its transaction may lie idle."""
    asked = b"SELECT pg_try_advisory_xact_lock(%d)" % _lock_of(identity)
    return asked if limit is None else asked + _LIMIT % ((max(1, int(limit * 1000)),) * 2)


def _lock_of(identity: Identity) -> int:
    """The identity's advisory lock: its first 64 bits."""
    return int.from_bytes(identity[:8], "big", signed=True)


def perform(conn: PostgresConnection, op: StoreOperation[Any]) -> Exchange:
    """The reply, as the only value of the only row."""
    steps = plan(op)
    asked = next(steps)
    while True:
        text = query(asked.name)
        values, formats = encoded([asked.params[name] for name in text.order])
        send = conn.pgconn.send_query_params
        rows = yield from conn._ask(send, text.text, values, None, formats, BINARY)
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            return [(done.value,)]


def savepoint(conn: PostgresConnection) -> Exchange:
    return command(conn, _SAVE)


def undo(conn: PostgresConnection) -> Exchange:
    try:
        return (yield from command(conn, b"ROLLBACK TO " + _SAVE))
    except StatementFault as fault:
        if fault.code in NO_SUCH_SAVEPOINT:
            raise ConfigurationError(ENDED) from None
        raise


def commit(conn: PostgresConnection, *, marked: bool) -> Exchange:
    """``marked``: there is a savepoint, which only the transaction that was begun can release.

    In one string: where the first statement fails the second is not carried out.
    """
    text = b"RELEASE %s; COMMIT" % _SAVE if marked else b"COMMIT"
    try:
        result = yield from conn.result_of(text)
    except StatementFault as fault:
        refusal = refused_commit(fault)
        raise refusal from refusal.__cause__
    if conn._unsure:
        raise StoreUnavailable("PostgreSQL: committed here, but no standby confirmed it")
    if result.command_status != b"COMMIT":  # that of an aborted transaction succeeds with ROLLBACK
        raise StoreUnavailable("PostgreSQL rolled the transaction back", applied=False)
    return []


def roll_back(conn: PostgresConnection) -> Exchange:
    if conn.pgconn.transaction_status != IDLE:
        yield from command(conn, b"ROLLBACK")
    return []


def wipe(conn: PostgresConnection) -> Exchange:
    """Settings, LISTEN, temporary tables, locks. Behind a pooler the session is not ours anyway."""
    if not conn.pooled:
        yield from command(conn, b"DISCARD ALL")
        yield from conn.configure()
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
    yield from conn.result_of(text)
    return []


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


# ── the connection, and how the transaction stands ────────────────────────────────────────────────


def connection(
    conn: PostgresConnection, turn: ConnectionTurn, awaited: bool
) -> PostgresHandlerConnection | AsyncPostgresHandlerConnection:
    return (AsyncPostgresHandlerConnection if awaited else PostgresHandlerConnection)(conn, turn)


def take_back(conn: PostgresConnection) -> None:
    conn.pgconn.notice_handler = conn._noticed
    conn.pgconn.notify_handler = None


def standing(conn: PostgresConnection) -> Standing:
    return _STANDINGS.get(conn.pgconn.transaction_status, Standing.LOST)


def usable(conn: PostgresConnection) -> bool:
    pgconn = conn.pgconn
    return (
        not conn._unsure
        and pgconn.status == pq.ConnStatus.OK
        and pgconn.pipeline_status == pq.PipelineStatus.OFF
        and pgconn.transaction_status in _STANDINGS
    )


def cancel(conn: PostgresConnection | psycopg.Connection[Any]) -> None:
    """A server that is busy with a statement keeps its locks until the end."""
    pgconn = conn.pgconn
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


def hang_up(conn: PostgresConnection | psycopg.Connection[Any]) -> None:
    """Shut down the socket without touching libpq's connection, which another thread is using."""
    cancel(conn)
    with (
        suppress(OSError, psycopg.Error),
        # Asked now, not before: libpq closes a socket that failed, and its number may be reused.
        socket.socket(fileno=os.dup(conn.pgconn.socket)) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
