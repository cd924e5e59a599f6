"""The example's provider as a server of the tests: it is started again when it dies."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from examples.rides.provider import read
from tests.servers.child import Child
from tests.servers.ports import free_port
from tests.servers.scoped import Scoped
from tests.waiting import PATIENCE


class Provider(Scoped):
    def __init__(self, *, honours_keys: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="semel-"))
        self.honours_keys = honours_keys
        self.port = free_port()
        self._closing = threading.Event()
        self.deaths = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The provider's own log."""
        return read(self._folder / "log.jsonl")

    def switch(self, **switches: Any) -> None:
        put = httpx.put(f"{self.url}/switches", json=switches, timeout=PATIENCE)
        put.raise_for_status()

    def late(self) -> int:
        """How many charges were held, and have come in since."""
        number: int = httpx.get(f"{self.url}/late", timeout=PATIENCE).json()["late"]
        return number

    def start(self) -> Self:
        self._child = self._start()
        self._watch = threading.Thread(target=self._restart, daemon=True)
        self._watch.start()
        return self

    def _start(self) -> Child:
        command = [sys.executable, "-m", "tests.examples.rides.providing", "--port", str(self.port)]
        log = ["--log", str(self._folder / "log.jsonl")]
        options = ["--honours-keys"] if self.honours_keys else []
        child = Child([*command, *log, *options], folder=self._folder)
        for _ in child.attempts():
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                break
        return child

    def _restart(self) -> None:
        while not self._closing.is_set():
            self._child.wait(None)  # as long as the session, which may be hours
            if not self._closing.is_set():
                self.deaths += 1
                self._child = self._start()

    def close(self) -> None:
        self._closing.set()
        self._child.kill()
        self._watch.join()
        shutil.rmtree(self._folder, ignore_errors=True)
