"""Bringing the schema up to date: one transaction, under one lock, however many nodes try."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from semel.stores.base import Finding
from semel.stores.postgres.connection import DIALECT
from semel.stores.postgres.errors import joined, not_connected, verdict
from semel.stores.postgres.settings import Settings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, Standing, missing_grants, pending, standing, upgrade
from semel.stores.sql.plans import Rows, Statement

R = TypeVar("R")

LOCK: Final = int.from_bytes(b"semel\0\0\1")
"""Of the transaction, not of the session: a pooler may part us from the latter."""


def migrate(settings: Settings) -> int:
    """Returns the schema's version. There is no deadline: a migration takes as long as it takes."""
    # Mostly there is nothing to do, and then a node that hangs with the lock holds up nobody.
    found = _connected(settings, _look)
    if not pending(dialect(DIALECT), found):
        return found.version
    # On another connection: this one may go on believing that a table is not there.
    return _connected(settings, _upgrade)


def examine(settings: Settings) -> tuple[Finding, ...]:
    """What the user may not do; each try is undone."""
    return _connected(settings, lambda connection: missing_grants(partial(_denied, connection)))


def _denied(connection: psycopg.Connection[Any], text: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(text.encode())
    except psycopg.errors.InsufficientPrivilege:
        return True
    except (psycopg.ProgrammingError, psycopg.errors.ReadOnlySqlTransaction):
        return False  # no such table, or no primary: others say so
    return False


def _connected(settings: Settings, work: Callable[[psycopg.Connection[Any]], R]) -> R:
    try:
        connection = psycopg.connect(settings.conninfo, prepare_threshold=None)
    except psycopg.Error as error:
        fault = not_connected(error, settings.without_secrets)
        raise verdict(fault, doubt=False) from None
    try:
        with connection:
            return work(connection)
    except psycopg.Error as error:
        raise verdict(joined(error), doubt=True) from None


def _look(connection: psycopg.Connection[Any]) -> Standing:
    return _driven(connection, standing())


def _upgrade(connection: psycopg.Connection[Any]) -> int:
    # The lock is waited for in a statement of its own: what follows must see what the one who
    # held it before has committed.
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    return _driven(connection, upgrade(dialect(DIALECT)))


def _driven(connection: psycopg.Connection[Any], steps: Generator[Statement | Ddl, Rows, R]) -> R:
    asked = next(steps)
    while True:
        rows = _rows(connection, asked)
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            result: R = done.value
            return result


def _rows(connection: psycopg.Connection[Any], asked: Statement | Ddl) -> Rows:
    if isinstance(asked, Ddl):
        connection.execute(asked.text.encode())
        return []
    text = dialect(DIALECT).text(asked.name)
    cursor = connection.execute(text.encode(), asked.params)
    return cursor.fetchall() if cursor.description else []
