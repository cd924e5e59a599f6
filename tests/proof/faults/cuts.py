"""Connections cut at a commit, as the dice say: nobody is told what became of it.

A COMMIT is one; so is every statement and every script that stands alone. A claim is known by the
key that it carries, a completion by the answer, and those that take over what was released, or
release, by their names.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import semel
from semel.stores import open_backend
from semel.stores.base import Backend
from semel.stores.redis.commands import script
from tests import canary
from tests.proof.faults import records
from tests.proof.faults.books import Log, Table
from tests.proof.faults.campaign import Plan, Scene, run
from tests.proof.faults.crowd import Crowd
from tests.proof.faults.verdict import Verdict
from tests.servers import MariadbServer, PostgresServer, ValkeyServer
from tests.stores.harness import database_of
from tests.stores.relay import Fate, Relay
from tests.waiting import PATIENCE, until

FATES: tuple[Fate, ...] = ("drop", "refuse", "late")
SAID = {"drop": "done but not answered", "refuse": "not received", "late": "received late"}

_COMMIT = re.compile(rb"\bCOMMIT\b")
_KEY = canary.new_key()[8:24]
_KEYS = (_KEY.encode(), bytes.fromhex(_KEY.replace("-", "")))
"""A part of every key, as it is and as SQL stores pack it."""
_ANSWER = canary.ANSWER.encode()
_CARRIED = (*_KEYS, _ANSWER)
_NAMED = ("retake", "release")
_MARKS = (
    *_CARRIED,
    *(mark.hex().encode() for mark in _CARRIED),  # as MariaDB is told everything
    *(name.encode() for name in _NAMED),  # PostgreSQL's prepared statements
    *(script(name).digest for name in _NAMED),
    b"failed_retryable",  # in the text of the statements
)
_PARSE = b"P"
"""PostgreSQL's message that prepares a statement: it has the name, and commits nothing."""


def commits(message: bytes) -> bool:
    return _COMMIT.search(message) is not None


def claims(message: bytes) -> bool:
    return any(_carries(key, message) for key in _KEYS)


def completions(message: bytes) -> bool:
    return _carries(_ANSWER, message)


def _carries(mark: bytes, message: bytes) -> bool:
    """As it is, or as MariaDB is told everything."""
    return mark in message or mark.hex().encode() in message


@dataclass(frozen=True)
class Cut:
    """What becomes of the next message that meets this."""

    meets: Callable[[bytes], bool]
    fate: Fate


EACH_COMMIT = tuple(Cut(commits, fate) for fate in FATES)
EACH_WRITE = tuple(Cut(meets, fate) for meets in (claims, completions) for fate in FATES)


def writes(message: bytes) -> bool:
    return not message.startswith(_PARSE) and any(mark in message for mark in _MARKS)


class Cutter:
    """Cuts at some of the commits until it has cut enough of them."""

    def __init__(self, cuts: Cuts) -> None:
        self._meets = commits if cuts.mode == "atomic" else writes
        self._cuts = cuts
        self._dice = random.Random(cuts.seed)
        self._deck: list[Fate] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.cut: Counter[str] = Counter()

    def judge(self, message: bytes) -> Fate:
        if self._done.is_set() or not self._meets(message):
            return "pass"
        with self._lock:
            if self._dice.random() >= self._cuts.rate:
                return "pass"
            fate = self._drawn()
            self.cut[SAID[fate]] += 1
            if self.cut.total() >= self._cuts.goal:
                self._done.set()
            return fate

    def _drawn(self) -> Fate:
        """Each as often as the others, also where there are few."""
        self._deck = self._deck or self._dice.sample(FATES, len(FATES))
        return self._deck.pop()

    def cut_enough(self, crowd: Crowd) -> None:
        """The plan of a campaign."""
        if not self._done.wait(GOES_ON):
            raise AssertionError(f"{self.cut} in {GOES_ON} s, {crowd.served} keys served")


