"""What a ``mysql://`` URL names."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.mysql import migration
from semel.stores.mysql.batch_columns import KINDS
from semel.stores.mysql.errors import verdict
from semel.stores.mysql.pool_async import AwaitedPool
from semel.stores.mysql.pool_sync import BlockingPool
from semel.stores.mysql.settings import Settings, parse
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.sql.batcher_async import AwaitedLanes, AwaitedStore
from semel.stores.sql.batcher_sync import BlockingLanes


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
        self.blocking_lanes = PerProcess(partial(_blocking_lanes, self._settings))
        self.awaited_lanes = PerLoop(partial(_awaited_lanes, self._settings))

    def __repr__(self) -> str:
        return f"MysqlBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=self._settings.durable, shared=True, transactions=False)

    def blocking(self) -> Store:
        return Blocking(self.blocking_lanes)

    def awaited(self) -> AsyncStore:
        return AwaitedStore(self.awaited_lanes)

    def migrate(self) -> int:
        return migration.migrate(self._settings)

    def examine(self) -> tuple[Finding, ...]:
        return migration.examine(self._settings)

    def close(self) -> None:
        if lanes := self.blocking_lanes.pop():
            lanes.close()

    async def aclose(self) -> None:
        if lanes := self.awaited_lanes.pop():
            await lanes.aclose()


def _blocking_lanes(settings: Settings) -> BlockingLanes:
    return BlockingLanes(BlockingPool(settings), KINDS, verdict, settings.timeout)


def _awaited_lanes(settings: Settings) -> AwaitedLanes:
    return AwaitedLanes(AwaitedPool(settings), KINDS, verdict, settings.timeout)
