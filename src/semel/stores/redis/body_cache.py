"""A cache of response bodies in Redis, beside another store; the key is identity and fence.

A cached body may be lost, evicted or wrong at any time, so the server need not meet the demands on
a store of records. Every body has a time to live and a checksum.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from semel.stores.per_loop import Awaited, Blocking, PerLoop, PerProcess
from semel.stores.redis.keys import Keys
from semel.stores.redis.pool_async import AsyncRedisPool
from semel.stores.redis.pool_sync import RedisPool
from semel.stores.redis.settings import parse

TIMEOUT: Final = 0.25
"""Seconds, unless the URL says otherwise: a cache that is slower than the store helps nobody."""


class RedisBodies:
    """The cache at a Redis URL, for threads and for event loops."""

    def __init__(self, url: str) -> None:
        settings = parse(url, {} if "timeout=" in url else {"timeout": TIMEOUT})
        settings = replace(settings, cache=True, wait_replicas=0)
        keys = Keys(settings.prefix)
        self._sync_pool = PerProcess(partial(RedisPool, settings, keys))
        self._async_pool = PerLoop(partial(AsyncRedisPool, settings, keys))
        self.blocking = Blocking(self._sync_pool)
        self.awaited = Awaited(self._async_pool)

    def close(self) -> None:
        if pool := self._sync_pool.pop():
            pool.close()

    async def aclose(self) -> None:
        if pool := self._async_pool.pop():
            await pool.aclose()
