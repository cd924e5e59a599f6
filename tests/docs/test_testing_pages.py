"""The pages about tests: their project is run, and their names are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import _semel_pytest
from semel import testing
from semel.testing import contract
from tests.docs.pages import Page, page, plain
from tests.waiting import PATIENCE

NAMES = page("docs/reference/public-names.md")


def test_the_tests_of_the_guide_pass_as_it_says(tmp_path: Path) -> None:
    guide = page("docs/howto/testing/test-your-api.md")
    assert shown(guide) == played(guide, tmp_path)


def shown(guide: Page) -> str:
    (console,) = [block.text for block in guide.blocks if block.language == "console"]
    command, line = console.splitlines()
    assert command == "$ pytest -q"
    return line


def played(guide: Page, folder: Path) -> str:
    """Write the files of a guide, run pytest there, and return how many tests passed or failed."""
    for block in guide.blocks:
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    env = {name: text for name, text in os.environ.items() if not name.startswith("SEMEL_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis"]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.stdout.splitlines()[-1].partition(" in ")[0]


def test_every_name_is_listed() -> None:
    assert sorted(plain(row[0]) for row in NAMES.table("Testing")) == testing.__all__


def test_what_a_private_store_can_do_is_listed() -> None:
    listed = [word for row in NAMES.table("PrivateStore") for word in re.findall(r"`(\w+)", row[0])]
    methods = [name for name in dir(testing.PrivateStore) if not name.startswith("_")]
    assert sorted(listed) == sorted([*methods, "clock", "place"])  # those two are made by __init__


def test_what_the_contract_has_is_listed() -> None:
    listed = [word for row in NAMES.table("Contract") for word in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(contract.__all__)


def test_the_store_of_the_guide_passes_the_contract(tmp_path: Path) -> None:
    said = played(page("docs/howto/testing/write-a-store.md"), tmp_path)
    assert re.fullmatch(r"\d{3,} passed", said), said


def test_every_fixture_is_listed() -> None:
    made = [name for name in vars(_semel_pytest) if name.startswith("semel_")]
    assert [plain(row[0]) for row in NAMES.table("Fixtures of pytest")] == made
