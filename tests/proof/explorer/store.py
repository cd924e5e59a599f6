"""One step of the memory store, which is the executable reading of the state table, on a state
that can be hashed: records have numbers, and a step that was made before is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeAlias

from semel.core.operations.requests import StoreOperation
from semel.core.records import Case, Identity, Micros
from semel.core.terms import Terms
from semel.stores.memory.outbox import MemoryOutbox
from semel.stores.memory.records import MemoryRecords
from semel.stores.memory.rows import Row

Entries: TypeAlias = tuple[int, ...]

_KEPT: Final = [name for name in Row.__slots__ if name != "made"]
_all_of: Final[Callable[[Row], tuple[Any, ...]]] = attrgetter(*_KEPT)


class Shelf:
    """The store's code without its dictionary, which is part of the state."""

    def __init__(self, identities: tuple[Identity, ...], terms: Iterable[Terms]) -> None:
        """``terms``: those that are on record."""
        self._identities = identities
        self._records = MemoryRecords(MemoryOutbox())
        self._records.terms.update({each.id: each for each in terms})
        self._answers = self._records.answers()
        self._entries: list[Row | None] = [None]
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._ops: list[StoreOperation[Any]] = []
        self._op_numbers: dict[StoreOperation[Any], int] = {}
        self._steps: dict[tuple[Entries, int, Micros], tuple[Any, Entries]] = {}

    def op_number(self, op: StoreOperation[Any]) -> int:
        number = self._op_numbers.get(op)
        if number is None:
            number = self._op_numbers[op] = len(self._ops)
            self._ops.append(op)
        return number

    def op(self, number: int) -> StoreOperation[Any]:
        return self._ops[number]

    def entry(self, number: int) -> Row | None:
        return self._entries[number]

    def case(self, entry: Row) -> Case:
        return entry.case(self._records.terms)

    def perform(self, entries: Entries, op: int, now: Micros) -> tuple[Any, Entries]:
        """The reply, always the same object for the same step, and the records afterwards."""
        key = (entries, op, now)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = self._perform(entries, self._ops[op], now)
        return step

    def _perform(
        self, entries: Entries, op: StoreOperation[Any], now: Micros
    ) -> tuple[Any, Entries]:
        held = self._records.rows
        held.clear()
        for identity, number in zip(self._identities, entries, strict=True):
            entry = self._entries[number]
            if entry is not None:
                held[identity] = entry
        reply = self._answers[type(op)](op, now)
        return reply, tuple([self.number(held.get(each)) for each in self._identities])

    def number(self, entry: Row | None) -> int:
        if entry is None:
            return 0
        kept = _all_of(entry)
        number = self._numbers.get(kept)
        if number is None:
            number = self._numbers[kept] = len(self._entries)
            self._entries.append(entry)
        return number
