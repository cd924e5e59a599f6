"""`semel sql`: what it prints is what is sent, and the database explains it when it is pasted."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.cli.sql import EXAMPLES
from semel.stores import open_backend
from semel.stores.sql.dialect import DIALECTS, dialect, query_files
from tests.cli.commandline import one_sentence, process, run
from tests.stores.harness import database_of

EACH_DIALECT = pytest.mark.parametrize("name", DIALECTS)
EXPLAINED = "-- Explained, with examples. EXPLAIN ANALYZE would run it.\n\n"

Paste = Callable[[str], list[tuple[Any, ...]]]
"""Executes a script; the rows of all its statements."""


@pytest.fixture
def paste(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paste]:
    """On a store with its schema."""
    servers = {"postgresql": "postgres_url", "mysql": "mariadb_url"}
    path = tmp_path / "semel.db"
    url = request.getfixturevalue(servers[name]) if name in servers else f"sqlite:///{path}"
    open_backend(url).migrate()
    connection: Any
    if name == "sqlite":
        connection = sqlite3.connect(path, isolation_level=None)
    elif name == "postgresql":
        connection = psycopg.connect(url, autocommit=True)
    else:
        connection = request.getfixturevalue("mariadb").connect(database_of(url))

    def execute(script: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for statement in filter(str.strip, script.split(";")):
            cursor = connection.cursor()
            cursor.execute(statement)
            rows += cursor.fetchall() if cursor.description else []
        return rows

    yield execute
    connection.close()


@EACH_DIALECT
def test_every_query_is_explained_by_its_database(name: str, paste: Paste) -> None:
    done = process("sql", "--dialect", name, "--json")
    queries = json.loads(done.stdout)
    assert {query["name"] for query in queries} == dialect(name).queries.keys()
    for query in queries:
        plan = paste(";\n".join(query["explain"]) + ";")
        # SQLite has no plan for what reads no table: an INSERT of values, the clock.
        assert plan or name == "sqlite", query["name"]


@EACH_DIALECT
def test_what_is_printed_of_a_query_can_be_pasted(name: str, paste: Paste) -> None:
    done = process("sql", "--dialect", name, "complete")
    assert (done.returncode, done.stderr) == (0, "")
    file, _, explained = done.stdout.partition(EXPLAINED)
    assert file == f"{query_files(name)['complete'].rstrip()};\n\n"
    primary_key = {
        "sqlite": "SEARCH semel_record USING INDEX sqlite_autoindex_semel_record_1 (identity=?)",
        "postgresql": "Index Scan using semel_record_pkey",
        "mysql": "PRIMARY",
    }
    assert primary_key[name] in str(paste(explained))


@EACH_DIALECT
def test_explaining_changes_nothing(name: str, paste: Paste) -> None:
    for query in ("claim", "accept", "enqueue", "schema_record", "lead", "note"):
        paste(run("sql", "--dialect", name, query).stdout.partition(EXPLAINED)[2])
    for table in ("record", "effect", "leader", "event"):
        assert list(paste(f"SELECT count(*) FROM semel_{table};")) == [(0,)]


@EACH_DIALECT
def test_there_is_an_example_of_every_parameter(name: str) -> None:
    takes = {each for query in dialect(name).queries.values() for each in query.takes}
    assert takes <= EXAMPLES.keys()


@EACH_DIALECT
def test_without_a_query_all_are_printed(name: str) -> None:
    done = run("sql", "--dialect", name)
    files = query_files(name).values()
    assert done.stdout == "".join(f"{file.rstrip()};\n\n" for file in files)


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("sqlite:///semel.db", "sqlite"),
        ("postgres://h/d", "postgresql"),
        ("postgresql://h/d", "postgresql"),
        ("mysql://h/d", "mysql"),
        ("mariadb://h/d", "mysql"),
    ],
)
def test_the_store_of_the_settings_says_which_database(store: str, name: str) -> None:
    done = run("sql", "read", "--json", SEMEL_STORE=store)
    assert json.loads(done.stdout)[0]["dialect"] == name


@pytest.mark.parametrize(
    ("arguments", "store", "sentence"),
    [
        (("sql",), "", "which database? Give --dialect, or set SEMEL_STORE"),
        (("sql",), "redis://h", "a store redis:// does not say which: give --dialect"),
        (("sql", "no", "--dialect", "mysql"), "", "mysql has no query 'no': `semel sql` prints"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    arguments: tuple[str, ...], store: str, sentence: str
) -> None:
    done = run(*arguments, **({"SEMEL_STORE": store} if store else {}))
    assert done.returncode == 2
    assert sentence in one_sentence(done)
