"""The shop under a real server over a real store, for the tests that need both."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pytest

from tests.forms import in_proof
from tests.servers import AppServer, gunicorn, uvicorn
from tests.waiting import PATIENCE, patient
from tests.web.client import Client
from tests.web.effects import Effects

Databases: TypeAlias = Callable[[str], Any]
Rows: TypeAlias = list[tuple[Any, ...]]

# Framework and store are paired off: each store meets both kinds of adapters.
UVICORN, GUNICORN, ON_MYSQL = ("fastapi", "postgres"), ("flask", "sqlite"), ("starlette", "mysql")
OTHERS = in_proof(("starlette", "sqlite"), ("bare", "postgres"), ("flask", "mysql"))
PAIRS = (UVICORN, GUNICORN, ON_MYSQL, *OTHERS)


@dataclass(frozen=True)
class Served:
    """A running shop."""

    server: AppServer
    client: Client
    effects: Effects
    folder: Path
    awaited: bool
    """An ASGI application: one thread serves many requests."""
    ask: Callable[[str], Rows]
    """Says a statement to the store's database, behind semel's back."""

    def gate(self) -> Path:
        """A file that does not exist yet; handlers told of it wait until it does."""
        return self.folder / f"gate-{uuid4().hex}"

    def leased_until(self) -> int:
        """Of the one request that is under way."""
        ((until,),) = self.ask("SELECT leased_until FROM semel_record WHERE state = 2")
        return int(until)

    def pass_time(self, duration: timedelta) -> None:
        """In the store: its clock cannot be moved, so its leases are moved into the past."""
        by = duration // timedelta(microseconds=1)
        self.ask(
            f"UPDATE semel_record SET leased_until = leased_until - {by}, due_at = due_at - {by}"
            " WHERE state = 2"
        )


@contextmanager
def serve(
    framework: str, store: str, folder: Path, databases: Databases, workers: int = 2
) -> Iterator[Served]:
    log = folder / "effects"
    with store_url(store, folder, databases) as url:
        env = {
            "SEMEL_TEST_STORE": patient(url),
            "SEMEL_TEST_FRAMEWORK": framework,
            "SEMEL_TEST_EFFECTS": str(log),
        }
        awaited = framework in ("starlette", "fastapi")
        runner = (
            uvicorn("tests.web.app:app", workers=workers, env=env)
            if awaited
            else gunicorn("tests.web.wsgi_app:application", workers=workers, threads=16, env=env)
        )
        with runner as server:
            ask = asking(store, url, databases)
            yield Served(server, Client(server.url), Effects(log), folder, awaited, ask)


@contextmanager
def store_url(store: str, folder: Path, databases: Databases) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{folder / 'keys.db'}"
    else:
        with databases(store).database() as url:
            yield url


def asking(store: str, url: str, databases: Databases) -> Callable[[str], Rows]:
    """How statements are said to a store's database."""

    def sqlite(statement: str) -> Rows:
        file = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(file, PATIENCE, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def postgres(statement: str) -> Rows:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def mysql(statement: str) -> Rows:
        database = url.rpartition("?")[0].rpartition("/")[2]
        with databases(store).connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    return {"sqlite": sqlite, "postgres": postgres, "mysql": mysql}[store]


def databases_of(request: pytest.FixtureRequest) -> Databases:
    """The server of a store, started when it is first asked for."""
    fixtures = {"postgres": "postgres", "mysql": "mariadb"}
    return lambda store: request.getfixturevalue(fixtures[store])
