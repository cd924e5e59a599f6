"""``python -m bench.rows``: what each part of a row costs, by leaving it out, one at a time.

Each case is 8,000 pairs of claim and completion in an empty table, 32 in flight: bytes of a key
in the table and its indexes, bytes of the log for a pair, and CPU for a pair, as bench/figures.py
counts them. The cases of a store are measured in turn, round after round; the table has medians,
and below the whole row the difference that each case makes. Columns are listed with their mean
size, as PostgreSQL has them.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from bench import figures
from bench.figures import SITES, Site, drive
from bench.schema import RULES
from semel.stores import open_backend

PAIRS: Final = 8_000
MULTIPLIED: Final = 100_000
"""Keys in MariaDB, whose tables grow by megabytes."""
LETTERS: Final = "8E03978E-40D5-43E8-BC93-6894A57F9324"
"""A key of as many letters that is kept as text."""


@dataclass
class Case:
    """A change of the empty table, or of what is claimed."""

    name: str
    ddl: Sequence[str] = ()
    given: Sequence[str] = ()
    prepare: Callable[[Site], None] = lambda site: None
    """Before the schema is there."""
    bytes: list[float] = field(default_factory=list)
    log: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def cases_of(store: str) -> list[Case]:
    shared = [
        Case("whole"),
        Case("key kept as text", given=[f"key={LETTERS}"]),
        Case("no field digests", given=["fields="]),
    ]
    return shared + {
        "sqlite": [
            Case("no index of what is due", ["DROP INDEX semel_record_due"]),
            Case("no rules", [UNRULED_SQLITE]),
            Case("pages of 1 kB", prepare=lambda site: page_size(site, 1024)),
            Case("pages of 4 kB", prepare=lambda site: page_size(site, 4096)),
        ],
        "postgresql": [
            Case("no index of what is due", ["DROP INDEX semel_record_due"]),
            Case("no index of resources", ["DROP INDEX semel_record_resource"]),
            Case("no rules", [RULES]),
            Case("fillfactor 70", ["ALTER TABLE semel_record SET (fillfactor = 70)"]),
        ],
        "mariadb": [
            Case("no index of what is due", ["DROP INDEX semel_record_due ON shop.semel_record"]),
            Case("no index of resources", [NO_RESOURCES]),
            Case("no rules", ["SET GLOBAL check_constraint_checks = 0"]),
        ],
        "redis": [],
    }.get(store, [])


NO_RESOURCES: Final = "DROP INDEX semel_record_resource ON shop.semel_record"
UNRULED_SQLITE: Final = "PRAGMA writable_schema = ON"
"""Then `unruled` is what the file says of the table."""


def page_size(site: Site, size: int) -> None:
    with closing(sqlite3.connect(path_of(site))) as file:
        file.execute(f"PRAGMA page_size = {size}")
        file.execute("PRAGMA journal_mode = WAL")


def path_of(site: Site) -> Path:
    return Path(site.url.removeprefix("sqlite:///"))


def unruled(text: str) -> str:
    """``text`` of a table without its CHECKs."""
    while (at := text.find("CHECK (")) >= 0:
        end, open_brackets = at + len("CHECK ("), 1
        while open_brackets:
            open_brackets += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        before = text[:at].rstrip()
        text = (
            before.removesuffix(",") + text[end:] if before.endswith(",") else before + text[end:]
        )
    return text


def executed(store: str, site: Site, texts: Sequence[str]) -> None:
    """The changes of a case, by whoever owns the table."""
    for text in texts:
        if store == "sqlite":
            with closing(sqlite3.connect(path_of(site), isolation_level=None)) as file:
                file.execute(text)
                if text == UNRULED_SQLITE:
                    where = "FROM sqlite_schema WHERE name = 'semel_record'"
                    ((made,),) = file.execute(f"SELECT sql {where}")
                    change = "UPDATE sqlite_schema SET sql = ? WHERE name = 'semel_record'"
                    file.execute(change, (unruled(made),))
        elif store == "postgresql":
            with psycopg.connect(site.url, autocommit=True) as connection:
                connection.execute(text.encode())
        else:
            site.execute(text)


def measure(store: str, case: Case) -> list[tuple[str, float]]:
    with SITES[store]() as site:
        case.prepare(site)
        open_backend(site.url, migrate=True).migrate()
        executed(store, site, case.ddl)
        told = drive(site, "pairs", 0, f"count={PAIRS}", *case.given)
        whole = store == "postgresql" and case.name == "whole"
        sizes = columns(site) if whole else []
        case.bytes.append(site.kept()["key_bytes"])
        case.log.append(told["log"])
        case.cpu.append(told["cpu"])
    return sizes


def columns(site: Site) -> list[tuple[str, float]]:
    """The mean size of each column of a completed record; those that are NULL are left out."""
    with psycopg.connect(site.url) as connection:
        found = [name for (name,) in connection.execute(NAMES).fetchall()]
        parts = ", ".join(f'avg(pg_column_size("{name}"))' for name in found)
        text = f"SELECT {parts} FROM semel_record WHERE state = 3"
        ((*sizes,),) = connection.execute(text.encode()).fetchall()
    told = zip(found, sizes, strict=True)
    return [(name, float(each)) for name, each in told if each is not None]


NAMES: Final = (
    b"SELECT attname::text FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
    b" AND attrelid = 'semel_record'::regclass ORDER BY attnum"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["sqlite", "postgresql", "mariadb", "redis"]
    parser.add_argument("stores", nargs="*", default=names, choices=names, metavar="STORE")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures.LOGGED, figures.KEYS = PAIRS, MULTIPLIED
    for store in given.stores:
        cases = cases_of(store)
        sizes: list[tuple[str, float]] = []
        for _ in range(given.rounds):
            for case in cases:
                sizes = measure(store, case) or sizes
        show(store, cases, sizes)


def show(store: str, cases: Sequence[Case], sizes: Sequence[tuple[str, float]]) -> None:
    print(f"{store:28} {'key B':>8} {'log B':>8} {'CPU us':>8}")
    whole, *others = [[statistics.median(x) for x in (c.bytes, c.log, c.cpu)] for c in cases]
    print(f"{'  whole':28} " + " ".join(f"{each:8.0f}" for each in whole))
    for case, found in zip(cases[1:], others, strict=True):
        saved = [now - was for was, now in zip(whole, found, strict=True)]
        print(f"{'  ' + case.name:28} " + " ".join(f"{each:+8.0f}" for each in saved))
    if sizes:
        print("  columns: " + ", ".join(f"{name} {size:.0f}" for name, size in sizes), flush=True)


if __name__ == "__main__":
    main()
