"""A private MySQL in MariaDB's place, where ``SEMEL_TEST_MYSQL`` names one.

Nothing fetches it: Debian's stable releases have no MySQL.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers.child import ServerError
from tests.servers.mariadb import Binaries, MariadbServer

HOW_TO_GET_IT = (
    "SEMEL_TEST_MYSQL names no MySQL: set it to the folder above its bin or sbin, of the tar "
    "archive that mysql.com offers for Linux"
)
ROOT_BY_TCP = (
    "CREATE USER root@'127.0.0.1'",
    "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION",
)
"""Where names are not resolved, 127.0.0.1 is not localhost."""
OTHERWISE = {
    "innodb-log-file-size": None,
    "innodb-redo-log-capacity": "128M",
    "mysqlx": "OFF",
    "gtid-mode": "OFF",
    "enforce-gtid-consistency": "OFF",
}
"""Instead of MariaDB's. With GTIDs a transaction cannot write into tables without transactions."""
NO_CERTIFICATES = "--auto-generate-certs=OFF"
"""With them drivers encrypt unasked, and a relay does not see what is sent."""


def wanted() -> bool:
    return bool(os.environ.get("SEMEL_TEST_MYSQL"))


def chosen() -> type[MariadbServer]:
    """What tests of the ``mysql://`` stores run on."""
    return MysqlServer if wanted() else MariadbServer


def find() -> Binaries | None:
    base = Path(os.environ["SEMEL_TEST_MYSQL"]).absolute()
    for folder in ("bin", "sbin"):
        server = base / folder / "mysqld"
        if server.is_file():
            command = [str(server), "--no-defaults", "--version"]
            said = subprocess.run(command, capture_output=True, text=True)
            if version := re.search(r"Ver (\d+\.\d+\.\d+)", said.stdout):
                return Binaries(base, version[1], program=server)
    return None


class MysqlServer(MariadbServer):
    """Takes ten seconds the first time."""

    KIND = "MySQL"

    def __init__(self, *, on_disk: bool = False, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(on_disk=on_disk, settings=settings)
        own = {name: value for name, value in OTHERWISE.items() if value is not None}
        kept = {name: each for name, each in self._settings.items() if name not in OTHERWISE}
        self._settings = {**kept, **own}

    def _found(self) -> Binaries:
        found = find()
        if found is None:
            raise ServerError(HOW_TO_GET_IT)
        return found

    def _install(self) -> None:
        first = self.folder / "first.sql"
        first.write_text("".join(f"{statement};\n" for statement in ROOT_BY_TCP))
        options = (
            *self._places(),
            "--initialize-insecure",
            f"--init-file={first}",
            NO_CERTIFICATES,
        )
        child = self._run(self.binaries.server, *options)
        if child.wait() != 0:
            raise ServerError(f"mysqld --initialize-insecure failed:\n{child.logs()}")

    def _options(self) -> Iterator[str]:
        yield from super()._options()
        yield NO_CERTIFICATES
        yield from ("--log-error-verbosity=1", "--secure-file-priv=")  # no folder of the system's
