"""What a ``redis://``, ``rediss://``, ``redis+unix://`` or ``rediscluster://`` URL names."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

from semel.core.contract import StoreOperation
from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.redis.awaited import AwaitedPool
from semel.stores.redis.blocking import BlockingPool
from semel.stores.redis.keys import Keys
from semel.stores.redis.settings import parse

R = TypeVar("R")

_Place: TypeAlias = tuple[int, asyncio.AbstractEventLoop]

CAPABILITIES: Final = Capabilities(durable=False, shared=True, transactions=False, outbox=False)
"""Not durable, however the server is set up: a failover may lose what was acknowledged."""


STANDING: Final = (
    "Redis may lose keys it has acknowledged, on a failover or in a crash: a request whose key was "
    "lost runs again when it is repeated"
)


class RedisBackend:
    """Records in Redis or Valkey, one server or a cluster.

    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prefix: of every key, to tell applications apart ("semel").
    durability: "appendonly", or "best-effort" where losing keys in a restart is accepted.
    allow_eviction: use a server that drops keys when its memory is full (no).
    wait_replicas, wait_timeout: how many replicas must have a write before it counts (0), and how
    long they are given; seconds (1).
    tls, ca_file, cert_file, key_file: TLS; ``rediss://`` switches it on.

    Each may also stand in the URL's query.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta | float | None = None,
        prefix: str | None = None,
        durability: str | None = None,
        allow_eviction: bool | None = None,
        wait_replicas: int | None = None,
        wait_timeout: timedelta | float | None = None,
        tls: bool | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        options = {
            "timeout": timeout,
            "prefix": prefix,
            "durability": durability,
            "allow_eviction": allow_eviction,
            "wait_replicas": wait_replicas,
            "wait_timeout": wait_timeout,
            "tls": tls,
            "ca_file": ca_file,
            "cert_file": cert_file,
            "key_file": key_file,
        }
        self._settings = parse(url, options)
        self._keys = Keys(self._settings.prefix)
        # Keyed by process, so that a forked child finds nothing of its parent's. No lock, which a
        # fork could copy while it is held: dict.setdefault is atomic.
        self._blocking: dict[int, BlockingPool] = {}
        self._awaited: dict[_Place, AwaitedPool] = {}

    def __repr__(self) -> str:
        return f"RedisBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def blocking(self) -> Store:
        return _Blocking(self)

    def awaited(self) -> AsyncStore:
        return _Awaited(self)

    def examine(self) -> tuple[Finding, ...]:
        """What this store cannot promise, and what is wrong with its servers."""
        found = self.blocking_pool().examine()
        said = [Finding(each.severity, f"{where}: {each.text}") for where, each in found]
        return (Finding("limit", STANDING), *said)

    def migrate(self) -> int:
        """There is no schema: what is stored is named by its version."""
        return 0

    def close(self) -> None:
        if pool := self._blocking.pop(os.getpid(), None):
            pool.close()

    async def aclose(self) -> None:
        if pool := self._awaited.pop(_place(), None):
            await pool.aclose()

    def blocking_pool(self) -> BlockingPool:
        pid = os.getpid()
        pool = self._blocking.get(pid)
        return pool or self._blocking.setdefault(pid, BlockingPool(self._settings, self._keys))

    def awaited_pool(self) -> AwaitedPool:
        place = _place()
        pool = self._awaited.get(place)
        if pool is None:
            self._tidy()
            pool = self._awaited.setdefault(place, AwaitedPool(self._settings, self._keys))
        return pool

    def _tidy(self) -> None:
        """After loops that ended without closing what they had opened."""
        for other in [key for key in list(self._awaited) if key[1].is_closed()]:
            if forgotten := self._awaited.pop(other, None):
                forgotten.abandon()


def _place() -> _Place:
    return os.getpid(), asyncio.get_running_loop()


class _Blocking:
    __slots__ = ("_backend",)

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._backend.blocking_pool().perform(op)


class _Awaited:
    __slots__ = ("_backend",)

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await self._backend.awaited_pool().perform(op)
