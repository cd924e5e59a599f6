"""The example as it is run: uvicorn, ``semel worker``, its provider, one store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.rides.tables import create_tables
from semel.stores import open_backend
from tests.examples.rides.campaign import restless, settings
from tests.examples.rides.passing import LEASE, Time
from tests.examples.rides.provider import Provider
from tests.servers import AppServer, uvicorn
from tests.servers.child import Child
from tests.waiting import PATIENCE, until
from tests.web.client import Client, Reply

SERVED = "tests.examples.rides.served"
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Town:
    """A store and a provider, and servers of the application as they are wanted."""

    store: str
    folder: Path
    provider: Provider
    time: Time

    def env(self, fate: str = "", sign: int = signal.SIGKILL, without: str = "") -> dict[str, str]:
        return {
            **settings(self.store, self.provider),
            **self.time.settings,
            "RIDES_FATE": fate,
            "RIDES_SIGN": str(int(sign)),
            "RIDES_FATES": str(self.folder / "fates.jsonl"),
            "RIDES_WITHOUT": without,
        }

    def server(self, fate: str = "", sign: int = signal.SIGKILL, without: str = "") -> AppServer:
        """One node of the application; the others share its store."""
        return uvicorn(f"{SERVED}:app", env=self.env(fate, sign, without))

    def work(self, fate: str = "") -> int:
        """``semel worker --once``; its exit code, below zero when it was killed."""
        command = [*self._command(), "--once"]
        env = {**os.environ, **self.env(fate), "RIDES_ROLE": "semel worker"}
        log = self.folder / "worker.log"
        with log.open("ab") as out:
            ended = subprocess.run(
                command, cwd=ROOT, env=env, stdout=out, stderr=out, timeout=PATIENCE
            )
        return ended.returncode

    @contextmanager
    def worker(self) -> Iterator[None]:
        """``semel worker``, which looks all the time."""
        folder = self.folder / "worker"
        folder.mkdir(exist_ok=True)
        child = Child([*self._command(), "--poll", "0.05"], folder=folder, env=self.env())
        try:
            yield
        finally:
            assert child.stop() == 0, child.logs()

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "semel", "worker", f"{SERVED}:guard"]
        return [*command, "--app", f"{SERVED}:app", "--lease", str(LEASE)]

    def until_quiet(self) -> None:
        """Until a worker has settled every ride and mailed every receipt."""
        until(self._is_quiet)

    def _is_quiet(self) -> bool:
        with closing(open_backend(self.store, timeout=PATIENCE)) as backend:
            return not restless(backend)

    @property
    def fates(self) -> list[str]:
        log = self.folder / "fates.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [f"{fate['role']}: {fate['at']}" for fate in map(json.loads, lines)]

    def charges(self) -> list[dict[str, Any]]:
        return [entry for entry in self.provider.entries if entry["status"] == "charged"]

    def receipts(self) -> list[dict[str, Any]]:
        return [entry for entry in self.provider.entries if entry["status"] == "mailed"]


def order(server: AppServer, key: str) -> Reply:
    """What a rider's telephone sends."""
    body = json.dumps({"pickup": key, "destination": "home", "card": "visa"}).encode()
    return Client(server.url).post("/rides", key, body, authorization="Bearer token-of-ada")


def insist(rides: Town, server: AppServer, key: str) -> Reply:
    """Again, later each time, while the answer says to come again."""

    def look() -> Reply | None:
        rides.time.passes()
        reply = order(server, key)
        return reply if reply.status in (201, 402) else None

    found = until(look)
    assert found is not None
    return found


@contextmanager
def town(store: str, folder: Path, *, honours_keys: bool = False) -> Iterator[Town]:
    with closing(open_backend(store, timeout=PATIENCE)) as backend:
        backend.migrate()
    create_tables(store)
    with Provider(honours_keys=honours_keys) as provider:
        yield Town(store, folder, provider, Time(store, folder))


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
