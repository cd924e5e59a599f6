"""Any store, with the bodies of large answers cached in this process.

The record itself always comes from the store, with the head of a large answer. Only the body comes
from the cache: it never changes while the record has the same fence, and the head proves it. So a
cache that is empty costs one more question to the store and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar, cast

from semel.core.operations.requests import Fetch, Fetched, NoRecord, StoreOperation
from semel.core.records import Fence, Identity
from semel.core.stored.snapshot import begins
from semel.errors import ConfigurationError
from semel.stores.base import AsyncStore, Backend, BackendWrapper, Store

R = TypeVar("R")


def with_body_cache(backend: Backend, room: int) -> Backend:
    """``backend`` with a cache of ``room`` bytes; as it is, where there is no room."""
    if not isinstance(room, int) or isinstance(room, bool) or room < 0:
        raise ConfigurationError("replay_bodies= takes a number of bytes, or 0 for none")
    return BodyCacheBackend(backend, BodyCache(room)) if room else backend


class BodyCache:
    """The last bodies that were fetched, up to ``room`` bytes, in two generations: a full young one
    becomes the old one.

    There is no lock, because a fork could copy it while it is held. Threads that write at the same
    time may lose an entry.
    """

    def __init__(self, room: int) -> None:
        self._half = room // 2
        self._taken = 0
        self._young: dict[tuple[Identity, Fence], bytes] = {}
        self._old: dict[tuple[Identity, Fence], bytes] = {}

    def get(self, op: Fetch) -> bytes | None:
        name = (op.identity, op.fence)
        body = self._young.get(name) or self._old.get(name)
        return body if body is not None and begins(body, op.head) else None

    def put(self, op: Fetch, reply: Fetched | NoRecord) -> None:
        if not isinstance(reply, Fetched) or len(reply.snapshot) > self._half:
            return
        size = len(reply.snapshot)
        if self._taken + size > self._half:
            self._old, self._young, self._taken = self._young, {}, 0
        self._young[op.identity, op.fence] = reply.snapshot
        self._taken += size


class _WithBodies:
    """A store and the cache in front of it."""

    def __init__(self, inner: Any, bodies: BodyCache) -> None:
        self._inner = inner
        self._bodies = bodies


class _BodyCacheStore(_WithBodies):
    """The store for threads."""

    _inner: Store

    def perform(self, op: StoreOperation[R], /) -> R:
        if not isinstance(op, Fetch):
            return self._inner.perform(op)
        body = self._bodies.get(op)
        if body is not None:
            return cast("R", Fetched(body))
        reply = self._inner.perform(op)
        self._bodies.put(op, reply)
        return cast("R", reply)


class _AsyncBodyCacheStore(_WithBodies):
    """The store for event loops."""

    _inner: AsyncStore

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        if isinstance(op, Fetch):
            return cast("Awaitable[R]", self._fetch(op))
        return self._inner.perform(op)

    async def _fetch(self, op: Fetch) -> Fetched | NoRecord:
        body = self._bodies.get(op)
        if body is not None:
            return Fetched(body)
        reply = await self._inner.perform(op)
        self._bodies.put(op, reply)
        return reply


class BodyCacheBackend(BackendWrapper):
    """A backend around another, with a cache for large answers."""

    def __init__(self, inner: Backend, bodies: BodyCache) -> None:
        super().__init__(inner)
        self._bodies = bodies

    def blocking(self) -> Store:
        return _BodyCacheStore(self.inner.blocking(), self._bodies)

    def awaited(self) -> AsyncStore:
        return _AsyncBodyCacheStore(self.inner.awaited(), self._bodies)
