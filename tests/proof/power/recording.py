"""A store at work, with everything that reached its disk meanwhile."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from semel.core.records import Micros
from semel.stores.sqlite import connection as file
from tests.proof.power.books import Act, Books, Contents, all_rows
from tests.proof.power.disk import Event
from tests.proof.power.lives import Town
from tests.proof.power.vfs import Recorder, files_of
from tests.stores.harness import FakeClock

NAME: Final = "semel.db"
INTERLUDES: Final = (
    *("", "checkpoint PASSIVE", "reader", "close", "checkpoint TRUNCATE", "reader checkpoint FULL"),
    "checkpoint RESTART",
)
Without = Literal["", "full sync", "sync", "true disk"]
"""What is taken out, for a control."""


@dataclass(frozen=True)
class Recording:
    """start: the files as they were at first, and what they said then."""

    start: dict[str, bytes]
    said: Contents
    log: list[Event]
    acts: list[Act]
    ended_at: Micros


def recorded(
    recorder: Recorder,
    folder: Path,
    dice: random.Random,
    *,
    rounds: int,
    lives: int,
    without: Without,
) -> Recording:
    """What is in the folder is gone on with."""
    path = folder / NAME
    start = {each.name: each.read_bytes() for each in files_of(folder)}
    said = _said(folder)
    clock = FakeClock()
    with recorder.recording(folder) as log, _unsafe(without):
        books = Books(path, log, said)
        town = Town(path, books, dice, clock)
        town.found()
        first = dice.randrange(len(INTERLUDES))
        for number in range(first, first + rounds):
            town.round(lives, INTERLUDES[number % len(INTERLUDES)])
        town.close()
    return Recording(start, said, log, books.acts, clock.now)


def _said(folder: Path) -> Contents:
    """By a copy: to look at a file is to recover it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as copy:
        for each in files_of(folder):
            shutil.copy(each, copy)
        connection = sqlite3.connect(Path(copy, NAME), isolation_level=None)
        try:
            return all_rows(connection)
        finally:
            connection.close()


@contextmanager
def _unsafe(without: Without) -> Iterator[None]:
    """The store with another setting of SQLite's than its own."""
    level = {"full sync": "NORMAL", "sync": "OFF"}.get(without)
    with pytest.MonkeyPatch.context() as patch:
        if level is not None:

            def careless(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {level}")

            patch.setattr(file, "make_durable", careless)
        yield
