"""Time that passes because a test says so: what a store keeps is moved into the past.

For SQLite and PostgreSQL files and servers that other processes use as well: whoever waits for the
end of a lease there finds it past at the next look, and no lease in a test needs to be short.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from tests.stores.harness import TIMES
from tests.waiting import PATIENCE


def into_the_past(store: str, seconds: float) -> None:
    """All that the store at this URL knows ends so much earlier.

    When it began stays: by that a record is known to providers.
    """
    with closing(_connect(store)) as connection:
        for table, columns in TIMES.items():
            ends = [name for name in columns.split() if name != "created_at"]
            moved = ", ".join(f"{name} = {name} - {seconds * 1e6:.0f}" for name in ends)
            connection.execute(f"UPDATE {table} SET {moved}")


def _connect(store: str) -> Any:
    if store.startswith("postgresql"):
        import psycopg

        return psycopg.connect(store, autocommit=True)
    path = store.removeprefix("sqlite:///")
    return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
