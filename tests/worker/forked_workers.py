"""Workers that need not load anything: forked from a process that has (`tests.proof.crash.zygote`).

Each is a process of its own that runs the command line; the application it loads itself.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

from tests import canary
from tests.proof.crash import zygote
from tests.waiting import PATIENCE, until

MODULE = "tests.worker.forked_workers"


# ── in the zygote and its children ────────────────────────────────────────────────────────────────


def warm_up() -> None:
    import psycopg  # noqa: F401 - loaded once, for all

    from semel.worker import wake_up

    # A notification to ourselves that is late is no sign of a pooler here.
    vars(wake_up)["_PATIENCE"] = PATIENCE


def prepare(task: dict[str, Any]) -> None:
    """Everything is loaded."""


def run(task: dict[str, Any]) -> None:
    """Does not return: the exit code is the command's."""
    from semel.cli.main import main

    faulthandler.cancel_dump_traceback_later()  # it lives for as long as its owner wants
    os.environ.update(task["env"])
    log = os.open(task["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["semel", *task["arguments"]]
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


# ── in the test ───────────────────────────────────────────────────────────────────────────────────


class Forked:
    """One of them, with the face of `tests.servers.child.Child`."""

    def __init__(
        self, hatchery: zygote.Zygote, arguments: list[str], folder: Path, env: dict[str, str]
    ) -> None:
        self._log = folder / "log"
        self._log.touch()
        task = {"arguments": arguments, "env": env, "log": str(self._log)}
        self._child = hatchery.start(task)
        self.pid = until(lambda: self._child.pid)

    @property
    def running(self) -> bool:
        return self._child.ended is None

    def send(self, number: int) -> None:
        self._child.send(number)

    def wait(self) -> int:
        """The exit code; of one that was killed as a shell tells it."""
        until(lambda: self._child.ended is not None)
        canary.look("the log of a worker", self.logs())
        code = self._child.ended or 0
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        self.send(9)
        self.wait()

    def logs(self) -> str:
        return self._log.read_text(errors="replace")
