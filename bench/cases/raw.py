"""Claim and complete without HTTP: through the stores, and as fast as each database goes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case, Sample
from bench.cases.served import last_line
from bench.load import BenchError
from bench.measure import cpu_seconds
from bench.pgbench import pgbench, statement
from bench.stage import STORES, Place, Stage
from semel.stores import open_backend
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import ValkeyServer

CLIENTS = 32
IN_FLIGHT = CLIENTS
"""The same concurrency for the stores as for the databases alone."""
GROUP = 64

PGBENCH = f"raw, PostgreSQL, pgbench of claim + complete, {CLIENTS} clients"
REDIS = f"raw, Redis, SET NX + SET, {CLIENTS} connections"
SQLITE = f"raw, SQLite, {GROUP} claims, then {GROUP} completions per commit"


def through(store: str) -> str:
    return f"store alone, {store}, claim + complete, {IN_FLIGHT} in flight"


def cases() -> list[Case]:
    stores: list[Case] = [Pairs(store) for store in STORES]
    return [*stores, Pgbench(), GroupCommit(), RedisPairs()]


@dataclass(frozen=True)
class Pairs:
    """A store of semel's, driven by one process."""

    store: str

    @property
    def name(self) -> str:
        return through(self.store)

    @property
    def family(self) -> str:
        return "raw"

    def measure(self, stage: Stage) -> Sample:
        place = stage.place(self.store, stage.cores.all)
        return run(stage, place, "pairs", place.url, IN_FLIGHT, stage.seconds)


@dataclass(frozen=True)
class Pgbench:
    """The same statements for one key each, as pgbench sends them."""

    name: str = PGBENCH
    family: str = "raw"

    def measure(self, stage: Stage) -> Sample:
        place = stage.place("PostgreSQL", stage.cores.all)
        server = place.server
        assert isinstance(server, PostgresServer)
        open_backend(place.url).migrate()
        spent, pair = cpu_seconds(server.pid), (statement("claim"), statement("complete"))
        rate = pgbench(server, place.url, pair, CLIENTS, stage.seconds)
        used = cpu_seconds(server.pid) - spent
        return Sample(rate, store_cpu=1e6 * used / (rate * max(1, round(stage.seconds))))


@dataclass(frozen=True)
class GroupCommit:
    """The sqlite3 module of Python and nothing else."""

    name: str = SQLITE
    family: str = "raw"

    def measure(self, stage: Stage) -> Sample:
        with tempfile.TemporaryDirectory(prefix="semel-") as folder:
            path = str(Path(folder, "raw.db"))
            return run(stage, None, "group_commit", path, GROUP, stage.seconds)


@dataclass(frozen=True)
class RedisPairs:
    """Plain commands that check nothing."""

    name: str = REDIS
    family: str = "raw"

    def measure(self, stage: Stage) -> Sample:
        place = stage.place("Redis", stage.cores.all)
        assert isinstance(place.server, ValkeyServer)
        return run(stage, place, "redis_pairs", place.server.port, CLIENTS, stage.seconds)


def run(stage: Stage, place: Place | None, script: str, *arguments: str | float) -> Sample:
    """One sample by a script, with what the store's own processes took."""
    spent = cpu_seconds(place.pid) if place and place.pid else None
    said = json.loads(said_by(script, *arguments))
    sample = Sample(**said)
    if spent is None or place is None or place.pid is None:
        return sample
    used = cpu_seconds(place.pid) - spent
    return Sample(**said, store_cpu=1e6 * used / (sample.rate * stage.seconds))


def said_by(script: str, *arguments: str | float) -> str:
    """What a module of bench/generators prints, in a process of its own."""
    command = [sys.executable, "-m", f"bench.generators.{script}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"{script}: {last_line(done.stderr)}")
    return done.stdout
