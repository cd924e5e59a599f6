"""`MysqlBackend`: the backend that a ``mysql://`` URL names."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.mysql import migration
from semel.stores.mysql.errors import store_error
from semel.stores.mysql.pool_async import AsyncMysqlPool
from semel.stores.mysql.pool_sync import MysqlPool
from semel.stores.mysql.settings import MysqlSettings, parse
from semel.stores.mysql.values import KINDS
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.sql.batcher_async import AsyncBatchedStore, AsyncBatcher
from semel.stores.sql.batcher_sync import Batcher


class MysqlBackend:
    """Records in MariaDB or MySQL.

    pool_size: connections per process, and per event loop (10).
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    migrate: bring the schema up to date on first use (off).
    durable: refuse a server that may lose in a power cut what it has acknowledged (on).

    Each may also stand in the URL's query.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        migrate: bool | None = None,
        durable: bool | None = None,
    ) -> None:
        options = {
            "pool_size": pool_size,
            "timeout": timeout,
            "migrate": migrate,
            "durable": durable,
        }
        self._settings = parse(url, options)
        self.batcher = PerProcess(partial(_make_batcher, self._settings))
        self.async_batcher = PerLoop(partial(_make_async_batcher, self._settings))

    def __repr__(self) -> str:
        return f"MysqlBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=self._settings.durable, shared=True, transactions=False)

    def blocking(self) -> Store:
        return Blocking(self.batcher)

    def awaited(self) -> AsyncStore:
        return AsyncBatchedStore(self.async_batcher)

    def migrate(self) -> int:
        return migration.migrate(self._settings)

    def examine(self) -> tuple[Finding, ...]:
        return migration.examine(self._settings)

    def close(self) -> None:
        if batcher := self.batcher.pop():
            batcher.close()

    async def aclose(self) -> None:
        if batcher := self.async_batcher.pop():
            await batcher.aclose()


def _make_batcher(settings: MysqlSettings) -> Batcher:
    return Batcher(MysqlPool(settings), KINDS, store_error, settings.timeout)


def _make_async_batcher(settings: MysqlSettings) -> AsyncBatcher:
    return AsyncBatcher(AsyncMysqlPool(settings), KINDS, store_error, settings.timeout)
