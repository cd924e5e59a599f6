"""A store after busy days: records of twenty routes and five hundred tenants, and all beside them.

What is written is written straight into the tables, as semel itself would have stored it. Most is
settled; a few in a thousand are unknown, in flight or waiting. `RARE` is a tenant with three old
records: the filter that finds least.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle
from typing import Any, Final

import psycopg

from bench.stage import Place, postgres, sqlite
from semel.core.operations.requests import Agree
from semel.core.stored.snapshot import encode_whole
from semel.stores import open_backend
from semel.stores.base import system_clock
from semel.testing.contract.terms import terms

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
APPLICATION: Final = "shop"
RARE: Final = "a tenant of three"
RARE_RECORDS: Final = 3
ROUTES: Final = tuple(f"POST /{name}" for name in ("payments", *(f"thing-{n}" for n in range(19))))
TERMS: Final = tuple(
    terms(APPLICATION, route, retention=(1, 7)[n % 5 == 0] * DAY, tombstone=DAY)
    for n, route in enumerate(ROUTES)
)
ANSWERS: Final = {
    status: encode_whole(status, ((b"content-type", b"application/json"),), b"x" * 300)
    for status in (201, 402, 500)
}
REASONS: Final = ("the provider timed out", "the lease ended", "connection reset after sending")
KINDS: Final = ("replay", "conflict", "refusal", "suspicious_key", "mismatch")


@dataclass(frozen=True)
class Amounts:
    """How many rows there are of what."""

    records: int = 100_000
    unknown: int = 2_000
    """Half of them nobody will be asked about."""
    in_flight: int = 600
    effects: int = 100_000
    waiting: int = 3_000
    dead: int = 2_000
    audit: int = 50_000
    notables: int = 100_000


def identity(n: int) -> bytes:
    return sha256(b"%d" % n).digest()


def tenant(n: int, amounts: Amounts) -> str:
    """Some are large: half of all records belong to twenty of them."""
    if n < RARE_RECORDS:
        return RARE
    return f"tenant {n * 7919 % (20 if n % 2 else 500)}"


RECORD: Final = (
    *("created_at", "terms", "identity", "fence", "fingerprint", "tenant", "method", "path"),
    *("key", "on_lapse", "state", "duty", "due_at", "leased_until", "forget_at", "tries"),
    *("reason", "resource", "request", "patience", "abandon_at", "snapshot"),
)


def records(amounts: Amounts, now: int) -> Iterator[tuple[Any, ...]]:
    """Made one after the other over two days, the last one now."""
    doubtful = max(1, amounts.records // max(1, amounts.unknown))
    running = max(1, amounts.records // max(1, amounts.in_flight))
    for n in range(amounts.records):
        made, agreed = now - (amounts.records - n) * 2 * DAY // amounts.records, TERMS[n * n % 20]
        named, key = identity(n), b"order-%d-of-november" % n
        yield (
            *(made, agreed.id, named, named[:16], b"r1.x", tenant(n, amounts), "", "", key, 1),
            *_state(n, made, now, agreed.retention, doubtful, running),
        )


def _state(n: int, made: int, now: int, kept: int, doubtful: int, running: int) -> tuple[Any, ...]:
    """From the state on, as `RECORD` has it."""
    end, resource = made + kept, f"order/{n}" if n % 3 == 0 else None
    if n % doubtful == 5 % doubtful:
        due = None if n // doubtful % 2 else now + DAY + n
        return (5, 4, due, None, None, 3, REASONS[n % 3], resource, None, None, None, None)
    if n % running == 7 % running and n // running % 4 == 0:
        times = (now + DAY + n, None, now + DAY, None)
        return (1, 3, times[0], now + DAY, None, None, None, None, b"{}", DAY, now + DAY, None)
    if n % running == 7 % running:
        until = (now - SECOND if n // running % 4 == 1 else now + DAY) - n
        return (2, 1, until, until, None, None, None, None, None, None, None, None)
    if n % 100 == 1:
        return (4, 6, end, None, None, None, "no connection", None, None, None, None, None)
    if n % 12 == 2:
        return (6, 6, end + DAY, None, None, None, None, resource, None, None, None, None)
    answer = ANSWERS[500 if n % 200 == 3 else 402 if n % 20 == 4 else 201]
    return (3, 5, end, None, end + DAY, None, None, resource, None, None, None, answer)


EFFECT: Final = (
    *("key", "identity", "application", "name", "payload", "state", "tries", "created_at"),
    *("due_at", "delivered_at", "dead_at", "error"),
)


def effects(amounts: Amounts, now: int) -> Iterator[tuple[Any, ...]]:
    dead, waiting = amounts.effects // amounts.dead, amounts.effects // amounts.waiting
    for n in range(amounts.effects):
        made = now - (amounts.effects - n) * DAY // amounts.effects
        name = ("receipt", "ledger", "webhook")[n % 3]
        own = (f"effect-{n:09d}", identity(n * 7 % amounts.records), APPLICATION, name, b"{}" * 80)
        if n % dead == 0:
            yield (*own, "dead", 20, made, None, None, made + DAY, "HTTP 500 of the receiver")
        elif n % waiting == 1:
            yield (*own, "waiting", 1, made, now + n, None, None, "HTTP 503 of the receiver")
        else:
            yield (*own, "delivered", 1, made, made + 7 * DAY, made + SECOND, None, None)


AUDIT: Final = (
    *("at", "verb", "actor", "reason", "identity", "subject", "state_before", "state_after"),
)


def audit(amounts: Amounts, now: int) -> Iterator[tuple[Any, ...]]:
    """One every two minutes and a half."""
    verbs = cycle(("settle", "evict", "retry_effect", "probe"))
    for n, verb in zip(range(amounts.audit), verbs, strict=False):
        at = now - (amounts.audit - n) * 150 * SECOND
        about = identity(n * 11 % amounts.records)
        yield (at, verb, f"ada {n % 7}", f"ticket {n}", about, None, "unknown", "completed")


NOTABLE: Final = (
    *("at", "forget_at", "kind", "application", "route", "tenant", "identity", "detail", "times"),
)


def notables(amounts: Amounts, now: int) -> Iterator[tuple[Any, ...]]:
    """Half are replays; one in fifty is a mismatch."""
    detail = json.dumps({"fields": ["amount", "currency"]})
    for n in range(amounts.notables):
        at = now - (amounts.notables - n) * DAY // amounts.notables
        kind = KINDS[4] if n % 50 == 7 else KINDS[0] if n % 2 else KINDS[1 + n // 2 % 3]
        place = (APPLICATION, ROUTES[n * n % 20], tenant(n + 9, amounts))
        about = identity(n * 13 % amounts.records)
        yield (at, now + 7 * DAY, kind, *place, about, detail, 1)


TABLES: Final = {
    "semel_record": (RECORD, records),
    "semel_effect": (EFFECT, effects),
    "semel_audit": (AUDIT, audit),
    "semel_notable": (NOTABLE, notables),
}


@contextmanager
def filled_sqlite(amounts: Amounts) -> Iterator[Place]:
    with sqlite() as place:
        _agree(place.url)
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for table, (columns, rows) in TABLES.items():
                marks = ", ".join("?" * len(columns))
                text = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
                connection.executemany(text, rows(amounts, system_clock()))
            connection.commit()
        yield place


@contextmanager
def filled_postgresql(amounts: Amounts) -> Iterator[Place]:
    with postgres() as place:
        _agree(place.url)
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for table, (columns, rows) in TABLES.items():
                _copy(connection, table, columns, rows(amounts, system_clock()))
                connection.execute(f"VACUUM ANALYZE {table}".encode())
        yield place


def _copy(
    connection: psycopg.Connection[Any],
    table: str,
    columns: tuple[str, ...],
    rows: Iterable[tuple[Any, ...]],
) -> None:
    text = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(text.encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _agree(url: str) -> None:
    """The tables, and what their records were promised."""
    with closing(open_backend(url)) as backend:
        backend.migrate()
        for each in TERMS:
            backend.blocking().perform(Agree(each))


FILLED: Final = {"SQLite": filled_sqlite, "PostgreSQL": filled_postgresql}
