"""Bringing a schema up to date, without I/O: a generator of statements that a store executes.

The store runs ``upgrade`` inside one transaction that it opened under a lock, so that of many nodes
that start at once one does the work and the others find it done.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from semel.errors import SchemaError, StoreCorrupt
from semel.stores.sql.dialect import Dialect, Migration
from semel.stores.sql.plans import Rows, Statement


@dataclass(frozen=True, slots=True)
class Ddl:
    """A statement of a migration, to be executed as it is, without parameters."""

    text: str


Upgrade: TypeAlias = Generator[Statement | Ddl, Rows, int]


def upgrade(dialect: Dialect) -> Upgrade:
    """Apply what is missing; returns the schema's version. A schema from the future is refused."""
    current = yield from schema_version()
    for migration in pending(dialect, current):
        for text in migration.statements:
            yield Ddl(text)
        yield Statement("schema_record", {"version": migration.version, "name": migration.name})
    return latest(dialect)


def schema_version() -> Generator[Statement, Rows, int]:
    """The version the database has; 0 when semel never made its tables there."""
    if not _number((yield Statement("schema_exists", {}))):
        return 0
    return _number((yield Statement("schema_version", {})))


def pending(dialect: Dialect, current: int) -> tuple[Migration, ...]:
    """The migrations that lead from ``current`` to this program's schema."""
    if current > latest(dialect):
        raise SchemaError(
            f"the store's schema has version {current}, this semel knows only "
            f"{latest(dialect)}: upgrade semel"
        )
    return dialect.migrations[current:]


def require_current(dialect: Dialect, current: int) -> None:
    """Refuse to work with any schema but this program's own."""
    if pending(dialect, current):
        have = f"has version {current} of its schema" if current else "has no tables of semel"
        raise SchemaError(
            f"the store {have}, this semel needs version {latest(dialect)}: run `semel migrate`"
        )


def latest(dialect: Dialect) -> int:
    return len(dialect.migrations)


def _number(rows: Rows) -> int:
    value: Any = rows[0][0] if rows and rows[0] else None
    if value is None:
        return 0
    if not isinstance(value, int):
        raise StoreCorrupt("the schema's version is not a number")
    return value
