"""The statements of a transaction as exchanges, without waiting: shared by both colours.

Nothing is prepared and nothing is set in the session: a pooler in transaction mode may carry the
next transaction over another server connection, and a handler's DEALLOCATE must not hurt.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from semel.core.operations.requests import Read, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.stores.open_transactions import ENDED
from semel.stores.postgres.connection import BINARY, Exchange, PostgresConnection, _encoded, query
from semel.stores.postgres.errors import PostgresFault, connection_lost
from semel.stores.sql.plans import Rows, Statement, plan

# Whatever the database's default: only here does each statement see what was committed before it,
# and what comes after the lock must see what its last holder did.
_BEGIN: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# A shorter limit of the database's own stays.
_LIMIT: Final = b""",
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
              BETWEEN interval '1 microsecond' AND interval '%d milliseconds' THEN NULL
         ELSE set_config('idle_in_transaction_session_timeout', '%d', true) END"""
NO_SUCH_SAVEPOINT: Final = ("3B001", "25P01")
IDLE: Final = pq.TransactionStatus.IDLE
IN_TRANSACTION: Final = pq.TransactionStatus.INTRANS
FAILED: Final = pq.TransactionStatus.INERROR


def lock_of(identity: Identity) -> int:
    """The identity's advisory lock: its first 64 bits."""
    return int.from_bytes(identity[:8], "big", signed=True)


def begin(conn: PostgresConnection, identity: Identity | None, limit: float | None) -> Exchange:
    """Whether the transaction is begun with the identity's lock. One trip; it waits for nobody.

    What must know what the lock protects comes in a later statement: one statement's snapshot may
    be older than its lock.
    """
    yield from conn.check()
    if identity is None:
        yield from command(conn, _BEGIN + b"; SAVEPOINT semel")
        return [(True,)]
    result = yield from command(conn, _BEGIN + b"; " + locking(identity, limit))
    return [(result.get_value(0, 0) == b"t",)]


def locking(identity: Identity, limit: float | None) -> bytes:
    """A statement that tries the lock, and sets how long its transaction may lie idle."""
    asked = b"SELECT pg_try_advisory_xact_lock(%d)" % lock_of(identity)
    return asked if limit is None else asked + _LIMIT % ((max(1, int(limit * 1000)),) * 2)


def perform(conn: PostgresConnection, op: StoreOperation[object]) -> Exchange:
    """The reply, as the only value of the only row."""
    steps = plan(op)
    asked = next(steps)
    while True:
        rows = yield from _execute(conn, asked)
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            return [(done.value,)]


def savepoint(conn: PostgresConnection) -> Exchange:
    yield from command(conn, b"SAVEPOINT semel")
    return []


def undo(conn: PostgresConnection) -> Exchange:
    try:
        yield from command(conn, b"ROLLBACK TO SAVEPOINT semel")
    except PostgresFault as fault:
        raise _ended_or(fault) from None
    return []


def commit(conn: PostgresConnection, *, marked: bool) -> Exchange:
    """``marked``: there is a savepoint, which only the transaction that was begun can release.

    In one string: where the first statement fails the second is not carried out.
    """
    text = b"RELEASE SAVEPOINT semel; COMMIT" if marked else b"COMMIT"
    try:
        result = yield from command(conn, text)
    except PostgresFault as fault:
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


def wipe(conn: PostgresConnection) -> Exchange:
    """Leave nothing of a handler in the session: settings, LISTEN, temporary tables, locks."""
    yield from command(conn, b"DISCARD ALL")
    return []


def ascertain(conn: PostgresConnection, identity: Identity, milliseconds: int) -> Exchange:
    """Wait until nobody has the identity's lock, then read."""
    text = b"; SET LOCAL lock_timeout = %d; SELECT pg_advisory_xact_lock(%d)"
    yield from command(conn, _BEGIN + text % (milliseconds, lock_of(identity)))
    rows = yield from perform(conn, Read(identity))
    yield from roll_back(conn)
    return rows


def command(conn: PostgresConnection, text: bytes) -> Generator[int, None, PGresult]:
    """Statements without parameters in one trip; the result of the last."""
    try:
        conn._pgconn.send_query(text)
        return (yield from conn._last_result())
    except psycopg.Error as error:
        raise connection_lost(error) from None


def _execute(conn: PostgresConnection, asked: Statement) -> Generator[int, None, Rows]:
    text = query(asked.name)
    values, formats = _encoded([asked.params[name] for name in text.order])
    send = conn._pgconn.send_query_params
    return (yield from conn._ask(send, text.text, values, None, formats, BINARY))


def refused_commit(fault: PostgresFault) -> SemelError:
    """What became of a COMMIT that was not answered with success."""
    if fault.doubt:
        return StoreUnavailable(f"PostgreSQL: {fault}, at COMMIT", applied=None)
    ended = _ended_or(fault)
    if ended is not fault:
        return ConfigurationError(*ended.args)
    state = fault.sqlstate or "XX000"
    error = StoreUnavailable(f"PostgreSQL refused the commit: {fault} ({state})", applied=False)
    try:
        error.__cause__ = psycopg.errors.lookup(state)(str(fault))
    except KeyError:
        error.__cause__ = psycopg.DatabaseError(str(fault))
    return error


def _ended_or(fault: PostgresFault) -> Exception:
    return ConfigurationError(ENDED) if fault.sqlstate in NO_SUCH_SAVEPOINT else fault
