"""What the backends of database servers share: a batcher for each process and each event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.base import AsyncStore, Store
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.sql.batcher_async import AsyncBatcher
from semel.stores.sql.batcher_sync import Batcher
from semel.stores.sql.batching import BatchKind
from semel.stores.sql.pool_async import AsyncConnectionPool
from semel.stores.sql.pool_sync import ConnectionPool
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


class _AsyncBatchedStore:
    """The store for event loops: it asks the batcher of the loop that runs."""

    __slots__ = ("_batcher",)

    def __init__(self, batcher: Callable[[], AsyncBatcher]) -> None:
        self._batcher = batcher

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        return self._batcher().perform(op)
