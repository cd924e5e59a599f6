"""Bodies kept nearer than the store: never another record's, and never more than there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import Fence, Identity
from semel.core.stored.snapshot import LARGE, Snapshot, encode
from semel.errors import ConfigurationError
from semel.stores.body_cache import BodyCache, BodyCacheBackend, with_body_cache
from semel.stores.memory import MemoryBackend
from semel.testing.contract.event_loop_thread import EventLoopThread
from semel.testing.contract.records import MINUTE, ORIGIN, new_fence, new_identity
from tests.stores.harness import FakeClock

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

    def __init__(self, store: Counting, colour: str, portal: EventLoopThread) -> None:
        self.backend = with_body_cache(store, ROOM)
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
def portal() -> Iterator[EventLoopThread]:
    portal = EventLoopThread()
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
def test_a_body_comes_from_the_store_once(
    store: Counting, portal: EventLoopThread, colour: str
) -> None:
    node, body = Node(store, colour, portal), answer()
    identity, _ = completed(store, body)
    assert [node.replay(identity) for _ in range(3)] == [body] * 3
    assert store.fetched == 1


@COLOURS
def test_a_key_s_second_life_has_its_own_body(
    store: Counting, portal: EventLoopThread, colour: str
) -> None:
    node, first, second = Node(store, colour, portal), answer(), answer()
    identity, fence = completed(store, first)
    assert node.replay(identity) == first
    forgotten(store, identity, fence)
    completed(store, second, identity)
    assert node.replay(identity) == second


def test_a_body_whose_head_is_another_is_not_given() -> None:
    local, body = BodyCache(ROOM), answer()
    asked = ops.Fetch(new_identity(), new_fence(), b"\0" + body[:64])
    local.put(asked, ops.Fetched(answer()))
    assert local.get(asked) is None
    local.put(asked, ops.Fetched(body))
    assert local.get(asked) == body


def test_a_record_that_is_gone_is_gone(store: Counting, portal: EventLoopThread) -> None:
    node, body = Node(store, "blocking", portal), answer()
    identity, fence = completed(store, body)
    assert node.replay(identity) == body
    forgotten(store, identity, fence)
    assert isinstance(node.perform(ops.Read(identity)), ops.NoRecord)


def test_room_is_never_exceeded() -> None:
    local = BodyCache(10 * LARGE)
    names = [(new_identity(), new_fence()) for _ in range(50)]
    for identity, fence in names:
        local.put(ops.Fetch(identity, fence, b""), ops.Fetched(os.urandom(2 * LARGE)))
    halves = (local._young, local._old)
    assert sum(len(body) for half in halves for body in half.values()) <= 10 * LARGE
    last = ops.Fetch(*names[-1], b"\0" + local._young[names[-1]][:64])
    assert local.get(last) is not None
    local.put(ops.Fetch(new_identity(), new_fence(), b""), ops.Fetched(os.urandom(6 * LARGE)))
    assert local.get(last) is not None


# ── around the backend ────────────────────────────────────────────────────────────────────────────


def test_without_room_the_backend_is_left_as_it_is(store: Counting) -> None:
    assert with_body_cache(store, 0) is store
    assert isinstance(with_body_cache(store, 1), BodyCacheBackend)


@pytest.mark.parametrize("room", [-1, True, 1.5])
def test_a_room_that_is_none_is_refused(store: Counting, room: Any) -> None:
    with pytest.raises(ConfigurationError, match="replay_bodies="):
        with_body_cache(store, room)
