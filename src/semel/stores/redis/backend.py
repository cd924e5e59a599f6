"""What ``redis://``, ``rediss://``, ``redis+unix://``, ``rediscluster://`` and
``redis+sentinel://`` URLs name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from semel.stores.base import AsyncStore, Capabilities, Finding, PrintableBackend, Store
from semel.stores.per_loop import OpenedStore, PerLoop, PerProcess
from semel.stores.redis.commands import Keys
from semel.stores.redis.credentials import Provider
from semel.stores.redis.pool_async import AsyncRedisPool, AsyncRedisStore
from semel.stores.redis.pool_sync import RedisPool
from semel.stores.redis.settings import Remap, parse

CAPABILITIES: Final = Capabilities(durable=False, shared=True, transactions=False, outbox=False)
"""Not durable, however the server is set up: a failover may lose what was acknowledged."""

MAY_LOSE_KEYS: Final = (
    "Redis may lose keys it has acknowledged, on a failover or in a crash: a request whose key was "
    "lost runs again when it is repeated"
)


class RedisBackend(PrintableBackend):
    """Records in Redis or Valkey: one server, a primary that Sentinels watch, or a cluster.

    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prefix: of every key, to tell applications apart ("semel").
    durability: "appendonly", or "best-effort" where losing keys in a restart is accepted.
    allow_eviction: use a server that drops keys when its memory is full (no).
    wait_replicas, wait_timeout: how many replicas must have a write before it counts (0), and how
    long they are given; seconds (1).
    tls, ca_file, cert_file, key_file: TLS; ``rediss://`` switches it on.
    server_name, check_hostname: the name that the certificate must have (the host's), and whether
    it is compared (yes).
    client_name: what ``CLIENT LIST`` shows ("semel").
    credentials: a function, plain or async, that returns user (or None) and password; called for
    each new connection.
    sentinel_user, sentinel_password, sentinel_credentials: the same for the Sentinels.
    remap: where an announced address can be reached: a mapping of ``host:port`` to ``host:port``,
    or a function of host and port that returns both.

    Each option but the functions may also be given in the URL's query.
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
        server_name: str | None = None,
        check_hostname: bool | None = None,
        client_name: str | None = None,
        credentials: Provider | None = None,
        sentinel_user: str | None = None,
        sentinel_password: str | None = None,
        sentinel_credentials: Provider | None = None,
        remap: Remap | None = None,
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
            "server_name": server_name,
            "check_hostname": check_hostname,
            "client_name": client_name,
            "credentials": credentials,
            "sentinel_user": sentinel_user,
            "sentinel_password": sentinel_password,
            "sentinel_credentials": sentinel_credentials,
            "remap": remap,
        }
        settings = self._settings = parse(url, options)
        self.url = settings.url
        self.capabilities = CAPABILITIES
        keys = Keys(settings.prefix)
        self._sync_pool = PerProcess(partial(RedisPool, settings, keys))
        self._async_pool = PerLoop(partial(AsyncRedisPool, settings, keys))

    def blocking(self) -> Store:
        return OpenedStore(self._sync_pool)

    def awaited(self) -> AsyncStore:
        return AsyncRedisStore(self._async_pool)

    def examine(self) -> tuple[Finding, ...]:
        """What this store cannot promise, and what is wrong with its servers."""
        found = [
            Finding(each.severity, f"{address}: {each.text}")
            for address, each in self._sync_pool().examine()
        ]
        return (Finding("limit", MAY_LOSE_KEYS), *found)

    def on_failover(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener`` when Sentinels have replaced the primary, with both addresses."""
        self._settings.listeners.append(listener)

    def migrate(self) -> int:
        """Do nothing: there is no schema. The names of keys hold the version of the layout."""
        return 0

    def close(self) -> None:
        if pool := self._sync_pool.pop():
            pool.close()

    async def aclose(self) -> None:
        if pool := self._async_pool.pop():
            await pool.aclose()
