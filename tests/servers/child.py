"""A server process started through the warden: signalled, awaited and killed by its owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests import canary
from tests.servers import warden
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class ServerError(Exception):
    """A server could not be found, started or stopped."""


class Child:
    """One running command, its log, and a promise that it does not outlive this process."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        fds: Sequence[int] = (),
        farewell: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = Path(command[0]).name
        self._log = folder / "log"
        arguments = [os.getpid(), folder, int(farewell), ",".join(map(str, fds)), "--", *command]
        with self._log.open("ab") as log:
            self._warden = subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=fds,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.pid = self._read_pid()

    def _read_pid(self) -> int:
        assert self._warden.stdout is not None
        with self._warden.stdout as pipe:
            line = pipe.readline()
        if not line:
            self._warden.wait()
            raise ServerError(f"{self.name} was not started:\n{self.logs()}")
        return int(line)

    @property
    def running(self) -> bool:
        return self._warden.poll() is None

    def descendants(self) -> list[int]:
        return warden.descendants(self.pid)

    def send(self, number: signal.Signals) -> None:
        # While the warden lives the number is either the server's or nobody's.
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float | None = PATIENCE) -> int:
        """The exit code, once the server and everything it started are gone. None: for ever."""
        try:
            code = self._warden.wait(seconds)
            canary.look(f"the log of {self.name}", self.logs())
            return code
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{self.name} did not end in {seconds} s:\n{self.logs()}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL to the server first, so that it replaces nobody, then to all below it."""
        below = self.descendants()
        self.send(signal.SIGKILL)
        for pid in below:
            warden.kill(pid, signal.SIGKILL)
        self._warden.wait(PATIENCE)
        canary.look(f"the log of {self.name}", self.logs())

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def attempts(self, seconds: float = PATIENCE) -> Iterator[None]:
        """Try, try again: yields until the deadline, and gives up at once if the server died."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.running:
                raise ServerError(f"{self.name} ended while starting:\n{self.logs()}")
            yield
            time.sleep(0.01)
        raise ServerError(f"{self.name} was not ready in {seconds} s:\n{self.logs()}")
