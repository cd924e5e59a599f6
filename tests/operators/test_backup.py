"""Back up and restore, as the page says: what a restored store knows, and what keeps it safe."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

import semel
from semel.client import new_key
from tests.docs.pages import page
from tests.servers import postgres
from tests.waiting import PATIENCE

PAGE = page("docs/howto/operations/backup.md")
BACK_UP = next(block for block in PAGE.blocks if "def back_up" in block.text)
COMMANDS = {"pg_dump", "pg_restore"}


class Kept(Protocol):
    """A store, how it is copied while it is used, and how the copy takes its place."""

    url: str

    def back_up(self) -> None: ...

    def restore(self) -> None: ...


class KeptFile:
    def __init__(self, folder: Path) -> None:
        self.file, self.copy = folder / "semel.db", folder / "copy.db"
        self.url = f"sqlite:///{self.file}"
        names: dict[str, Any] = {}
        exec(compile(BACK_UP.text, PAGE.name, "exec"), names)
        self._back_up: Callable[[str, str], None] = names["back_up"]

    def back_up(self) -> None:
        self._back_up(str(self.file), str(self.copy))

    def restore(self) -> None:
        for path in self.file.parent.glob("semel.db*"):
            path.unlink()
        self.copy.rename(self.file)


class KeptDatabase:
    def __init__(self, folder: Path, url: str) -> None:
        self.url, self._dump = url, folder / "shop.dump"
        self._programs = postgres.find().folder

    def back_up(self) -> None:
        self._run("pg_dump", "--format=custom", f"--file={self._dump}", self.url)

    def restore(self) -> None:
        self._run("pg_restore", "--clean", "--if-exists", f"--dbname={self.url}", str(self._dump))

    def _run(self, program: str, *arguments: str) -> None:
        shown = {word for word in arguments if word.startswith("--") and "=/" not in word}
        said = {word for word in shown if "://" not in word}
        assert all(word in PAGE.text for word in said), f"the page does not say {said}"
        subprocess.run([self._programs / program, *arguments], check=True, timeout=PATIENCE)


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "sqlite":
        return KeptFile(tmp_path)
    return KeptDatabase(tmp_path, request.getfixturevalue("postgres_url"))


@pytest.fixture
def opened(kept: Kept) -> Iterator[Callable[..., semel.Guard]]:
    """Opens the application; a second time after the first was closed."""
    guards: list[semel.Guard] = []

    def start(policy: semel.Policy | None = None) -> semel.Guard:
        for guard in guards:
            guard.close()
        guards.append(semel.Guard(kept.url, tenant=None, policy=policy, migrate=True))
        return guards[-1]

    yield start
    guards[-1].close()


class Provider:
    """Whoever is told, outside the store."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def charge(self) -> str:
        self.keys.append(semel.operation().downstream_key("charge"))
        return f"charge {len(self.keys)}"


def test_a_restored_store_knows_what_was_done_before_the_backup_and_not_after(
    kept: Kept, opened: Callable[..., semel.Guard]
) -> None:
    provider, before, after = Provider(), new_key(), new_key()
    guard = opened()
    assert guard.once(before, provider.charge, name="pay").value == "charge 1"
    kept.back_up()
    assert guard.once(after, provider.charge, name="pay").value == "charge 2"
    guard.close()
    kept.restore()

    guard = opened()
    again = guard.once(before, provider.charge, name="pay")
    assert (again.value, again.replayed) == ("charge 1", True)
    # The danger, and the control of the test below: it runs again, with another downstream key.
    assert guard.once(after, provider.charge, name="pay").value == "charge 3"
    assert len(set(provider.keys)) == 3


def test_keys_from_before_the_restore_are_kept_out(
    kept: Kept, opened: Callable[..., semel.Guard]
) -> None:
    provider, before, after = Provider(), new_key(), new_key()
    guard = opened()
    guard.once(before, provider.charge, name="pay")
    kept.back_up()
    guard.once(after, provider.charge, name="pay")
    guard.close()
    kept.restore()

    last = time.time_ns()
    while (closed := (time.time_ns() - last) // 1_000_000) < 2:  # a clock's tick, not a wait
        pass
    guard = opened(semel.ietf(max_request_age=timedelta(milliseconds=closed - 1)))
    assert guard.once(before, provider.charge, name="pay").value == "charge 1"
    with pytest.raises(semel.Refused) as refused:
        guard.once(after, provider.charge, name="pay")
    assert refused.value.code == "key-expired"
    assert len(provider.keys) == 2


def test_what_ran_during_the_backup_does_not_run_again(
    kept: Kept, opened: Callable[..., semel.Guard]
) -> None:
    provider, key = Provider(), new_key()
    began, go_on = threading.Event(), threading.Event()
    guard = opened()

    def slow() -> str:
        began.set()
        assert go_on.wait(PATIENCE)
        return provider.charge()

    running = threading.Thread(target=lambda: guard.once(key, slow, name="pay"))
    running.start()
    assert began.wait(PATIENCE)
    kept.back_up()
    go_on.set()
    running.join(PATIENCE)
    guard.close()
    kept.restore()
    with pytest.raises(semel.Refused) as refused:
        opened().once(key, provider.charge, name="pay")
    assert refused.value.code in ("in-flight", "outcome-unknown")
    assert len(provider.keys) == 1


def test_in_atomic_mode_a_second_run_sends_the_same_key_and_finds_no_row(
    kept: Kept, opened: Callable[..., semel.Guard]
) -> None:
    provider, key = Provider(), new_key()
    atomic = semel.ietf(mode="atomic")

    def order() -> str:
        semel.operation().transaction.execute("INSERT INTO ordered VALUES (1)")
        return provider.charge()

    guard = opened(atomic)
    guard.once(new_key(), lambda: "opened", name="open")
    _execute(kept.url, "CREATE TABLE ordered (number INT)")
    kept.back_up()
    guard.once(key, order, name="order")
    guard.close()
    kept.restore()
    assert opened(atomic).once(key, order, name="order").replayed is False
    assert len(set(provider.keys)) == 1
    assert _execute(kept.url, "SELECT count(*) FROM ordered") == [(1,)]


def _execute(url: str, statement: str) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return list(file.execute(statement))
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_the_page_names_the_programs_that_were_run() -> None:
    assert all(f"{program} --" in PAGE.text for program in COMMANDS)
    assert os.access(postgres.find().folder / "pg_dump", os.X_OK)
