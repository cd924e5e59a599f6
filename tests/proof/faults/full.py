"""A file system without room; a program, see `main`.

In a mount namespace of its own (``unshare``) it mounts a small file system, puts a store on it,
and takes all room away and gives it back while the crowd goes on. Where that is not allowed, no
file may grow any more (RLIMIT_FSIZE): the store is told EFBIG instead of ENOSPC.

Prints the verdict as JSON. The books are elsewhere: effects do not need the store's room.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import semel
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.proof import floors
from tests.proof.faults import records
from tests.proof.faults.books import Entry, Log
from tests.proof.faults.campaign import Scene, run
from tests.proof.faults.careless import Careless, Mistake
from tests.proof.faults.crowd import Crowd
from tests.proof.faults.placed import Outage, met
from tests.proof.faults.verdict import Verdict
from tests.proof.floors import missing
from tests.servers import PostgresServer
from tests.servers.child import ROOT
from tests.waiting import auntil, until

MEBIBYTE = 1 << 20
# SQLite lets its log grow to 4 MiB before it looks after it.
SIZES = {"sqlite": 24 * MEBIBYTE, "postgresql": 160 * MEBIBYTE}
PAGE = 4096
DATABASE = "keys.db"
LEFT = 24
"""Pages, at the most, when all room is gone."""
LONG = (LEFT + 8) * PAGE
REFUSED = ("store-unavailable", "completion-not-durable")
REFUSALS = 30
"""So many in each round."""
HELD = 3
"""Handlers that have run before the room is gone."""
ASKED = 10 * REFUSALS
"""Questions in which anybody would have been answered who does not wait for room."""
FULL, WAITED = "times without room", "times handlers that had run waited"
ALL_WAITED = "times everybody waited"
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--")
SMALL_WAL = {"min_wal_size": "32MB", "max_wal_size": "48MB", "shared_buffers": "16MB"}


# ── room ──────────────────────────────────────────────────────────────────────────────────────────


class Room(Protocol):
    def take(self, dice: random.Random) -> None:
        """All of it, or nearly: a few pages may be left."""
        ...

    def take_all(self) -> None:
        """To the last page: a log that is empty cannot grow by one and its header."""
        ...

    def give_back(self) -> None: ...


class Mounted:
    """A tmpfs, and a file of ours that fills it."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def take(self, dice: random.Random) -> None:
        self._take(dice.randrange(LEFT))

    def take_all(self) -> None:
        self._take(0)

    def _take(self, left: int) -> None:
        with self._ballast.open("wb") as file:
            taken = 0
            for piece in (MEBIBYTE, PAGE):
                with suppress(OSError):
                    while True:  # the store takes some meanwhile
                        os.posix_fallocate(file.fileno(), taken, piece)
                        taken += piece
            file.truncate(max(0, taken - left * PAGE))

    def give_back(self) -> None:
        self._ballast.unlink()


