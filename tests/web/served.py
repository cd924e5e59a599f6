"""The shop under a real server over a real store, for the tests that need both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

from tests.forms import in_proof
from tests.servers import AppServer, gunicorn, uvicorn
from tests.web.client import Client
from tests.web.effects import Effects

Databases: TypeAlias = Callable[[str], Any]

# Framework and store are paired off: each store meets both kinds of adapters.
PAIRS = (
    ("fastapi", "postgres"),
    ("flask", "sqlite"),
    ("starlette", "mysql"),
    *in_proof(("starlette", "sqlite"), ("bare", "postgres"), ("flask", "mysql")),
)


@dataclass(frozen=True)
class Served:
    """A running shop."""

    server: AppServer
    client: Client
    effects: Effects
    folder: Path
    awaited: bool
    """An ASGI application: one thread serves many requests."""

    def gate(self) -> Path:
        """A file that does not exist yet; handlers told of it wait until it does."""
        return self.folder / f"gate-{uuid4().hex}"


@contextmanager
def serve(
    framework: str, store: str, folder: Path, databases: Databases, workers: int = 2
) -> Iterator[Served]:
    log = folder / "effects"
    with store_url(store, folder, databases) as url:
        env = {
            "SEMEL_TEST_STORE": url,
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
            yield Served(server, Client(server.url), Effects(log), folder, awaited)


@contextmanager
def store_url(store: str, folder: Path, databases: Databases) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{folder / 'keys.db'}"
    else:
        with databases(store).database() as url:
            yield url


def databases_of(request: pytest.FixtureRequest) -> Databases:
    """The server of a store, started when it is first asked for."""
    fixtures = {"postgres": "postgres", "mysql": "mariadb"}
    return lambda store: request.getfixturevalue(fixtures[store])
