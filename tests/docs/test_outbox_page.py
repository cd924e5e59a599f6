"""The outbox page, played: its module, its commands, and what they print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import page
from tests.waiting import PATIENCE

PAGE = page("docs/howto/effects/outbox.md")


def test_the_first_effect_is_delivered_as_the_page_says(tmp_path: Path) -> None:
    (shop,) = [block for block in PAGE.blocks if block.title == "shop.py"]
    (tmp_path / "shop.py").write_text(shop.text)
    (story,) = [block.text for block in PAGE.blocks if block.language == "console"]
    assert played(story, tmp_path) == story


def played(story: str, folder: Path) -> str:
    """The commands of a console block run one after the other, with what they print."""
    lines: list[str] = []
    for command in [line for line in story.splitlines() if line.startswith("$ ")]:
        lines.append(command)
        lines += output(shlex.split(command.removeprefix("$ ")), folder)
    return "\n".join(lines) + "\n"


def output(command: list[str], folder: Path) -> list[str]:
    program = {"python": [sys.executable], "semel": [sys.executable, "-m", "semel"]}[command[0]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    done = subprocess.run(
        [*program, *command[1:]],
        cwd=folder,
        env={**env, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout.splitlines()
