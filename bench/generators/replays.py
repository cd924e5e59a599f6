"""Ask again for keys that are done, through a store alone: ``replays URL IN_FLIGHT SECONDS``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import cycle

import uvloop

from bench.generators.pairs import DAY, SNAPSHOT, TERMS, claim
from semel.core.operations.requests import Agree, Applied, Claimed, Complete, Found
from semel.core.records import Fence, Identity
from semel.stores import open_backend
from semel.stores.base import AsyncStore

KEYS = 500


async def done(store: AsyncStore) -> Identity:
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    assert isinstance(await store.perform(claim(identity, fence)), Claimed)
    completed = await store.perform(Complete(identity, fence, SNAPSHOT, DAY, DAY))
    assert isinstance(completed, Applied), completed
    return identity


async def repeat(store: AsyncStore, keys: list[Identity], ends_at: float) -> int:
    for count, identity in enumerate(cycle(keys)):
        if time.perf_counter() >= ends_at:
            return count
        found = await store.perform(claim(identity, Fence(os.urandom(16))))
        assert isinstance(found, Found), found
    raise AssertionError("a cycle has no end")


async def measure(url: str, in_flight: int, seconds: float) -> dict[str, float]:
    backend = open_backend(url, migrate=True)
    store = backend.awaited()
    await store.perform(Agree(TERMS))
    keys = [await done(store) for _ in range(KEYS)]
    spent, began = time.process_time(), time.perf_counter()
    tasks = (repeat(store, keys[n:] + keys[:n], began + seconds) for n in range(in_flight))
    count = sum(await asyncio.gather(*tasks))
    took, used = time.perf_counter() - began, time.process_time() - spent
    await backend.aclose()
    await asyncio.to_thread(backend.close)
    return {"rate": count / took, "cpu": used / count * 1e6}


if __name__ == "__main__":
    url, in_flight, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(measure(url, int(in_flight), float(seconds)))))
