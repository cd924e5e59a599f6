"""The application's side of a database, in whatever driver: a connection, and what it is asked."""

from __future__ import annotations

import inspect
import sqlite3
from contextlib import closing, suppress
from typing import Any

import psycopg
import pymysql

from semel.stores.mysql.settings import parse
from tests.waiting import PATIENCE, until

DRIVER_ERRORS = (psycopg.Error, sqlite3.Error, pymysql.Error)

WAITING_FOR_A_KEY = {
    "postgresql": (
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ),
    "mysql": (
        "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()"
    ),
}
"""Finds whoever waits for the lock of an identity."""
_OTHERS = {
    "postgresql": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND backend_type LIKE 'client%'"
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    ),
}


def numbers(count: int) -> str:
    """A table for FROM, whose column ``seq`` counts from 1: as MariaDB and MySQL both know it."""
    places = range(len(str(count - 1)))
    seq = " + ".join(["1", *(f"{10**place} * d{place}.n" for place in places)])
    digits = ", ".join(f"digits AS d{place}" for place in places)
    return (
        "(WITH RECURSIVE digits (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM digits WHERE n < 9) "
        f"SELECT {seq} AS seq FROM {digits} HAVING seq <= {count}) AS numbers"
    )


def connect(url: str, *, autocommit: bool = True) -> Any:
    """To the database of a store's URL."""
    if url.startswith("postgresql"):
        return psycopg.connect(url, autocommit=autocommit)
    if url.startswith("mysql"):
        at = parse(url, {})
        return pymysql.connect(
            host=at.host,
            port=at.port,
            unix_socket=at.socket,
            user=at.user,
            database=at.database,
            autocommit=autocommit,
        )
    path = url.removeprefix("sqlite:///")
    level: Any = None if autocommit else "DEFERRED"
    return sqlite3.connect(path, timeout=PATIENCE, isolation_level=level)


def executed(connection: Any, statement: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """The rows. Arguments are written as ``%s``."""
    if isinstance(connection, sqlite3.Connection):
        statement = statement.replace("%s", "?")
    cursor = connection.cursor()
    cursor.execute(statement, *([args] if args else []))
    return list(cursor.fetchall()) if cursor.description else []


async def aexecuted(connection: Any, statement: str, args: tuple[Any, ...] = ()) -> list[Any]:
    """The same on an awaited connection; SQLite's is the plain one in either colour."""
    if isinstance(connection, sqlite3.Connection):
        return executed(connection, statement, args)
    cursor = connection.cursor()
    await _ready(cursor.execute(statement, args or None))
    return list(await _ready(cursor.fetchall())) if cursor.description else []


async def _ready(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def end_connections(url: str) -> None:
    """The server ends all others to this database."""
    kind = url.partition(":")[0]
    end = "KILL {}" if kind == "mysql" else "SELECT pg_terminate_backend({})"
    with closing(connect(url)) as connection:
        for (number,) in executed(connection, _OTHERS[kind]):
            with suppress(pymysql.Error):  # it has ended by itself
                executed(connection, end.format(number))
        until(lambda: not executed(connection, _OTHERS[kind]))


def as_mysqlclient() -> None:
    """Django asks for mysqlclient, which is GPL, by its version: PyMySQL says that it is that."""
    driver: Any = pymysql
    driver.version_info, driver.__version__ = (2, 2, 7, "final", 0), "2.2.7"
    driver.install_as_MySQLdb()
