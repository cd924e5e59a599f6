"""What one step costs in several tables, turn by turn: ``upkeep WHAT SECONDS URL...`` in JSON.

WHAT is ``claim`` (a new key, one after the other), ``sweep`` (lapse leases that have passed) or
``reap`` (expire answers that are promised no longer and forget them). The sweeper and the reaper
get `DUE` records that are due before every step; making them is not counted. The tables take turns,
so that whatever else the machine does disturbs them alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from bench.generators.pairs import FIELDS, FINGERPRINT, LEASE, ORIGIN, SNAPSHOT
from semel.core.operations.maintenance import Reap, Sweep
from semel.core.operations.requests import Claim, Complete
from semel.core.records import Fence, Identity
from semel.stores import open_backend
from semel.stores.base import Store

DUE = 100
FEWEST = 5
"""Steps, however long they take."""


def new(lease: int) -> Claim:
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    return Claim(identity, fence, FINGERPRINT, FIELDS, ORIGIN, lease)


def claim(store: Store) -> float:
    op = new(LEASE)
    began = time.perf_counter()
    store.perform(op)
    return time.perf_counter() - began


def sweep(store: Store) -> float:
    for _ in range(DUE):
        store.perform(new(lease=1))
    began = time.perf_counter()
    tended = store.perform(Sweep(DUE))
    took = time.perf_counter() - began
    assert sum(tended.counts.values()) == DUE, tended
    return took


def reap(store: Store) -> float:
    for _ in range(DUE):
        op = new(LEASE)
        store.perform(op)
        store.perform(Complete(op.identity, op.fence, SNAPSHOT, retention=1, tombstone=1))
    began = time.perf_counter()
    done = 0
    while done < 2 * DUE:  # each is expired and then forgotten
        tended = store.perform(Reap(DUE))
        assert tended.counts, "nothing was due"
        done += sum(tended.counts.values())
    return time.perf_counter() - began


STEPS: dict[str, Callable[[Store], float]] = {"claim": claim, "sweep": sweep, "reap": reap}


def measure(what: str, seconds: float, urls: list[str]) -> list[dict[str, float]]:
    backends, step = [open_backend(url) for url in urls], STEPS[what]
    stores = [backend.blocking() for backend in backends]
    taken: list[list[float]] = [[] for _ in stores]
    for store in stores:
        step(store)  # the first one opens the store
    ends_at = time.perf_counter() + seconds * len(stores)
    while time.perf_counter() < ends_at or len(taken[0]) < FEWEST:
        for store, times in zip(stores, taken, strict=True):
            times.append(step(store))
    for backend in backends:
        backend.close()
    return [summary(sorted(times)) for times in taken]


def summary(ordered: list[float]) -> dict[str, float]:
    return {
        "rate": len(ordered) / sum(ordered),
        "p50": ordered[len(ordered) // 2] * 1000,
        "p99": ordered[int(len(ordered) * 0.99)] * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]), sys.argv[3:])))
