"""Several players on one store, round by round, each round on keys of its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol, Self

from semel.core.records import Identity
from tests.proof.histories.calls import Call, Outcome, history_of
from tests.proof.histories.checker import ONE_STEP, Broken, Habits, check
from tests.proof.histories.orders import Leave, Look, Order, Place, Round
from tests.proof.histories.player import Player
from tests.proof.histories.spec import Row
from tests.servers.child import ROOT
from tests.stores.moves import ROWS


@dataclass(frozen=True)
class Size:
    """How much of everything. A key's history has about lanes × moves / keys calls."""

    rounds: int
    keys: int = 4
    lanes: int = 3
    """Threads of each player, and as many tasks."""
    moves: int = 12


@dataclass
class Figures:
    """What was checked."""

    histories: int = 0
    nodes: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    rows: Counter[Row] = field(default_factory=Counter[Row])

    def __str__(self) -> str:
        doubts = self.outcomes[Outcome.DOUBT] + self.outcomes[Outcome.NOTHING]
        told = f"{self.histories:,} histories of {self.outcomes.total():,} calls linearizable"
        cut = f", {doubts:,} of them cut off" if doubts else ""
        return f"{told}{cut}; {len(self.rows)} of {len(ROWS)} rows of the table taken"


class Plays(Protocol):
    """A player, here or in a process of its own."""

    def begin(self, round_: Round) -> None: ...

    def end(self) -> list[Call]: ...

    def look(self, identities: tuple[Identity, ...]) -> list[Call]: ...


class Here:
    """A player of this process, for a store that no other process can reach."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._calls: list[Call] = []

    def begin(self, round_: Round) -> None:
        self._calls = self._player.play(round_)

    def end(self) -> list[Call]:
        return self._calls

    def look(self, identities: tuple[Identity, ...]) -> list[Call]:
        return self._player.look(identities)


class Elsewhere:
    """A process, for one store after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.histories.player"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def enter(self, place: Place) -> None:
        self._ask(replace(place, player=self._name))

    def leave(self) -> None:
        self._ask(Leave())

    def begin(self, round_: Round) -> None:
        self._tell(round_)

    def end(self) -> list[Call]:
        return self._hear()

    def look(self, identities: tuple[Identity, ...]) -> list[Call]:
        return self._ask(Look(identities))

    def close(self) -> None:
        """Its input ends, and so does it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def _ask(self, order: Order) -> list[Call]:
        self._tell(order)
        return self._hear()

    def _tell(self, order: Order) -> None:
        assert self._process.stdin is not None
        pickle.dump(order, self._process.stdin)
        self._process.stdin.flush()

    def _hear(self) -> list[Call]:
        assert self._process.stdout is not None
        heard: Any = pickle.load(self._process.stdout)
        return list(heard)


class Crew:
    """Processes that play on one store after the other; begun when they are first needed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._players: list[Elsewhere] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for player in self._players:
            player.close()

    @contextmanager
    def at(self, places: Sequence[Place]) -> Generator[list[Plays]]:
        """One player for each place; places may be the same."""
        while len(self._players) < max(self._count, len(places)):
            self._players.append(Elsewhere(f"p{len(self._players)}"))
        chosen = self._players[: len(places)]
        for player, place in zip(chosen, places, strict=True):
            player.enter(place)
        try:
            yield list(chosen)
        finally:
            for player in chosen:
                player.leave()


def recorded(players: Sequence[Plays], size: Size, seed: int) -> dict[Identity, list[Call]]:
    """One round: the history of each of its keys."""
    dice = Random(seed)
    identities = tuple(Identity(dice.randbytes(32)) for _ in range(size.keys))
    for player in players:
        player.begin(Round(identities, seed, size.lanes, size.moves))
    calls = [call for player in players for call in player.end()]
    assert len(calls) == len(players) * 2 * size.lanes * size.moves
    calls += players[0].look(identities)
    return {identity: history_of(identity, calls) for identity in identities}


def campaign(
    players: Sequence[Plays], size: Size, habits: Habits = ONE_STEP, seed: int = 1
) -> Figures:
    """Raises `Broken`, with the history, when one cannot be explained."""
    figures = Figures()
    for number in range(size.rounds):
        histories = recorded(players, size, seed * 1_000_000 + number)
        for identity, history in histories.items():
            try:
                verdict = check(identity, history, habits)
            except Broken as broken:
                raise Broken(f"round {number} of seed {seed}: {broken}") from None
            figures.histories += 1
            figures.nodes += verdict.nodes
            figures.rows.update(verdict.rows)
        each = {id(call): call for history in histories.values() for call in history}
        figures.outcomes.update(call.outcome for call in each.values())
    return figures
