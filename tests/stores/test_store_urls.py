"""A URL names a store; what is wrong with it is said in one sentence, without secrets."""

from __future__ import annotations

import sys

import pytest

from semel.errors import ConfigurationError
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.stores.memory import MemoryBackend
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
    ("scheme", "driver", "extra"),
    [
        ("postgres", "psycopg", "postgres"),
        ("postgresql", "psycopg", "postgres"),
        ("mysql", "pymysql", "mysql"),
        ("mariadb", "asyncmy", "mysql"),
        ("redis", "hiredis", "redis"),
        ("rediscluster", "hiredis", "redis"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, driver: str, extra: str
) -> None:
    ours = (f"semel.stores.{extra}", f"{driver}.")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigurationError, match=rf"semel\[{extra}\]") as refused:
        open_backend(f"{scheme}://user:secret@host/database")
    assert "secret" not in str(refused.value)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'color' of a SQLite store"):
        open_backend("sqlite:///x.db?color=red")
