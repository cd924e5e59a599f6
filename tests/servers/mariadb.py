"""A private MariaDB on a Unix socket and on 127.0.0.1, thrown away afterwards.

Where there is none, Debian's packages are fetched (`tests.servers.debian`).
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pymysql

from tests.servers import debian
from tests.servers.child import Child, ServerError
from tests.servers.databases import Databases
from tests.servers.ports import free_port
from tests.servers.privileges import way_to_run

HOW_TO_GET_IT = (
    "MariaDB not found, nor could Debian's packages be fetched (Debian: apt-get install "
    "mariadb-server; else set SEMEL_TEST_MARIADB to the folder above its bin and sbin)"
)
PACKAGES = (
    "mariadb-server-core",
    "mariadb-server",
    "mariadb-client-core",
    "mariadb-common",
    "galera-4",
)
INSTALL = ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
SETTINGS = {
    "max-connections": "300",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "64M",
    "max-allowed-packet": "64M",
}


@dataclass(frozen=True)
class Binaries:
    """The folder above `bin` and `sbin`, which version is in it, and what it needs to run."""

    base: Path
    version: str
    env: Mapping[str, str] = field(default_factory=dict)
    program: Path | None = None

    @property
    def server(self) -> Path:
        return self.program or self.base / "sbin" / "mariadbd"


def find() -> Binaries | None:
    """The first one that runs: named, on the PATH, installed, or unpacked for us."""
    if chosen := os.environ.get("SEMEL_TEST_MARIADB"):
        return inspect(Path(chosen).absolute())
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
    if server and (found := inspect(Path(server).resolve().parents[1])):
        return found
    ours = debian.unpacked("mariadb", PACKAGES)
    return inspect(ours.root / "usr", ours.env) if ours else None


def inspect(base: Path, env: Mapping[str, str] | None = None) -> Binaries | None:
    server = base / "sbin" / "mariadbd"
    if not server.is_file() or not (base / "bin" / "mariadb-install-db").is_file():
        return None
    whole = {**os.environ, **(env or {})}
    command = [str(server), "--no-defaults", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, env=whole)
    version = re.search(r"Ver (\d+\.\d+\.\d+)", said.stdout)
    return Binaries(base, version[1], env or {}) if version else None


# ── the server ────────────────────────────────────────────────────────────────────────────────────


class MariadbServer(Databases):
    """Starts in about a second the first time; `stop` and `kill` keep the data, `close` does not.

    on_disk: for tests of durability; the data is in memory if not.
    settings: further options of mariadbd, without their dashes.
    """

    KIND = "MariaDB"

    def __init__(self, *, on_disk: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.binaries = found = self._found()
        self.port = free_port()
        self._settings = {**SETTINGS, **(settings or {})}
        super().__init__(way_to_run(found.server, found.env), on_disk=on_disk)

    def _found(self) -> Binaries:
        found = find()
        if found is None:
            raise ServerError(HOW_TO_GET_IT)
        return found

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def url_of(self, database: str) -> str:
        return f"mysql://root@localhost/{database}?socket={quote(str(self.socket))}"

    def tcp_url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        if not (self.folder / "data").exists():
            self._install()
        self._child = self._run(self.binaries.server, *self._options())
        for _ in self._child.attempts():
            with suppress(OSError, pymysql.Error), self.connect():
                return self
        raise AssertionError("attempts() ends by raising")

    def _install(self) -> None:
        # Not `mariadb-install-db --user`: it is the way that says who the server runs as.
        program = self.binaries.base / "bin" / "mariadb-install-db"
        child = self._run(program, *self._places(), *INSTALL)
        if child.wait() != 0:
            raise ServerError(f"mariadb-install-db failed:\n{child.logs()}")

    def _run(self, program: Path, *arguments: str) -> Child:
        command = self.way.command(program, "--no-defaults", *arguments)
        return Child(command, folder=self.folder, env=self.binaries.env)

    def _places(self) -> Iterator[str]:
        yield f"--basedir={self.binaries.base}"
        yield f"--datadir={self.folder / 'data'}"
        # A server that starts removes the temporary tables it finds, whoever's they are.
        yield f"--tmpdir={self.folder}"

    def _options(self) -> Iterator[str]:
        yield from self._places()
        yield from (f"--socket={self.socket}", f"--port={self.port}", "--bind-address=127.0.0.1")
        yield from ("--skip-name-resolve", f"--pid-file={self.folder / 'pid'}")
        yield f"--plugin-dir={self.binaries.base / 'lib' / 'mysql' / 'plugin'}"
        yield from (f"--{name}={value}" for name, value in self._settings.items())

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        """As root, committing every statement."""
        connection = pymysql.Connection(
            user="root",
            database=database,
            autocommit=True,
            defer_connect=True,
            ssl_disabled=True,  # or it reads every certificate of the system for each connection
            # As semel's own. At a stricter level a lock on a row becomes one on the gap before it
            # when a page is split there, and inserts of others wait for it.
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )
        # On a socket of ours: where nobody answers, PyMySQL forgets to close its own.
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(self.socket))
            connection.connect(sock)
        except BaseException:
            sock.close()
            raise
        return connection

    def _create(self, name: str) -> None:
        self.execute(f"CREATE DATABASE {name}")

    def _drop(self, name: str) -> None:
        self._leave(name)
        self.execute(f"DROP DATABASE IF EXISTS {name}")

    def _empty(self, name: str, tables: Iterable[str]) -> None:
        self._leave(name)
        for table in tables:
            self.execute(f"DELETE FROM {name}.{table}")

    def _leave(self, name: str) -> None:
        """End every connection to a database."""
        for (number,) in self.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        ):
            with suppress(pymysql.Error):  # it has just gone by itself
                self.execute(f"KILL {number}")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def __str__(self) -> str:
        return f"{self.KIND} {self.binaries.version} from {self.binaries.base}, {self.way.name}"
