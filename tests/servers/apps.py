"""Applications under the servers they run under in production, as child processes."""

import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.servers.child import Child, ServerError
from tests.servers.ports import bound, bound_somewhere
from tests.servers.scoped import Scoped
from tests.waiting import PATIENCE

# No server hands this to its application; each answers 400 by itself, once a worker is up.
NOT_HTTP = b"?\r\n\r\n"


def uvicorn(app: str, *, workers: int = 1, env: Mapping[str, str] | None = None) -> "AppServer":
    """An ASGI application, given as `module:name`, importable from the project's root."""
    return AppServer([sys.executable, "-m", "tests.servers.serve_asgi", app, "{fd}", workers], env)


def gunicorn(
    app: str, *, workers: int = 1, threads: int = 1, env: Mapping[str, str] | None = None
) -> "AppServer":
    """A WSGI application, given as `module:name`, importable from the project's root."""
    command: list[str | int] = [sys.executable, "-m", "gunicorn", "--bind", "fd://{fd}"]
    command += ["--workers", workers, "--threads", threads, "--no-control-socket", app]
    return AppServer(command, env)


def answers(port: int) -> bool:
    """Whether there is a server on this port whose worker is up."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock,
    ):
        sock.sendall(NOT_HTTP)
        return sock.recv(1) != b""
    return False


class AppServer(Scoped):
    """One server on one port of 127.0.0.1, the same port after every restart.

    The socket is bound here and handed over, so nobody can take the port in between; it is
    not kept, so that connecting to a dead server is refused as it would be in real life.
    """

    def __init__(self, command: list[str | int], env: Mapping[str, str] | None) -> None:
        self._command = [str(part) for part in command]
        self._env = {"PYTHONUNBUFFERED": "1", **(env or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="semel-"))
        self._child: Child | None = None
        self.port = 0

    @property
    def child(self) -> Child:
        if self._child is None:
            raise ServerError("the server is not running")
        return self._child

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that was started: with several workers, their supervisor."""
        return self.child.pid

    def start(self) -> Self:
        with bound(self.port) if self.port else bound_somewhere() as listener:
            self.port = listener.getsockname()[1]
            fd = listener.fileno()
            command = [part.format(fd=fd) for part in self._command]
            self._child = Child(command, folder=self._folder, env=self._env, fds=[fd])
        for _ in self._child.attempts():
            if answers(self.port):
                return self
        raise AssertionError("attempts() ends by raising")

    def stop(self) -> int:
        """SIGTERM, the graceful end; waits for it and returns the exit code."""
        child, self._child = self.child, None
        return child.stop(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the server and all its workers."""
        child, self._child = self.child, None
        child.kill()

    def logs(self) -> str:
        """Everything written since the first start."""
        return (self._folder / "log").read_text(errors="replace")

    def close(self) -> None:
        if self._child is not None:
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
