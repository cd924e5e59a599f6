"""MariaDB Galera on three nodes of one machine: each takes writes, and each has every one of them.

Nodes begin as copies of the first, so that none needs the programs that bring a whole state over.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.servers.child import ServerError
from tests.servers.mariadb import HOW_TO_GET_IT, MariadbServer, find
from tests.servers.ports import free_port
from tests.servers.scoped import Scoped
from tests.servers.server import short_folder

PROVIDER = "libgalera_smm.so"
SETTINGS = {
    "wsrep-on": "ON",
    "wsrep-sst-method": "told",
    "binlog-format": "ROW",
    "default-storage-engine": "InnoDB",
    "innodb-autoinc-lock-mode": "2",
    "innodb-flush-log-at-trx-commit": "1",
    "wsrep-slave-threads": "2",
}
# A node that is gone is given up after three seconds, not five; less is not enough where the tests
# share two cores, and nodes that are only slow would be given up.
PATIENCE = (
    "evs.suspect_timeout=PT3S;evs.inactive_timeout=PT6S;evs.join_retrans_period=PT0.3S;"
    "gcache.size=32M;base_host=127.0.0.1"
)


def provider(base: Path) -> Path:
    for folder in (base / "lib", base / "lib" / "galera", Path("/usr/lib/galera")):
        if (folder / PROVIDER).is_file():
            return folder / PROVIDER
    raise ServerError(f"{PROVIDER} not found below {base}: install galera-4")


class GaleraNode(MariadbServer):
    """One node. ``members``: the addresses of all, of which any is enough to join."""

    def __init__(
        self, name: str, members: dict[str, int], shared: Path, settings: Mapping[str, str]
    ) -> None:
        found = find()
        if found is None:
            raise ServerError(HOW_TO_GET_IT)
        self.name = name
        self._members = members
        options = f"base_port={members[name]};ist.recv_addr=127.0.0.1:{free_port()};{PATIENCE}"
        own = {
            "wsrep-provider": str(provider(found.base)),
            "wsrep-provider-options": options,
            "wsrep-cluster-name": "semel",
            "wsrep-node-name": name,
            "wsrep-node-address": f"127.0.0.1:{members[name]}",
            "wsrep-sst-receive-address": f"127.0.0.1:{free_port()}",
        }
        super().__init__(settings={**SETTINGS, **own, **settings})
        self._first = False
        self._position = ""
        path = f"{Path(__file__).parent}:{os.environ.get('PATH', os.defpath)}"
        self.binaries = replace(
            self.binaries,
            env={**self.binaries.env, "PATH": path, "SEMEL_SST_FOLDER": str(shared)},
        )

    def begin(self) -> Self:
        """As the first of a cluster."""
        self._first = True
        try:
            return self.start()
        finally:
            self._first = False

    def recover(self) -> Self:
        """After a kill: find out how far it had come, and join again from there."""
        child = self._run(self.binaries.server, *self._options(), "--wsrep-recover")
        child.wait()
        found = re.findall(r"Recovered position: *(\S+)", child.logs())
        if not found:
            raise ServerError(f"no position was recovered:\n{child.logs()}")
        self._position = found[-1]
        try:
            return self.start()
        finally:
            self._position = ""

    def _options(self) -> Iterator[str]:
        yield from super()._options()
        others = [f"127.0.0.1:{port}" for name, port in self._members.items() if name != self.name]
        if self._first:
            yield "--wsrep-new-cluster"
        if self._position:
            yield f"--wsrep-start-position={self._position}"
        yield f"--wsrep-cluster-address=gcomm://{','.join(others)}"

    def copy(self, other: "GaleraNode") -> None:
        """All that the other has, which is not running, and where it stands."""
        shutil.copytree(other.folder / "data", self.folder / "data")
        for cache in (self.folder / "data").glob("g*.cache"):
            cache.unlink()
        (self.folder / "data" / "gvwstate.dat").unlink(missing_ok=True)

    def status(self, name: str) -> str:
        rows: list[tuple[Any, ...]] = self.execute(f"SHOW STATUS LIKE 'wsrep_{name}'")
        return str(rows[0][1]) if rows else ""

    def give_up(self, uuid: str) -> None:
        """The member that is called so (its status ``gcomm_uuid``), and at once, whoever else is
        slow to be heard of."""
        self.execute(f"SET GLOBAL wsrep_provider_options = 'evs.evict={uuid}'")

    def forgive(self) -> None:
        """Whom it has given up may come back."""
        self.give_up("")

    def await_members(self, count: int) -> None:
        for _ in self.child.attempts():
            if self.status("cluster_size") == str(count) and self.status("ready") == "ON":
                return


class GaleraCluster(Scoped):
    """Three nodes; ready in some seconds."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        members = {name: free_port() for name in ("one", "two", "three")}
        self._shared = short_folder()
        self.nodes = [GaleraNode(name, members, self._shared, settings or {}) for name in members]

    def start(self) -> Self:
        first, *others = self.nodes
        first.begin().stop()
        bootstrap(first)
        for node in others:
            node.copy(first)
        first.begin()
        for node in others:
            node.start()
        for node in self.nodes:
            node.await_members(len(self.nodes))
        return self

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()
        shutil.rmtree(self._shared, ignore_errors=True)

    def __str__(self) -> str:
        return f"Galera cluster of {len(self.nodes)}, {self.nodes[0]}"


def bootstrap(node: GaleraNode) -> None:
    """It was the last one, and is to be the first again."""
    path = node.folder / "data" / "grastate.dat"
    path.write_text(re.sub(r"safe_to_bootstrap: \d", "safe_to_bootstrap: 1", path.read_text()))
