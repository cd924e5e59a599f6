"""`MysqlBackend`: the backend that a ``mysql://`` URL names. And its schema.

DDL commits by itself here, so a migration is no transaction: its statements can be repeated, and
the version is recorded when all of them are done. One lock, however many nodes try.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from math import inf
from typing import Any, Final

from semel.errors import StoreUnavailable
from semel.stores.base import Capabilities, Finding
from semel.stores.mysql.driver_internals import check_pymysql
from semel.stores.mysql.errors import DENIED, MysqlFault, not_connected, store_error
from semel.stores.mysql.joined_stores import joined_store
from semel.stores.mysql.pool_async import AsyncMysqlPool, AsyncMysqlTransactionPool
from semel.stores.mysql.pool_sync import (
    MysqlConnection,
    MysqlPool,
    MysqlTransactionPool,
    connect,
)
from semel.stores.mysql.protocol import DIALECT, rows_of
from semel.stores.mysql.settings import parse
from semel.stores.mysql.transaction import OF_CLUSTER
from semel.stores.sql.backend import ServerBackend
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, without_transactions
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive

_WITHOUT: Final = (
    "tables without transactions are here, {}: what atomic handlers and phases write there is not "
    "rolled back. Make them tables of InnoDB, or write to them by effects"
)


class MysqlBackend(ServerBackend):
    """Records in MariaDB or MySQL.

    pool_size: connections per process, and per event loop (10); as many again for transactions.
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    migrate: bring the schema up to date on first use (off).
    max_lifetime: how long a connection is used before another takes its place (1 h).
    max_idle: how long one that nobody needs is kept (10 min).
    durable: refuse a server that may lose in a power cut what it has acknowledged (on).

    Each may also stand in the URL's query.
    """

    POOL, ASYNC_POOL = MysqlPool, AsyncMysqlPool
    TRANSACTION_POOL = MysqlTransactionPool
    ASYNC_TRANSACTION_POOL = AsyncMysqlTransactionPool

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        migrate: bool | None = None,
        durable: bool | None = None,
        max_lifetime: timedelta | float | None = None,
        max_idle: timedelta | float | None = None,
    ) -> None:
        options = {
            "pool_size": pool_size,
            "timeout": timeout,
            "migrate": migrate,
            "durable": durable,
            "max_lifetime": max_lifetime,
            "max_idle": max_idle,
        }
        check_pymysql()
        self._settings = settings = parse(url, options)
        super().__init__(settings)
        self.capabilities: Final = Capabilities(
            durable=settings.durable, shared=True, transactions=True
        )

    def on(self, connection: Any) -> Any:
        """The same store inside the caller's own transaction, in the colour of the connection.

        A connection of PyMySQL's or mysqlclient's, or for event loops of asyncmy's.
        """
        return joined_store(connection)

    def examine(self) -> tuple[Finding, ...]:
        with self._schema(lock=False) as connection:
            of_cluster = connection.of_cluster
            found = drive(without_transactions(dialect(DIALECT)), connection.execute)
        limits = [Finding("limit", OF_CLUSTER)] if of_cluster else []
        others = [f"{table} ({engine})" for table, engine in found if table[:6] != "semel_"]
        if others:
            limits.append(Finding("limit", _WITHOUT.format(", ".join(others))))
        return *super().examine(), *limits

    @contextmanager
    def _schema(self, *, lock: bool) -> Generator[_SchemaConnection]:
        settings = self._settings
        try:
            conn = MysqlConnection(connect(settings), settings)
        except Exception as error:
            raise store_error(not_connected(error, settings.without_secrets), doubt=False) from None
        try:
            conn.handshake(inf, warn=False)
            if lock:
                rows = rows_of(conn.ask(f"SELECT GET_LOCK({LOCK}, {LOCK_WAIT})", inf))
                if rows[0][0] != 1:
                    said = "another node has been migrating for an hour"
                    raise StoreUnavailable(said, applied=False)
            yield _SchemaConnection(conn)
        except MysqlFault as fault:
            raise store_error(fault, doubt=lock) from None
        finally:
            conn.close()


LOCK: Final = "CONCAT('semel.migrate.', LEFT(SHA2(DATABASE(), 256), 32))"
"""Such locks are the server's, not the database's. This one ends with its connection."""
LOCK_WAIT: Final = 3600


class _SchemaConnection:
    """See `semel.stores.sql.backend.SchemaConnection`."""

    def __init__(self, conn: MysqlConnection) -> None:
        self._conn = conn
        self.of_cluster = conn.server.separately

    def execute(self, asked: Statement | Ddl, /) -> Rows:
        if isinstance(asked, Ddl):
            return rows_of(self._conn.ask(asked.text, inf))
        return self._conn.run(asked, inf)

    def denied(self, text: str, /) -> bool:
        try:
            self._conn.ask(text, inf)
        except MysqlFault as fault:
            if fault.code in DENIED:
                return True
            if fault.code is None:
                raise
        return False  # no such table: the check of the schema says so