class Placed:
    """Cuts one commit after the other: each time the next one of which it is said."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        self._cuts = deque(cuts)
        self._lock = threading.Lock()
        self.cut: Counter[str] = Counter()

    def judge(self, message: bytes) -> Fate:
        with self._lock:
            if not self._cuts or not self._cuts[0].meets(message):
                return "pass"
            fate = self._cuts.popleft().fate
            self.cut[SAID[fate]] += 1
            return fate

    def cut_all(self, crowd: Crowd) -> None:
        """The plan of a campaign; then somebody is served once more."""
        until(lambda: not self._cuts)
        goal = crowd.served + 1
        until(lambda: crowd.served >= goal)


GOES_ON = 1200.0
"""Seconds for a campaign to cut as often as it must."""

# ── servers behind a relay ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Line:
    """The way to a store through a relay, and a look at it from behind."""

    relay: Relay
    url: str
    states: records.States
    behind: str
    """The store's URL without the relay."""


@contextmanager
def postgres_line(server: PostgresServer) -> Iterator[Line]:
    with (
        server.database() as url,
        Relay(server.folder / f".s.PGSQL.{server.port}") as relay,
    ):
        open_backend(url).migrate()
        name = url.partition("@/")[2].partition("?")[0]
        near = f"postgresql://postgres@127.0.0.1:{relay.port}/{name}"
        yield Line(relay, near, lambda: records.of_postgres(url), url)


@contextmanager
def mariadb_line(server: MariadbServer) -> Iterator[Line]:
    with server.database() as url, Relay(server.socket) as relay:
        open_backend(url).migrate()
        name = database_of(url)
        near = f"mysql://root@127.0.0.1:{relay.port}/{name}"
        yield Line(relay, near, lambda: records.of_mariadb(server, name), url)


@contextmanager
def valkey_line(server: ValkeyServer) -> Iterator[Line]:
    """On a server of its own, which is thrown away."""
    with Relay(server.port) as relay:
        yield Line(relay, relay.url, lambda: records.of_valkey(server), server.url)


def line_to(server: Any) -> Any:  # a context manager of a Line
    match server:
        case PostgresServer():
            return postgres_line(server)
        case MariadbServer():
            return mariadb_line(server)
        case _:
            return valkey_line(server)


# ── the campaign ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cuts:
    """What is cut, how often, and what is done about it."""

    store: str
    mode: str
    goal: int = 0
    colour: str = "asgi"
    seed: int = 7
    rate: float = 0.4
    """Of all commits; a store asks once more by itself, so that some must be cut twice."""
    around: Callable[[Backend], Backend] = lambda backend: backend
    """The positive controls are built here."""
    patience: float = PATIENCE

    def __str__(self) -> str:
        return f"{self.store}-{self.mode}-{self.colour}"

    def verdict(self, server: Any, folder: Path) -> Verdict:
        """At some of the commits of a crowd, until there were enough."""
        cutter = Cutter(self)
        return self._played(server, folder, cutter.judge, cutter.cut_enough, cutter.cut)

    def placed(self, server: Any, folder: Path, *cuts: Cut, twins: int = 2) -> Verdict:
        """At these, one after the other; so many clients ask for each key at once."""
        cutter = Placed(cuts)
        few = {"lanes": 1, "twins": twins}
        return self._played(server, folder, cutter.judge, cutter.cut_all, cutter.cut, **few)

    def _played(
        self,
        server: Any,
        folder: Path,
        judge: Callable[[bytes], Fate],
        plan: Plan,
        cut: Counter[str],
        **options: Any,
    ) -> Verdict:
        with line_to(server) as line:
            books = Table(line.behind) if self.mode == "atomic" else Log(folder / "effects")
            policy = semel.ietf(mode="atomic") if self.mode == "atomic" else semel.ietf()
            guard = semel.Guard(
                self.around(open_backend(line.url)),
                tenant=None,
                policy=policy,
                breaker=timedelta(seconds=0.2),
            )
            options["patience"] = self.patience
            scene = Scene(guard, books, line.states, self.colour, **options)
            line.relay.judge = judge
            return run(scene, plan, cut)
