"""Bodies kept nearer than the store: right when the cache is, wrong, empty or down."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import Fence, Identity
from semel.core.stored.snapshot import LARGE, Snapshot, encode
from semel.errors import ConfigurationError
from semel.stores import body_cache
from semel.stores.body_cache import BodyCacheBackend, GetBody, LocalBodies, PutBody, with_body_cache
from semel.stores.memory import MemoryBackend
from semel.stores.redis.body_cache import RedisBodies
from tests.servers import ValkeyServer
from tests.stores.contract import MINUTE, ORIGIN, new_fence, new_identity
from tests.stores.harness import FakeClock
from tests.stores.portal import Portal
from tests.waiting import PATIENCE, until

COLOURS = pytest.mark.parametrize("colour", ["blocking", "awaited"])
ROOM = 1_000_000


class Counting(MemoryBackend):
    """Counts how often a body had to come from the store."""

    def __init__(self) -> None:
        self.time = FakeClock()
        super().__init__(clock=self.time)
        self.fetched = 0

    def perform(self, op: Any) -> Any:
        self.fetched += isinstance(op, ops.Fetch)
        return super().perform(op)


class Node:
    """One process's view of the store, in either colour."""

    def __init__(self, store: Counting, colour: str, portal: Portal, **how: Any) -> None:
        self.backend = with_body_cache(store, how.get("room", ROOM), how.get("shared"))
        self._colour = colour
        self._portal = portal

    def perform(self, op: Any) -> Any:
        if self._colour == "blocking":
            return self.backend.blocking().perform(op)
        return self._portal.call(self._awaited(op))

    async def _awaited(self, op: Any) -> Any:
        return await self.backend.awaited().perform(op)

    def replay(self, identity: Identity) -> bytes | None:
        """As a request does it: read, then fetch."""
        found = self.perform(ops.Read(identity))
        assert isinstance(found, ops.Found)
        reply = self.perform(ops.Fetch(identity, found.record.fence, found.record.snapshot or b""))
        return reply.snapshot if isinstance(reply, ops.Fetched) else None

    def close(self) -> None:
        self.backend.close()
        if self._colour == "awaited":
            self._portal.call(self.backend.aclose())


@pytest.fixture
def store() -> Counting:
    return Counting()


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


def answer(size: int = 2 * LARGE) -> bytes:
    return encode(Snapshot(201, (), os.urandom(size)))


def completed(
    store: MemoryBackend, body: bytes, identity: Identity | None = None
) -> tuple[Identity, Fence]:
    identity, fence = identity or new_identity(), new_fence()
    perform = store.blocking().perform
    assert isinstance(perform(ops.Claim(identity, fence, "v1:", b"", ORIGIN, MINUTE)), ops.Claimed)
    assert isinstance(perform(ops.Complete(identity, fence, body, MINUTE, MINUTE)), ops.Applied)
    return identity, fence


def forgotten(store: Counting, identity: Identity, seen: Fence) -> None:
    store.time.travel(10 * MINUTE)
    assert isinstance(store.blocking().perform(ops.Forget(identity, seen)), ops.Applied)


# ── in the process ────────────────────────────────────────────────────────────────────────────────


@COLOURS
def test_a_body_comes_from_the_store_once(store: Counting, portal: Portal, colour: str) -> None:
    node, body = Node(store, colour, portal), answer()
    identity, _ = completed(store, body)
    assert [node.replay(identity) for _ in range(3)] == [body] * 3
    assert store.fetched == 1


@COLOURS
def test_a_key_s_second_life_has_its_own_body(store: Counting, portal: Portal, colour: str) -> None:
    node, first, second = Node(store, colour, portal), answer(), answer()
    identity, fence = completed(store, first)
    assert node.replay(identity) == first
    forgotten(store, identity, fence)
    completed(store, second, identity)
    assert node.replay(identity) == second


def test_a_body_whose_head_is_another_is_not_given() -> None:
    local, body = LocalBodies(ROOM), answer()
    asked = ops.Fetch(new_identity(), new_fence(), b"\0" + body[:64])
    local.put(asked, answer())
    assert local.get(asked) is None
    local.put(asked, body)
    assert local.get(asked) == body


def test_a_record_that_is_gone_is_gone(store: Counting, portal: Portal) -> None:
    node, body = Node(store, "blocking", portal), answer()
    identity, fence = completed(store, body)
    assert node.replay(identity) == body
    forgotten(store, identity, fence)
    assert isinstance(node.perform(ops.Read(identity)), ops.NoRecord)


def test_room_is_never_exceeded() -> None:
    local = LocalBodies(10 * LARGE)
    names = [(new_identity(), new_fence()) for _ in range(50)]
    for identity, fence in names:
        local.put(ops.Fetch(identity, fence, b""), os.urandom(2 * LARGE))
    halves = (local._young, local._old)
    assert sum(len(body) for half in halves for body in half.values()) <= 10 * LARGE
    last = ops.Fetch(*names[-1], b"\0" + local._young[names[-1]][:64])
    assert local.get(last) is not None
    local.put(ops.Fetch(new_identity(), new_fence(), b""), os.urandom(6 * LARGE))
    assert local.get(last) is not None


# ── in a Redis, beside the store ──────────────────────────────────────────────────────────────────


@pytest.fixture
def shared(valkey: ValkeyServer) -> str:
    return f"{valkey.socket_url}?prefix={os.urandom(4).hex()}&timeout={PATIENCE}"


