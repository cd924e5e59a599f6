"""The reaper: many old records go while requests come in, and no request waits for it.

With the other tests the reaper is held in the middle of its work, and requests go through. The
campaign, a million records beside traffic, runs with ``make proof``. It prints how long requests
took without the reaper and beside it; what is asserted does not depend on the machine: what may not
go has stayed, what must go is gone, no request failed, and in PostgreSQL none waited for a row.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from semel.core.maintenance import tend
from semel.core.operations.requests import Applied, Claim, Claimed, Complete
from semel.core.records import Fence, Identity, Origin
from semel.guard import Guard
from semel.runtime.flow_runner import FlowRunner
from semel.stores import open_backend
from semel.stores.base import Backend, Store
from semel.worker.maintenance import pace_for
from tests.waiting import PATIENCE, patient, until

SMALL = 100
SIZES = [10_000, 1_000_000]
QUIET_SECONDS = {10_000: 1.0, 1_000_000: 20.0}
LOCK_TIMEOUT = 1000 * int(PATIENCE / 2)
"""Milliseconds that a request's statement may wait for a lock; longer is an error."""

HOUR = 3_600_000_000
PROJECT = Path(__file__).parents[2]

# Of ten records one is unknown, one is still promised, eight are past everything.
COLUMNS = """identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
             terms, created_at, leased_until, forget_at, duty, due_at, snapshot"""
VALUES = """
    CASE WHEN n % 10 = 0 THEN 5 ELSE 3 END,
    {fence}, {mark}, {nothing}, '', 'POST', '/old', {mark}, 1, 0, 0, NULL,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 10 = 1 THEN {later} ELSE 2 + n END,
    CASE WHEN n % 10 = 0 THEN 4 ELSE 5 END,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 10 = 1 THEN {later} ELSE 1 + n END,
    CASE WHEN n % 10 = 0 THEN NULL ELSE {answer} END
"""
LATER = 4_000_000_000_000_000

POSTGRESQL = f"""INSERT INTO semel_record ({COLUMNS})
    SELECT sha256(n::text::bytea), {VALUES} FROM generate_series(1, {{size}}) AS n""".format(
    fence="substr(sha256(n::text::bytea), 1, 16)",
    mark="'r1.x'::bytea",
    nothing="''::bytea",
    later=LATER,
    answer="decode(repeat('ab', 200), 'hex')",
    size="{size}",
)
SQLITE = f"""INSERT INTO semel_record ({COLUMNS})
    WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {{size}})
    SELECT randomblob(32), {VALUES} FROM counted""".format(
    fence="randomblob(16)",
    mark="x'72312e78'",
    nothing="x''",
    later=LATER,
    answer="randomblob(200)",
    size="{size}",
)

TRAFFIC = """
import json, os, sys, time
from pathlib import Path
from semel.core.operations.requests import Applied, Claim, Claimed, Complete
from semel.core.records import Fence, Identity, Origin
from semel.stores import open_backend

url, stop = sys.argv[1], Path(sys.argv[2])
store, took, hour = open_backend(url).blocking(), [], 3_600_000_000
origin = Origin("", "POST", "/new", "key")
print("ready", flush=True)
while not stop.exists():
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    started = time.perf_counter()
    claimed = store.perform(Claim(identity, fence, "r1.x", b"", origin, hour))
    written = store.perform(Complete(identity, fence, b"answer", hour, hour))
    took.append(time.perf_counter() - started)
    assert isinstance(claimed, Claimed) and isinstance(written, Applied), (claimed, written)
print(json.dumps(sorted(took)), flush=True)
"""


class Traffic:
    """Another process that claims and completes until told to stop."""

    def __init__(self, url: str, stop: Path) -> None:
        self._stop = stop
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAFFIC, url, str(stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> list[float]:
        """How long each pair took, shortest first."""
        self._stop.touch()
        out, errors = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, errors
        took: list[float] = json.loads(out)
        return took

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Waits:
    """Looks, all the time, what the traffic's connections wait for."""

    QUERY = """SELECT wait_event FROM pg_stat_activity
               WHERE application_name = 'traffic' AND wait_event_type = 'Lock'"""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self.seen: Counter[str] = Counter()
        self.looks = 0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._ended.wait(0.001):
                self.looks += 1
                self.seen.update(row[0] for row in connection.execute(self.QUERY.encode()))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, size: int) -> str:
    """A store full of old records."""
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/semel.db"
        _migrated(made)
        connection = sqlite3.connect(tmp_path / "semel.db")
        connection.execute(SQLITE.format(size=size))
        connection.commit()
        connection.close()
        return made
    return _full(str(request.getfixturevalue("postgres_url")), size)


def _full(url: str, size: int) -> str:
    _migrated(url)
    with psycopg.connect(url, autocommit=True) as pg:
        pg.execute(POSTGRESQL.format(size=size).encode())
        pg.execute(b"VACUUM ANALYZE semel_record")
    return url


def _migrated(url: str) -> None:
    backend = open_backend(url, timeout=PATIENCE)
    backend.migrate()
    backend.close()


def as_traffic(url: str) -> str:
    if not url.startswith("postgresql"):
        return url
    return f"{url}&application_name=traffic&options=-c%20lock_timeout%3D{LOCK_TIMEOUT}"


def reap(url: str) -> tuple[Counter[str], list[float]]:
    """Rounds until nothing is left; what went, and how long each round took."""
    guard = Guard(patient(url), tenant=None)
    runner, counts, took = FlowRunner(guard), Counter[str](), list[float]()
    more = True
    while more:
        started = time.perf_counter()
        upkeep = runner.run(tend(pace_for(guard.backend)))
        took.append(time.perf_counter() - started)
        counts.update(upkeep.counts)
        more = upkeep.more
    guard.close()
    return counts, took


