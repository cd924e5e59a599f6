"""SQLite as fast as it goes: ``group_commit FILE ROWS SECONDS`` in JSON.

One thread, the statements of the store, ROWS claims in one transaction and their completions in
the next; synchronous=FULL as in the store.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from typing import Any

from bench.generators.pairs import DAY, FIELDS, FINGERPRINT, LEASE, SNAPSHOT
from semel.core.terms import NO_TERMS
from semel.stores import open_backend
from semel.stores.sql.dialect import dialect


def silent(name: str) -> str:
    """A statement of the store that gives back no rows: executemany takes no other."""
    return dialect("sqlite").queries[name].text.partition(" RETURNING ")[0]


CLAIM, COMPLETE = silent("claim"), silent("complete")


def rows(count: int) -> list[dict[str, Any]]:
    """The parameters of both statements, for so many new keys."""
    shared = {
        "fingerprint": FINGERPRINT,
        "fields": FIELDS,
        "tenant": "tenant",
        "method": "POST",
        "path": "/payments",
        "key": "key-1",
        "on_lapse": 1,
        "lease": LEASE,
        "fresh_until": None,
        "request": None,
        "now": time.time_ns() // 1000,
        "snapshot": SNAPSHOT,
        "retention": DAY,
        "tombstone": DAY,
        "resource": None,
        "terms": NO_TERMS,
    }
    return [shared | {"identity": os.urandom(32), "fence": os.urandom(16)} for _ in range(count)]


def measure(path: str, count: int, seconds: float) -> dict[str, float]:
    backend = open_backend(f"sqlite:///{path}")
    backend.migrate()
    backend.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    done, began, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        keys = rows(count)
        for statement in (CLAIM, COMPLETE):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, keys)
            connection.execute("COMMIT")
        done += count
    took, used = time.perf_counter() - began, time.process_time() - spent
    return {"rate": done / took, "cpu": used / done * 1e6}


if __name__ == "__main__":
    path, count, seconds = sys.argv[1:]
    print(json.dumps(measure(path, int(count), float(seconds))))
