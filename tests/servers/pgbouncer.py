"""PgBouncer in transaction mode before a PostgreSQL.

Where there is none, Debian's package is fetched (`tests.servers.debian`).
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import psycopg

from tests.servers import debian
from tests.servers.child import Child, ServerError
from tests.servers.postgres import PostgresServer
from tests.servers.privileges import way_to_run
from tests.servers.server import Server

HOW_TO_GET_IT = (
    "PgBouncer not found, nor could Debian's package be fetched (Debian: apt-get install "
    "pgbouncer; else set SEMEL_TEST_PGBOUNCER to its binary)"
)
PORT = 6432

CONFIGURATION = """\
[databases]
* = host={postgres} port={port} user=postgres

[pgbouncer]
unix_socket_dir = {folder}
listen_addr =
listen_port = {own_port}
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
"""


@dataclass(frozen=True)
class Binary:
    path: Path
    version: str
    env: Mapping[str, str]


def find() -> Binary | None:
    """The first one that runs: named, on the PATH, installed, or unpacked for us."""
    if chosen := os.environ.get("SEMEL_TEST_PGBOUNCER"):
        return inspect(Path(chosen).absolute())
    # Debian keeps it in a folder that is on the PATH of root only.
    path = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if path and (binary := inspect(Path(path))):
        return binary
    fetched = debian.unpacked("pgbouncer", ["pgbouncer"])
    return inspect(fetched.root / "usr/sbin/pgbouncer", fetched.env) if fetched else None


def inspect(path: Path, env: Mapping[str, str] | None = None) -> Binary | None:
    if not path.is_file():
        return None
    whole = {**os.environ, **(env or {})}
    said = subprocess.run([path, "--version"], capture_output=True, text=True, env=whole)
    return Binary(path, said.stdout.splitlines()[0], env or {}) if said.returncode == 0 else None


class PgBouncer(Server):
    """One pooler for all databases of one PostgreSQL."""

    KIND = "PgBouncer"

    def __init__(self, postgres: PostgresServer, *, pool_size: int = 20) -> None:
        binary = find()
        if binary is None:
            raise ServerError(HOW_TO_GET_IT)
        self.binary = binary
        self._postgres = postgres
        self._pool_size = pool_size
        super().__init__(way_to_run(binary.path, binary.env))

    def url_of(self, database: str) -> str:
        where = urlencode({"host": str(self.folder), "port": PORT})
        return f"postgresql://postgres@/{database}?{where}"

    def start(self) -> Self:
        command = self.way.command(self.binary.path, self._configure())
        self._child = Child(command, folder=self.folder, env=self.binary.env)
        for _ in self._child.attempts():
            try:
                psycopg.connect(self.url_of("postgres")).close()
            except psycopg.OperationalError:
                continue
            return self
        raise AssertionError("attempts() ends by raising")

    def _configure(self) -> Path:
        text = CONFIGURATION.format(
            postgres=self._postgres.folder,
            port=self._postgres.port,
            folder=self.folder,
            own_port=PORT,
            pool_size=self._pool_size,
        )
        path = self.folder / "pgbouncer.ini"
        path.write_text(text)
        return path

    def __str__(self) -> str:
        return f"{self.binary.version} from {self.binary.path}, {self.way.name}"
