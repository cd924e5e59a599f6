"""Servers that die under load and come back, and primaries that are replaced.

Each is done in a thread, beside the crowd, as soon as enough keys have been served since the last.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import semel
from semel.stores import open_backend
from tests.proof.faults import records
from tests.proof.faults.books import Log
from tests.proof.faults.campaign import Scene, run
from tests.proof.faults.crowd import Crowd
from tests.proof.faults.placed import Outage, met
from tests.proof.faults.verdict import Verdict
from tests.servers import MariadbServer, PostgresServer, ValkeyServer
from tests.servers.postgres_cluster import PostgresCluster
from tests.stores.harness import database_of
from tests.waiting import until

Upheaval = Callable[[random.Random, Callable[[], None]], str]
"""Done and undone, with something else in between; returns what it was."""

DATABASE = "postgres"
REFUSED = "store-unavailable"
MET = "met by requests"


@dataclass(frozen=True)
class Place:
    """A store that can be shaken."""

    url: str
    states: records.States
    shake: Upheaval
    outage: Outage | None = None
    """Of the same server, by hand."""


@dataclass
class Upheavals:
    """So many, and so many keys before each."""

    count: int = 1
    between: int = 20
    colour: str = "asgi"
    seed: int = 7
    happened: Counter[str] = field(default_factory=Counter)

    def verdict(self, place: Place, folder: Path) -> Verdict:
        guard = semel.Guard(place.url, tenant=None, policy=semel.ietf())
        scene = Scene(guard, Log(folder / "effects"), place.states, self.colour)
        dice = random.Random(self.seed)

        def plan(crowd: Crowd) -> None:
            for number in range(self.count):
                self._serve(crowd, dice.randrange(self.between, 2 * self.between))
                # Every other one is over as soon as can be: then few meet it, in other places.
                meanwhile = _nothing if number % 2 else partial(_be_met, crowd)
                before = crowd.refusals[REFUSED]
                self.happened[place.shake(dice, meanwhile)] += 1
                self._serve(crowd, self.between)
                self.happened[MET] += crowd.refusals[REFUSED] > before

        return run(scene, plan, self.happened)

    def _serve(self, crowd: Crowd, more: int) -> None:
        goal = crowd.served + more
        until(lambda: crowd.served >= goal)


def _nothing() -> None:
    pass


def _be_met(crowd: Crowd) -> None:
    """Until somebody was refused for it."""
    goal = crowd.refusals[REFUSED] + 1
    until(lambda: crowd.refusals[REFUSED] >= goal)


def killed_at_a_gate(place: Place, folder: Path) -> Verdict:
    """Killed while a handler stands at its gate, and started when it was missed."""
    assert place.outage is not None
    return met(open_backend(place.url), place.states, place.outage, folder)


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def postgres(**settings: str) -> Iterator[Place]:
    """Killed, or told to stop at once (``pg_ctl stop -m immediate``)."""
    with PostgresServer(settings=settings) as server, server.database() as url:
        open_backend(url).migrate()

        def shake(dice: random.Random, meanwhile: Callable[[], None]) -> str:
            how = dice.choice((server.kill, server.abort))
            how()
            meanwhile()
            server.start()
            return "restarts"

        outage = Outage(server.kill, server.start)
        yield Place(url, lambda: records.of_postgres(url), shake, outage)


@contextmanager
def mariadb(**settings: str) -> Iterator[Place]:
    with MariadbServer(settings=settings) as server, server.database() as url:
        open_backend(url).migrate()
        name = database_of(url)
        outage = Outage(server.kill, server.start)
        yield Place(url, lambda: records.of_mariadb(server, name), restarted(server), outage)


@contextmanager
def valkey(url: str = "", **settings: str) -> Iterator[Place]:
    with ValkeyServer(settings or {"appendfsync": "always"}) as server:
        outage = Outage(server.kill, server.start)
        states = partial(records.of_valkey, server)
        yield Place(server.url + url, states, restarted(server), outage)


def restarted(server: Any) -> Upheaval:
    def shake(dice: random.Random, meanwhile: Callable[[], None]) -> str:
        server.kill()
        meanwhile()
        server.start()
        return "restarts"

    return shake


STORES: dict[str, Callable[..., Any]] = {
    "postgresql": postgres,
    "mariadb": mariadb,
    "valkey": valkey,
}

# ── failovers ─────────────────────────────────────────────────────────────────────────────────────


def failing_over(cluster: PostgresCluster) -> Place:
    """The primary is killed, the most advanced standby leads, the old one is copied anew."""

    def shake(dice: random.Random, meanwhile: Callable[[], None]) -> str:
        old = cluster.lose_primary()
        meanwhile()
        cluster.promote(cluster.most_advanced)
        cluster.rejoin(old)
        return "failovers"

    url = cluster.url_of(DATABASE)
    return Place(url, lambda: records.of_postgres(cluster.primary.url_of(DATABASE)), shake)
