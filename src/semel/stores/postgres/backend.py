"""`PostgresBackend`: the backend that a ``postgresql://`` URL names."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final, overload

import psycopg

from semel.core.operations.requests import Found, NoRecord
from semel.core.records import Identity
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Capabilities,
    Finding,
    Store,
    Transaction,
)
from semel.stores.open_transactions import HeldIdentities
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.postgres import migration
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.pool_async import AsyncPostgresPool
from semel.stores.postgres.pool_sync import PostgresPool
from semel.stores.postgres.psycopg_async import AsyncJoinedStore
from semel.stores.postgres.psycopg_sync import JoinedStore
from semel.stores.postgres.settings import PostgresSettings, parse
from semel.stores.postgres.transactions_async import AsyncPostgresTransactionPool
from semel.stores.postgres.transactions_sync import PostgresTransactionPool
from semel.stores.postgres.values import KINDS
from semel.stores.sql.batcher_async import AsyncBatchedStore, AsyncBatcher
from semel.stores.sql.batcher_sync import Batcher

CAPABILITIES: Final = Capabilities(durable=True, shared=True, transactions=True)


class PostgresBackend:
    """Records in PostgreSQL.

    pool_size: connections per process, and per event loop (10); as many again for transactions.
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prepare: prepared statements; by default unless a pooler is noticed.
    migrate: bring the schema up to date on first use (off).

    Each may also stand in the URL's query, beside libpq's own options.
    """

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
        self._settings = parse(url, options)
        self.batcher = PerProcess(partial(_make_batcher, self._settings))
        self.async_batcher = PerLoop(partial(_make_async_batcher, self._settings))
        self.transaction_pool = PerProcess(partial(PostgresTransactionPool, self._settings))
        self.async_transaction_pool = PerLoop(partial(AsyncPostgresTransactionPool, self._settings))
        self._holds = HeldIdentities()

    def __repr__(self) -> str:
        return f"PostgresBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def blocking(self) -> Store:
        return Blocking(self.batcher)

    def awaited(self) -> AsyncStore:
        return AsyncBatchedStore(self.async_batcher)

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

    # ── transactions ─────────────────────────────────────────────────────────────────────────────

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        """A transaction on the store's database; None when another one has the identity's lock.

        Its isolation level is READ COMMITTED: what follows the lock must see what came before it.
        """
        hold = self._holds.take(identity)
        return None if hold is None else self.transaction_pool().begin(identity, hold, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        hold = self._holds.take(identity)
        if hold is None:
            return None
        return await self.async_transaction_pool().begin(identity, hold, limit)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """The record after a commit in doubt; StoreUnavailable while that is still under way."""
        return self.transaction_pool().ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await self.async_transaction_pool().ascertain(identity)

    def migrate(self) -> int:
        return migration.migrate(self._settings)

    def examine(self) -> tuple[Finding, ...]:
        return migration.examine(self._settings)

    def close(self) -> None:
        if pool := self.batcher.pop():
            pool.close()
        if transactions := self.transaction_pool.pop():
            transactions.close()

    async def aclose(self) -> None:
        if pool := self.async_batcher.pop():
            await pool.aclose()
        if transactions := self.async_transaction_pool.pop():
            await transactions.aclose()


def _make_batcher(settings: PostgresSettings) -> Batcher:
    return Batcher(PostgresPool(settings), KINDS, store_error, settings.timeout)


def _make_async_batcher(settings: PostgresSettings) -> AsyncBatcher:
    return AsyncBatcher(AsyncPostgresPool(settings), KINDS, store_error, settings.timeout)
