"""``python -m bench.schema``: what it costs to find what is due, on the way of a request.

Each transaction of pgbench is the claim or the completion of a new key, one after the other, as
single statements. The schemes differ in how maintenance finds records:

- none: it cannot; no index on (duty, due_at)
- moved: a completion writes when the record is next due, and so the index; this is what is shipped
- left: a completion leaves duty and due_at alone, for a sweeper to move them on later
- swept: the same, with that sweeper at work beside it
- side: a side table of what is in flight; a row is written by the claim, deleted by the completion

With ``--fillfactor`` the shipped scheme is measured with other fillfactors instead: first each key
is completed right after its claim, then (``lag``) a thousand others are claimed in between, as
while handlers run; and with its table divided into 16 partitions. The figures are those of a second
run in the same table, after a vacuum: what the first left behind is used again, or not.

Every round measures each scheme once, in a database of its own. CPU time of the server and WAL
are per key; they say more than the rate where the machine is busy with other things too. Table and
indexes are megabytes for a million keys, as they are after the run, without a vacuum.
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
from tests.servers.postgres import PostgresServer
from tests.stores.harness import divide
from tools.queries import SYNTAXES

INDEX: Final = "DROP INDEX semel_record_due"
RULES: Final = (
    "DO $$ DECLARE rule text; BEGIN FOR rule IN SELECT conname FROM pg_constraint"
    " WHERE conrelid = 'semel_record'::regclass AND contype = 'c' LOOP"
    " EXECUTE 'ALTER TABLE semel_record DROP CONSTRAINT ' || rule; END LOOP; END $$"
)
"""A completed record whose duty is still that of the sweeper is against them."""
SIDE: Final = (
    INDEX,
    RULES,
    "CREATE TABLE semel_flight (identity bytea PRIMARY KEY, due_at bigint)",
    "CREATE INDEX semel_flight_due ON semel_flight (due_at)",
)


def leaving(text: str) -> str:
    """The completion that leaves duty and due_at alone."""
    return re.sub(r"duty = 5, due_at = ", "expires_at = ", text)


# Leases are past at once: the sweeper has its work.
CLAIM, COMPLETE = statement("claim", lease="1"), statement("complete")
FILLFACTORS: Final = (100, 90, 75)
LAG: Final = 1000
"""Keys in flight of all clients."""
CATCH_UP = (
    "WITH due AS MATERIALIZED (SELECT identity AS which FROM semel_record WHERE duty = 1"
    f" AND due_at <= (SELECT {SYNTAXES['postgresql'].now}) ORDER BY due_at LIMIT 500"
    " FOR UPDATE SKIP LOCKED) UPDATE semel_record SET duty = 5, due_at = expires_at"
    " FROM due WHERE identity = which AND state = 3 RETURNING 1"
)
SIDE_CLAIM = f"INSERT INTO semel_flight VALUES ({VALUES['identity']}, 1)"
SIDE_COMPLETE = f"DELETE FROM semel_flight WHERE identity = {VALUES['identity']}"


@dataclass
class Scheme:
    name: str
    statements: tuple[str, ...]
    ddl: tuple[str, ...] = ()
    sweeps: bool = False
    parts: bool = False
    lag: int = 0
    twice: bool = False
    pairs: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    table: list[float] = field(default_factory=list)
    indexes: list[float] = field(default_factory=list)


def schemes() -> list[Scheme]:
    also = (with_also(CLAIM, SIDE_CLAIM), with_also(leaving(COMPLETE), SIDE_COMPLETE))
    return [
        Scheme("none", (CLAIM, leaving(COMPLETE)), (INDEX, RULES)),
        Scheme("moved", (CLAIM, COMPLETE)),
        Scheme("left", (CLAIM, leaving(COMPLETE)), (RULES,)),
        Scheme("swept", (CLAIM, leaving(COMPLETE)), (RULES,), sweeps=True),
        Scheme("side", also, SIDE),
    ]


def fillings() -> list[Scheme]:
    made = [
        Scheme(f"{each}{' lag' if lag else ''}", (CLAIM, COMPLETE), fill(each), lag=lag, twice=True)
        for lag in (0, LAG)
        for each in FILLFACTORS
    ]
    return [*made, Scheme("parts", (CLAIM, COMPLETE), parts=True, lag=LAG, twice=True)]


def fill(factor: int) -> tuple[str, ...]:
    return (f"ALTER TABLE semel_record SET (fillfactor = {factor})",)


def keys_of(scheme: Scheme, clients: int, run: int) -> list[str]:
    """Each client counts, and completes what it has claimed so many keys ago."""
    first = f"(:client_id + {1000 * run}) * 1000000000"
    return [
        "\\set i :i + 1",
        f"\\set n {first} + :i",
        f"\\set old :n - {scheme.lag // clients}",
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
        if scheme.parts:
            divide(url)
        if scheme.twice:
            load(server, url, scheme, clients, seconds, 0)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("VACUUM semel_record")
        before = figures(url)
        spent = cpu_seconds(server.pid)
        scheme.pairs.append(load(server, url, scheme, clients, seconds, 1))
        keep(scheme, before, figures(url), cpu_seconds(server.pid) - spent)


def load(
    server: PostgresServer, url: str, scheme: Scheme, clients: int, seconds: int, run: int
) -> float:
    claim, complete = scheme.statements
    pair = (claim, complete.replace(":n", ":old"))
    keys = keys_of(scheme, clients, run)
    if not scheme.sweeps:
        return pgbench(server, url, pair, clients, seconds, keys)
    with sweeping(url):
        return pgbench(server, url, pair, clients, seconds, keys)


FIGURES: Final = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float,"
    " (SELECT count(*) FROM semel_record)::float,"
    " (SELECT sum(n_tup_upd)::float FROM pg_stat_user_tables WHERE relname LIKE 'semel_record%'),"
    " (SELECT sum(n_tup_hot_upd)::float FROM pg_stat_user_tables"
    "  WHERE relname LIKE 'semel_record%'),"
    " sum(pg_table_size(oid))::float, sum(pg_indexes_size(oid))::float FROM pg_class"
    " WHERE relkind = 'r' AND relname ~ '^semel_(record|flight)'"
)


def figures(url: str) -> tuple[float, ...]:
    """WAL so far, keys, updates, HOT updates, bytes of the table and of its indexes."""
    return ask(url, FIGURES)


def keep(scheme: Scheme, before: tuple[float, ...], after: tuple[float, ...], spent: float) -> None:
    wal, keys, updates, hot, table, indexes = (
        now - then for then, now in zip(before, after, strict=True)
    )
    scheme.cpu.append(1e6 * spent / keys)
    scheme.wal.append(wal / keys)
    scheme.hot.append(hot / updates)
    scheme.table.append(table / keys)
    scheme.indexes.append(indexes / keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--fsync", action="store_true", help="durable, on disk; else in memory")
    parser.add_argument("--fillfactor", action="store_true", help="fillfactors and partitions")
    given = parser.parse_args()
    measured = fillings() if given.fillfactor else schemes()
    settings = {"max_wal_size": "8GB", "full_page_writes": "on", "shared_buffers": "512MB"}
    with PostgresServer(fsync=given.fsync, settings=settings) as server:
        for _ in range(given.rounds):
            for scheme in measured:
                measure(server, scheme, given.clients, given.seconds)
    head = ("pairs/s", "CPU us", "WAL B", "HOT", "table MB", "index MB")
    print(f"{'scheme':8} " + " ".join(f"{title:>8}" for title in head))
    for scheme in measured:
        figures = (scheme.pairs, scheme.cpu, scheme.wal, scheme.hot, scheme.table, scheme.indexes)
        middle = [statistics.median(each) for each in figures]
        shown = [
            f"{each:8.0%}" if place == 3 else f"{each:8.0f}" for place, each in enumerate(middle)
        ]
        print(f"{scheme.name:8} " + " ".join(shown))


if __name__ == "__main__":
    main()
