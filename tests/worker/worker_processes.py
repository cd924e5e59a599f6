"""Worker processes under test: started, watched through what they say, stopped and killed."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.core.delivery import encode_payload
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.core.records import Effect
from semel.stores import open_backend
from tests.proof.crash.zygote import Zygote
from tests.servers.child import Child
from tests.servers.scoped import Scoped
from tests.time_travel import into_the_past
from tests.waiting import PATIENCE, patient, until
from tests.worker.forked_workers import Forked

AN_HOUR = "3600"
LEASE = 600
"""Seconds that a worker has an effect to itself: more than any test waits. They pass at once where
a test says so."""


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
    """A store, the worker processes on it, and the provider's log.

    With a ``hatchery`` (`tests.worker.forked_workers`) workers are forked from it, else they are
    started from scratch.
    """

    def __init__(
        self, store: str, folder: Path, hatchery: Zygote | None = None, **env: str
    ) -> None:
        self.store = store
        self.folder = folder
        self._hatchery = hatchery
        self.backend = open_backend(store, timeout=PATIENCE)
        self.backend.migrate()
        self._env = {"SEMEL_TEST_STORE": patient(store), "SEMEL_TEST_FOLDER": str(folder), **env}
        self._workers: list[Child | Forked] = []
        self._folders: list[Path] = []

    def start(self) -> Works:
        return self

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def worker(self, *options: str, poll: str = AN_HOUR) -> Child | Forked:
        """One worker, from its first word on: its loops run, or are about to."""
        child = self.begin(*options, poll=poll)
        self.until(lambda: said(child, "start") or not child.running)
        return child

    def begin(self, *options: str, poll: str = AN_HOUR) -> Child | Forked:
        arguments = ["worker", "tests.worker.shop:guard", "--json", "--only", "deliver"]
        arguments += ["--poll", poll, "--lease", str(LEASE), *options]
        folder = Path(tempfile.mkdtemp(prefix="semel-worker-"))
        self._folders.append(folder)
        child: Child | Forked
        if self._hatchery is None:
            command = [sys.executable, "-m", "semel", *arguments]
            child = Child(command, folder=folder, env=self._env)
        else:
            child = Forked(self._hatchery, arguments, folder, self._env)
        self._workers.append(child)
        return child

    def time_passes(self) -> None:
        """The leases of workers that are no more end, and whatever waits is due."""
        into_the_past(self.store, 2 * LEASE)

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
        payload = encode_payload({"do": do, "key": key})
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
        try:
            until(condition, seconds=seconds)
        except AssertionError as error:
            logs = "\n".join(child.logs() for child in self._workers)
            raise AssertionError(f"{error}\n{logs}") from None


def said(child: Child | Forked, event: str) -> list[dict[str, Any]]:
    """What a worker told about one kind of event."""
    lines = [line for line in child.logs().splitlines() if line.startswith("{")]
    return [told for line in lines if (told := json.loads(line))["event"] == event]


def ended(child: Child | Forked, number: signal.Signals = signal.SIGTERM) -> int:
    child.send(number)
    return child.wait()
