"""The steadiness of the tests is judged by what each run came to."""

import json
import sys
from pathlib import Path

import pytest

from bench import steadiness


def test_quiet_and_loaded_runs_take_turns() -> None:
    assert steadiness.plan(10, 5, 2) == [0, 2] * 5
    assert steadiness.plan(3, 1, 2) == [0, 2, 0]
    assert steadiness.plan(3, 2, 2) == [0, 2, 2]
    assert steadiness.plan(2, 0, 2) == [0, 0]


def script(tmp_path: Path, code: int, said: str) -> str:
    path = tmp_path / "tests.py"
    path.write_text(f"import sys\nprint({said!r})\nsys.exit({code})\n")
    return f"{sys.executable} {path}"


def test_green_runs_are_green(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = script(tmp_path, 0, "3 passed, 1 skipped in 0.1s")
    assert steadiness.main(["--runs", "2", "--command", given]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[-1] for row in rows] == ["green", "green"]
    assert "busy loops" not in rows[0]
    assert "busy loops" in rows[1]


def test_a_red_run_fails_the_command_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = script(tmp_path, 1, "FAILED tests/a.py::test_b - boom\n1 failed, 2 passed in 0.1s")
    assert steadiness.main(["--runs", "1", "--loaded", "0", "--json", "--command", given]) == 1
    (run,) = json.loads(capsys.readouterr().out)
    assert run["failed"] == ["tests/a.py::test_b"]
    assert (run["passed"], run["skipped"], run["loops"]) == (2, 0, 0)


def test_more_loaded_runs_than_runs_are_refused() -> None:
    with pytest.raises(SystemExit):
        steadiness.main(["--runs", "1", "--loaded", "2"])
