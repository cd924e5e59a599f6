"""What stands in a store, read without asking semel: each key, and the state of its record."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from semel.core.records import Identity
from semel.stores.redis.layout import stored
from tests.servers import MariadbServer, ValkeyServer

States = Callable[[], dict[str, str]]

_ALL = "SELECT key, state FROM semel_records"


def of_postgres(url: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute(_ALL.encode()).fetchall())


def of_mariadb(server: MariadbServer, database: str) -> dict[str, str]:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONVERT(`key` USING utf8mb4), state FROM semel_records")
        return {_text(key): _text(state) for key, state in cursor.fetchall()}


def of_valkey(server: ValkeyServer) -> dict[str, str]:
    found: dict[str, str] = {}
    connection: Any = server.client  # its stubs do not know what a scan gives
    with connection as client:
        for name in client.scan_iter(match="*}:r:*", count=1_000):
            record = stored(Identity(name[-32:]), client.get(name))
            found[record.origin[3]] = record.row[1]
    return found


def of_sqlite(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path, timeout=20)) as connection:
        return dict(connection.execute(_ALL).fetchall())


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
