"""``python -m bench.scale``: how many nodes, and how much disk, for how many requests a second.

Computed from what was measured (bench/figures.toml) and from the assumptions below, which the table
says. Nothing above what one machine did here was ever run: that a node with eight times the cores
does eight times the work is an assumption too, and so half of it is left free.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from bench.figures import FILE

RATES: Final = (1_000, 10_000, 100_000)
REPLAYS: Final = 0.1
"""Of all requests, those that repeat a key."""
RETENTION_DAYS, TOMBSTONE_DAYS = 1, 1
DAY: Final = 86_400

CORES: Final = 16
BUSY: Final = 0.5
"""Of its cores, what a node uses in the busiest hour."""
LOG_BYTES_PER_SECOND: Final = 100e6
"""That a node writes ahead and sends to each of its copies."""
TABLE_BYTES: Final = 2e12
"""On one node; more can be kept, but hardly be vacuumed, copied or restored in a day."""
MEMORY_BYTES: Final = 64e9
"""Of a node of Redis, for records; as much again is free for the copies it makes of itself."""
SLACK: Final = 1.3
"""Tables are not without gaps: what a vacuum has freed waits to be used again."""
APPLICATION_CPU: Final = {"fresh": 740.0, "replay": 370.0}
"""Microseconds of a request in the application's process, uvicorn and Starlette included, on
PostgreSQL (bench/results/2026-11-16.md); the handler's own work comes on top."""


@dataclass(frozen=True)
class Engine:
    """How a store is spread over machines."""

    title: str
    figures: str
    copies: int
    in_memory: bool = False


ENGINES: Final = (
    Engine("PostgreSQL, quorum of 3", "postgresql_quorum", 3),
    Engine("MariaDB Galera of 3", "galera", 3),
    Engine("Redis Cluster, 1 replica each", "redis", 2, in_memory=True),
)


@dataclass(frozen=True)
class Need:
    """What a rate asks for. ``groups``: sets of nodes, each with keys of its own."""

    groups: int
    nodes: int
    limit: str
    bytes_per_node: float
    log_per_day: float


def need(engine: Engine, figures: Mapping[str, float], rate: float) -> Need:
    fresh = rate * (1 - REPLAYS)
    cores = (fresh * figures["pair_cpu"] + rate * REPLAYS * figures["replay_cpu"]) / 1e6
    log = fresh * figures["log_bytes"]
    kept = fresh * DAY * size_of(engine, figures)
    wants = {
        "CPU": cores / (CORES * BUSY),
        "log": log / LOG_BYTES_PER_SECOND,
        "memory" if engine.in_memory else "disk": kept
        / (MEMORY_BYTES if engine.in_memory else TABLE_BYTES),
    }
    limit = max(wants, key=lambda name: wants[name])
    groups = max(3 if engine.in_memory else 1, ceil(wants[limit]))
    return Need(groups, groups * engine.copies, limit, kept / groups, log * DAY)


def size_of(engine: Engine, figures: Mapping[str, float]) -> float:
    """Bytes that a day's key occupies, as an answer and then as a tombstone."""
    days = RETENTION_DAYS * figures["key_bytes"] + TOMBSTONE_DAYS * figures["tombstone_bytes"]
    return days * (1.0 if engine.in_memory else SLACK)


def application_cores(rate: float) -> int:
    cpu = APPLICATION_CPU["fresh"] * (1 - REPLAYS) + APPLICATION_CPU["replay"] * REPLAYS
    return ceil(rate * cpu / 1e6 / BUSY)


def figures() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


MEASURED: Final = {
    "SQLite, with its process": "sqlite",
    "PostgreSQL": "postgresql",
    "PostgreSQL, quorum of 3": "postgresql_quorum",
    "MariaDB": "mariadb",
    "MariaDB Galera of 3": "galera",
    "Redis, 1 replica": "redis",
}


def figures_row(each: Mapping[str, float]) -> list[str]:
    """CPU of a pair, of a replay, of a copy; bytes of the log, of a key, of a tombstone."""
    names = ("pair_cpu", "replay_cpu", "copy_cpu", "log_bytes", "key_bytes", "tombstone_bytes")
    return [f"{each[name]:,.0f}" if each[name] else "" for name in names]


TITLES: Final = (
    *("requests/s", "store", "groups × nodes"),
    *("limited by", "kept on a node", "log a day"),
)


def rows(measured: Mapping[str, Any]) -> list[list[str]]:
    made: list[list[str]] = []
    for rate in RATES:
        for engine in ENGINES:
            each = need(engine, measured[engine.figures], rate)
            shape = f"{each.groups} × {engine.copies} = {each.nodes}"
            where = "of memory" if engine.in_memory else "of disk"
            kept = f"{sized(each.bytes_per_node)} {where}"
            made.append(
                [f"{rate:,}", engine.title, shape, each.limit, kept, sized(each.log_per_day)]
            )
    return made


def sized(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if count >= size:
            return (
                f"{count / size:.1f} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
            )
    return f"{count / 1e6:.0f} MB"


def table(measured: Mapping[str, Any]) -> str:
    """In Markdown, as docs/explanation/scale.md has it."""
    lines = [TITLES, tuple("---" for _ in TITLES), *map(tuple, rows(measured))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    measured = figures()
    for title, name in MEASURED.items():
        print(f"| {' | '.join([title, *figures_row(measured[name])])} |")
    print(f"\n{table(measured)}\n")
    for rate in RATES:
        print(f"{rate:,} requests/s: {application_cores(rate)} cores for the application")


if __name__ == "__main__":
    main()
