"""A process that has loaded the example and forks a child for each task, in milliseconds.

``python -m tests.examples.rides.zygote`` reads tasks as lines and tells what becomes of each child.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.examples.rides.process import Task, run, scope

LIFETIME = 45
"""Seconds after which a child ends, and tells where it was."""
SECONDS = 60.0


# ── the parent's side ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Child:
    """A task's process, as far as has been heard of it."""

    pid: int = 0
    stopped: bool = False
    ended: int | None = None
    """How it ended, as `os.waitstatus_to_exitcode` says it: below zero, by a signal."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def settle(self, *, stopped_too: bool = False) -> Self:
        """Wait for its end, or that it is stopped."""
        with self.changed:
            heard = self.changed.wait_for(
                lambda: self.ended is not None or (stopped_too and self.stopped), SECONDS
            )
        assert heard, "a child of the zygote did not end"
        return self

    def resume(self) -> None:
        with self.changed:
            self.stopped = False
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    @property
    def killed(self) -> bool:
        return self.ended == -signal.SIGKILL


class Zygote:
    """``settings`` are those of the example, for all its children."""

    def __init__(self, settings: Mapping[str, str], log: Path) -> None:
        self._settings = settings
        self._children: dict[int, Child] = {}
        self._log = log.open("ab")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.examples.rides.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=Path(__file__).parents[3],
            env={**os.environ, **self._settings},
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def start(self, task: Task) -> Child:
        child = Child()
        self._children[id(child)] = child
        line = json.dumps([id(child), task.encode()])
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return child

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, pid, event, value = json.loads(line)
            child = self._children[number]
            with child.changed:
                child.pid = pid
                if event == "stopped":
                    child.stopped = True
                elif event == "ended":
                    child.ended = value
                    del self._children[number]
                child.changed.notify_all()


# ── the zygote's side ─────────────────────────────────────────────────────────────────────────────


def main() -> None:
    import examples.rides.app
    import tests.examples.rides.awaited  # noqa: F401 - loaded once, for all

    asyncio.run(warm_up(examples.rides.app.api))
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    rest = b""
    while True:
        heard, _, _ = select.select([0, bell], [], [])
        if bell in heard:
            os.read(bell, 4096)
        reap(children)
        if 0 in heard:
            said = os.read(0, 65536)
            if not said:
                break
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                number, task = json.loads(line)
                pid = fork(Task(**json.loads(task)))
                children[pid] = number
                tell(number, pid, "started", 0)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


async def warm_up(app: Any) -> None:
    """What a framework does at its first request need not be done by every child."""

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody wants to know."""

    await app({**scope("", 0), "method": "GET"}, receive, send)


def fork(task: Task) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        faulthandler.dump_traceback_later(LIFETIME, exit=True)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        run(task)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def reap(children: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if not pid:
            return
        if os.WIFSTOPPED(status):
            tell(children[pid], pid, "stopped", 0)
        else:
            tell(children.pop(pid), pid, "ended", os.waitstatus_to_exitcode(status))


def tell(number: int, pid: int, event: str, value: Any) -> None:
    os.write(1, json.dumps([number, pid, event, value]).encode() + b"\n")


if __name__ == "__main__":
    main()
