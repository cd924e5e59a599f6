"""A cache of answers in Redis, beside another store: by identity and fence.

What is here may be lost, evicted or wrong at any time, so none of the demands on a store of records
is made of the server. Everything has a time to live, and a checksum.
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

PATIENCE: Final = 0.25
"""Seconds, unless the URL says otherwise: one that takes longer than the store is of no use."""


class RedisBodies:
    """The cache at a Redis URL, in both colours."""

    def __init__(self, url: str) -> None:
        settings = parse(url, {} if "timeout=" in url else {"timeout": PATIENCE})
        settings = replace(settings, cache=True, wait_replicas=0)
        keys = Keys(settings.prefix)
        self._threads = PerProcess(partial(RedisPool, settings, keys))
        self._loops = PerLoop(partial(AsyncRedisPool, settings, keys))
        self.blocking = Blocking(self._threads)
        self.awaited = Awaited(self._loops)

    def close(self) -> None:
        if pool := self._threads.pop():
            pool.close()

    async def aclose(self) -> None:
        if pool := self._loops.pop():
            await pool.aclose()
