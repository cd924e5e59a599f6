"""An example as its README starts it: a real server, the line of the first code block, a folder."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.servers.apps import answers
from tests.servers.child import ROOT, Child, ServerError
from tests.servers.ports import free_port
from tests.servers.scoped import Scoped

NOT_A_SHOP = {"rides", "grown"}
"""Examples that tell another story and have tests of their own."""

_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def found() -> list[str]:
    """Every example that keeps the contract of the shops, by the name of its folder."""
    readmes = sorted((ROOT / "examples").glob("*/README.md"))
    return [readme.parent.name for readme in readmes if readme.parent.name not in NOT_A_SHOP]


def start_line(name: str) -> str:
    """The command in the README's first code block: one line, as a reader would type it."""
    readme = (ROOT / "examples" / name / "README.md").read_text()
    block = _BLOCK.search(readme)
    lines = block[1].replace("\\\n", " ").strip().splitlines() if block else []
    if len(lines) != 1:
        raise ServerError(f"the first code block of examples/{name} must be the one line to start")
    return lines[0].removeprefix("$ ")


class ExampleServer(Scoped):
    """A shell that runs the line; the same port and folder after every restart."""

    def __init__(self, line: str, env: Mapping[str, str] | None = None) -> None:
        self._line = line
        self.folder = Path(tempfile.mkdtemp(prefix="semel-"))
        self.port = free_port()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        place = {"PORT": str(self.port), "SHOP_FOLDER": str(self.folder)}
        # gunicorn puts a socket there, which would be everybody's.
        own = {"XDG_RUNTIME_DIR": str(self.folder), "PYTHONUNBUFFERED": "1"}
        self._env = {"PATH": path, **own, **place, **(env or {})}
        self._child: Child | None = None

    def start(self) -> Self:
        self._child = Child(["bash", "-c", self._line], folder=self.folder, env=self._env)
        for _ in self._child.attempts():
            if answers(self.port):
                return self
        raise AssertionError("attempts() ends by raising")

    def kill(self) -> None:
        """SIGKILL to everything the line started."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def logs(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
