"""What every server has: a folder of its own, and a process that comes and goes in it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from tests.servers.child import Child, ServerError
from tests.servers.privileges import Way
from tests.servers.scoped import Scoped
from tests.waiting import until

SOCKET_PATH_LIMIT = 107  # sizeof(sockaddr_un.sun_path) less the terminator
MEMORY = "/dev/shm"
MEMORY_WANTED = 2 * 1024**3


def short_folder(*, on_disk: bool = False) -> Path:
    """A fresh folder that leaves room for a socket's name, in memory where there is enough."""
    room = SOCKET_PATH_LIMIT - len("/semel-12345678/.s.PGSQL.12345")
    parent = tempfile.gettempdir()
    if not on_disk and has_room(MEMORY):
        parent = MEMORY
    return Path(tempfile.mkdtemp(prefix="semel-", dir=parent if len(parent) <= room else "/tmp"))


def has_room(folder: str) -> bool:
    """Containers often have a /dev/shm of 64 MB only."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > MEMORY_WANTED


def is_stopped(pid: int) -> bool:
    """With all its threads."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}


class Server(Scoped):
    """`stop` and `kill` keep the folder, for the next `start`; `close` does not."""

    KIND: ClassVar[str]
    FAREWELL: ClassVar[signal.Signals] = signal.SIGTERM
    """How it is asked to stop."""

    def __init__(self, way: Way | None = None, *, on_disk: bool = False) -> None:
        self.way = way or Way("as we are")
        self._on_disk = on_disk
        self._folder: Path | None = None
        self._child: Child | None = None

    @property
    def folder(self) -> Path:
        """Holds the data, the socket and the log; made on first use."""
        if self._folder is None:
            self._folder = short_folder(on_disk=self._on_disk)
            self.way.give(self._folder)
        return self._folder

    @property
    def child(self) -> Child:
        if self._child is None:
            raise ServerError(f"{self.KIND} is not running")
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    def stop(self) -> None:
        """As one that is shut down: open transactions are rolled back, the data stays."""
        if self._child is not None:
            self._child.stop(self.FAREWELL)
            self._child = None

    def kill(self) -> None:
        """SIGKILL to all its processes; `start` then recovers what is on record."""
        self.child.kill()
        self._child = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP to all its processes: sockets stay open, nobody answers."""
        pids = [self.pid, *self.child.descendants()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: all(map(is_stopped, pids)))  # a busy one takes a moment to stop
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
