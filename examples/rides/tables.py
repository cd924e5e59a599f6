"""The application's own table, on SQLite or PostgreSQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

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
    else:
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection:
            connection.executescript(SCHEMA)


def execute(statement: str, *values: Any) -> None:
    """Write in the phase's transaction. It commits together with the journal, or not at all."""
    connection = semel.operation().transaction
    if not isinstance(connection, sqlite3.Connection):
        statement = statement.replace("?", "%s")
    connection.execute(statement, values)
