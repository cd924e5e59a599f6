"""`semel` as tests run it: a process of its own, or, where that is not the point, within this one.

A process takes half a second until it has read its modules; the commands themselves take none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path

from click.testing import CliRunner

from semel.cli import commands
from tests.waiting import PATIENCE

Done = subprocess.CompletedProcess[str]


def process(*arguments: str, **env: str) -> Done:
    """As people and programs start it."""
    settings = {name: value for name, value in os.environ.items() if name != "SEMEL_STORE"}
    return subprocess.run(
        [sys.executable, "-m", "semel", *arguments],
        capture_output=True,
        text=True,
        env={**settings, **env},
        timeout=PATIENCE,
        check=False,
    )


def run(*arguments: str, folder: Path | str | None = None, typed: str = "", **env: str) -> Done:
    """The same command in this process; from a folder, whose modules are forgotten afterwards."""
    with nullcontext() if folder is None else _visiting(folder):
        done = CliRunner().invoke(
            commands.semel,
            arguments,
            input=typed,
            env={"SEMEL_STORE": None, "SEMEL_GUARD": None, "SEMEL_APP": None, **env},
            prog_name="semel",
        )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception  # what would be a traceback
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


@contextmanager
def _visiting(folder: Path | str) -> Iterator[None]:
    path, modules = [*sys.path], {*sys.modules}
    with chdir(folder):
        yield
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]


def one_sentence(done: Done) -> str:
    """What an error must look like: one line on standard error, nothing elsewhere."""
    assert done.stdout == ""
    assert done.stderr.startswith("semel: ")
    assert done.stderr.count("\n") == 1
    return done.stderr
