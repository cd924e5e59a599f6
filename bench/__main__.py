"""``make bench``: what a guard costs, as ratios to the same application unguarded.

One uvicorn worker, 32 connections, a 600-byte JSON body. Every round measures each case once, the
bare application first, so that a noisy machine disturbs the cases of a round alike; the ratios of
the rounds are summed up by their median and spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import BODY
from tests.servers.apps import uvicorn
from tests.servers.postgres import PostgresServer

CONNECTIONS = 32
REPLAYED_KEYS = 2_000


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    store: str | None
    keys: int
    aim: float | None = None
    expected: str = "201"


CASES = (
    Case("bare", None, 0),
    Case("SQLite, fresh keys", "sqlite", 0, aim=0.5),
    Case("SQLite, replays", "sqlite", REPLAYED_KEYS, aim=0.7, expected="201 replayed"),
    Case("PostgreSQL, fresh keys", "postgres", 0, aim=0.35),
    Case("PostgreSQL, replays", "postgres", REPLAYED_KEYS, expected="201 replayed"),
)


@dataclass
class Result:
    case: Case
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    p50s: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)


@contextmanager
def stores() -> Iterator[dict[str | None, str]]:
    """A store of each kind, durable as in production: synchronous=FULL, fsync on."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(fsync=True) as server,
        server.database() as url,
    ):
        yield {None: "", "sqlite": f"sqlite:///{Path(folder) / 'bench.db'}", "postgres": url}


def measure(case: Case, urls: dict[str | None, str], seconds: float) -> dict[str, float]:
    env = {"SEMEL_TEST_BENCH": urls[case.store]} if case.store else {}
    with uvicorn("bench.apps:app", env=env) as server:
        command = [sys.executable, "-m", "bench.load", server.port, CONNECTIONS, seconds, case.keys]
        output = subprocess.run([str(part) for part in command], capture_output=True, check=True)
    measured: dict[str, float] = json.loads(output.stdout)
    statuses = measured.pop("statuses")
    if set(statuses) != {case.expected}:  # type: ignore[call-overload]
        raise SystemExit(f"{case.name}: unexpected answers {statuses}")
    return measured


def rounds(count: int, seconds: float, cases: tuple[Case, ...]) -> list[Result]:
    results = [Result(case) for case in cases]
    with stores() as urls:
        for number in range(count):
            print(f"round {number + 1} of {count}", file=sys.stderr, flush=True)
            bare = 0.0
            for result in results:
                measured = measure(result.case, urls, seconds)
                bare = bare or measured["rate"]
                result.rates.append(measured["rate"])
                result.ratios.append(measured["rate"] / bare)
                result.p50s.append(measured["p50"])
                result.p99s.append(measured["p99"])
    return results


def show(results: list[Result]) -> None:
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, 1 uvicorn worker,")
    print(f"{CONNECTIONS} connections, {len(BODY)} bytes of JSON, median of the rounds\n")
    print(f"{'case':24} {'req/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>7}  spread      aim")
    for result in results:
        ratio = statistics.median(result.ratios)
        spread = f"{min(result.ratios):.2f}-{max(result.ratios):.2f}"
        aim = result.case.aim
        verdict = "" if aim is None else f"{aim:.2f} {'reached' if ratio >= aim else 'not reached'}"
        print(
            f"{result.case.name:24} {statistics.median(result.rates):8.0f} "
            f"{statistics.median(result.p50s):8.2f} {statistics.median(result.p99s):8.2f} "
            f"{ratio:7.2f}  {spread:11} {verdict}"
        )


def import_milliseconds() -> float:
    """Importing semel in a fresh interpreter, less the interpreter's own start; best of ten."""
    script = "import time; t = time.perf_counter(); import semel; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", script]
    runs = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(10)]
    return min(float(run) for run in runs) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--only", help="cases whose name contains this, and the bare one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = tuple(
        c for c in CASES if not options.only or c.store is None or options.only in c.name
    )
    results = rounds(options.rounds, options.seconds, wanted)
    imported = import_milliseconds()
    if options.json:
        table = [{"case": r.case.name, "ratios": r.ratios, "rates": r.rates} for r in results]
        print(json.dumps({"cases": table, "import_ms": imported}))
        return
    show(results)
    print(f"\nimport semel: {imported:.0f} ms (aim: under 100)")


if __name__ == "__main__":
    main()
