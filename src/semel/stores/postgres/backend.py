"""`PostgresBackend`: the backend that a ``postgresql://`` URL names. And its schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, overload

import psycopg
from psycopg.rows import tuple_row

from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.postgres.connect import connect
from semel.stores.postgres.connection import DIALECT, POOLED
from semel.stores.postgres.errors import driver_fault, store_error
from semel.stores.postgres.pool_async import AsyncPostgresPool, AsyncPostgresTransactionPool
from semel.stores.postgres.pool_sync import PostgresPool, PostgresTransactionPool
from semel.stores.postgres.psycopg_async import AsyncJoinedStore
from semel.stores.postgres.psycopg_sync import JoinedStore
from semel.stores.postgres.settings import parse
from semel.stores.sql.backend import ServerBackend
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault


class PostgresBackend(ServerBackend):
    """Records in PostgreSQL.

    pool_size: connections per process, and per event loop (10); as many again for transactions.
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prepare: prepared statements; by default unless a pooler is noticed.
    migrate: bring the schema up to date on first use (off).
    password: a function that returns the password, plain or async; called for each new connection.
    configure: SQL that each new connection is sent first, say ``SET ROLE semel``.
    max_lifetime: how long a connection is used before another takes its place (1 h).
    max_idle: how long one that nobody needs is kept (10 min).

    All but the password may also stand in the URL's query, beside libpq's own options.
    """

    POOL, ASYNC_POOL = PostgresPool, AsyncPostgresPool
    TRANSACTION_POOL = PostgresTransactionPool
    ASYNC_TRANSACTION_POOL = AsyncPostgresTransactionPool
    capabilities = Capabilities(durable=True, shared=True, transactions=True)

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        prepare: bool | None = None,
        migrate: bool | None = None,
        password: Callable[[], str | Awaitable[str]] | None = None,
        configure: str | None = None,
        max_lifetime: timedelta | float | None = None,
        max_idle: timedelta | float | None = None,
    ) -> None:
        options: dict[str, object] = {
            "pool_size": pool_size,
            "timeout": timeout,
            "prepare": prepare,
            "migrate": migrate,
            "password": password,
            "configure": configure,
            "max_lifetime": max_lifetime,
            "max_idle": max_idle,
        }
        self._settings = parse(url, options)
        super().__init__(self._settings)

    @overload
    def on(self, connection: psycopg.Connection[Any]) -> Store: ...

    @overload
    def on(self, connection: psycopg.AsyncConnection[Any]) -> AsyncStore: ...

    def on(
        self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    ) -> Store | AsyncStore:
        """The same store inside the caller's own transaction, in the colour of the connection."""
        if isinstance(connection, psycopg.AsyncConnection):
            return AsyncJoinedStore(connection)
        return JoinedStore(connection)

    def examine(self) -> tuple[Finding, ...]:
        with self._schema(lock=False) as connection:
            used, most = connection.connections()
        found = super().examine()
        if used < most * NEARLY_ALL:
            return found
        text = (
            f"{used} of the server's {most} connections are in use: lower pool_size or max_idle of "
            "its clients, raise max_connections, or put a pooler in between"
        )
        return (*found, Finding("warning", text))

    @contextmanager
    def _schema(self, *, lock: bool) -> Generator[PostgresSchema]:
        """A migration is one transaction, under one lock, however many nodes try."""
        settings = self._settings
        try:
            connection = connect(settings, psycopg.Connection, prepare_threshold=None)
        except StatementFault as fault:
            raise store_error(fault, doubt=False) from None
        try:
            with connection:
                if settings.configure:
                    _configure(connection, settings.configure)
                if lock:
                    # In a statement of its own: what follows must see what the one who held the
                    # lock before has committed.
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
                yield PostgresSchema(connection)
        except psycopg.Error as error:
            raise store_error(driver_fault(error), doubt=True) from None


def _configure(connection: psycopg.Connection[Any], text: str) -> None:
    """As the pools do it."""
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    if row is None or row[0] != connection.info.backend_pid:
        raise store_error(StatementFault(POOLED), doubt=False)
    try:
        connection.execute(text.encode())
    except psycopg.Error as error:
        raise store_error(StatementFault(f"configure= failed: {error}"), doubt=False) from None


NEARLY_ALL: Final = 0.9
_CONNECTIONS: Final = (
    b"SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
    b" current_setting('max_connections')::int"
    b" - current_setting('superuser_reserved_connections')::int"
)

LOCK: Final = int.from_bytes(b"semel\0\0\1")
"""Of the transaction, not of the session: a pooler may part us from the latter."""


class PostgresSchema:
    """See `semel.stores.sql.backend.SchemaConnection`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, asked: Statement | Ddl, /) -> Rows:
        cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        if isinstance(asked, Ddl):
            cursor.execute(asked.text.encode())
            return []
        query = dialect(DIALECT).queries[asked.name]
        cursor.execute(query.text.encode(), [asked.params[name] for name in query.takes])
        return cursor.fetchall() if cursor.description else []

    def connections(self) -> tuple[int, int]:
        """How many clients the server has, and how many may be ordinary ones."""
        row = self._connection.execute(_CONNECTIONS).fetchone()
        return (0, 1) if row is None else row

    def denied(self, text: str, /) -> bool:
        """Each try is undone."""
        try:
            with self._connection.transaction(force_rollback=True):
                self._connection.execute(text.encode())
        except psycopg.errors.InsufficientPrivilege:
            return True
        except (psycopg.ProgrammingError, psycopg.errors.ReadOnlySqlTransaction):
            return False  # no such table, or no primary: other checks say so
        return False
