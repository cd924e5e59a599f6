"""The demo's servers: real processes on 127.0.0.1 that never outlive the demo."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
"""The clone: from here `examples.demo` can be imported."""
HOST = "127.0.0.1"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class ServerFailed(Exception):
    """A server did not start; the message ends with its log."""


class Port:
    """A port of our own for as long as the demo runs.

    The socket is bound and never listens, so nobody else can take the port while its server is
    down between a kill and a restart, and connecting to the dead server is refused as in real
    life. The server binds beside it: both set SO_REUSEPORT.
    """

    def __init__(self) -> None:
        self._socket = bound(0)
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


class Server:
    """One Python module, run as a child process on one port."""

    def __init__(self, name: str, module: str, folder: Path) -> None:
        self.name = name
        self._module = module
        self._log = folder / f"{name}.log"
        self._port = Port()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """Where to look at it, if it has said so."""

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed(f"the {self.name} is not running")
        return self._process

    def start(self, arguments: Sequence[str]) -> None:
        """Returns when the server serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments],
                stdin=subprocess.PIPE,  # its end is how the child learns that we are gone
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its servers
            )
        self._await_ready(self._process)

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - asked for above
        with process.stdout as said:
            heard, _, _ = select.select([said], [], [], _START_SECONDS)
            word, _, address = said.readline().decode().partition(" ") if heard else ("", "", "")
            if word.strip() == "ready":
                self.address = address.strip()
                return
        self.kill()
        raise ServerFailed(f"the {self.name} did not start:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    def kill(self) -> None:
        """SIGKILL: no farewell, no clean-up, no last write."""
        os.kill(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> None:
        """Ask it to end, by the same sign that would tell it of our death."""
        if self._process is None:
            return
        assert self._process.stdin is not None  # noqa: S101 - asked for at the start
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._reap()

    def _reap(self) -> None:
        process, self._process = self.process, None
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
        self._port.close()


# ── what all servers do: take their port, report that they are up, end in time ────────────────


def bound(port: int) -> socket.socket:
    """A socket on a port that the demo itself holds reserved; see `Port`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock


def end_with_parent() -> None:
    """Standard input is a pipe from the demo: when that ends, however it ends, so does this."""
    threading.Thread(target=_watch_parent, name="parent-watch", daemon=True).start()


def _watch_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def announce(address: str = "") -> None:
    """Tell the demo that requests are served; what is printed later goes to the log."""
    os.write(1, f"ready {address}\n".encode())
    os.dup2(2, 1)
