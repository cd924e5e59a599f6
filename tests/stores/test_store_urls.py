"""A URL names a store; what is wrong with it is said in one sentence, without secrets."""

from __future__ import annotations

import sys

import pytest

from semel.errors import ConfigurationError
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.stores.memory import MemoryBackend
from semel.stores.mysql import MysqlBackend
from semel.stores.postgres import PostgresBackend
from semel.stores.sqlite import SqliteBackend


@pytest.mark.parametrize(
    ("url", "kind"),
    [("memory://", MemoryBackend), ("sqlite:///x.db", SqliteBackend), ("SQLite:///x.db", Backend)],
)
def test_a_scheme_names_a_backend(url: str, kind: type) -> None:
    backend = open_backend(url)
    assert isinstance(backend, kind)
    assert isinstance(backend, Backend)


@pytest.mark.parametrize(
    ("given", "kind", "url"),
    [
        ("postgresql+psycopg://ann:pw@db/shop", PostgresBackend, "postgresql://ann@db/shop"),
        ("postgresql+asyncpg://ann:pw@db/shop", PostgresBackend, "postgresql://ann@db/shop"),
        ("PostgreSQL+psycopg2://ann:pw@db/shop", PostgresBackend, "postgresql://ann@db/shop"),
        ("postgres://ann:pw@db/shop", PostgresBackend, "postgresql://ann@db/shop"),
        ("mysql+pymysql://ann:pw@db/shop", MysqlBackend, "mysql://ann@db/shop"),
        ("mysql+aiomysql://ann:pw@db/shop", MysqlBackend, "mysql://ann@db/shop"),
        ("mariadb+asyncmy://ann:pw@db/shop", MysqlBackend, "mariadb://ann@db/shop"),
        ("sqlite+aiosqlite:////tmp/shop.db", SqliteBackend, "sqlite:////tmp/shop.db"),
        ("sqlite+pysqlite:////tmp/shop.db", SqliteBackend, "sqlite:////tmp/shop.db"),
    ],
)
def test_a_url_of_sqlalchemy_names_the_same_database(given: str, kind: type, url: str) -> None:
    backend = open_backend(given)
    assert isinstance(backend, kind)
    assert backend.url == url


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ("postgresql+pg8000://ann:secret@db/shop", "postgresql"),
        ("mysql+pyodbc://ann:secret@db/shop", "mysql"),
        ("sqlite+pysqlcipher://:secret@/shop.db", "sqlite"),
        ("psql://ann:secret@db/shop", "postgresql"),
        ("postgis://ann:secret@db/shop", "postgresql"),
        ("file:///secret.db", "sqlite"),
    ],
)
def test_another_way_to_write_it_is_told_the_right_one(given: str, write: str) -> None:
    with pytest.raises(ConfigurationError, match=f": write {write}://") as refused:
        open_backend(given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", ["mssql+pyodbc://ann:secret@db/shop", "shop.db", "mongodb://db"])
def test_a_store_that_is_not_there_is_told_which_are(given: str) -> None:
    with pytest.raises(ConfigurationError, match="known are memory://, sqlite:///") as refused:
        open_backend(given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("scheme", "driver", "extra"),
    [
        ("postgres", "psycopg", "postgres-binary"),
        ("postgresql", "psycopg", "postgres-binary"),
        ("mysql", "pymysql", "mysql"),
        ("mariadb", "asyncmy", "mysql"),
        ("redis", "hiredis", "redis"),
        ("rediscluster", "hiredis", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, driver: str, extra: str
) -> None:
    ours = (f"semel.stores.{extra.partition('-')[0]}", f"{driver}.")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=rf"semel\[{extra}\]") as refused:
        open_backend(f"{scheme}://user:secret@host/database")
    assert "secret" not in str(refused.value)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'color' of a SQLite store"):
        open_backend("sqlite:///x.db?color=red")
