"""Worker processes under test: started, watched through what they say, stopped and killed."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.core.delivery import encoded
from semel.core.model import Effect
from semel.core.outbox import BrowseEffects, Enqueue, Shelf
from semel.stores import open_backend
from tests.servers.child import Child
from tests.servers.scoped import Scoped

PATIENCE = 30.0
AN_HOUR = "3600"


@dataclass(frozen=True)
class Line:
    """What the provider noted about one delivery."""

    what: str
    key: str
    pid: int
    tries: int
    order: str | None
    payload: Any


class Works(Scoped):
    """A store, the worker processes on it, and the provider's log."""

    def __init__(self, store: str, folder: Path, **env: str) -> None:
        self.folder = folder
        self.backend = open_backend(store)
        self.backend.migrate()
        self._env = {"SEMEL_TEST_STORE": store, "SEMEL_TEST_FOLDER": str(folder), **env}
        self._workers: list[Child] = []
        self._folders: list[Path] = []

    def start(self) -> Works:
        return self

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def worker(self, *options: str, poll: str = AN_HOUR, app: str = "guard") -> Child:
        """One worker, from its first word on: its loops run, or are about to."""
        child = self.begin(*options, poll=poll, app=app)
        for _ in child.attempts():
            if said(child, "start"):
                return child
        raise AssertionError("attempts() ends by raising")

    def begin(self, *options: str, poll: str = AN_HOUR, app: str = "guard") -> Child:
        command = [sys.executable, "-m", "semel", "worker", f"tests.effects.shop:{app}", "--json"]
        command += ["--only", "deliver", "--poll", poll, *options]
        folder = Path(tempfile.mkdtemp(prefix="semel-worker-"))
        self._folders.append(folder)
        child = Child(command, folder=folder, env=self._env)
        self._workers.append(child)
        return child

    def close(self) -> None:
        for child in self._workers:
            if child.running:
                child.kill()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.backend.close()

    # ── the outbox ────────────────────────────────────────────────────────────────────────────────

    def write(
        self, key: str, do: str = "take", *, order: str | None = None, name: str = "paid"
    ) -> None:
        payload = encoded({"do": do, "key": key})
        self.backend.blocking().perform(Enqueue(key, None, name, payload, order))

    def shelf(self, shelf: Shelf) -> list[Effect]:
        found: list[Effect] = []
        while True:
            after = found[-1].key if found else None
            page = self.backend.blocking().perform(BrowseEffects(shelf, 1000, after)).effects
            if not page:
                return found
            found.extend(page)

    def keys(self, shelf: Shelf) -> list[str]:
        return sorted(effect.key for effect in self.shelf(shelf))

    # ── the provider ──────────────────────────────────────────────────────────────────────────────

    def lines(self, what: str | None = None) -> list[Line]:
        log = self.folder / "received"
        text = log.read_text() if log.exists() else ""
        lines = [Line(**json.loads(line)) for line in text.splitlines()]
        return [line for line in lines if what is None or line.what == what]

    def received(self) -> Counter[str]:
        return Counter(line.key for line in self.lines("received"))

    def go(self) -> None:
        """Those that wait may go on."""
        (self.folder / "go").touch()

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(child.logs() for child in self._workers)
                raise AssertionError(f"not within {seconds} s:\n{logs}")
            time.sleep(0.005)


def said(child: Child, event: str) -> list[dict[str, Any]]:
    """What a worker told about one kind of event."""
    lines = [line for line in child.logs().splitlines() if line.startswith("{")]
    return [told for line in lines if (told := json.loads(line))["event"] == event]


def ended(child: Child, number: signal.Signals = signal.SIGTERM) -> int:
    child.send(number)
    return child.wait()
