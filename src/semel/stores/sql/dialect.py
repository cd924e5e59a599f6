"""The SQL files of one database, as it is sent them.

A query is ``sent/<dialect>/<name>.sql``. These files are written from ``queries/`` by
``python -m tools.queries``, which says how. Here they are only read: of the header the parameters
that the query ``takes:`` (or the columns of its ``rows:``), and the statements, which have ``;``
between them. The blanks and comments of a file are for its readers; they are not sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from semel.errors import SemelError

DIALECTS: Final = ("sqlite", "postgresql", "mysql")

_ROOT = files("semel.stores.sql")
_COMMENT = re.compile(r"--[^\n]*| /\*.*?\*/")
_TAKES = re.compile(r"^-- (?:takes|rows):(.*(?:\n--   .*)*)$", re.MULTILINE)
_NOT_A_NAME = re.compile(r"--|\$\d+")
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_MOVED = re.compile(r"\b(semel_record RENAME TO|RENAME TABLE semel_record)\b")
_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")


class BadQuery(SemelError):
    """A SQL file of semel's own does not keep the rules; a bug, seen when the dialect is loaded."""


@dataclass(frozen=True, slots=True)
class DialectQuery:
    """One query. ``takes``: the parameters a plan gives (the clock, if bound, is extra).

    ``parts``: its statements, mostly one. If they have a parameter ``picked``, its values are the
    rows that the first part gives.
    """

    name: str
    takes: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "; ".join(self.parts)

    def for_rows(self, count: int) -> str:
        """The text of a query for many rows, with positional parameters."""
        row = f"({', '.join('?' * len(self.takes))})"
        return self.text.replace("{rows}", ", ".join([row] * count))


@dataclass(frozen=True, slots=True)
class SchemaMigration:
    """One numbered step of the schema. ``oldest``: programs of that version, and later ones, go on
    working with it."""

    version: int
    name: str
    oldest: int
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Everything semel says to one kind of database."""

    name: str
    queries: Mapping[str, DialectQuery]
    migrations: tuple[SchemaMigration, ...]


@cache
def dialect(name: str) -> Dialect:
    """The dialect, read from its files once per process."""
    queries = {query: _loaded(query, text) for query, text in query_files(name).items()}
    return Dialect(name, queries, tuple(_migrations(name)))


def query_files(name: str) -> dict[str, str]:
    """The queries of one dialect as they are written down, with their headers."""
    found = _sql_files(_ROOT / "sent" / name)
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in found}


def _sql_files(folder: Traversable) -> Iterator[Traversable]:
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return iter(sorted(found, key=lambda file: file.name))


def _loaded(name: str, file: str) -> DialectQuery:
    header = _TAKES.search(file)
    if header is None:
        raise BadQuery(f"{name}.sql has no '-- takes:' or '-- rows:' line")
    takes = tuple(_NOT_A_NAME.sub("", header[1]).split())
    texts = _COMMENT.sub("", file).split(";")
    return DialectQuery(name, takes, tuple(" ".join(text.split()) for text in texts))


def _migrations(name: str) -> Iterator[SchemaMigration]:
    for number, file in enumerate(_sql_files(_ROOT / "migrations" / name), start=1):
        match = _MIGRATION.fullmatch(file.name)
        if match is None or int(match[1]) != number:
            raise BadQuery(f"migrations/{name}/{file.name}: expected number {number:04}")
        source = file.read_text("utf-8")
        oldest = _OLDEST.search(source)
        if oldest is None or not 1 <= int(oldest[1]) <= number:
            raise BadQuery(f"migrations/{name}/{file.name} has no '-- oldest:' that can be true")
        text = _COMMENT.sub("", source)
        statements = tuple(part.strip() for part in text.split(";") if part.strip())
        yield checked(SchemaMigration(number, match[2], int(oldest[1]), statements))


def checked(migration: SchemaMigration) -> SchemaMigration:
    """Nodes whose connections are open look at no version any more: one that allows for no older
    program must take the records from under them."""
    if migration.oldest == migration.version > 1 and not any(
        _MOVED.search(text) for text in migration.statements
    ):
        raise BadQuery(f"{migration.name} allows for no older program, and leaves it its table")
    return migration
