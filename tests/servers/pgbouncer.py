"""PgBouncer in transaction mode before a PostgreSQL, for those machines that have it."""

import shutil
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import psycopg

from tests.servers.child import Child, ServerError
from tests.servers.postgres import PostgresServer
from tests.servers.privileges import way_to_run
from tests.servers.server import Server

HOW_TO_GET_IT = "pgbouncer not found on PATH (Debian: apt-get install pgbouncer)"
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


def find() -> Path | None:
    """Debian keeps it in a folder that is on the PATH of root only."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    return Path(found) if found else None


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
        super().__init__(way_to_run(binary))

    def url_of(self, database: str) -> str:
        where = urlencode({"host": str(self.folder), "port": PORT})
        return f"postgresql://postgres@/{database}?{where}"

    def start(self) -> Self:
        self._child = Child(self.way.command(self.binary, self._configure()), folder=self.folder)
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
        said = subprocess.run([self.binary, "--version"], capture_output=True, text=True)
        return f"{said.stdout.splitlines()[0]} from {self.binary}, {self.way.name}"
