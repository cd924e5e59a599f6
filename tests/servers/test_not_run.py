"""A test that was not run is told at the end, with the reason; on CI it is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import chromium, pgbouncer
from tests.servers.child import ROOT, ServerError
from tests.waiting import PATIENCE

SKIPS = """
import pytest
from tests.conftest import found_or_skipped

@pytest.mark.parametrize("turn", [1, 2])
def test_with_a_server(turn):
    found_or_skipped(None, "no server to be had")

def test_on_this_machine_only():
    pytest.skip("a machine of another kind")
"""


def run(folder: Path, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *")
    (folder / "test_skips.py").write_text(SKIPS)
    command = [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "test_skips.py"]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_the_last_lines_say_how_many_were_not_run_and_why(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert done.returncode == 0, done.stdout
    assert "not run: 2 tests: no server to be had\n" in done.stdout
    assert "not run: 1 tests: a machine of another kind\n" in done.stdout


def test_on_ci_a_test_that_was_not_run_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "2 passed, 1 skipped" in done.stdout  # where a server is missing, it says so itself
    assert "a machine of another kind (with CI=true that is a failure)" in done.stdout


def test_a_pooler_that_is_named_and_not_there_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEMEL_TEST_PGBOUNCER", str(tmp_path / "pgbouncer"))
    assert pgbouncer.find() is None


def test_a_browser_that_is_named_and_not_there_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SEMEL_TEST_CHROMIUM", str(tmp_path / "chromium"))
    assert chromium.find() is None
    with pytest.raises(ServerError, match="Chromium not found"), chromium.launched():
        pass
