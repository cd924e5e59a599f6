"""`semel worker` on the command line: what it says, and what it refuses. See tests/worker too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from semel.cli import worker
from tests.cli.commandline import Done, one_sentence, process, run

SHOP = "tests.worker.shop"


def sqlite(folder: Path) -> dict[str, str]:
    url = f"sqlite:///{folder / 'semel.db'}"
    return {"SEMEL_TEST_STORE": url, "SEMEL_TEST_FOLDER": str(folder)}


async def began(*_: Any) -> int:
    raise AssertionError("it began to work")


def refused(*arguments: str, folder: Path | str | None = None, **env: str) -> Done:
    """A worker that must not begin: it would end the process it is in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_work", began)
        patch.delitem(sys.modules, SHOP, raising=False)  # it reads its settings when imported
        try:
            return run("worker", *arguments, folder=folder, **env)
        finally:
            sys.modules.pop(SHOP, None)


def test_it_says_what_it_runs_and_with_which_store(tmp_path: Path) -> None:
    env = sqlite(tmp_path)
    done = process("worker", f"{SHOP}:guard", "--once", "--only", "deliver", **env)
    first, last = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert first == f"semel worker: {env['SEMEL_TEST_STORE']}: deliver (effects: blocking, paid)"
    assert last == "done"


def test_to_programs_it_says_so_in_json(tmp_path: Path) -> None:
    env = sqlite(tmp_path)
    done = process("worker", f"{SHOP}:guard", "--once", "--only", "deliver", "--json", **env)
    first, last = map(json.loads, done.stdout.splitlines())
    assert first.pop("pid") > 0
    assert first == {
        "event": "start",
        "store": env["SEMEL_TEST_STORE"],
        "loops": ["deliver"],
        "effects": ["blocking", "paid"],
        "once": True,
    }
    assert last == {"event": "end", "whole": True}


def test_without_a_word_it_does_all_that_there_is_to_do(tmp_path: Path) -> None:
    done = process("worker", f"{SHOP}:guard", "--once", "--json", **sqlite(tmp_path))
    assert done.returncode == 0, done.stderr
    loops = json.loads(done.stdout.splitlines()[0])["loops"]
    assert loops == ["deliver", "reconcile", "maintain"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere:guard"], "no module 'nowhere'"),
        (["tests.nowhere:guard"], "no module 'tests.nowhere'"),
        ([f"{SHOP}:nothing"], "has no 'nothing'"),
        ([f"{SHOP}:not_a_guard"], "no semel.Guard, but of type str"),
        ([SHOP], "module:name"),
        ([f"{SHOP}:guard", "--app", f"{SHOP}:not_a_guard"], "no application, but of type str"),
        ([f"{SHOP}:guard", "--only", "dance"], "--only takes deliver, run, reconcile, maintain"),
        ([f"{SHOP}:guard", "--only", "run"], "Give --app"),
        ([f"{SHOP}:guard", "--listen-url", "postgresql://elsewhere"], "listen URL"),
    ],
)
def test_a_wrong_target_or_option_is_one_sentence_and_exit_code_2(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    done = refused(*arguments, **sqlite(tmp_path))
    assert done.returncode == 2
    assert complaint in one_sentence(done)


def test_a_guard_without_deliverers_cannot_deliver(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("import semel\nguard = semel.Guard('memory://', tenant=None)")
    done = refused("bare:guard", "--only", "deliver", folder=tmp_path)
    assert done.returncode == 2
    assert "no deliverers" in one_sentence(done)


@pytest.mark.parametrize("source", ["1 / 0", "import not_there_at_all", "x ="])
def test_a_module_that_cannot_be_imported_says_where_it_breaks(tmp_path: Path, source: str) -> None:
    (tmp_path / "broken.py").write_text(f"\n{source}\n")
    done = refused("broken:guard", folder=tmp_path)
    assert done.returncode == 2
    assert "broken cannot be imported" in one_sentence(done)
    if source != "x =":
        assert f"{tmp_path / 'broken.py'}:2" in done.stderr


def test_a_store_that_cannot_be_reached_is_one_sentence_and_exit_code_1() -> None:
    store = "postgresql://someone:hunter2@127.0.0.1:1/nowhere"
    done = refused(f"{SHOP}:guard", SEMEL_TEST_STORE=store)
    assert done.returncode == 1
    assert "hunter2" not in one_sentence(done)


def test_a_store_without_tables_says_what_to_run(postgres_url: str) -> None:
    done = refused(f"{SHOP}:guard", SEMEL_TEST_STORE=postgres_url)
    assert done.returncode == 1
    assert "semel migrate" in one_sentence(done)
