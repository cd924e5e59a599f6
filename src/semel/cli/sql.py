"""``semel sql``: the SQL that a database is sent, and how to have the database explain it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import click

from semel.cli import output
from semel.stores.sql.dialect import DIALECTS, DialectQuery, dialect, query_files

_SCHEMES: Final = {"postgres": "postgresql", "mariadb": "mysql"} | {name: name for name in DIALECTS}

Example: TypeAlias = bytes | int | str

_EXAMPLES: Final[Mapping[Example, str]] = {
    bytes(32): "identity after",
    bytes(16): "fence seen",
    b"\1": "fields fingerprint identities journal new old payload prefix request snapshot",
    0: "all anywhere dead leads tries",
    1: "before id most number oldest on_lapse pid place size terms version",
    5: "duty",
    100: "limit",
    86_400_000_000: "again_in alive delay keep lease memory patience probe_after requeue",
    2_592_000_000_000: "retention tombstone",
    1_767_225_600_000_000: "created_at died_at due expires_at forget_at fresh_until leased_until"
    " now since",
    "acme": "actor application does host order_key role subject tenant",
    "asked to": "error evidence reason said why",
    "evict": "verb",
    "i1": "previous recipe",
    "order-1": "event key provider_id resource source",
    "POST": "method",
    "POST /payments": "name names path route",
    "waiting": "shelf",
    "[]": "notables",
}
EXAMPLES: Final[Mapping[str, Example]] = {
    name: value for value, names in _EXAMPLES.items() for name in names.split()
}
"""Of each parameter. What a plan looks like follows from its type."""
_OWN: Final[Mapping[tuple[str, str], Example]] = {
    **{(name, "key"): b"order-1" for name in ("accept", "claim", "claim_many")},
    ("browse_effects", "after"): "order-1",
    ("browse", "names"): 5,
    ("browse_unsettled", "names"): 5,
    ("scan_unsettled", "names"): 5,
}
"""Where one query means something else by it."""


@click.command()
@click.argument("query", required=False)
@click.option(
    "--dialect", "name", type=click.Choice(DIALECTS), help="Of which database, if not the store's."
)
@output.as_json
def sql(query: str | None, name: str | None, as_json: bool) -> None:
    """Print the SQL that is sent: of QUERY, with statements that explain it, or of all queries.

    The statements that explain it have examples in the place of parameters. They change nothing
    and can be pasted into the client of the database: sqlite3, psql or mariadb. Without --dialect
    it is the database of the settings: SEMEL_STORE, or semel.toml.
    """
    name = name or _of_the_store()
    queries, files = dialect(name).queries, query_files(name)
    if query is not None and query not in queries:
        output.fail(f"{name} has no query {query!r}: `semel sql` prints all", output.MISUSED)
    chosen = [queries[query]] if query else list(queries.values())
    if as_json:
        return output.print_json([_document(name, each) for each in chosen])
    for each in chosen:
        lines = [f"{files[each.name].rstrip()};", ""]
        if query:
            lines += ["-- Explained, with examples. EXPLAIN ANALYZE would run it.", ""]
            lines += [f"{text};" for text in explaining(name, each)]
        for line in "\n".join(lines).split("\n"):
            output.say(line)
    return None


def _of_the_store() -> str:
    from semel.config import load

    store = load().store
    if store is None:
        output.fail("which database? Give --dialect, or set SEMEL_STORE", output.MISUSED)
    scheme = urlsplit(store).scheme
    if scheme not in _SCHEMES:
        output.fail(f"a store {scheme}:// does not say which: give --dialect", output.MISUSED)
    return _SCHEMES[scheme]


def _document(name: str, query: DialectQuery) -> dict[str, object]:
    return {
        "name": query.name,
        "dialect": name,
        "takes": query.takes,
        "statements": query.parts,
        "explain": list(explaining(name, query)),
    }


# ── examples ──────────────────────────────────────────────────────────────────────────────────────


def explaining(name: str, query: DialectQuery) -> Iterator[str]:
    """Statements that have the database tell how it would carry out the query."""
    if name == "postgresql":
        values = ", ".join(_prepared(query, each) for each in query.takes)
        yield f"PREPARE semel_explain AS {query.text}"
        yield f"EXPLAIN EXECUTE semel_explain{f' ({values})' if values else ''}"
        yield "DEALLOCATE semel_explain"
        return
    explain = "EXPLAIN QUERY PLAN" if name == "sqlite" else "EXPLAIN"
    row = ", ".join(_literal(_example(query, each)) for each in query.takes)
    for part in query.parts:
        text = part.replace("{rows}", f"({row})")
        yield f"{explain} {_PARAMETER.sub(lambda found: _filled(name, query, found[1]), text)}"


_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")
_BATCH: Final = "_many"
"""How queries end whose parameters have a value for each row."""


def _example(query: DialectQuery, parameter: str) -> Example:
    return _OWN.get((query.name, parameter), EXAMPLES[parameter])


def _literal(value: Example) -> str:
    match value:
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def _filled(name: str, query: DialectQuery, parameter: str) -> str:
    """What stands in the place of a parameter, in SQLite and MySQL."""
    if parameter == "picked":  # the rows that the first statement gave
        columns = query.parts[0].removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
        named = [each.removesuffix(" AS which").rpartition(".")[2] for each in columns]
        row = [_filled(name, query, each) for each in named]
        return row[0] if len(row) == 1 else f"({', '.join(row)})"
    literal = _literal(_example(query, parameter))
    if parameter == "names" and name == "sqlite":
        return f"json_array({literal})"
    if parameter == "lease" and query.name == "claim_many":
        return f"'[{literal}]'"
    return literal


def _prepared(query: DialectQuery, parameter: str) -> str:
    """A value for EXECUTE, whose type PostgreSQL knows from the statement."""
    value = _example(query, parameter)
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    if parameter == "names":
        return f"'[{text}]'" if isinstance(value, int) else f"""'["{text}"]'"""
    if query.name.endswith(_BATCH):
        escaped = text.replace("\\", "\\\\")
        return f"""'{{"{escaped}"}}'"""
    return f"'{text}'"
