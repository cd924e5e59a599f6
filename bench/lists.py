"""``python -m bench.lists``: what lists and counts for people cost, in a store of many records.

Records are written straight into the table: nine of ten completed, under a retention of a day or of
a week; tombstones; one in a thousand unsettled. Each page is read once to warm it, then measured;
the median and the slowest of the rounds are printed, the median CPU time of this process (with
SQLite that is all there is), and how many records a page looked at.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

from semel.core.operations.requests import Agree
from semel.core.records import State
from semel.core.stored.snapshot import encode_whole
from semel.operators import counts
from semel.operators.lists import QUICK_LOOK, RecordFilter, page
from semel.stores import open_backend
from semel.stores.base import Backend, system_clock
from semel.testing.contract.terms import terms
from tests.servers.postgres import PostgresServer

DAY: Final = 86_400_000_000
TERMS: Final = (
    terms("shop", "POST /payments", retention=DAY, tombstone=DAY),
    terms("shop", "POST /refunds", retention=7 * DAY, tombstone=DAY),
)
ANSWER: Final = encode_whole(201, ((b"content-type", b"application/json"),), b"x" * 300)
COLUMNS: Final = (
    *("created_at", "terms", "identity", "fence", "fingerprint", "tenant", "method", "path"),
    *("key", "on_lapse", "state", "duty", "due_at", "leased_until", "forget_at", "snapshot"),
)


def rows(records: int, now: int) -> Iterator[tuple[Any, ...]]:
    """Made one after the other over a day, the last one now; their keys and texts as stored."""
    for n in range(records):
        made, agreed = now - (records - n) * DAY // records, TERMS[n % 10 == 0]
        identity, end = sha256(b"%d" % n).digest(), made + agreed.retention
        named = (f"tenant {n % 97}", "POST", "/payments", b"order-%d-of-november" % n, 1)
        own = (made, agreed.id, identity, identity[:16], b"r1.x", *named)
        if n % 1000 == 0:
            yield (*own, 5, 4, None if n % 4000 == 0 else now + n, None, None, None)
        elif n % 1000 == 1:
            yield (*own, 2, 1, made + DAY, made + DAY, None, None)
        elif n % 20 == 2:
            yield (*own, 6, 6, end + agreed.tombstone, None, None, None)
        else:
            yield (*own, 3, 5, end, None, end + agreed.tombstone, ANSWER)


@contextmanager
def sqlite(records: int) -> Iterator[Backend]:
    with TemporaryDirectory() as folder:
        file = Path(folder, "semel.db")
        backend = opened(f"sqlite:///{file}")
        connection = sqlite3.connect(file)
        marks = ", ".join("?" * len(COLUMNS))
        connection.execute("PRAGMA synchronous = OFF")
        text = f"INSERT INTO semel_record ({', '.join(COLUMNS)}) VALUES ({marks})"
        connection.executemany(text, rows(records, system_clock()))
        connection.commit()
        connection.close()
        yield backend
        backend.close()


@contextmanager
def postgresql(records: int) -> Iterator[Backend]:
    with PostgresServer() as server, server.database() as url:
        backend = opened(url)
        with psycopg.connect(url, autocommit=True) as connection:
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY semel_record ({', '.join(COLUMNS)}) FROM STDIN") as copy,
            ):
                for row in rows(records, system_clock()):
                    copy.write_row(row)
            connection.execute("VACUUM ANALYZE semel_record")
        yield backend
        backend.close()


def opened(url: str) -> Backend:
    backend = open_backend(url)
    backend.migrate()
    for each in TERMS:
        backend.blocking().perform(Agree(each))
    return backend


STORES: Final = {"sqlite": sqlite, "postgresql": postgresql}


def cases(backend: Backend) -> Iterator[tuple[str, Callable[[], int]]]:
    """What is measured: it returns how many records were looked at."""
    store, now = backend.blocking(), system_clock()
    completed = (State.COMPLETED,)

    def listed(wanted: RecordFilter, after: str | None = None, **how: Any) -> Callable[[], int]:
        return lambda: page(backend, wanted, 50, after, **how).looked

    place: str | None = None
    for _ in range(20):
        place = page(backend, RecordFilter(), 50, place).after
    yield "all states, first page", listed(RecordFilter())
    yield "all states, 21st page", listed(RecordFilter(), place)
    yield "completed", listed(RecordFilter(completed))
    yield "unknown", listed(RecordFilter((State.UNKNOWN,)))
    yield "expired", listed(RecordFilter((State.EXPIRED,)))
    yield "one tenant of 97", listed(RecordFilter(tenant="tenant 7"), look=QUICK_LOOK)
    yield "nothing fits, looks at 2,000", listed(RecordFilter(tenant="nobody"), look=2_000)
    yield "nothing fits, looks at 20,000", listed(RecordFilter(tenant="nobody"), look=20_000)
    yield "made within the last hour", listed(RecordFilter(since=now - DAY // 24))
    yield "counts of what is unsettled", lambda: counts.unsettled(store).in_progress.count
    yield "sample of 5,000", lambda: counts.sample(store, now, 5_000).looked
    yield "sample of 20,000", lambda: counts.sample(store, now, 20_000).looked


def milliseconds(call: Callable[[], int], rounds: int) -> tuple[float, float, float, int]:
    """The median, the slowest, the CPU time, and how many records were looked at."""
    looked, times, busy = call(), list[float](), list[float]()
    for _ in range(rounds):
        began, worked = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - began) * 1000)
        busy.append((time.process_time() - worked) * 1000)
    return statistics.median(times), max(times), statistics.median(busy), looked


def main() -> None:
    parser = argparse.ArgumentParser("bench.lists", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("stores", nargs="*", default=[*STORES], help=", ".join(STORES))
    options = parser.parse_args()
    found: list[tuple[str, ...]] = []
    for name in options.stores:
        with STORES[name](options.records) as backend:
            for what, call in cases(backend):
                *figures, looked = milliseconds(call, options.rounds)
                found.append((name, what, *(f"{each:.1f}" for each in figures), f"{looked:,}"))
    print("| store | what | median ms | slowest ms | CPU ms | looked at |")
    print("|---|---|---|---|---|---|")
    for row in found:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
