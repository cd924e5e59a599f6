"""The pool for threads: it waits with poll(2), up to a deadline, whatever the server does."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic

import psycopg

from semel.stores.postgres.connection import (
    DIALECT,
    WRITE,
    Exchange,
    PostgresConnection,
    QuietConnection,
)
from semel.stores.postgres.errors import not_connected, store_error
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.pool_sync import ConnectionPool, connected
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, drive


class PostgresPool(ConnectionPool[PostgresConnection]):
    """Connections of libpq's."""

    def __init__(self, settings: PostgresSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings.pool_size, store_error)
        self._migrate = migrate
        self._settings = settings
        self._ready = False

    def _run(self, conn: PostgresConnection, statement: Statement, deadline: float) -> Rows:
        return wait(conn, conn.execute(statement), deadline)

    def _alive(self, conn: PostgresConnection, deadline: float) -> bool:
        return not ready(conn, 0, 0.0) or conn.alive()

    def _open(self, deadline: float) -> PostgresConnection:
        try:
            connection = connected(self._connect, QuietConnection.close, deadline)
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None
        conn = PostgresConnection(connection, self._settings.prepare)
        try:
            wait(conn, conn.handshake(), deadline)
            wait(conn, conn.check_timeline(self._settings.failover), deadline)
            if not self._ready:
                checks = check_schema(dialect(DIALECT))
                drive(checks, lambda asked: self._run(conn, asked, deadline))
                self._ready = True
        except BaseException:
            conn.close()
            raise
        return conn

    def _connect(self) -> QuietConnection:
        if self._migrate and not self._ready:
            self._migrate()
        return QuietConnection.connect(self._settings.conninfo, autocommit=True)


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
    poll = select.poll()
    poll.register(conn.fd, select.POLLIN | (select.POLLOUT if want & WRITE else 0))
    return bool(poll.poll(max(0.0, seconds) * 1000))
