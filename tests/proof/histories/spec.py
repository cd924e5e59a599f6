"""The state table as a sequential specification: the memory store's code on one record.

A state is the number of an entry, and 0 where there is no record. The clock stands still.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from semel.core.operations.maintenance import Abandon, Reap, Retire, Sweep
from semel.core.operations.requests import Accept, Claim, Lost, StoreOperation
from semel.core.records import Identity, Micros, State
from semel.core.states import RecordEvent
from semel.stores.memory.rows import WRITES, Write, lapse_event, proved, tombstone
from tests.proof.explorer.store import Shelf
from tests.proof.histories.calls import Call
from tests.stores.moves import TERMS
from tests.stores.timeless import timeless

NOW: Final[Micros] = 1_700_000_000_000_000

StateNumber: TypeAlias = int
Step: TypeAlias = tuple[Any, StateNumber]
Row: TypeAlias = tuple[State | None, RecordEvent]


class Part(StrEnum):
    """What of a call it is."""

    WHOLE = "whole"
    """It took effect, and was answered so."""
    UNSEEN = "unseen"
    """It took effect, and the answer was lost."""
    ROUND = "round"
    """A round of maintenance took this record along."""
    REFUSAL = "refusal"
    """It was refused …"""
    LOOK = "look"
    """… and the record that the refusal tells of was read after it."""


@dataclass(frozen=True, eq=False)
class Deed:
    """A call, or a part of one, as the search sees it; it happens in one instant."""

    call: Call
    """Its reply without times."""
    op: int
    look: int
    began: int
    ended: int
    part: Part = Part.WHOLE
    required: bool = True
    still: bool = False
    """It changed nothing, so it may be put as early as it fits."""
    needs: Deed | None = None
    """Only when this one is done."""
    until: Deed | None = None
    """Only while this one is not."""


class Spec:
    """One key's record, and what each operation makes of it."""

    def __init__(self, identity: Identity) -> None:
        self._shelf = Shelf((identity,), TERMS)
        self._steps: dict[tuple[StateNumber, int], Step] = {}

    def number(self, op: StoreOperation[Any]) -> int:
        return self._shelf.op_number(op)

    def state_of(self, number: StateNumber) -> State | None:
        entry = self._shelf.entry(number)
        return None if entry is None else entry.state

    def row(self, before: StateNumber, op: StoreOperation[Any], after: StateNumber) -> Row:
        """The row of the table that was taken."""
        entry = self._shelf.entry(before)
        match op:
            case Claim():
                event = RecordEvent.CLAIM
            case Accept():
                event = RecordEvent.ACCEPT
            case Retire():
                event = RecordEvent.RETIRE
            case Abandon():
                event = RecordEvent.ABANDON
            case Sweep():
                event = lapse_event(entry)
            case Reap():
                expired = self.state_of(after) is State.EXPIRED
                event = RecordEvent.EXPIRE if expired else RecordEvent.FORGET
            case _:
                kind = WRITES[cast("type[Write]", type(op))]
                event = kind.event if kind.chosen is None else kind.chosen(op, entry)
        return self.state_of(before), event

    def step(self, state: StateNumber, op: int) -> Step:
        """The reply, without times, and the state after it."""
        found = self._steps.get((state, op))
        if found is None:
            reply, (after,) = self._shelf.perform((state,), op, NOW)
            found = self._steps[state, op] = timeless(reply), after
        return found

    def outcomes(self, state: StateNumber, deed: Deed) -> Iterator[StateNumber]:
        """Where the deed may have led from ``state``, seeing what its caller was told."""
        match deed.part:
            case Part.ROUND:
                yield from self._of_a_round(state, deed.call, deed.op)
            case Part.WHOLE:
                reply, after = self.step(state, deed.op)
                if reply == deed.call.reply:
                    yield after
            case Part.UNSEEN:
                _, after = self.step(state, deed.op)
                if after != state:
                    yield after
            case Part.REFUSAL:
                reply, after = self.step(state, deed.op)
                if isinstance(reply, Lost):
                    yield after
            case Part.LOOK:
                reply, after = self.step(state, deed.look)
                if getattr(reply, "record", None) == deed.call.reply.record:
                    yield after

    def _of_a_round(self, state: StateNumber, call: Call, op: int) -> Iterator[StateNumber]:
        _, after = self.step(state, op)
        between = self._expired(state) if isinstance(call.op, Reap) else after
        yield from {after, between} - {state}

    def _expired(self, state: StateNumber) -> StateNumber:
        """A reaper expires and forgets in two steps, and others may come in between."""
        entry = self._shelf.entry(state)
        if entry is None or not proved(RecordEvent.EXPIRE, entry.fence, entry, NOW):
            return state
        expired = entry.copy(State.EXPIRED)
        tombstone(expired)
        return self._shelf.number(expired)
