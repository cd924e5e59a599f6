"""Whether a full table costs more than an empty one: claims, the sweeper, the reaper."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from bench.cases import Case, Sample
from bench.cases.raw import said_by
from bench.load import NotThere
from bench.stage import STORES, Place, Stage
from semel.stores import open_backend

STEPS = {"claim": "claim", "sweep": "sweep of 100 due", "reap": "reap of 100 due"}
COLUMNS = (
    "identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse, terms,"
    " created_at, forget_at, duty, due_at, snapshot"
)
HOURS = 3_600_000_000

# Both in the order of the identity, which keeps the index's pages in memory while it grows.
FILL_POSTGRESQL = f"""
INSERT INTO semel_record ({COLUMNS})
SELECT sha256(int8send(n)), 3, substr(sha256(int8send(n)), 1, 16),
       convert_to('v1:' || repeat('a', 43), 'UTF8'), decode(repeat('ab', 64), 'hex'),
       'tenant', 'POST', '/payments',
       convert_to('key-' || n, 'UTF8'), 1, 0, %(now)s, %(now)s + later + 24 * {HOURS}::bigint,
       5, %(now)s + later, decode(repeat('cd', 100), 'hex')
FROM (SELECT n, 24 * {HOURS}::bigint + (n %% 86400) * 1000000 AS later
      FROM generate_series(1, %(records)s::bigint) n) made
ORDER BY sha256(int8send(n))
"""
FILL_SQLITE = f"""
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :records),
made AS (SELECT n, randomblob(32) AS identity, 24 * {HOURS} + (n % 86400) * 1000000 AS later
         FROM numbers)
INSERT INTO semel_record ({COLUMNS})
SELECT identity, 3, randomblob(16), CAST('v1:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' AS BLOB),
       zeroblob(64), 'tenant', 'POST', '/payments', CAST('key-' || n AS BLOB), 1, 0, :now,
       :now + later + 24 * {HOURS}, 5, :now + later, zeroblob(100)
FROM made ORDER BY identity
"""


def fill_postgresql(url: str, records: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        now = time.time_ns() // 1000
        connection.execute("SET work_mem = '512MB'")
        connection.execute("SET maintenance_work_mem = '512MB'")
        (index,) = connection.execute(
            "SELECT pg_get_indexdef('semel_record_due'::regclass)"
        ).fetchall()[0]
        connection.execute("DROP INDEX semel_record_due")  # faster made at once than row by row
        connection.execute(FILL_POSTGRESQL.encode(), {"now": now, "records": records})
        connection.execute(index)
        connection.execute("VACUUM (ANALYZE) semel_record")
        connection.execute("CHECKPOINT")


def fill_sqlite(url: str, records: int) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA cache_size = -1000000")
    connection.execute("PRAGMA journal_mode = OFF")  # nobody minds losing it half made
    connection.execute("PRAGMA synchronous = OFF")
    (index,) = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'semel_record_due'"
    ).fetchone()
    now = time.time_ns() // 1000
    connection.execute("DROP INDEX semel_record_due")
    connection.execute(FILL_SQLITE, {"now": now, "records": records})
    connection.execute(index)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


FILLS: dict[str, Callable[[str, int], None]] = {
    "SQLite": fill_sqlite,
    "PostgreSQL": fill_postgresql,
}


@dataclass
class Comparison:
    """One step in an empty table and in a full one, turn by turn."""

    store: str
    step: str
    records: int
    samples: list[Sample] = field(default_factory=list)

    def measure(self, stage: Stage) -> None:
        urls = [self._place(stage, records).url for records in (0, self.records)]
        said = said_by("upkeep", self.step, stage.seconds, *urls)
        self.samples = [Sample(**figures) for figures in json.loads(said)]

    def _place(self, stage: Stage, records: int) -> Place:
        name = f"{self.store} with {records:,} records"
        return stage.kept(name, stage.cores.all, lambda stage: filled(stage, self.store, records))


@dataclass(frozen=True)
class Table:
    """One of the two tables; the empty one comes first, and with it both are measured."""

    comparison: Comparison
    records: int

    @property
    def name(self) -> str:
        return title(self.comparison, self.records)

    @property
    def family(self) -> str:
        return "raw"

    def measure(self, stage: Stage) -> Sample:
        if not self.records:
            self.comparison.measure(stage)
        if not self.comparison.samples:
            raise NotThere("the empty table was not measured")
        return self.comparison.samples[1 if self.records else 0]


def filled(stage: Stage, store: str, records: int) -> Place:
    """A store of its own: what is due in the one must not be found in the other."""
    place = stage.start(STORES[store]())
    backend = open_backend(place.url)
    backend.migrate()
    backend.close()
    if records:
        began = time.perf_counter()
        print(f"  {store}: making {records:,} records", file=sys.stderr, flush=True)
        FILLS[store](place.url, records)
        print(f"  took {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return place


def title(comparison: Comparison, records: int) -> str:
    step = STEPS[comparison.step]
    return f"store alone, {comparison.store}, {step}, table of {records:,} records"


def cases(records: int) -> list[Case]:
    compared = [Comparison(store, step, records) for store in FILLS for step in STEPS]
    return [Table(both, size) for both in compared for size in (0, records)]
