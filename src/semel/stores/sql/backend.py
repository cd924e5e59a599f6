"""What the backends of database servers share: batchers, transactions, the schema.

Each process and each event loop opens its own pools, on first use. Operations are batched in front
of them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from semel.core.operations.requests import Found, NoRecord
from semel.core.records import Identity
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Finding,
    PrintableBackend,
    Store,
    Transaction,
)
from semel.stores.open_transactions import HeldIdentities
from semel.stores.per_loop import OpenedStore, PerLoop, PerProcess
from semel.stores.sql.batcher_async import AsyncBatcher
from semel.stores.sql.batcher_sync import Batcher
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, missing_grants, pending, schema_version, upgrade
from semel.stores.sql.pool_async import AsyncConnectionPool, AsyncTransactionPool
from semel.stores.sql.pool_sync import ConnectionPool, TransactionPool
from semel.stores.sql.pooled import PoolStatistics, ServerSettings, total
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive

R = TypeVar("R")


class SchemaConnection(Protocol):
    """A connection for the work on the schema."""

    def execute(self, asked: Statement | Ddl, /) -> Rows: ...

    def denied(self, text: str, /) -> bool:
        """Whether the server refuses the statement for want of a right. It changes nothing."""
        ...


class ServerBackend(PrintableBackend):
    """A server's own backend says which pools it has, and how it connects for its schema."""

    POOL: type[ConnectionPool[Any]]
    ASYNC_POOL: type[AsyncConnectionPool[Any]]
    TRANSACTION_POOL: type[TransactionPool[Any]]
    ASYNC_TRANSACTION_POOL: type[AsyncTransactionPool[Any]]

    def __init__(self, settings: ServerSettings) -> None:
        self.url = settings.url
        given = settings, self.migrate if settings.migrate else None
        self.batcher = PerProcess(lambda: Batcher(self.POOL(*given)))
        self.async_batcher = PerLoop(lambda: AsyncBatcher(self.ASYNC_POOL(*given)))
        self.transaction_pool = PerProcess(lambda: self.TRANSACTION_POOL(*given))
        self.async_transaction_pool = PerLoop(lambda: self.ASYNC_TRANSACTION_POOL(*given))
        self._holds = HeldIdentities()

    def blocking(self) -> Store:
        return OpenedStore(self.batcher)

    def awaited(self) -> AsyncStore:
        return OpenedStore(self.async_batcher)

    def close(self) -> None:
        if batcher := self.batcher.pop():
            batcher.pool.close()
        if transactions := self.transaction_pool.pop():
            transactions.close()
        self.async_batcher.drop_closed()
        self.async_transaction_pool.drop_closed()

    async def aclose(self) -> None:
        if batcher := self.async_batcher.pop():
            await batcher.aclose()
        if transactions := self.async_transaction_pool.pop():
            await transactions.aclose()

    def pool_statistics(self) -> dict[str, PoolStatistics]:
        """Of this process, its event loops included."""
        operations = [each.pool.statistics() for each in self.batcher.made()]
        operations += [each.pool.statistics() for each in self.async_batcher.made()]
        transactions = [each.statistics() for each in self.transaction_pool.made()]
        transactions += [each.statistics() for each in self.async_transaction_pool.made()]
        return {"operations": total(operations), "transactions": total(transactions)}

    def trim_pools(self) -> None:
        """Close what threads have not needed for long; event loops have timers for it."""
        for pool in [*(each.pool for each in self.batcher.made()), *self.transaction_pool.made()]:
            pool.trim()

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

    # ── the schema ───────────────────────────────────────────────────────────────────────────────

    def _schema(self, *, lock: bool) -> AbstractContextManager[SchemaConnection]:
        """A connection. ``lock``: it has waited for the one lock that whoever migrates holds, and
        keeps it; what it does is committed at the end."""
        raise NotImplementedError

    def migrate(self) -> int:
        """Returns the schema's version. There is no deadline: a migration takes as long as it
        takes."""
        known = dialect(self.POOL.DIALECT)
        # Mostly there is nothing to do, and then a node that hangs with the lock holds up nobody.
        with self._schema(lock=False) as connection:
            found = drive(schema_version(), connection.execute)
        if not pending(known, found):
            return found.version
        # On another connection: this one may go on believing that a table is not there.
        with self._schema(lock=True) as connection:
            return drive(upgrade(known), connection.execute)

    def examine(self) -> tuple[Finding, ...]:
        """What the user may not do; no try changes anything."""
        with self._schema(lock=False) as connection:
            return missing_grants(connection.denied)
