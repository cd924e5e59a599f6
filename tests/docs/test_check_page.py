"""The lesson on checking an API, followed from an empty folder to its end."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.docs.pages import page
from tests.docs.story import commands, moved, serve
from tests.servers import AppServer
from tests.waiting import PATIENCE


def test_the_lesson_on_checking_an_api_can_be_followed(tmp_path: Path) -> None:
    ran = 0
    with ExitStack() as stack:
        server: AppServer | None = None
        for block in page("docs/tutorial/check.md").blocks:
            if block.title:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            for command in commands(block.text) if block.language == "console" else ():
                program, *arguments = shlex.split(command.line)
                if program == "uvicorn":
                    stack.close()
                    server = stack.enter_context(serve(arguments[0], tmp_path))
                elif program == "semel":
                    assert server is not None
                    come = _printed(moved(arguments, server.port), tmp_path)
                    assert _in_order(command.shown, come), "\n".join(come)
                    ran += 1
    assert ran == 5
    assert (tmp_path / "check.html").exists()


def _printed(arguments: list[str], folder: Path) -> list[str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith("SEMEL_")}
    command = [sys.executable, "-m", "semel", *arguments, "--timeout", str(PATIENCE)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def _in_order(shown: list[str], came: list[str]) -> bool:
    """Whether every line that the page shows was printed, in this order."""
    rest = iter(came)
    return all(line in rest for line in shown if line and line != "...")
