"""Where the cases are measured: stores that run, cores that are theirs, and how long."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.load import BenchError, NotThere
from bench.measure import Cores, Share
from tests.servers.apps import AppServer
from tests.servers.child import ROOT
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.server import short_folder
from tests.servers.valkey import ValkeyServer

PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"


@dataclass(frozen=True)
class Place:
    """A store that runs: its URL, its process and what it is."""

    url: str
    title: str
    pid: int | None = None
    server: object = None


class DiskValkey(ValkeyServer):
    """Its files on disk, where appendfsync means something."""

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = short_folder(on_disk=True)
        return self._folder


@contextmanager
def memory() -> Iterator[Place]:
    yield Place("memory://", "in the process")


@contextmanager
def sqlite() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="semel-") as folder:
        yield Place(f"sqlite:///{Path(folder) / 'bench.db'}", "WAL, synchronous=FULL")


@contextmanager
def postgres() -> Iterator[Place]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB", "synchronous_commit": "on"}
    with PostgresServer(fsync=True, settings=settings) as server, server.database() as url:
        title = f"PostgreSQL {server.binaries.version}, fsync and synchronous_commit on"
        yield Place(url, title, server.pid, server)


@contextmanager
def valkey() -> Iterator[Place]:
    with DiskValkey() as server:
        title = f"Valkey {server.version}, appendonly, appendfsync everysec"
        yield Place(server.url, title, server.pid, server)


@contextmanager
def mariadb() -> Iterator[Place]:
    settings = {"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1"}
    with MariadbServer(on_disk=True, settings=settings) as server, server.database() as url:
        title = f"MariaDB {server.binaries.version}, innodb_flush_log_at_trx_commit=1"
        yield Place(url, title, server.pid, server)


STORES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "memory": memory,
    "SQLite": sqlite,
    "PostgreSQL": postgres,
    "Redis": valkey,
    "MariaDB": mariadb,
}
"""A new store is one line here; its cases follow from it (bench/cases/stores.py)."""


@dataclass
class Stage:
    """Stores are started when a case first asks for one, and live until the last round."""

    seconds: float
    connections: int
    cores: Cores
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the machine, before the first case."""
    run: uuid.UUID = field(default_factory=uuid.uuid4)
    """The name of this run."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _servers: dict[str, AppServer] = field(default_factory=dict)
    _met: set[str] = field(default_factory=set)
    _places: dict[str, Place | BenchError] = field(default_factory=dict)

    def place(self, store: str, share: Share) -> Place:
        """The store, held to its share of the cores.

        One that could not be started is asked for once, and refused ever after.
        """
        return self.kept(store, share, lambda stage: stage.start(STORES[store]()))

    def kept(self, name: str, share: Share, make: Callable[[Stage], Place]) -> Place:
        """What was made under this name, made now where it was not yet."""
        if name not in self._places:
            self._places[name] = self._make(name, make)
        place = self._places[name]
        if isinstance(place, BenchError):
            raise place
        if place.pid is not None:
            share.hold(place.pid)
        return place

    def server(
        self, name: str, serve: Callable[[], AbstractContextManager[AppServer]]
    ) -> AppServer:
        """A server under this name, which is up until the last round is over."""
        if name not in self._servers:
            self._servers[name] = self._stack.enter_context(serve())
        return self._servers[name]

    def first_time(self, name: str) -> bool:
        """Whether this name was not asked about before."""
        new = name not in self._met
        self._met.add(name)
        return new

    def start(self, store: AbstractContextManager[Place]) -> Place:
        """A store that lives until the last round is over."""
        return self._stack.enter_context(store)

    def _make(self, name: str, make: Callable[[Stage], Place]) -> Place | BenchError:
        try:
            return make(self)
        except Exception as error:
            return NotThere(f"{name} could not be started: {str(error).splitlines()[0]}")

    def titles(self) -> dict[str, str]:
        """What the stores were that have been used."""
        used = self._places.items()
        return {store: place.title for store, place in used if isinstance(place, Place)}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def python_of(family: str) -> str:
    """Peers have an environment of their own; what semel needs must not depend on them."""
    if family != "peer":
        return sys.executable
    if not PEERS_PYTHON.exists():
        raise NotThere('not installed: make bench ARGS="--peers" brings it')
    return str(PEERS_PYTHON)
