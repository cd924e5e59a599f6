"""What a ``redis://``, ``rediss://``, ``redis+unix://`` or ``rediscluster://`` URL names."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

from semel.stores.base import AsyncStore, Capabilities, Finding, Store
from semel.stores.per_loop import Blocking, PerLoop, PerProcess
from semel.stores.redis.keys import Keys
from semel.stores.redis.pool_async import AsyncRedisPool, AsyncRedisStore
from semel.stores.redis.pool_sync import RedisPool
from semel.stores.redis.settings import parse

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
        self.blocking_pool = PerProcess(partial(RedisPool, self._settings, self._keys))
        self.awaited_pool = PerLoop(partial(AsyncRedisPool, self._settings, self._keys))

    def __repr__(self) -> str:
        return f"RedisBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def blocking(self) -> Store:
        return Blocking(self.blocking_pool)

    def awaited(self) -> AsyncStore:
        return AsyncRedisStore(self.awaited_pool)

    def examine(self) -> tuple[Finding, ...]:
        """What this store cannot promise, and what is wrong with its servers."""
        found = self.blocking_pool().examine()
        said = [Finding(each.severity, f"{where}: {each.text}") for where, each in found]
        return (Finding("limit", STANDING), *said)

    def migrate(self) -> int:
        """There is no schema: what is stored is named by its version."""
        return 0

    def close(self) -> None:
        if pool := self.blocking_pool.pop():
            pool.close()

    async def aclose(self) -> None:
        if pool := self.awaited_pool.pop():
            await pool.aclose()
