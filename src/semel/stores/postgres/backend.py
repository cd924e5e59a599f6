"""`PostgresBackend`: the backend that a ``postgresql://`` URL names. And its schema.

A migration is one transaction, under one lock, however many nodes try.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, overload

import psycopg

from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.postgres.connection import DIALECT
from semel.stores.postgres.errors import driver_fault, not_connected, store_error
from semel.stores.postgres.pool_async import AsyncPostgresPool, AsyncPostgresTransactionPool
from semel.stores.postgres.pool_sync import PostgresPool, PostgresTransactionPool
from semel.stores.postgres.psycopg_async import AsyncJoinedStore
from semel.stores.postgres.psycopg_sync import JoinedStore
from semel.stores.postgres.settings import PostgresSettings, parse
from semel.stores.postgres.values import KINDS
from semel.stores.sql.backend import TransactionalBackend
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, missing_grants, pending, schema_version, upgrade
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive


class PostgresBackend(TransactionalBackend):
    """Records in PostgreSQL.

    pool_size: connections per process, and per event loop (10); as many again for transactions.
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prepare: prepared statements; by default unless a pooler is noticed.
    migrate: bring the schema up to date on first use (off).

    Each may also stand in the URL's query, beside libpq's own options.
    """

    capabilities: Final = Capabilities(durable=True, shared=True, transactions=True)

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        prepare: bool | None = None,
        migrate: bool | None = None,
    ) -> None:
        options = {
            "pool_size": pool_size,
            "timeout": timeout,
            "prepare": prepare,
            "migrate": migrate,
        }
        self._settings = settings = parse(url, options)
        given = (settings, partial(_migrate, settings) if settings.migrate else None)
        pools = partial(PostgresPool, *given), partial(AsyncPostgresPool, *given)
        transaction_pools = (
            partial(PostgresTransactionPool, *given),
            partial(AsyncPostgresTransactionPool, *given),
        )
        url, timeout = settings.url, settings.timeout
        super().__init__(url, timeout, pools, KINDS, store_error, transaction_pools)

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

    def migrate(self) -> int:
        return _migrate(self._settings)

    def examine(self) -> tuple[Finding, ...]:
        """What the user may not do; each try is undone."""
        with _connected(self._settings) as connection:
            return missing_grants(partial(_denied, connection))


LOCK: Final = int.from_bytes(b"semel\0\0\1")
"""Of the transaction, not of the session: a pooler may part us from the latter."""


def _migrate(settings: PostgresSettings) -> int:
    """Returns the schema's version. There is no deadline: a migration takes as long as it takes."""
    # Mostly there is nothing to do, and then a node that hangs with the lock holds up nobody.
    with _connected(settings) as connection:
        found = drive(schema_version(), partial(_execute, connection))
    if not pending(dialect(DIALECT), found):
        return found.version
    # On another connection: this one may go on believing that a table is not there.
    with _connected(settings) as connection:
        # The lock is waited for in a statement of its own: what follows must see what the one who
        # held it before has committed.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        return drive(upgrade(dialect(DIALECT)), partial(_execute, connection))


@contextmanager
def _connected(settings: PostgresSettings) -> Generator[psycopg.Connection[Any]]:
    """A connection whose transaction is committed at the end."""
    try:
        connection = psycopg.connect(settings.conninfo, prepare_threshold=None)
    except psycopg.Error as error:
        fault = not_connected(error, settings.without_secrets)
        raise store_error(fault, doubt=False) from None
    try:
        with connection:
            yield connection
    except psycopg.Error as error:
        raise store_error(driver_fault(error), doubt=True) from None


def _denied(connection: psycopg.Connection[Any], text: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(text.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    except (psycopg.ProgrammingError, psycopg.errors.ReadOnlySqlTransaction):
        return False  # no such table, or no primary: other checks say so
    return False


def _execute(connection: psycopg.Connection[Any], asked: Statement | Ddl) -> Rows:
    if isinstance(asked, Ddl):
        connection.execute(asked.text.encode())
        return []
    text = dialect(DIALECT).text(asked.name)
    cursor = connection.execute(text.encode(), asked.params)
    return cursor.fetchall() if cursor.description else []
