"""The schema, over Django's own connection: in its migrations, its transaction and its database."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from semel.core.records import Micros
from semel.stores.base import system_clock
from semel.stores.django.database import DjangoDatabase
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, upgrade
from semel.stores.sql.plans import Rows, Statement


def migrate(wrapper: Any) -> None:
    """Apply what is missing. MySQL commits after each statement, so there semel's own way does."""
    database = DjangoDatabase(wrapper.alias)
    if database.engine == "mysql":
        database.backend({}).migrate()
        return
    _driven(database, upgrade(dialect(database.engine)))


def _driven(database: DjangoDatabase, steps: Generator[Statement | Ddl, Rows, int]) -> int:
    wrapper, rows = database.wrapper, None
    wrapper.ensure_connection()
    while True:
        try:
            step = next(steps) if rows is None else steps.send(rows)
        except StopIteration as version:
            return int(version.value)
        rows = _rows(wrapper.connection, database.engine, step, system_clock())


def _rows(connection: Any, engine: str, step: Statement | Ddl, now: Micros) -> Rows:
    if isinstance(step, Ddl):
        cursor = _execute(connection, engine, step.text, None)
    else:
        params = {**step.params, "now": now} if engine == "sqlite" else step.params
        cursor = _execute(connection, engine, dialect(engine).text(step.name), params)
    return cursor.fetchall() if cursor.description else []


def _execute(connection: Any, engine: str, text: str, params: Any) -> Any:
    """By the driver itself: Django's cursors have a way of their own with parameters."""
    if engine == "sqlite":
        return connection.execute(text, params or {})
    from psycopg import Cursor

    return Cursor(connection).execute(text.encode(), params)
