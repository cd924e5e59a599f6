"""The application's own table, on SQLite, PostgreSQL or MariaDB."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import semel

SCHEMA = Path(__file__).with_name("schema.sql").read_text()


def create_tables(store: str) -> None:
    """At the start of the application; harmless when they are there."""
    if store.startswith("postgresql"):
        import psycopg

        with psycopg.connect(store) as connection:
            # Two processes that start at once would both find no table.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('rides'))")
            connection.execute(SCHEMA.encode())
    elif store.startswith("mysql"):
        _create_on_mariadb(store)
    else:
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
            connection.executescript(SCHEMA)


def _create_on_mariadb(store: str) -> None:
    import pymysql

    parts = urlsplit(store)
    with pymysql.connect(
        host=parts.hostname or "localhost",
        port=parts.port or 3306,
        unix_socket=dict(parse_qsl(parts.query)).get("socket"),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path[1:],
    ) as connection:
        connection.cursor().execute(SCHEMA)


def execute(statement: str, *values: Any) -> None:
    """Write in the phase's transaction. It commits together with the journal, or not at all."""
    connection = semel.operation().transaction
    if not isinstance(connection, sqlite3.Connection):
        statement = statement.replace("?", "%s")
    connection.cursor().execute(statement, values)
