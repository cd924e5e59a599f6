"""``python -m bench.schema``: what it costs to find what is due, on the way of a request.

Each transaction of pgbench is the claim or the completion of a new key, one after the other, as
single statements. The schemes differ in how maintenance finds records:

- none: it cannot; no index on (duty, due_at)
- moved: a completion writes when the record is next due, and so the index; this is what is shipped
- left: a completion leaves duty and due_at alone, for a sweeper to move them on later
- swept: the same, with that sweeper at work beside it
- side: a side table of what is in flight; a row is written by the claim, deleted by the completion

Every round measures each scheme once, in a database of its own. CPU time of the server, WAL and
size are per pair; they say more than the rate where the machine is busy with other things too.
"""

from __future__ import annotations

import argparse
import re
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from bench.measure import cpu_seconds
from bench.pgbench import VALUES, pgbench, statement
from semel.stores import open_backend
from semel.stores.sql.dialect import SYNTAXES
from tests.servers.postgres import PostgresServer

INDEX: Final = "DROP INDEX semel_record_due"
SIDE: Final = (
    INDEX,
    "CREATE TABLE semel_flight (identity bytea PRIMARY KEY, due_at bigint)",
    "CREATE INDEX semel_flight_due ON semel_flight (due_at)",
)


def leaving(text: str) -> str:
    """The completion that leaves duty and due_at alone."""
    return re.sub(r", duty = 'expire', due_at = .*?(?= WHERE)", "", text)


# Leases are past at once: the sweeper has its work.
CLAIM, COMPLETE = statement("claim", lease="1"), statement("complete")
CATCH_UP = (
    "WITH due AS MATERIALIZED (SELECT identity AS which FROM semel_record WHERE duty = 'lease'"
    f" AND due_at <= (SELECT {SYNTAXES['postgresql'].now}) ORDER BY due_at LIMIT 500"
    " FOR UPDATE SKIP LOCKED) UPDATE semel_record SET duty = 'expire', due_at = expires_at"
    " FROM due WHERE identity = which AND state = 'completed' RETURNING 1"
)
SIDE_CLAIM = f"INSERT INTO semel_flight VALUES ({VALUES['identity']}, 1)"
SIDE_COMPLETE = f"DELETE FROM semel_flight WHERE identity = {VALUES['identity']}"


@dataclass
class Scheme:
    name: str
    claim: str
    complete: str
    ddl: tuple[str, ...] = ()
    sweeps: bool = False
    pairs: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    size: list[float] = field(default_factory=list)


def schemes() -> list[Scheme]:
    return [
        Scheme("none", CLAIM, leaving(COMPLETE), (INDEX,)),
        Scheme("moved", CLAIM, COMPLETE),
        Scheme("left", CLAIM, leaving(COMPLETE)),
        Scheme("swept", CLAIM, leaving(COMPLETE), sweeps=True),
        Scheme(
            "side", with_also(CLAIM, SIDE_CLAIM), with_also(leaving(COMPLETE), SIDE_COMPLETE), SIDE
        ),
    ]


def with_also(text: str, also: str) -> str:
    if text.startswith("WITH "):
        return f"WITH also AS ({also}), {text.removeprefix('WITH ')}"
    return f"WITH also AS ({also}) {text}"


@contextmanager
def sweeping(url: str) -> Iterator[None]:
    stop = threading.Event()

    def sweep() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                if connection.execute(CATCH_UP.encode()).rowcount < 500:
                    stop.wait(0.1)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ask(url: str, text: str) -> tuple[Any, ...]:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(text.encode()).fetchone()
        assert row is not None
        return row


def measure(server: PostgresServer, scheme: Scheme, clients: int, seconds: int) -> None:
    with server.database() as url:
        open_backend(url).migrate()
        with psycopg.connect(url, autocommit=True) as connection:
            for text in scheme.ddl:
                connection.execute(text.encode())
        pair = (scheme.claim, scheme.complete)
        (before,) = ask(url, "SELECT pg_current_wal_insert_lsn()")
        spent = cpu_seconds(server.pid)
        if scheme.sweeps:
            with sweeping(url):
                rate = pgbench(server, url, pair, clients, seconds)
        else:
            rate = pgbench(server, url, pair, clients, seconds)
        scheme.pairs.append(rate)
        keep(scheme, url, before, cpu_seconds(server.pid) - spent)


def keep(scheme: Scheme, url: str, before: str, spent: float) -> None:
    wal, keys, hot, size = ask(
        url,
        f"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')::float,"
        " (SELECT count(*) FROM semel_record)::float,"
        " (SELECT n_tup_hot_upd::float / n_tup_upd FROM pg_stat_user_tables"
        "  WHERE relname = 'semel_record'),"
        " (SELECT sum(pg_total_relation_size(c.oid))::float FROM pg_class c"
        "  WHERE relname IN ('semel_record', 'semel_flight'))",
    )
    scheme.cpu.append(1e6 * spent / keys)
    scheme.wal.append(wal / keys)
    scheme.hot.append(hot)
    scheme.size.append(size / keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--fsync", action="store_true", help="durable, on disk; else in memory")
    given = parser.parse_args()
    measured = schemes()
    settings = {"max_wal_size": "8GB", "full_page_writes": "on", "shared_buffers": "512MB"}
    with PostgresServer(fsync=given.fsync, settings=settings) as server:
        for _ in range(given.rounds):
            for scheme in measured:
                measure(server, scheme, given.clients, given.seconds)
    print(f"{'scheme':8} {'pairs/s':>8} {'CPU us':>7} {'WAL B':>7} {'HOT':>5} {'stored B':>9}")
    for scheme in measured:
        print(
            f"{scheme.name:8} {statistics.median(scheme.pairs):8.0f}"
            f" {statistics.median(scheme.cpu):7.0f} {statistics.median(scheme.wal):7.0f}"
            f" {statistics.median(scheme.hot):5.0%} {statistics.median(scheme.size):9.0f}"
        )


if __name__ == "__main__":
    main()
