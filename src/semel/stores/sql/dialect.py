"""The SQL files, loaded and made ready for one database.

A query is one file, ``queries/<name>.sql`` or ``queries/<dialect>/<name>.sql`` where databases
differ. Its header says which parameters it ``takes:``; a placeholder that the header does not name
is an error when the dialect is loaded. ``{now}`` is the clock; ``{answer}`` is the column
``snapshot``, of a large one its head (`core/stored/snapshot.py`); ``{among}`` compares with the
parameter ``names``, a JSON array of texts; ``{locked}`` takes row locks and waits for none;
``{chosen}`` compares with the column ``which`` of the query's part ``due``; ``{retention}`` and
``{tombstone}`` are those of the terms of the record that is written. A query for many rows
at once names the columns of one in ``rows:`` and has ``{rows}`` where the values go.

A query that ``audits:`` names an act and the state it leads to; its entry is written with it
(`within`, `before`).

Where a database cannot tell what a write did, a query comes to several statements: derived from the
shared file (`returning`), or written in the dialect's own with ``;`` between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from semel.core.stored.snapshot import HEAD, LARGE
from semel.errors import SemelError

_ROOT = files("semel.stores.sql")
_COMMENT = re.compile(r"--[^\n]*")
_PLACEHOLDER = re.compile(r"(?<![:\w]):([a-z_]+)")
_CAST = re.compile(r"CAST\((:\w+|NULL) AS \w+\)")
_TAKES = re.compile(r"^-- (takes|rows):(.*(?:\n--   .*)*)$", re.MULTILINE)
_AUDITS = re.compile(r"^-- audits: (\w+) (\w+|-)$", re.MULTILINE)
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_MOVED = re.compile(r"\b(semel_record RENAME TO|RENAME TABLE semel_record)\b")
_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")


_OF_TERMS = "(SELECT {} FROM semel_terms WHERE id = semel_record.terms)"


class BadQuery(SemelError):
    """A SQL file of semel's own does not keep the rules; a bug, seen when the dialect is loaded."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a database's driver wants its parameters, how its clock is read, and where it differs."""

    name: str
    placeholder: str
    now: str
    answer: str
    among: str
    locked: str
    chosen: str
    returning: bool = True
    """Whether writes tell the rows they changed."""
    casts: bool = True
    """Whether parameters have no types of their own, and the casts in the files give them one."""
    reserved: str = ""
    """A column that has to be quoted."""
    nested: bool = False
    """Whether one statement may hold several writes."""
    held: str = ""
    """What locks the rows that are read."""


def _answer(length: str, marked: str) -> str:
    head = marked.format(f"substr(snapshot, 1, {HEAD})")
    return f"CASE WHEN {length} > {LARGE} THEN {head} ELSE snapshot END"


SYNTAXES: Mapping[str, Syntax] = {
    # SQLite's own clock has milliseconds at best, and tests move time: the store binds its clock.
    "sqlite": Syntax(
        "sqlite",
        ":{}",
        ":now",
        # A text to SQLite, which holds any bytes, made bytes again.
        answer=_answer("length(snapshot)", "CAST(x'00' || {} AS BLOB)"),
        among="IN (SELECT value FROM json_each(:names))",
        locked="",  # there is one writer
        chosen="IN (SELECT which FROM due)",
    ),
    # clock_timestamp() and not now(), which stands still within a transaction.
    "postgresql": Syntax(
        "postgresql",
        "%({})s",
        "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
        answer=_answer("octet_length(snapshot)", r"'\x00'::bytea || {}"),
        among="= ANY (ARRAY(SELECT json_array_elements_text(CAST(:names AS json))))",
        locked="FOR UPDATE SKIP LOCKED",
        # As an array, they are few to the planner, which knows no limit that is a parameter and
        # would rather read the whole table than look up a tenth of it.
        chosen="= ANY (ARRAY(SELECT which FROM due))",
        nested=True,
        held="FOR UPDATE",
    ),
    # UTC_TIMESTAMP stands still within a statement, and asks for no time zone.
    "mysql": Syntax(
        "mysql",
        ":{}",  # the store writes the values itself: neither driver has another way
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        answer=_answer("LENGTH(snapshot)", "CONCAT(x'00', {})"),
        among="IN (:names)",
        locked="FOR UPDATE SKIP LOCKED",
        chosen="IN (:picked)",
        returning=False,
        casts=False,
        reserved="key",
        held="FOR UPDATE",
    ),
}


@dataclass(frozen=True, slots=True)
class DialectQuery:
    """One statement. ``takes``: the parameters a plan gives (the clock, if bound, is extra).

    ``parts``: what it comes to where one statement will not do. If they have a parameter
    ``picked``, its values are the rows that the first part gives.
    """

    name: str
    text: str
    takes: tuple[str, ...]
    parts: tuple[str, ...] = ()

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

    def text(self, name: str) -> str:
        return self.queries[name].text


@cache
def dialect(name: str) -> Dialect:
    """The dialect, read from its files once per process."""
    syntax = SYNTAXES[name]
    sources = {**query_sources(), **query_sources(name)}
    queries = {query: _compile(query, text, syntax) for query, text in sources.items()}
    return Dialect(name, queries, tuple(_migrations(name)))


def query_sources(name: str | None = None) -> dict[str, str]:
    """The query files as written: the shared ones, or those of one dialect."""
    folder = _ROOT / "queries" / name if name else _ROOT / "queries"
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in _sql_files(folder)}


def _sql_files(folder: Traversable) -> Iterator[Traversable]:
    found = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return iter(sorted(found, key=lambda file: file.name))


def _compile(name: str, source: str, syntax: Syntax) -> DialectQuery:
    header = _TAKES.search(source)
    if header is None:
        raise BadQuery(f"{name}.sql has no '-- takes:' or '-- rows:' line")
    takes = tuple(header[2].replace("--", "").split())
    text = _COMMENT.sub("", source)
    text = text.replace("{among}", syntax.among).replace("{locked}", syntax.locked)
    named: tuple[str, ...] = () if header[1] == "rows" else takes
    if found := set[str](_PLACEHOLDER.findall(text)) ^ set(named):
        raise BadQuery(f"{name}.sql: header and text disagree about {sorted(found)}")
    text = " ".join(text.split())
    parts: tuple[str, ...] = ()
    if audits := _AUDITS.search(source):
        takes = (*takes, *TAKES)
        verb, after = audits.groups()
        if syntax.nested:
            text = within(text, verb, after)
        else:
            parts = (_spelled(before(text, verb, after, syntax.held), syntax),)
    text = _spelled(text, syntax)
    if not syntax.returning:
        parts = (*parts, *without_returning(text))
    elif parts:
        parts = (*parts, text)
    return DialectQuery(name, text, takes, parts)


def _spelled(text: str, syntax: Syntax) -> str:
    text = text.replace("%", "%%") if "%" in syntax.placeholder else text
    text = _PLACEHOLDER.sub(lambda match: syntax.placeholder.format(match[1]), text)
    text = text.replace("{now}", syntax.now).replace("{chosen}", syntax.chosen)
    text = text.replace("{answer}", syntax.answer)
    for time in ("retention", "tombstone"):
        text = text.replace(f"{{{time}}}", _OF_TERMS.format(time))
    if not syntax.casts:
        text = _CAST.sub(r"\1", text)
    if syntax.reserved:
        text = re.sub(rf"(?<![:\w]){syntax.reserved}\b", f"`{syntax.reserved}`", text)
    return text


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


# --- statements that put an act on record: a write, and its entry in the audit table, as one step
#
# The entry is made of the row as it is before the write, under the lock that the write needs
# anyway; it is made if and only if the write is. Where a statement may hold several writes they are
# one statement; elsewhere the entry comes first, in the same transaction.

_BRACKETS: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
"""With what is within, which may have conditions of its own."""
_WRITE: Final = re.compile(
    rf"(?P<head>(?P<verb>UPDATE|DELETE FROM) (?P<table>\w+)(?: SET (?:[^()]|{_BRACKETS})*?)?)"
    r" WHERE (?P<where>.*) RETURNING (?P<columns>.*)"
)
_SUBJECT: Final = {"semel_record": "CAST(NULL AS text)", "semel_effect": "key"}
"""Of a record its identity says enough; what its path and key say must be possible to erase."""

TAKES: Final = ("actor", "why")
"""The parameters that such a statement takes beside its own."""


def within(text: str, verb: str, after: str) -> str:
    """One statement. ``text``, its blanks made single, tells what it wrote; ``after``: a state."""
    write = _parsed(text)
    table, where = write["table"], write["where"]
    seen = f"SELECT identity, state, {_SUBJECT[table]} AS subject FROM {table} WHERE {where}"  # noqa: S608
    entry = _entry(verb, after, "subject", "seen")
    return (
        f"WITH seen AS MATERIALIZED ({seen} FOR UPDATE), noted AS ({entry}) "
        f"{write['head']} WHERE {where} AND EXISTS (SELECT FROM seen) RETURNING {write['columns']}"
    )


def before(text: str, verb: str, after: str, held: str) -> str:
    """The entry alone, to come before ``text`` in its transaction; ``held`` locks the row."""
    write = _parsed(text)
    entry = _entry(verb, after, _SUBJECT[write["table"]], write["table"])
    return f"{entry} WHERE {write['where']} {held}".rstrip()


def _parsed(text: str) -> re.Match[str]:
    write = _WRITE.fullmatch(text)
    if write is None:
        raise ValueError(f"not a write that tells what it did: {text}")
    return write


def _entry(verb: str, after: str, subject: str, source: str) -> str:
    then = "CAST(NULL AS text)" if after == "-" else f"'{after}'"
    into = "(at, verb, actor, reason, identity, subject, state_before, state_after)"
    said = f"{{now}}, '{verb}', CAST(:actor AS text), CAST(:why AS text)"
    chosen = f"SELECT {said}, identity, {subject}, state, {then} FROM {source}"  # noqa: S608
    return f"INSERT INTO semel_audit {into} {chosen}"


# --- for databases whose UPDATE and DELETE tell nothing: one statement as several that do the same
#
# What is chosen for many is locked first, with all that the statement asks of a chosen row; it
# cannot change from then on. A row that is changed is read after it, one that goes is read before.
# They are sent together and share a transaction, so that together they are one step.

_BATCH: Final = re.compile(r"WITH due AS MATERIALIZED \( (?P<pick>.*) \) (?P<main>\w+ .*)")


def without_returning(text: str) -> tuple[str, ...]:
    """The statements that ``text``, its blanks made single, comes to."""
    batch = _BATCH.fullmatch(text)
    if batch is None and not _WRITE.fullmatch(text):
        return tuple(part.strip() for part in text.split(";"))
    write = _parsed(batch["main"] if batch else text)
    verb, table, where, columns = write.group("verb", "table", "where", "columns")
    which, _, asked = where.partition(" AND ")
    now_in = f"SELECT {columns} FROM {table} WHERE "  # noqa: S608 - a text of our own
    if verb == "UPDATE":  # what it asks beside is no longer true after it
        changed = "" if batch else " AND ROW_COUNT() > 0"
        parts = f"{write['head']} WHERE {where}", f"{now_in}{which}{changed}"
    else:
        parts = f"{now_in}{where} FOR UPDATE", f"{verb} {table} WHERE {where}"
    if batch is None:
        return parts
    pick, _, order = batch["pick"].rpartition(" ORDER BY ")
    return f"{pick} AND {asked} ORDER BY {order}", *parts
