"""Any store, with the bodies of large answers cached: in this process, and in a shared Redis.

The record itself always comes from the store, with the head of a large answer. Only the body comes
from a cache: it never changes while the record has the same fence, and the head proves it. So a
cache that is wrong, empty or down costs one more question to the store and nothing else.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from semel.core.flow import Flow, Interrupted, arun, ask, run
from semel.core.frozen import frozen
from semel.core.operations.requests import Fetch, Fetched, FlowOperation, NoRecord, StoreOperation
from semel.core.records import Fence, Identity
from semel.core.stored.snapshot import begins, is_sound
from semel.errors import ConfigurationError, SemelError
from semel.log import log
from semel.stores.base import AsyncStore, Backend, Store
from semel.stores.wrapper import BackendWrapper

R = TypeVar("R")

_Name: TypeAlias = tuple[Identity, Fence]

SHARED_FOR: Final = 3600
"""Seconds in the shared cache. A storm of retries is shorter; the store keeps the body longer."""

OUT_OF_USE: Final = 5.0
"""Seconds for which a shared cache that failed is not used, so that no request waits for it. Then
one request tries it."""


@frozen
class GetBody(StoreOperation[bytes | None]):
    """For the shared cache: return the stored bytes, if they are there and whole."""

    identity: Identity
    fence: Fence


@frozen
class PutBody(StoreOperation[None]):
    """For the shared cache: keep the bytes for ``seconds``."""

    identity: Identity
    fence: Fence
    body: bytes
    seconds: int


class SharedBodies(Protocol):
    """A cache that many machines share; its stores perform `GetBody` and `PutBody`."""

    @property
    def blocking(self) -> Store: ...

    @property
    def awaited(self) -> AsyncStore: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class LocalBodies:
    """The last bodies that were fetched, up to ``room`` bytes, in two generations: a full young one
    becomes the old one.

    There is no lock, because a fork could copy it while it is held. Threads that write at the same
    time may lose an entry.
    """

    def __init__(self, room: int) -> None:
        self._half = room // 2
        self._taken = 0
        self._young: dict[_Name, bytes] = {}
        self._old: dict[_Name, bytes] = {}

    def get(self, op: Fetch) -> bytes | None:
        name = (op.identity, op.fence)
        body = self._young.get(name) or self._old.get(name)
        return body if body is not None and begins(body, op.head) else None

    def put(self, op: Fetch, body: bytes) -> None:
        if len(body) > self._half:
            return
        if self._taken + len(body) > self._half:
            self._old, self._young, self._taken = self._young, {}, 0
        self._young[op.identity, op.fence] = body
        self._taken += len(body)


class BodyCache:
    """The local cache and the shared one; either may be off."""

    def __init__(self, room: int, shared: SharedBodies | None) -> None:
        self.local = LocalBodies(room)
        self.shared = shared
        self._useless_until: float | None = None
        """When the shared cache may be tried again; None while it works."""

    def fetch(self, op: Fetch) -> Flow[Fetched | NoRecord]:
        """Fetch a body from the process, else the shared cache, else the store."""
        body = self.local.get(op) or (yield from self._from_shared(op))
        if body is not None:
            return Fetched(body)
        reply = yield from ask(op)
        if isinstance(reply, Fetched):
            self.local.put(op, reply.snapshot)
            yield from self._share(op, reply.snapshot)
        return reply

    def _from_shared(self, op: Fetch) -> Flow[bytes | None]:
        if not op.head or not self._in_use():
            return None
        try:
            body = yield from ask(GetBody(op.identity, op.fence))
        except SemelError as error:
            self._failed(error)
            return None
        self._useless_until = None
        if body is None or not begins(body, op.head) or not is_sound(body):
            return None
        self.local.put(op, body)
        return body

    def _share(self, op: Fetch, body: bytes) -> Flow[None]:
        if not self._in_use():
            return
        try:
            yield from ask(PutBody(op.identity, op.fence, body, SHARED_FOR))
        except SemelError as error:
            self._failed(error)
        except Interrupted:
            return

    def _in_use(self) -> bool:
        if self.shared is None or self._useless_until is None:
            return self.shared is not None
        now = monotonic()
        if now < self._useless_until:
            return False
        self._useless_until = now + OUT_OF_USE  # this caller tries, others wait
        return True

    def _failed(self, error: Exception) -> None:
        if self._useless_until is None:  # log the first failure only
            log.warning("semel: the shared replay cache is out of use: %s", error)
        self._useless_until = monotonic() + OUT_OF_USE


class _BodyCacheStore:
    """The store for threads."""

    def __init__(self, inner: Store, bodies: BodyCache) -> None:
        self._inner = inner
        self._bodies = bodies

    def perform(self, op: StoreOperation[R], /) -> R:
        if isinstance(op, Fetch):
            return cast("R", run(self._bodies.fetch(op), self._ask))
        return self._inner.perform(op)

    def _ask(self, op: FlowOperation[Any]) -> Any:
        shared = self._bodies.shared
        if isinstance(op, GetBody | PutBody) and shared is not None:
            return shared.blocking.perform(op)
        return self._inner.perform(cast("StoreOperation[Any]", op))


class _AsyncBodyCacheStore:
    """The store for event loops."""

    def __init__(self, inner: AsyncStore, bodies: BodyCache) -> None:
        self._inner = inner
        self._bodies = bodies

    async def perform(self, op: StoreOperation[R], /) -> R:
        if isinstance(op, Fetch):
            return cast("R", await arun(self._bodies.fetch(op), self._ask))
        return await self._inner.perform(op)

    async def _ask(self, op: FlowOperation[Any]) -> Any:
        shared = self._bodies.shared
        if isinstance(op, GetBody | PutBody) and shared is not None:
            return await shared.awaited.perform(op)
        return await self._inner.perform(cast("StoreOperation[Any]", op))


class BodyCacheBackend(BackendWrapper):
    """A backend around another, with a cache for large answers."""

    def __init__(self, inner: Backend, bodies: BodyCache) -> None:
        super().__init__(inner)
        self.bodies = bodies

    def blocking(self) -> Store:
        return _BodyCacheStore(self.inner.blocking(), self.bodies)

    def awaited(self) -> AsyncStore:
        return _AsyncBodyCacheStore(self.inner.awaited(), self.bodies)

    def close(self) -> None:
        if self.bodies.shared is not None:
            self.bodies.shared.close()
        super().close()

    async def aclose(self) -> None:
        if self.bodies.shared is not None:
            await self.bodies.shared.aclose()
        await super().aclose()


def with_body_cache(backend: Backend, room: int, shared: str | None) -> Backend:
    """``backend`` with a cache of ``room`` bytes in this process and one at the URL ``shared``."""
    if not isinstance(room, int) or isinstance(room, bool) or room < 0:
        raise ConfigurationError("replay_bodies= takes a number of bytes, or 0 for none")
    if not room and shared is None:
        return backend
    return BodyCacheBackend(backend, BodyCache(room, None if shared is None else _at(shared)))


def _at(url: str) -> SharedBodies:
    from semel.stores import scheme

    if not isinstance(url, str) or not scheme(url).startswith("redis"):
        raise ConfigurationError("replay_shared= takes the URL of a Redis (redis://…), or None")
    try:
        from semel.stores.redis.backend import RedisBodies
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "hiredis":
            raise
        raise ConfigurationError(
            "replay_shared= needs hiredis; install it with: pip install 'semel[redis]'"
        ) from missing
    return RedisBodies(url)
