"""What the backends of database servers share: a batcher for each process and each event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.stores.base import AsyncStore, AsyncTransaction, Store, Transaction
from semel.stores.open_transactions import HeldIdentities
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.sql.batcher_async import AsyncBatcher
from semel.stores.sql.batcher_sync import Batcher
from semel.stores.sql.batching import BatchKind
from semel.stores.sql.pool_async import AsyncConnectionPool, AsyncTransactionPool
from semel.stores.sql.pool_sync import ConnectionPool, TransactionPool
from semel.stores.sql.statements import ToStoreError

R = TypeVar("R")


class ServerBackend:
    """Opens pools on first use, in front of which operations are batched.

    ``url``: without its password. ``timeout``: of an operation, in seconds.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        pools: tuple[Callable[[], ConnectionPool[Any]], Callable[[], AsyncConnectionPool[Any]]],
        kinds: Mapping[type[StoreOperation[Any]], BatchKind],
        store_error: ToStoreError,
    ) -> None:
        self.url = url
        pool, async_pool = pools
        self.batcher = PerProcess(lambda: Batcher(pool(), kinds, store_error, timeout))
        self.async_batcher = PerLoop(
            lambda: AsyncBatcher(async_pool(), kinds, store_error, timeout)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def blocking(self) -> Store:
        return Blocking(self.batcher)

    def awaited(self) -> AsyncStore:
        return _AsyncBatchedStore(self.async_batcher)

    def close(self) -> None:
        if batcher := self.batcher.pop():
            batcher.close()

    async def aclose(self) -> None:
        if batcher := self.async_batcher.pop():
            await batcher.aclose()


class TransactionalBackend(ServerBackend):
    """A server whose database also holds the application's tables: see `Transactional`."""

    def __init__(
        self,
        url: str,
        timeout: float,
        pools: tuple[Callable[[], ConnectionPool[Any]], Callable[[], AsyncConnectionPool[Any]]],
        kinds: Mapping[type[StoreOperation[Any]], BatchKind],
        store_error: ToStoreError,
        transaction_pools: tuple[
            Callable[[], TransactionPool[Any]], Callable[[], AsyncTransactionPool[Any]]
        ],
    ) -> None:
        super().__init__(url, timeout, pools, kinds, store_error)
        self.transaction_pool = PerProcess(transaction_pools[0])
        self.async_transaction_pool = PerLoop(transaction_pools[1])
        self._holds = HeldIdentities()

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

    def close(self) -> None:
        super().close()
        if transactions := self.transaction_pool.pop():
            transactions.close()

    async def aclose(self) -> None:
        await super().aclose()
        if transactions := self.async_transaction_pool.pop():
            await transactions.aclose()


class _AsyncBatchedStore:
    """The store for event loops: it asks the batcher of the loop that runs."""

    __slots__ = ("_batcher",)

    def __init__(self, batcher: Callable[[], AsyncBatcher]) -> None:
        self._batcher = batcher

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        return self._batcher().perform(op)