class Limited:
    """No file of this process may grow beyond the size that the store's have now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, dice: random.Random) -> None:
        now = max((path.stat().st_size for path in self._folder.iterdir()), default=PAGE)
        self._limit(now + dice.randrange(LEFT) * PAGE)

    def take_all(self) -> None:
        self._limit(PAGE)

    def _limit(self, limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def give_back(self) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def mount(folder: Path, size: int) -> None:
    options = f"size={size},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "semel", folder], check=True)


# ── stores on it ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cramped:
    """A store that will run out of room."""

    url: str
    states: records.States
    recover: Callable[[], int]
    """What an operator does when there is room again; how many servers had stopped."""


@contextmanager
def sqlite(folder: Path) -> Iterator[Cramped]:
    path = folder / DATABASE
    open_backend(f"sqlite:///{path}").migrate()
    yield Cramped(f"sqlite:///{path}", lambda: records.of_sqlite(path), lambda: 0)


@contextmanager
def postgresql(folder: Path) -> Iterator[Cramped]:
    """Data and log on it: a server that cannot write its log stops, and is started again."""
    tempfile.tempdir = str(folder)
    with PostgresServer(fsync=True, settings=SMALL_WAL) as server:
        tempfile.tempdir = None
        open_backend(server.url).migrate()

        def recover() -> int:
            if server.child.running:
                return 0
            server.start()
            return 1

        yield Cramped(server.url, lambda: records.of_postgres(server.url), recover)


STORES: dict[str, Any] = {"sqlite": sqlite, "postgresql": postgresql}

# ── handlers that have run already ────────────────────────────────────────────────────────────────


class Held(Log):
    """Books in which some handlers stand still after their entry, for as long as they are told.

    Their answers are long: a short one might find its place where a claim has found none.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._holding = False
        self._more = random.Random(7).randbytes(LONG // 2).hex()
        self._ever: set[str] = set()
        self.held: set[str] = set()

    async def aenter(self, key: str) -> str:
        nonce = await super().aenter(key)
        if not self._holding or len(self.held) == HELD:
            return nonce
        self._ever.add(key)
        self.held.add(key)
        await auntil(lambda: not self._holding)
        return nonce + self._more

    def entries(self) -> list[Entry]:
        return [
            (key, nonce + self._more if key in self._ever else nonce)
            for key, nonce in super().entries()
        ]

    def hold(self) -> None:
        """Until there are so many."""
        self.held, self._holding = set(), True
        until(lambda: len(self.held) >= HELD)

    def let_go(self) -> None:
        self._holding = False


# ── the campaign ──────────────────────────────────────────────────────────────────────────────────


def placed(store: str, folder: Path, rounds: int, way: str, mistake: str) -> Verdict:
    """Once, on SQLite, and nothing of it is left to chance."""
    small, room = small_room(store, folder, way)

    def begin() -> None:
        empty_log(small)
        room.take_all()

    with sqlite(small) as cramped:
        backend, outage = opened(cramped.url, mistake), Outage(begin, room.give_back)
        return met(backend, cramped.states, outage, folder)


def empty_log(folder: Path) -> None:
    """Of SQLite, which would find room in what it has written there and no longer needs."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        until(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
    assert (folder / f"{DATABASE}-wal").stat().st_size == 0


def small_room(store: str, folder: Path, way: str) -> tuple[Path, Room]:
    small = folder / "small"
    small.mkdir()
    if way != "mounted":
        return small, Limited(small)
    mount(small, SIZES[store])
    return small, Mounted(small)


def campaign(store: str, folder: Path, rounds: int, way: str, mistake: str) -> Verdict:
    """As often as planned, and until as many were refused and waited as must be."""
    small, room = small_room(store, folder, way)
    faults: Counter[str] = Counter()
    with STORES[store](small) as cramped:
        books = Held(folder / "effects")
        # Who makes mistakes is told soon that it was one: at the end of the lease.
        policy = semel.ietf(lease=timedelta(seconds=1)) if mistake else semel.ietf()
        guard = semel.Guard(opened(cramped.url, mistake), tenant=None, policy=policy)
        scene = Scene(guard, books, cramped.states)
        dice = random.Random(7)

        def short(crowd: Crowd) -> dict[str, str]:
            seen = {**faults, REFUSED[0]: crowd.refusals[REFUSED[0]]}
            return {} if mistake else missing(seen, dict.fromkeys((WAITED, REFUSED[0]), rounds))

        def plan(crowd: Crowd) -> None:
            for _ in floors.rounds(rounds, partial(short, crowd)):
                serve(crowd, 20)
                books.hold()
                room.take(dice)
                refuse(crowd, books, 1)
                books.let_go()
                all_waited = refuse(crowd, books, REFUSALS)
                faults[FULL] += 1
                faults[ALL_WAITED] += all_waited
                faults[WAITED] += bool(books.held - crowd.told.keys())
                room.give_back()
                faults["servers stopped"] += cramped.recover()
            serve(crowd, 20)

        return run(scene, plan, faults)


def opened(url: str, mistake: str) -> Backend:
    backend = open_backend(url)
    return Careless(backend, cast("Mistake", mistake)) if mistake else backend


def unanswered(crowd: Crowd, books: Log) -> set[str]:
    """Keys whose handlers have run, and whose clients do not know."""
    return {key for key, _ in books.entries()} - crowd.told.keys()


def serve(crowd: Crowd, more: int) -> None:
    goal = crowd.served + more
    until(lambda: crowd.served >= goal)


def refuse(crowd: Crowd, books: Log, more: int) -> bool:
    """Until so many were refused, or everybody is at a completion that finds no room: then True."""
    goal = refusals(crowd) + more
    while refusals(crowd) < goal:
        under_way, asked = unanswered(crowd, books), crowd.refusals.total() + ASKED
        until(partial(_refused, crowd, goal, asked))
        if len(under_way) == crowd.lanes and under_way == unanswered(crowd, books):
            return True
    return False


def _refused(crowd: Crowd, goal: int, asked: int) -> bool:
    return refusals(crowd) >= goal or crowd.refusals.total() >= asked


def refusals(crowd: Crowd) -> int:
    return sum(crowd.refusals[code] for code in REFUSED)


def main(store: str, folder: str, rounds: str, way: str, mistake: str) -> None:
    """Without rounds: the one that is placed."""
    play = campaign if int(rounds) else placed
    print(json.dumps(vars(play(store, Path(folder), int(rounds), way, mistake))))


# ── from outside ──────────────────────────────────────────────────────────────────────────────────


def mounting_is_allowed(folder: Path) -> bool:
    command = [*NAMESPACE, "mount", "-t", "tmpfs", "semel", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def filled(
    store: str, folder: Path, rounds: int, way: str, mistake: Mistake | Literal[""] = ""
) -> Verdict:
    command = [sys.executable, "-m", __name__, store, str(folder), str(rounds), way, mistake]
    prefix = NAMESPACE if way == "mounted" else ()
    done = subprocess.run([*prefix, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    found["faults"], found["refusals"] = Counter(found["faults"]), Counter(found["refusals"])
    return Verdict(**found)


if __name__ == "__main__":
    main(*sys.argv[1:])