@COLOURS
def test_a_body_one_node_fetched_serves_the_others(
    store: Counting, portal: Portal, colour: str, shared: str
) -> None:
    nodes = [Node(store, colour, portal, room=0, shared=shared) for _ in range(3)]
    body = answer()
    identity, _ = completed(store, body)
    assert [node.replay(identity) for node in nodes] == [body] * 3
    assert store.fetched == 1
    for node in nodes:
        node.close()


@COLOURS
@pytest.mark.parametrize("wrong", ["another answer", "damaged", "damaged at its head", "empty"])
def test_a_cache_that_is_wrong_is_not_believed(
    store: Counting, portal: Portal, colour: str, shared: str, wrong: str
) -> None:
    node, body = Node(store, colour, portal, room=0, shared=shared), answer()
    identity, fence = completed(store, body)
    damaged = bytearray(body)
    damaged[5 if wrong == "damaged at its head" else -5] ^= 1
    lies = {"another answer": answer(), "empty": b""}
    cache = RedisBodies(shared)
    cache.blocking.perform(PutBody(identity, fence, lies.get(wrong, bytes(damaged)), 60))
    assert node.replay(identity) == body
    assert store.fetched == 1
    assert cache.blocking.perform(GetBody(identity, fence)) == body, "it was set right"
    cache.close()
    node.close()


@COLOURS
def test_a_cache_that_is_down_costs_one_try_and_no_answer(
    store: Counting, portal: Portal, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer() as server:
        url = f"{server.socket_url}?timeout={PATIENCE}"
        node = Node(store, colour, portal, room=0, shared=url)
        body = answer()
        identity, _ = completed(store, body)
        assert node.replay(identity) == body
    assert [node.replay(identity) for _ in range(3)] == [body] * 3
    assert store.fetched == 4
    assert caplog.text.count("out of use") == 1
    node.close()


class Hole:
    """Takes connections and never says a word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._peers: list[object] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}?timeout=0.3"
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def tried(self) -> int:
        """How often by others, up to now: connections are taken in the order in which they came."""
        with socket.create_connection(self._listener.getsockname()) as ours:
            mine = ours.getsockname()
            until(lambda: mine in self._peers)
        self._peers.remove(mine)
        return len(self._peers)

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                end, peer = self._listener.accept()
                self._open.append(end)
                self._peers.append(peer)

    def close(self) -> None:
        for end in (self._listener, *self._open):
            end.close()


def test_a_cache_that_hangs_is_tried_by_one_while_the_others_wait_for_nothing(
    store: Counting,
    portal: Portal,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hole, now = Hole(), [0.0]
    monkeypatch.setattr(body_cache, "monotonic", lambda: now[0])
    node, body = Node(store, "blocking", portal, room=0, shared=hole.url), answer()
    identity, _ = completed(store, body)
    assert node.replay(identity) == body
    assert hole.tried == 1
    for turn in (2, 3):
        now[0] += body_cache.OUT_OF_USE + 1
        with ThreadPoolExecutor(8) as pool:
            tries = pool.submit(node.replay, identity)
            until(lambda goal=turn: hole.tried == goal)  # type: ignore[misc]
            assert list(pool.map(node.replay, [identity] * 7)) == [body] * 7
            assert tries.result() == body
        assert hole.tried == turn
    assert caplog.text.count("out of use") == 1
    node.close()
    hole.close()


def test_a_cache_that_is_back_is_used_again(
    store: Counting, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(body_cache, "monotonic", lambda: now[0])
    with ValkeyServer() as server:
        shared = f"{server.socket_url}?timeout={PATIENCE}"
        node, body = Node(store, "blocking", portal, room=0, shared=shared), answer()
        identity, _ = completed(store, body)
        server.stop()
        assert node.replay(identity) == body
        server.start()
        now[0] += body_cache.OUT_OF_USE + 1
        assert [node.replay(identity) for _ in range(3)] == [body] * 3
        assert store.fetched == 2
        node.close()


def test_a_cache_may_evict_and_forget() -> None:
    """None of the demands on a store of records: it may drop what it likes, when it likes."""
    with ValkeyServer(settings={"maxmemory-policy": "allkeys-lru", "maxmemory": "3mb"}) as server:
        cache = RedisBodies(f"{server.socket_url}?timeout={PATIENCE}")
        for _ in range(40):
            cache.blocking.perform(PutBody(new_identity(), new_fence(), os.urandom(200_000), 60))
        cache.close()


def test_what_is_put_has_a_time_to_live(valkey: ValkeyServer) -> None:
    prefix = os.urandom(4).hex()
    cache = RedisBodies(f"{valkey.socket_url}?prefix={prefix}&timeout={PATIENCE}")
    cache.blocking.perform(PutBody(new_identity(), new_fence(), b"body", 60))
    (key,) = valkey.ask("KEYS", f"{prefix}:*")
    assert 0 < valkey.ask("TTL", key) <= 60
    cache.close()


# ── around the backend ────────────────────────────────────────────────────────────────────────────


def test_without_room_and_url_the_backend_is_left_as_it_is(store: Counting) -> None:
    assert with_body_cache(store, 0, None) is store
    assert isinstance(with_body_cache(store, 1, None), BodyCacheBackend)


@pytest.mark.parametrize("room", [-1, True, 1.5])
def test_a_room_that_is_none_is_refused(store: Counting, room: Any) -> None:
    with pytest.raises(ConfigurationError, match="replay_bodies="):
        with_body_cache(store, room, None)


@pytest.mark.parametrize("url", ["memcached://host", "localhost:6379", 7])
def test_a_shared_cache_is_a_redis(store: Counting, url: Any) -> None:
    with pytest.raises(ConfigurationError, match="replay_shared="):
        with_body_cache(store, 0, url)
