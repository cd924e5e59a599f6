"""The command line as people and programs meet it: its output, its exit code; some of it in a
process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import semel
from semel.cli import commands
from semel.cli.output import counted
from tests.cli.commandline import Done, one_sentence, process, run
from tests.docs.pages import page
from tests.waiting import PATIENCE


def without(module: str, *arguments: str) -> Done:
    """Run where a module is not installed."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['semel', *{arguments!r}]; "
        "from semel.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_version_is_the_librarys() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"semel {semel.__version__}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk to write to")
@pytest.mark.parametrize("arguments", [("--help",), ("doctor", "memory://", "--json")])
def test_a_full_disk_is_one_sentence(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "semel", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
        )
    assert done.stderr == "semel: cannot write: No space left on device\n"
    assert done.returncode == 1


def test_help_names_every_command() -> None:
    done = process("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "migrate" in done.stdout


@pytest.mark.parametrize("arguments", [("nonsense",), ("migrate", "--nonsense"), ("demo", "extra")])
def test_a_wrong_command_line_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = process(*arguments) if arguments == ("nonsense",) else run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_migrate_makes_the_schema_and_says_its_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    done = process("migrate", url)
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
    done = process("migrate", "postgresql://someone:hunter2@127.0.0.1:1/nowhere")
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


@pytest.mark.parametrize("module", ["starlette", "uvicorn"])
def test_without_its_extras_the_demo_says_what_to_install(module: str) -> None:
    done = without(module, "demo", "--exit")
    assert done.returncode == 1
    sentence = one_sentence(done)
    assert module in sentence
    assert "semel[demo]" in sentence


def test_without_a_clone_the_demo_says_where_to_find_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("semel.cli.commands._CLONE", tmp_path)
    done = run("demo", "--exit")
    assert done.returncode == 1
    assert "clone" in one_sentence(done)


# ── every command ─────────────────────────────────────────────────────────────────────────────────


def test_help_loads_no_framework_no_driver_and_no_table_printer() -> None:
    """A shell runs it at every press of the tab key."""
    code = (
        "import sys; from click.testing import CliRunner; from semel.cli.commands import semel; "
        "done = CliRunner().invoke(semel, ['--help']); assert done.exit_code == 0; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    heavy = "asyncio rich starlette fastapi flask django litestar psycopg pymysql hiredis sqlite3"
    assert not {*done.stdout.split()} & {*heavy.split()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion(shell: str) -> None:
    line = page("docs/reference/commands.md").section("Shell completion")
    assert f"_SEMEL_COMPLETE={shell}_source semel" in line
    run_it = process if shell == "bash" else run
    done = run_it(_SEMEL_COMPLETE=f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert f"_SEMEL_COMPLETE={shell}_complete" in done.stdout


def test_states_are_completed() -> None:
    words = {
        "_SEMEL_COMPLETE": "bash_complete",
        "COMP_WORDS": "semel keys list --state un",
        "COMP_CWORD": "4",
    }
    done = run(**words)
    assert done.stdout.split(",")[1].strip() == "unknown"


def groups(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, *path, name)
        else:
            yield (*path, name), command


EVERY = dict(groups(commands.semel))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_list_speaks_json(path: tuple[str, ...]) -> None:
    if path[-1] in ("list", "show", "doctor", "routes", "ledger", "migrate", "evict", "settle"):
        assert "--json" in {name for each in EVERY[path].params for name in each.opts}


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_option_has_a_word_of_help(path: tuple[str, ...]) -> None:
    assert EVERY[path].help
    for each in EVERY[path].params:
        if isinstance(each, click.Option) and each.name not in ("limit", "content_type"):
            assert each.help, each.name


def test_colours_are_for_terminals_and_not_where_they_are_not_wanted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    CliRunner().invoke(commands.semel, ["migrate", url])
    plain = CliRunner().invoke(commands.semel, ["doctor", url])
    assert plain.stdout == f"{url}: fit for use\n"
    seen = CliRunner().invoke(commands.semel, ["doctor", url], color=True)
    assert "\x1b[32mfit for use" in seen.stdout
    wish = {"NO_COLOR": "1"}
    seen = CliRunner().invoke(commands.semel, ["doctor", url], color=True, env=wish)
    assert seen.stdout == plain.stdout


def test_progress_is_told_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(counted("entries", range(5), every=2)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(counted("entries", range(5), every=2)) == [0, 1, 2, 3, 4]
    told = capsys.readouterr().err
    assert "entries: 4" in told
    assert "entries: 3" not in told
    assert told.rsplit("\r", 2)[1].strip() == ""  # and wiped


def test_a_pipe_that_is_closed_is_no_traceback(tmp_path: Path) -> None:
    command = f"{sys.executable} -m semel keys list --store memory:// | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE)
    assert "Traceback" not in done.stderr
