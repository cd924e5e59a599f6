"""The steadiness of the tests is judged by what each run came to."""

import json
import subprocess
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


def test_options_of_this_make_are_not_those_of_the_tests(tmp_path: Path) -> None:
    """Run by ``make steadiness ARGS=...``, it runs ``make test`` without them."""
    told = tmp_path / "told"
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"ARGS ?=\ntest:\n\t@echo '[$(ARGS)]' > {told}\n")
    command = f"make --file {makefile} test"
    outer = tmp_path / "Outer"
    outer.write_text(
        f"run:\n\t@{sys.executable} -m bench.steadiness $(ARGS) --command '{command}'\n"
    )
    subprocess.run(
        ["make", "--file", str(outer), "run", "ARGS=--runs 1 --loaded 0"],
        cwd=steadiness.ROOT,
        check=True,
        capture_output=True,
    )
    assert told.read_text() == "[]\n"


def test_more_loaded_runs_than_runs_are_refused() -> None:
    with pytest.raises(SystemExit):
        steadiness.main(["--runs", "1", "--loaded", "2"])
