"""The reaper's campaign: many old records go while requests come in, and no request waits for it.

A small form runs with the other tests, the full one, a million records, with ``make proof``. It
prints how long requests took without the reaper and beside it; what is asserted does not depend on
the machine: what may not go has stayed, what must go is gone, no request failed, and in PostgreSQL
none waited for a row.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from semel.core.maintenance import tend
from semel.core.policy import ietf
from semel.effects.asking import Runner
from semel.effects.maintenance import pace_for
from semel.guard import Guard
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.forms import in_proof

SIZES = [10_000, pytest.param(1_000_000, marks=pytest.mark.proof)]
QUIET_SECONDS = {10_000: 1.0, 1_000_000: 20.0}
LOCK_TIMEOUT = 100
"""Milliseconds that a request's statement may wait for a lock; longer is an error."""

PROJECT = Path(__file__).parents[2]

# Of ten records one is unknown, one is still promised, eight are past everything.
COLUMNS = """identity, state, fence, fingerprint, fields, tenant, method, path, key, on_lapse,
             created_at, leased_until, expires_at, forget_at, duty, due_at, snapshot"""
VALUES = """
    CASE WHEN n % 10 = 0 THEN 'unknown' ELSE 'completed' END,
    {fence}, 'v1.raw.sha256.x', {nothing}, '', 'POST', '/old', 'key', 'unknown', 0, NULL,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 10 = 1 THEN {later} ELSE 1 + n END,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 10 = 1 THEN {later} ELSE 2 + n END,
    CASE WHEN n % 10 = 0 THEN 'ask' ELSE 'expire' END,
    CASE WHEN n % 10 = 0 THEN NULL WHEN n % 10 = 1 THEN {later} ELSE 1 + n END,
    CASE WHEN n % 10 = 0 THEN NULL ELSE {answer} END
"""
LATER = 4_000_000_000_000_000

POSTGRESQL = f"""INSERT INTO semel_record ({COLUMNS})
    SELECT sha256(n::text::bytea), {VALUES} FROM generate_series(1, {{size}}) AS n""".format(
    fence="substr(sha256(n::text::bytea), 1, 16)",
    nothing="''::bytea",
    later=LATER,
    answer="decode(repeat('ab', 200), 'hex')",
    size="{size}",
)
SQLITE = f"""INSERT INTO semel_record ({COLUMNS})
    WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {{size}})
    SELECT randomblob(32), {VALUES} FROM counted""".format(
    fence="randomblob(16)", nothing="x''", later=LATER, answer="randomblob(200)", size="{size}"
)

TRAFFIC = """
import json, os, sys, time
from pathlib import Path
from semel.core.contract import Applied, Claim, Claimed, Complete
from semel.core.model import Fence, Identity, Origin
from semel.stores import open_backend
from tests.forms import in_proof

url, stop = sys.argv[1], Path(sys.argv[2])
store, took, hour = open_backend(url).blocking(), [], 3_600_000_000
origin = Origin("", "POST", "/new", "key")
print("ready", flush=True)
while not stop.exists():
    identity, fence = Identity(os.urandom(32)), Fence(os.urandom(16))
    started = time.perf_counter()
    claimed = store.perform(Claim(identity, fence, "v1.raw.sha256.x", b"", origin, hour))
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
        out, errors = self._process.communicate(timeout=60)
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


@pytest.fixture(params=["postgresql", *in_proof("sqlite")])
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
    made = str(request.getfixturevalue("postgres_url"))
    _migrated(made)
    with psycopg.connect(made, autocommit=True) as pg:
        pg.execute(POSTGRESQL.format(size=size).encode())
        pg.execute(b"VACUUM ANALYZE semel_record")
    return made


def _migrated(url: str) -> None:
    backend = open_backend(url)
    backend.migrate()
    backend.close()


def as_traffic(url: str) -> str:
    if not url.startswith("postgresql"):
        return url
    return f"{url}&application_name=traffic&options=-c%20lock_timeout%3D{LOCK_TIMEOUT}"


def reap(url: str) -> tuple[Counter[str], list[float]]:
    """Rounds until nothing is left; what went, and how long each round took."""
    guard = Guard(url, tenant=None)
    runner, counts, took = Runner(guard), Counter[str](), list[float]()
    more = True
    while more:
        started = time.perf_counter()
        upkeep = runner.run(tend(ietf(), pace_for(guard.backend)))
        took.append(time.perf_counter() - started)
        counts.update(upkeep.counts)
        more = upkeep.more
    guard.close()
    return counts, took


def left(backend: Backend, url: str) -> dict[str, int]:
    query = "SELECT state, count(*) FROM semel_record WHERE path = '/old' GROUP BY state"
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
    opened = open_backend(url)
    yield opened
    opened.close()


def test_no_request_waits_for_the_reaper(
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


def test_a_request_that_waits_for_a_row_would_be_seen(postgres_url: str, tmp_path: Path) -> None:
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
            pytest.raises(psycopg.errors.LockNotAvailable),
        ):
            waiter.execute(b"UPDATE t SET n = 3")
        waits.end()
    assert waits.seen.total() > 0
