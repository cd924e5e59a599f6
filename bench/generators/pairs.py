"""Claim and complete through a store alone, no HTTP: ``pairs URL IN_FLIGHT SECONDS`` in JSON.

Each of so many tasks in one process claims a new key and completes it, over and over. Further
arguments change that: ``count=8000`` ends after so many pairs instead, ``key=abc`` uses another
text as the key, ``fields=`` keeps no digests of the request. What is
stored is made as the core makes it, of a request with two fields and of an answer in JSON whose
body does not compress. ``written``: bytes that the process has written to files, for each pair.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

import semel
from semel.core.frozen import replace
from semel.core.operations.requests import Agree, Applied, Claim, Claimed, Complete
from semel.core.records import Fence, HeaderView, Identity, Origin, Request
from semel.core.request.comparison import Prints
from semel.core.stored.snapshot import encode_whole
from semel.stores import open_backend
from semel.stores.base import AsyncStore

LEASE, DAY = 60_000_000, 86_400_000_000
TERMS = semel.ietf().terms("shop", "POST /payments", probe=False)
ORIGIN = Origin("tenant", "", "", "8e03978e-40d5-43e8-bc93-6894a57f9324")
JSON = (b"content-type", b"application/json")
PRINTS = Prints(
    Request("POST", "/payments", b"", HeaderView([JSON]), None),
    b'{"amount":4200,"currency":"EUR"}',
    semel.FingerprintRule(),
)
FINGERPRINT, FIELDS = PRINTS.fingerprint.text, PRINTS.evidence(Identity(bytes(32)))
OTHERWISE: dict[str, str] = {}
"""What was said beside URL, how many in flight, and seconds."""
BEGUN = count()
SNAPSHOT = encode_whole(201, [JSON], os.urandom(231))


def claim(identity: Identity, fence: Fence) -> Claim:
    return Claim(identity, fence, FINGERPRINT, FIELDS, ORIGIN, LEASE, terms=TERMS.id)


async def pair(store: AsyncStore) -> None:
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    claimed = await store.perform(claim(identity, fence))
    assert isinstance(claimed, Claimed), claimed
    applied = await store.perform(Complete(identity, fence, SNAPSHOT, DAY, DAY))
    assert isinstance(applied, Applied), applied


async def repeat(store: AsyncStore, ends_at: float, latencies: list[float]) -> None:
    """Until the time is up, or all are begun that were asked for."""
    left = int(OTHERWISE.get("count", 0))
    while (began := time.perf_counter()) < ends_at or left:
        if left and next(BEGUN) >= left:
            return
        await pair(store)
        latencies.append(time.perf_counter() - began)


async def measure(url: str, in_flight: int, seconds: float) -> dict[str, Any]:
    backend = open_backend(url, migrate=True)
    store = backend.awaited()
    await store.perform(Agree(TERMS))
    await pair(store)
    latencies: list[float] = []
    before = written()
    spent, began = time.process_time(), time.perf_counter()
    tasks = (repeat(store, began + seconds, latencies) for _ in range(in_flight))
    await asyncio.gather(*tasks)
    took, used = time.perf_counter() - began, time.process_time() - spent
    await backend.aclose()
    await asyncio.to_thread(backend.close)
    ordered = sorted(latencies)
    output = (written() - before) / len(ordered)
    return {
        "rate": len(ordered) / took,
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000,
        "cpu": used / len(ordered) * 1e6,
        "written": output,
    }


def written() -> int:
    """Bytes that this process has written."""
    return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])


if __name__ == "__main__":
    url, in_flight, seconds, *others = sys.argv[1:]
    OTHERWISE.update(dict(each.split("=", 1) for each in others))
    ORIGIN = replace(ORIGIN, key=OTHERWISE.get("key", ORIGIN.key))
    FIELDS = b"" if "fields" in OTHERWISE else FIELDS
    print(json.dumps(uvloop.run(measure(url, int(in_flight), float(seconds)))))
