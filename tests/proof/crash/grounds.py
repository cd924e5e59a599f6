"""The stores that campaigns run on: empty ones, on servers that are there for the whole run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.stores import open_backend
from tests.databases import connect, executed
from tests.proof.crash.provider import Entry
from tests.proof.crash.shop import BOOKED
from tests.servers import MariadbServer, PostgresServer, ValkeyServer
from tests.servers.server import short_folder
from tests.stores.harness import CLEAR

STORES = ("sqlite", "postgresql", "mariadb", "valkey")


@dataclass(frozen=True)
class Ground:
    """A store's URL, and whether the shop's own table is in its database."""

    url: str
    tables: bool = True

    def connect(self) -> Any:
        """A connection of the auditor's own."""
        return closing(connect(self.url))

    def booked(self) -> list[Entry]:
        """The rows that were written in one transaction with their records."""
        if not self.tables:
            return []
        with self.connect() as connection:
            rows = executed(connection, "SELECT item, nonce FROM booked")
        return [Entry("charged", *row) for row in rows]


@contextmanager
def ground(store: str, folder: Path, server: Callable[[], Any]) -> Iterator[Ground]:
    """An empty store of this kind."""
    if store == "sqlite":
        yield _found(Ground(f"sqlite:///{folder / 'shop.db'}"))
    elif store == "postgresql":
        postgres: PostgresServer = server()
        with postgres.database() as url:
            yield _found(Ground(url))
    elif store == "mariadb":
        mariadb: MariadbServer = server()
        with mariadb.database() as url:
            yield _found(Ground(url))
    else:
        valkey: ValkeyServer = server()
        prefix = f"crash{os.urandom(6).hex()}"
        yield Ground(f"{valkey.socket_url}?prefix={prefix}", tables=False)
        valkey.ask("EVAL", CLEAR, 0, f"{prefix}:*")


def _found(made: Ground) -> Ground:
    with closing(open_backend(made.url)) as backend:
        backend.migrate()
    if made.tables:
        with made.connect() as connection:
            executed(connection, BOOKED)
    return made


@contextmanager
def thrown_away() -> Iterator[Path]:
    """A folder, in memory where there is room: a kill is no power cut."""
    folder = short_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