def left(backend: Backend, url: str) -> dict[str, int]:
    query = "SELECT state, count(*) FROM semel_records WHERE path = '/old' GROUP BY state"
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        rows = connection.execute(query).fetchall()
        connection.close()
    else:
        with psycopg.connect(url) as pg:
            rows = pg.execute(query.encode()).fetchall()
    return dict(rows)


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    opened = open_backend(url, timeout=PATIENCE)
    yield opened
    opened.close()


HELD = """
    CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_lock_shared(7); RETURN NULL; END $$;
    CREATE TRIGGER held AFTER UPDATE OR DELETE ON semel_record
        FOR EACH ROW WHEN (OLD.path = '/old') EXECUTE FUNCTION held();
"""
"""Whoever has changed an old record waits until lock 7 is free, and keeps its locks."""
WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted"


def test_no_request_waits_for_the_reaper(postgres_url: str) -> None:
    """It stands still with rows of its own locked, and would stand there for ever."""
    url = _full(postgres_url, SMALL)
    backend = open_backend(as_traffic(url), timeout=PATIENCE)
    with psycopg.connect(url, autocommit=True) as gate, ThreadPoolExecutor(1) as thread:
        gate.execute(HELD.encode())
        gate.execute(b"SELECT pg_advisory_lock(7)")
        reaping = thread.submit(reap, url)
        try:
            until(lambda: gate.execute(WAITING.encode()).fetchall())
            for _ in range(20):
                claim_and_complete(backend.blocking())
            assert not reaping.done()
            waits_for_a_row_of_the_reapers(url)
        finally:
            gate.execute(b"SELECT pg_advisory_unlock(7)")
        counts, _ = reaping.result(PATIENCE)
    assert (counts["expire"], counts["forget"]) == (SMALL * 8 // 10, SMALL * 8 // 10)
    assert left(backend, url) == {"unknown": SMALL // 10, "completed": SMALL // 10}
    backend.close()


def claim_and_complete(store: Store) -> None:
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    origin = Origin("", "POST", "/new", "key")
    claim = Claim(identity, fence, "r1.x", b"", origin, HOUR)
    assert isinstance(store.perform(claim), Claimed)
    assert isinstance(store.perform(Complete(identity, fence, b"answer", HOUR, HOUR)), Applied)


def waits_for_a_row_of_the_reapers(url: str) -> None:
    """The control: it does hold locks, and whoever came upon them would wait."""
    with psycopg.connect(url) as other:
        other.execute(b"SET lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(b"UPDATE semel_record SET tenant = tenant WHERE path = '/old'")


# ── the campaign ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
def test_beside_traffic_what_may_go_goes_and_no_request_waits(
    url: str, size: int, backend: Backend, tmp_path: Path
) -> None:
    with Traffic(as_traffic(url), tmp_path / "stop-quiet") as traffic:
        time.sleep(QUIET_SECONDS[size])
        alone = traffic.end()
    waits = Waits(url) if url.startswith("postgresql") else None
    with Traffic(as_traffic(url), tmp_path / "stop-busy") as traffic:
        started = time.perf_counter()
        try:
            counts, rounds = reap(url)
        finally:
            if waits is not None:
                waits.end()
        seconds = time.perf_counter() - started
        beside = traffic.end()

    assert left(backend, url) == {"unknown": size // 10, "completed": size // 10}
    assert (counts["expire"], counts["forget"]) == (size * 8 // 10, size * 8 // 10)
    assert len(beside) > 0
    if waits is not None:
        assert waits.looks > 0
        rows = {name: number for name, number in waits.seen.items() if name != "extend"}
        assert rows == {}, f"requests waited for {rows}"
    report(url, size, seconds, rounds, alone, beside, waits)


def report(
    url: str,
    size: int,
    seconds: float,
    rounds: list[float],
    alone: list[float],
    beside: list[float],
    waits: Waits | None,
) -> None:
    def at(took: list[float], part: float) -> float:
        return took[min(len(took) - 1, int(len(took) * part))] * 1000

    print(
        f"\n{url.partition(':')[0]}: {size} records, {seconds:.1f} s in {len(rounds)} rounds "
        f"({size * 1.6 / seconds:.0f} changes/s); claim+complete, ms, alone and beside:"
    )
    for name, part in (("median", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("slowest", 1.0)):
        one, two = at(alone, part), at(beside, part)
        print(f"  {name:8} {one:8.2f} {two:8.2f}  x {two / one:.1f}")
    print(f"  pairs    {len(alone):8} {len(beside):8}")
    if waits is not None:
        print(f"  lock waits seen in {waits.looks} looks: {dict(waits.seen)}")


def test_a_request_that_waits_for_a_row_would_be_seen(postgres_url: str) -> None:
    """The control: the same eyes see a wait when there is one."""
    _migrated(postgres_url)
    with psycopg.connect(postgres_url) as holder:
        holder.execute(b"CREATE TABLE t (n int)")
        holder.execute(b"INSERT INTO t VALUES (1)")
        holder.commit()
        holder.execute(b"UPDATE t SET n = 2")
        waits = Waits(postgres_url)
        with (
            psycopg.connect(as_traffic(postgres_url)) as waiter,
            ThreadPoolExecutor(1) as thread,
        ):
            waiting = thread.submit(waiter.execute, b"UPDATE t SET n = 3")
            try:
                until(waits.seen.total)
            finally:
                holder.commit()
                waiting.result()
                waits.end()
