"""What is not meant for the commands ends in a sentence and exit code 2, never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commandline import one_sentence, run
from tests.cli.test_worker import SHOP, refused, sqlite


@pytest.mark.parametrize("option", ["--lease", "--poll", "--drain"])
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300"])
def test_durations_that_are_none(tmp_path: Path, option: str, seconds: str) -> None:
    done = refused(f"{SHOP}:guard", "--once", option, seconds, **sqlite(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert option in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.csv", "key,name\nsemel_1,café\n".encode("latin-1")),
        ("wide.jsonl", '{"key": "semel_1"}\n'.encode("utf-16")),
        ("large.csv", b"key,amount\n" + b"x" * 200_000 + b",1\n"),
        ("deep.jsonl", b"[" * 100_000 + b"\n"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_no_difference(
    tmp_path: Path, name: str, content: bytes
) -> None:
    entries, store = tmp_path / name, f"sqlite:///{tmp_path / 'semel.db'}"
    entries.write_bytes(content)
    run("migrate", store)
    done = run("ledger", "--store", store, "--provider", str(entries), "--name", "charge")
    assert done.returncode == 2
    assert name in one_sentence(done)


def test_a_ledger_as_spreadsheets_write_it(tmp_path: Path) -> None:
    entries, store = tmp_path / "entries.csv", f"sqlite:///{tmp_path / 'semel.db'}"
    entries.write_bytes("key,amount\nsemel_1,5\n".encode("utf-8-sig"))
    run("migrate", store)
    done = run("ledger", "--store", store, "--provider", str(entries), "--name", "charge")
    assert (done.returncode, "semel_1" in done.stdout) == (1, True)
