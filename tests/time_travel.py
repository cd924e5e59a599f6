"""Time that passes because a test says so: what a store keeps is moved into the past.

For files and servers that other processes use as well: whoever waits for the
end of a lease there finds it past at the next look, and no lease in a test needs to be short.
"""

from __future__ import annotations

from contextlib import closing

from tests.databases import connect, executed
from tests.stores.harness import TIMES


def into_the_past(store: str, seconds: float) -> None:
    """All that the store at this URL knows ends so much earlier.

    When it began stays: by that a record is known to providers.
    """
    with closing(connect(store)) as connection:
        for table, columns in TIMES.items():
            ends = [name for name in columns.split() if name != "created_at"]
            moved = ", ".join(f"{name} = {name} - {seconds * 1e6:.0f}" for name in ends)
            executed(connection, f"UPDATE {table} SET {moved}")
