"""The pool for threads: it waits with poll(2), up to a deadline, whatever the server does."""

from __future__ import annotations

import select
from contextlib import suppress
from functools import partial
from time import monotonic

from semel.stores.postgres import transaction
from semel.stores.postgres.connect import connect
from semel.stores.postgres.connection import (
    DIALECT,
    WRITE,
    Exchange,
    PostgresConnection,
    QuietConnection,
)
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.values import KINDS
from semel.stores.sql.pool_sync import ConnectionPool, TransactionPool, connected
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault


class PostgresPool(ConnectionPool[PostgresConnection]):
    """Connections of libpq's."""

    DIALECT = DIALECT
    KINDS = KINDS
    store_error = staticmethod(store_error)
    _settings: PostgresSettings

    def _run(self, conn: PostgresConnection, statement: Statement, deadline: float) -> Rows:
        return wait(conn, conn.execute(statement), deadline)

    def _alive(self, conn: PostgresConnection, deadline: float) -> bool:
        return not ready(conn, 0, 0.0) or conn.alive()

    def _connect(self, deadline: float) -> PostgresConnection:
        settings = self._settings
        opened = partial(connect, settings, QuietConnection, autocommit=True)
        connection = connected(opened, QuietConnection.close, deadline)
        return PostgresConnection(connection, settings.prepare, settings.configure)

    def _greet(self, conn: PostgresConnection, deadline: float) -> None:
        wait(conn, conn.greet(self._settings.failover), deadline)


class PostgresTransactionPool(TransactionPool[PostgresConnection], PostgresPool):
    """Connections for transactions. A rollback is sent, and its answer read by the next user."""

    DATABASE = "PostgreSQL"
    steps = transaction

    def exchange(self, conn: PostgresConnection, exchange: Exchange, deadline: float) -> Rows:
        return wait(conn, exchange, deadline)

    def _send_last(self, conn: PostgresConnection, exchange: Exchange) -> None:
        with suppress(StopIteration):
            next(exchange)
            conn.unread = exchange

    def _alive(self, conn: PostgresConnection, deadline: float) -> bool:
        unread, conn.unread = conn.unread, None
        if unread is None:
            return super()._alive(conn, deadline)
        try:
            wait(conn, unread, deadline)
        except StatementFault:
            return False
        return True


def wait(conn: PostgresConnection, exchange: Exchange, deadline: float) -> Rows:
    """Run ``exchange`` to its end, or give up at the deadline and leave the connection unusable."""
    try:
        want = next(exchange)
        while True:
            if not ready(conn, want, deadline - monotonic()):
                raise StatementFault("no answer within the time limit", doubt=True)
            want = next(exchange)
    except StopIteration as done:
        rows: Rows = done.value
        return rows


def ready(conn: PostgresConnection, want: int, seconds: float) -> bool:
    """Whether there is something to read, or room to write, before that much time has passed."""
    if not hasattr(select, "poll"):  # eventlet has taken it away; its own select() does not block
        found = select.select([conn.fd], [conn.fd] if want & WRITE else [], [], max(0.0, seconds))
        return any(found)
    poll = select.poll()
    poll.register(conn.fd, select.POLLIN | (select.POLLOUT if want & WRITE else 0))
    return bool(poll.poll(max(0.0, seconds) * 1000))
