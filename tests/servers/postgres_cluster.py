"""PostgreSQL on three nodes: a primary that waits for one of two standbys, and their failovers."""

import shutil
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode

import psycopg

from tests.servers.child import ServerError
from tests.servers.postgres import PostgresServer
from tests.servers.scoped import Scoped

SETTINGS = {
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_status_interval": "1s",
    "wal_keep_size": "256MB",
    "shared_buffers": "32MB",
    "max_connections": "100",
}
PROMOTION_SECONDS = 20


class Node(PostgresServer):
    """One server of a cluster; `name` is what the primary knows it by."""

    def __init__(self, name: str, settings: Mapping[str, str]) -> None:
        super().__init__(tcp=True, settings=settings)
        self.name = name

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres"

    def copy(self, primary: "Node") -> Self:
        """Become a standby with all that the primary has."""
        child = self._run(
            "pg_basebackup",
            *("-D", self.data, "-d", f"{primary.dsn} application_name={self.name}"),
            *("-c", "fast", "-X", "stream", "-R", "--no-sync"),
        )
        if child.wait() != 0:
            raise ServerError(f"pg_basebackup failed:\n{child.logs()}")
        return self.start()

    def ask(self, statement: str, database: str = "postgres") -> Any:
        """The first column of the first row."""
        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def follow(self, primary: "Node | None") -> None:
        """Get the log from there from now on; None: from nobody."""
        dsn = f"{primary.dsn} application_name={self.name}" if primary else "host=/nowhere"
        self.ask(f"ALTER SYSTEM SET primary_conninfo = '{dsn}'")
        self.ask("SELECT pg_reload_conf()")
        wanted = 1 if primary else 0
        for _ in self.child.attempts():
            if self.ask("SELECT count(*) FROM pg_stat_wal_receiver") == wanted:
                return

    def received(self) -> int:
        """How much of the log it has, as a number to be compared."""
        have = "greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"
        return int(self.ask(f"SELECT pg_wal_lsn_diff({have}, '0/0')"))

    def promote(self) -> None:
        if not self.ask(f"SELECT pg_promote(true, {PROMOTION_SECONDS})"):
            raise ServerError("the standby was not promoted in time")


class PostgresCluster(Scoped):
    """A primary and two standbys, one of which must have a commit before it is acknowledged.

    quorum=False: nobody is waited for, to see what is lost then.
    """

    def __init__(self, *, quorum: bool = True) -> None:
        names = ("one", "two", "three")
        settings = dict(SETTINGS)
        if quorum:
            settings["synchronous_standby_names"] = f"ANY 1 ({', '.join(names)})"
        self.nodes = [Node(name, settings) for name in names]
        self.primary, *self.standbys = self.nodes

    def start(self) -> Self:
        self.primary.start()
        for standby in self.standbys:
            standby.copy(self.primary)
        self.await_standbys(len(self.standbys))
        return self

    def await_standbys(self, count: int) -> None:
        for _ in self.primary.child.attempts():
            if self.primary.ask(STREAMING) >= count:
                return

    def url_of(self, database: str) -> str:
        """All nodes, in the same order whoever leads."""
        where = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        options = urlencode({"target_session_attrs": "read-write"})
        return f"postgresql://postgres@{where}/{database}?{options}"

    @property
    def most_advanced(self) -> Node:
        """The only one that surely has every commit that was acknowledged."""
        return max(self.standbys, key=Node.received)

    def lose_primary(self) -> Node:
        """SIGKILL; nobody leads until `promote`."""
        lost = self.primary
        lost.kill()
        return lost

    def promote(self, heir: Node) -> None:
        """Let ``heir`` lead, and the other standby follow it."""
        others = [node for node in self.standbys if node is not heir]
        heir.promote()
        self.primary, self.standbys = heir, others
        for node in others:
            node.follow(heir)

    def rejoin(self, node: Node) -> None:
        """What it has is thrown away: its last commits may be nobody else's."""
        shutil.rmtree(node.data)
        self.standbys.append(node.copy(self.primary))

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()

    def __str__(self) -> str:
        return f"cluster of 3, {self.primary}"


STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
