"""All schedules of a world, or many of them; and the shortest that breaks a promise.

A schedule is a path through the graph of states. Two schedules that meet in a state go on alike, so
each state is gone through once, and the paths through it are counted.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.proof.explorer.engine import Engine, Move
from tests.proof.explorer.healing import Healer
from tests.proof.explorer.promises import Violation
from tests.proof.explorer.state import State
from tests.proof.explorer.worlds import BY_NAME, World


class Broken(Exception):
    """A schedule that breaks a promise; what is said last can be run to see it again.

    Steps without a number come by themselves, after the faults (`healing`).
    """

    def __init__(
        self, world: World, schedule: list[str], violation: Violation, healing: list[str]
    ) -> None:
        self.world = world
        self.schedule = schedule
        self.violation = violation
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(schedule, 1))
        steps += "".join(f"\n   - {step}" for step in healing)
        line = " ".join(schedule)
        super().__init__(
            f"{violation}\nin the world {world.name}:\n{steps}\n"
            f"again: replay({world.name!r}, {line!r})"
        )


@dataclass(frozen=True)
class Covered:
    """What was gone through."""

    world: str
    schedules: int
    states: int
    steps: int
    seconds: float
    ends: frozenset[Any]
    """What it may come to, without names: records, effects, kept answers, those who died."""

    def __str__(self) -> str:
        return (
            f"{self.world}: {self.schedules:,} schedules through {self.states:,} states "
            f"({self.steps:,} steps, {self.seconds:.1f} s)"
        )


def exhaustive(world: World) -> Covered:
    """Every schedule there is; raises Broken, with a short schedule, at the first that is bad."""
    return _Search(world).all()


def sampled(world: World, walks: int, seed: int) -> Covered:
    """Random schedules, each to its end; the same for the same seed."""
    return _Search(world).some(walks, random.Random(f"{world.name} {seed}"))


class _Search:
    def __init__(self, world: World) -> None:
        self._world = world
        self._engine = Engine(world)
        self._healer = Healer(self._engine)
        self._paths: dict[State, int] = {}
        self._trail: list[str] = []
        self._steps = 0
        self._ends: set[Any] = set()

    def all(self) -> Covered:
        began = time.process_time()
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
        try:
            schedules = self._through(self._engine.start())
        except Violation as violation:
            raise self._broken(violation) from None
        return self._covered(schedules, len(self._paths), began)

    def _through(self, state: State) -> int:
        """How many schedules lead on from here."""
        known = self._paths.get(state)
        if known is not None:
            return known
        paths = 0
        for label, step in self._moves(state):
            self._trail.append(label)
            self._steps += 1
            paths += self._through(step())
            self._trail.pop()
        self._paths[state] = paths
        return paths or self._end(state)

    def _moves(self, state: State) -> list[Move]:
        return self._engine.moves(state)

    def _end(self, state: State) -> int:
        self._healer.heal(state)
        self._ends.add(self._engine.outline(state))
        self._paths[state] = 1
        return 1

    def some(self, walks: int, chance: random.Random) -> Covered:
        began = time.process_time()
        ends = set[State]()
        try:
            for _ in range(walks):
                self._trail.clear()
                ends.add(self._walk(chance))
        except Violation as violation:
            raise self._broken(violation) from None
        return self._covered(walks, len(ends), began)

    def _walk(self, chance: random.Random) -> State:
        state = self._engine.start()
        while moves := self._engine.moves(state):
            label, step = chance.choice(moves)
            self._trail.append(label)
            self._steps += 1
            state = step()
        self._healer.heal(state)
        return state

    def _covered(self, schedules: int, states: int, began: float) -> Covered:
        seconds = time.process_time() - began
        return Covered(
            self._world.name, schedules, states, self._steps, seconds, frozenset(self._ends)
        )

    def _broken(self, violation: Violation) -> Broken:
        return shrunk(self._world, list(self._trail), violation)


# ── again, and shorter ────────────────────────────────────────────────────────────────────────────


def replay(world: World | str, schedule: str, *, strict: bool = False) -> None:
    """Go through one schedule once more; raises Broken as it did the first time.

    ``strict``: ValueError for the first step that is not possible where it comes.
    """
    world = BY_NAME[world] if isinstance(world, str) else world
    steps = schedule.split()
    taken, violation, healing = _follow(world, steps)
    if strict and violation is None and taken != steps:
        raise ValueError(next(b for a, b in zip([*taken, ""], steps, strict=False) if a != b))
    if violation is not None:
        raise Broken(world, taken, violation, healing)


def shrunk(world: World, schedule: list[str], violation: Violation) -> Broken:
    """The same promise, broken in as few steps as leaving some out can do."""
    size = max(1, len(schedule) // 2)
    while True:
        for at in range(0, len(schedule), size):
            fewer, found, _ = _follow(world, schedule[:at] + schedule[at + size :])
            same = found is not None and found.promise == violation.promise
            if found is not None and same and len(fewer) < len(schedule):
                schedule, violation = fewer, found
                break
        else:
            if size == 1:
                return Broken(world, schedule, violation, _follow(world, schedule)[2])
            size //= 2


def _follow(world: World, steps: Iterable[str]) -> tuple[list[str], Violation | None, list[str]]:
    """The steps that could be taken; those that were not possible where they came are left out."""
    engine = Engine(world)
    state, taken, healer = engine.start(), list[str](), Healer(engine)
    try:
        for label in steps:
            step = dict(engine.moves(state)).get(label)
            if step is not None:
                taken.append(label)
                state = step()
        healer.heal(state)
    except Violation as violation:
        return taken, violation, healer.trail
    return taken, None, []
