"""Bringing a schema up to date, without I/O: a generator of statements that a store executes.

The store runs ``upgrade`` inside one transaction that it opened under a lock, so that of many nodes
that start at once one does the work and the others find it done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from semel.errors import SchemaError, StoreCorrupt
from semel.stores.base import Finding
from semel.stores.sql.dialect import Dialect, SchemaMigration
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement


@dataclass(frozen=True, slots=True)
class Ddl:
    """A statement of a migration, to be executed as it is, without parameters."""

    text: str


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """Which version a schema has, and from which on programs may work with it; 0: there is none."""

    version: int
    oldest: int


def upgrade(dialect: Dialect) -> Generator[Statement | Ddl, Rows, int]:
    """Apply what is missing; returns the schema's version."""
    found = yield from schema_version()
    for migration in pending(dialect, found):
        for text in migration.statements:
            yield Ddl(text)
        recorded = {"version": migration.version, "name": migration.name}
        yield Statement("schema_record", {**recorded, "oldest": migration.oldest})
    return max(found.version, latest(dialect))


def schema_version() -> Generator[Statement, Rows, SchemaVersion]:
    """How the database's schema stands."""
    if not _number((yield Statement("schema_exists", {}))):
        return SchemaVersion(0, 0)
    rows = yield Statement("schema_version", {})
    return SchemaVersion(_number(rows), _number(rows, 1))


def pending(dialect: Dialect, found: SchemaVersion) -> tuple[SchemaMigration, ...]:
    """The migrations that lead from there to this program's schema.

    A newer schema is worked with, as long as it allows for programs as old as this: nodes are
    upgraded one after the other.
    """
    if found.oldest > latest(dialect):
        raise SchemaError(
            f"the store's schema has version {found.version}, and allows for no semel that knows "
            f"only {latest(dialect)}: upgrade semel"
        )
    return dialect.migrations[found.version :]


def check_schema(dialect: Dialect) -> Generator[Statement, Rows, None]:
    """Refuse a schema that is not this program's own, nor a newer one that allows for it."""
    found = yield from schema_version()
    if pending(dialect, found):
        version = found.version
        have = f"has version {version} of its schema" if version else "has no tables of semel"
        raise SchemaError(
            f"the store {have}, this semel needs version {latest(dialect)}: run `semel migrate`"
        )
    for table, engine in (yield from without_transactions(dialect)):
        if table.startswith("semel_"):
            raise SchemaError(
                f"{table} is a table of {engine}, which has no transactions and may lose records: "
                f"ALTER TABLE {table} ENGINE = InnoDB"
            )


def without_transactions(dialect: Dialect) -> Generator[Statement, Rows, list[tuple[str, str]]]:
    """Tables, semel's own or not, with their engines; only some databases have such."""
    if "schema_engines" not in dialect.queries:
        return []
    rows = yield Statement("schema_engines", {})
    return [(str(table), str(engine)) for table, engine in rows]


def latest(dialect: Dialect) -> int:
    return len(dialect.migrations)


def _number(rows: Rows, column: int = 0) -> int:
    value: Any = rows[0][column] if rows and rows[0] else None
    if value is None:
        return 0
    if not isinstance(value, int):
        raise StoreCorrupt("the schema's version is not a number")
    return value


# --- whether a database's user may do what semel does
#
# A right that is missing shows only when it is first used, say when the reaper first deletes. So
# each is tried by a statement that finds no row: the server checks the right, and nothing is
# changed.

_ALL: Final = ("INSERT", "UPDATE", "DELETE")
NEEDED: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "semel_record": (_ALL, "state"),
    "semel_effect": (_ALL, "name"),
    "semel_event": (("INSERT", "DELETE"), "source"),
    "semel_leader": (("INSERT", "UPDATE"), "name"),
    "semel_recipe": (("INSERT", "UPDATE"), "route"),
    "semel_terms": (("INSERT",), "route"),
    "semel_audit": (("INSERT",), "verb"),
    "semel_notable": (("INSERT", "DELETE"), "kind"),
    "semel_worker": (_ALL, "role"),
}
"""Of each table what is done to it, and one of its columns to try that with."""


def missing_grants(denied: Callable[[str], bool]) -> tuple[Finding, ...]:
    """``denied`` tries a statement and says whether the server refused it for want of a right."""
    lacking: list[str] = []
    for table, (verbs, column) in NEEDED.items():
        texts = {  # of names that are written above
            "INSERT": f"INSERT INTO {table} ({column}) SELECT {column} FROM {table} WHERE 1 = 0",  # noqa: S608
            "UPDATE": f"UPDATE {table} SET {column} = {column} WHERE 1 = 0",  # noqa: S608
            "DELETE": f"DELETE FROM {table} WHERE 1 = 0",  # noqa: S608
        }
        lacking += [f"{verb} on {table}" for verb in verbs if denied(texts[verb])]
    if not lacking:
        return ()
    said = f"this user may not {', '.join(lacking)}: grant it, or requests and maintenance fail"
    return (Finding("refused", said),)
