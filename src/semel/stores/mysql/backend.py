"""What a ``mysql://`` URL names."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import TypeAlias, TypeVar

from semel.core.contract import StoreOperation
from semel.stores.base import AsyncStore, Capabilities, Store
from semel.stores.mysql import migration
from semel.stores.mysql.awaited import AwaitedPool
from semel.stores.mysql.blocking import BlockingPool
from semel.stores.mysql.faults import verdict
from semel.stores.mysql.kinds import KINDS
from semel.stores.mysql.settings import parse
from semel.stores.sql.awaited_lanes import AwaitedLanes
from semel.stores.sql.blocking_lanes import BlockingLanes

R = TypeVar("R")

_Place: TypeAlias = tuple[int, asyncio.AbstractEventLoop]


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
        # Keyed by process, so that a forked child finds nothing of its parent's. No lock, which a
        # fork could copy while it is held: dict.setdefault is atomic.
        self._blocking: dict[int, BlockingLanes] = {}
        self._awaited: dict[_Place, AwaitedLanes] = {}

    def __repr__(self) -> str:
        return f"MysqlBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=self._settings.durable, shared=True, transactions=False)

    def blocking(self) -> Store:
        return _Blocking(self)

    def awaited(self) -> AsyncStore:
        return _Awaited(self)

    def migrate(self) -> int:
        return migration.migrate(self._settings)

    def close(self) -> None:
        if lanes := self._blocking.pop(os.getpid(), None):
            lanes.close()

    async def aclose(self) -> None:
        if lanes := self._awaited.pop(_place(), None):
            await lanes.aclose()

    def blocking_lanes(self) -> BlockingLanes:
        pid = os.getpid()
        lanes = self._blocking.get(pid)
        if lanes is None:
            pool, timeout = BlockingPool(self._settings), self._settings.timeout
            lanes = self._blocking.setdefault(pid, BlockingLanes(pool, KINDS, verdict, timeout))
        return lanes

    def awaited_lanes(self) -> AwaitedLanes:
        place = _place()
        lanes = self._awaited.get(place)
        if lanes is None:
            _tidy(self._awaited)
            pool, timeout = AwaitedPool(self._settings), self._settings.timeout
            lanes = self._awaited.setdefault(place, AwaitedLanes(pool, KINDS, verdict, timeout))
        return lanes


def _place() -> _Place:
    return os.getpid(), asyncio.get_running_loop()


def _tidy(lanes: dict[_Place, AwaitedLanes]) -> None:
    """After loops that ended without closing what they had opened."""
    for other in [key for key in list(lanes) if key[1].is_closed()]:
        if forgotten := lanes.pop(other, None):
            forgotten.abandon()


class _Blocking:
    __slots__ = ("_backend",)

    def __init__(self, backend: MysqlBackend) -> None:
        self._backend = backend

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._backend.blocking_lanes().perform(op)


class _Awaited:
    __slots__ = ("_backend",)

    def __init__(self, backend: MysqlBackend) -> None:
        self._backend = backend

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await self._backend.awaited_lanes().perform(op)
