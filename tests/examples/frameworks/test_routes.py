"""`semel routes` knows every route of each example, and finds the one that was forgotten."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.frameworks.example import found
from tests.servers.child import ROOT
from tests.waiting import PATIENCE

_LINE = re.compile(r"^\$ \.venv/bin/semel routes (\S+)$", re.MULTILINE)


def target(name: str) -> str:
    """What the README tells to point the command at."""
    line = _LINE.search((ROOT / "examples" / name / "README.md").read_text())
    assert line is not None, f"the README of examples/{name} does not tell of `semel routes`"
    return line[1]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("shops")
    command = [sys.executable, "-m", "tests.examples.frameworks.forgotten"]
    ran = subprocess.run(
        [*command, *(f"{name}={target(name)}" for name in found())],
        cwd=ROOT,
        env={**os.environ, "SHOP_FOLDER": str(folder)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", found())
def test_every_post_of_the_example_is_covered(told: Any, name: str) -> None:
    code, routes = told[name]["before"]
    assert code == 0, routes
    by_path = {route["path"].strip("/"): route["keys"] for route in routes}
    assert by_path.keys() == {"payments", "transfers", "orders", "notes"}
    assert (by_path["payments"], by_path["transfers"]) == ("enforces", "enforces")
    assert by_path["notes"] == "accepts"


@pytest.mark.parametrize("name", found())
def test_a_post_that_says_nothing_of_keys_is_found(told: Any, name: str) -> None:
    code, routes = told[name]["after"]
    assert code == 1, routes
    uncovered = [route["path"].strip("/") for route in routes if not route["covered"]]
    assert set(uncovered) == {"forgotten"}
