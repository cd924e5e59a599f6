"""After the faults: all that is alive goes on until it is quiet, and then must be settled.

Then somebody comes with the same request once more: whatever it is told is an end, and if it runs,
it is the first that did anything.
"""

from __future__ import annotations

from typing import Final

from semel.core.records import Case
from semel.core.records import State as RecordState
from tests.proof.explorer import promises
from tests.proof.explorer.engine import Engine
from tests.proof.explorer.state import Actor, State, with_actor
from tests.proof.explorer.worlds import OURS, PAST_LEASE

_LIVES: Final = 1_000_000
_ROUNDS: Final = 40
_STEPS: Final = 5_000
_ONLY_IF_NOTHING_ELSE: Final = ("impatient",)
_NEVER: Final = ("operator-evicts",)


class Healer:
    """Heals states of one world, and remembers which."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._healed: set[State] = set()
        self.trail: list[str] = []
        """The steps of the last healing."""

    def heal(self, state: State) -> None:
        """Raises Violation where something stays behind."""
        state = state._replace(faults=0, jumps=(), lives=_LIVES)
        if state in self._healed:
            return
        self.trail.clear()
        after = self._settle(state)
        self._demand_settled(after)
        late = self._engine.cast.late
        self.trail.append("Z-comes")
        root, spot = self._engine.cast.roots[late], self._engine.cast.spots[late]
        again = with_actor(after, late, Actor(root.number, found=after.entries[spot]))
        self._demand_settled(self._settle(again))
        self._healed.add(state)

    def _settle(self, state: State) -> State:
        for _ in range(_ROUNDS):
            state = self._run(state)
            if not self._waits_for_time(state):
                return state
            self.trail.append("time-passes")
            state = state._replace(now=state.now + PAST_LEASE)
        return state

    def _run(self, state: State) -> State:
        """Step after step, until nobody has one."""
        for _ in range(_STEPS):
            moves = [it for it in self._engine.moves(state) if it[0] not in _NEVER]
            if not moves:
                return state
            steps = [it for it in moves if it[0].partition(".")[2] not in _ONLY_IF_NOTHING_ELSE]
            label, step = (steps or moves)[0]
            self.trail.append(label)
            state = step()
        raise promises.Violation("12 every key is settled", "it goes round for ever")

    def _waits_for_time(self, state: State) -> bool:
        if any(actor.write_retries for actor in state.actors):
            return True
        entries = [self._engine.shelf.entry(number) for number in state.entries]
        moving = (RecordState.IN_PROGRESS, RecordState.PENDING, RecordState.UNKNOWN)
        cases = [self._engine.shelf.case(entry) for entry in entries if entry is not None]
        return any(
            case.record.state in moving and case.due_at is not None and _is_ours(case)
            for case in cases
        )

    def _demand_settled(self, state: State) -> None:
        provider, certain = self._engine.world.provider, self._engine.world.certain
        for spot, number in enumerate(state.entries):
            seen = (spot, state.epochs[spot]) in state.effects
            can_tell = provider == "final" or (provider is not None and seen)
            entry = self._engine.shelf.entry(number)
            case = None if entry is None else self._engine.shelf.case(entry)
            if case is None or _is_ours(case):  # of the other application nobody is there
                promises.p12_settled_in_the_end(case, can_tell or certain)
        held = [actor for actor in state.actors if actor.write_retries or actor.node >= 0]
        promises.demand("12 every key is settled", not held, "somebody never comes to an end")


def _is_ours(case: Case) -> bool:
    return case.terms is not None and case.terms.application == OURS
