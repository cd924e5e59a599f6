"""A process that has loaded what its children need, and forks one for each task, in milliseconds.

``python -m tests.proof.crash.zygote MODULE`` reads tasks as lines and tells what becomes of each
child. MODULE has ``warm_up()``, called once, ``prepare(task)``, called before each fork, and
``run(task)``, called in the child.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import PATIENCE

LIFETIME = 4 * PATIENCE
"""Seconds after which a child ends, and tells where it was; one that is stopped meanwhile, too."""
SECONDS = LIFETIME + PATIENCE


# ── the parent's side ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Child:
    """A task's process, as far as has been heard of it."""

    send: Callable[[int], None]
    """Send it a signal; nothing happens when it has ended."""
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

    def lives(self, seconds: float) -> bool:
        """Whether it lives on after so long."""
        with self.changed:
            return not self.changed.wait_for(lambda: self.ended is not None, seconds)

    def resume(self) -> None:
        with self.changed:
            self.stopped = False
        self.send(signal.SIGCONT)

    @property
    def killed(self) -> bool:
        return self.ended == -signal.SIGKILL


class Zygote:
    """``settings`` are environment variables, for the module and all its children."""

    def __init__(self, module: str, settings: Mapping[str, str], log: Path) -> None:
        self._module = module
        self._settings = settings
        self._numbers = count()
        self._children: dict[int, Child] = {}
        self._log = log.open("ab")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.crash.zygote", self._module],
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

    def start(self, task: Mapping[str, Any]) -> Child:
        number = next(self._numbers)
        child = self._children[number] = Child(lambda sign: self._say(number, int(sign)))
        self._say(number, task)
        return child

    def _say(self, number: int, what: Mapping[str, Any] | int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, what]).encode() + b"\n")
        self._process.stdin.flush()

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
    module = importlib.import_module(sys.argv[1])
    module.warm_up()
    gc.collect()
    gc.freeze()  # what is loaded is shared with the children, and stays so
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
                number, what = json.loads(line)
                obey(number, what, children, module)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def obey(number: int, what: Any, children: dict[int, int], module: Any) -> None:
    """Begin a task, or send its process a signal: only here is it known that it lives."""
    if not isinstance(what, int):
        module.prepare(what)
        pid = fork(module.run, what)
        children[pid] = number
        tell(number, pid, "started", 0)
        return
    for pid in [pid for pid, each in children.items() if each == number]:
        os.kill(pid, what)


def fork(run: Callable[[dict[str, Any]], None], task: dict[str, Any]) -> int:
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
