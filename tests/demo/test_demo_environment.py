"""`make demo` installs what requirements/demo.txt names, and the demo needs nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.demo.test_demo import AMPLE, PROCESS, environment, play
from tests.servers.child import ROOT
from tests.waiting import PATIENCE

REQUIREMENTS = ROOT / "requirements"
_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(.+)")


def pins(name: str) -> set[tuple[str, str]]:
    """Each distribution with its version, and on which machines where it is not for all."""
    lines = [line.partition("#")[0] for line in (REQUIREMENTS / name).read_text().splitlines()]
    found = [_PIN.fullmatch(line.strip()) for line in lines if line.strip()]
    assert found
    assert None not in found, f"{name} has a line that is no pin"
    return {(canonical(each[1]), "".join(each[2].split())) for each in found if each}


def canonical(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def modules(packages: set[str]) -> set[str]:
    """What can be imported, at the top level, where these distributions are installed."""
    return {
        module
        for module, owners in packages_distributions().items()
        if packages & {canonical(owner) for owner in owners}
    }


@pytest.fixture
def only(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing but the demo's distributions can be imported."""
    (tmp_path / "modules").write_text("\n".join(modules({name for name, _ in pins("demo.txt")})))
    return {**AMPLE, "SEMEL_TEST_ONLY": str(tmp_path), "TMPDIR": str(tmp_path)}


def test_the_demo_plays_with_what_its_requirements_name_and_nothing_else(
    only: dict[str, str], tmp_path: Path
) -> None:
    done = play(**only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    obeyed = {*map(int, (tmp_path / "obeyed").read_text().split())}
    servers = {*map(int, PROCESS.findall(done.stdout))}
    assert len(servers) == 3
    assert servers < obeyed, "a server of the demo could import anything"
    assert len(obeyed - servers) == 1, "so could the demo itself, or somebody else was there"


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error.name, "is not there")
    else:
        print(name, "is there")
"""


def imported(*names: str, env: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *names],
        capture_output=True,
        text=True,
        env=environment(**env),
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout.splitlines()


OTHERS = ("fastapi", "httpx", "psycopg", "pytest", "prometheus_client", "uvloop")


def test_what_the_requirements_do_not_name_is_refused_there(only: dict[str, str]) -> None:
    """The control: it is installed here, and there it is as if it were not."""
    wanted = ("semel", "starlette", "uvicorn", "click", "http_sf", "sqlite3")
    said = [*(f"{name} is there" for name in wanted), *(f"{name} is not there" for name in OTHERS)]
    assert imported(*wanted, *OTHERS, env=only) == said
    assert imported(*OTHERS, env={}) == [f"{name} is there" for name in OTHERS]


def test_every_pin_of_the_demo_is_that_of_the_tests() -> None:
    """What was tried is what a newcomer gets, and `make test` after `make demo` adds, and exchanges
    nothing."""
    assert pins("demo.txt") <= pins("test.txt"), pins("demo.txt") - pins("test.txt")
