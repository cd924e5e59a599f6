"""Claim and complete through a store alone, no HTTP: ``pairs URL IN_FLIGHT SECONDS`` in JSON.

Each of so many tasks in one process claims a new key and completes it, over and over.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

from semel.core.operations.requests import Applied, Claim, Claimed, Complete
from semel.core.records import Fence, Identity, Origin
from semel.stores import open_backend
from semel.stores.base import AsyncStore

ORIGIN = Origin("tenant", "POST", "/payments", "key-1")
FIELDS, SNAPSHOT = os.urandom(64), os.urandom(300)
LEASE, DAY = 60_000_000, 86_400_000_000


async def pair(store: AsyncStore) -> None:
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    claimed = await store.perform(Claim(identity, fence, "v1:" + "a" * 43, FIELDS, ORIGIN, LEASE))
    assert isinstance(claimed, Claimed), claimed
    applied = await store.perform(Complete(identity, fence, SNAPSHOT, DAY, DAY))
    assert isinstance(applied, Applied), applied


async def repeat(store: AsyncStore, ends_at: float, latencies: list[float]) -> None:
    while (began := time.perf_counter()) < ends_at:
        await pair(store)
        latencies.append(time.perf_counter() - began)


async def measure(url: str, in_flight: int, seconds: float) -> dict[str, Any]:
    backend = open_backend(url, migrate=True)
    store = backend.awaited()
    await pair(store)
    latencies: list[float] = []
    spent, began = time.process_time(), time.perf_counter()
    tasks = (repeat(store, began + seconds, latencies) for _ in range(in_flight))
    await asyncio.gather(*tasks)
    took, used = time.perf_counter() - began, time.process_time() - spent
    await backend.aclose()
    await asyncio.to_thread(backend.close)
    ordered = sorted(latencies)
    return {
        "rate": len(ordered) / took,
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000,
        "cpu": used / len(ordered) * 1e6,
    }


if __name__ == "__main__":
    url, in_flight, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(measure(url, int(in_flight), float(seconds)))))
