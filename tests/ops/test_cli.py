"""The command line as people and programs meet it: a real process, its output, its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import semel


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "SEMEL_STORE"}
    command = [sys.executable, "-m", "semel", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**settings, **env}, timeout=60, check=False
    )


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What an error must look like: one line on standard error, nothing elsewhere."""
    assert done.stdout == ""
    assert done.stderr.startswith("semel: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run where a module is not installed."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['semel', *{arguments!r}]; "
        "from semel.ops.cli import main; main()"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_version_is_the_librarys() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"semel {semel.__version__}\n")


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "migrate" in done.stdout


@pytest.mark.parametrize("arguments", [("nonsense",), ("migrate", "--nonsense"), ("demo", "extra")])
def test_a_wrong_command_line_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_migrate_makes_the_schema_and_says_its_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    done = run("migrate", url)
    assert (done.returncode, done.stdout) == (0, f"{url}: schema version 1\n")
    assert (tmp_path / "semel.db").exists()


def test_migrate_may_be_repeated(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    assert run("migrate", url).stdout == run("migrate", url).stdout


def test_migrate_takes_its_store_from_the_environment_and_speaks_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    done = run("migrate", "--json", SEMEL_STORE=url)
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"store": url, "version": 1}


def test_migrate_brings_postgresql_up_to_date(postgres_url: str) -> None:
    done = run("migrate", "--json", postgres_url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] >= 1


def test_a_store_without_schema_says_so() -> None:
    done = run("migrate", "memory://")
    assert (done.returncode, done.stdout) == (0, "memory://: keeps no schema, nothing to do\n")


def test_migrate_without_a_store_asks_for_one() -> None:
    done = run("migrate")
    assert done.returncode == 2
    assert "URL" in done.stderr


@pytest.mark.parametrize("url", ["nonsense", "oracle://host/db", "sqlite://", "memory://path"])
def test_a_wrong_url_is_one_sentence_and_exit_code_2(url: str) -> None:
    done = run("migrate", url)
    assert done.returncode == 2
    one_sentence(done)


def test_a_store_that_cannot_be_reached_is_one_sentence_without_the_password() -> None:
    done = run("migrate", "postgresql://someone:hunter2@127.0.0.1:1/nowhere")
    assert done.returncode == 1
    assert "hunter2" not in one_sentence(done)


def test_a_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    done = run("migrate", f"sqlite:///{tmp_path / 'missing' / 'semel.db'}")
    assert done.returncode in (1, 2)
    one_sentence(done)


def test_without_click_the_command_says_what_to_install() -> None:
    done = without("click", "--version")
    assert done.returncode == 1
    assert "semel[cli]" in one_sentence(done)


@pytest.mark.parametrize("module", ["rich", "starlette", "uvicorn"])
def test_without_its_extras_the_demo_says_what_to_install(module: str) -> None:
    done = without(module, "demo", "--exit")
    assert done.returncode == 1
    sentence = one_sentence(done)
    assert module in sentence
    assert "semel[demo]" in sentence
