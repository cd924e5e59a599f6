"""What ``memory://`` names. One lock makes every operation atomic."""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeVar, cast

from semel.core import operations as ops
from semel.core.records import Micros
from semel.core.texts import exact
from semel.stores.base import (
    AsyncStore,
    Capabilities,
    Clock,
    PrintableBackend,
    Store,
    system_clock,
)
from semel.stores.memory.notables import MemoryNotables
from semel.stores.memory.outbox import Answers, MemoryOutbox
from semel.stores.memory.records import MemoryRecords

R = TypeVar("R")


class _Recipe(NamedTuple):
    recipe: str
    previous: str | None
    alive_until: Micros | None


class MemoryBackend(PrintableBackend):
    """Records that live in this object and end with it."""

    def __init__(self, url: str = "memory://", *, clock: Clock = system_clock) -> None:
        self.url = url
        self.capabilities = Capabilities(durable=False, shared=False, transactions=False)
        self._clock = clock
        self._lock = threading.Lock()
        self._recipes: dict[str, _Recipe] = {}
        self._awaited = _AsyncMemoryStore(self)
        outbox = MemoryOutbox()
        self._answers: Answers = {
            ops.Register: self._register,
            ops.ReadRecipe: self._read_recipe,
            **MemoryRecords(outbox).answers(),
            **outbox.answers(),
            **MemoryNotables().answers(),
        }

    def blocking(self) -> Store:
        return self

    def awaited(self) -> AsyncStore:
        return self._awaited

    def migrate(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open; the records stay."""

    async def aclose(self) -> None:
        """Nothing is open; the records stay."""

    def perform(self, op: ops.StoreOperation[R]) -> R:
        """One atomic step: the lock is the whole transaction."""
        answer = self._answers.get(type(op))
        if answer is None:
            raise TypeError(f"not an operation of a store: {type(op).__name__}")
        with self._lock:
            return cast("R", answer(op, self._clock()))

    def _read_recipe(self, op: ops.ReadRecipe, now: Micros) -> ops.Recorded:
        found = self._recipes.get(exact(op.route))
        return ops.Recorded(None, None, None, now) if found is None else ops.Recorded(*found, now)

    def _register(self, op: ops.Register, now: Micros) -> ops.Registered | ops.Conflicting:
        recipe, previous = exact(op.recipe), op.previous and exact(op.previous)
        recorded = self._recipes.get(exact(op.route))
        if recorded is None:
            recorded = self._recipes[op.route] = _Recipe(recipe, None, None)
        elif recorded.recipe == previous != recipe and (
            # No key of the recipe before this one is alive, or that recipe comes back.
            (recorded.alive_until or 0) <= now or recorded.previous == recipe
        ):
            recorded = self._recipes[op.route] = _Recipe(recipe, previous, now + op.alive)
        if recorded.recipe != recipe:
            return ops.Conflicting(recorded.recipe, recorded.alive_until, now)
        return ops.Registered(recorded.previous, recorded.alive_until, now)


class _AsyncMemoryStore:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    async def perform(self, op: ops.StoreOperation[R], /) -> R:
        return self._backend.perform(op)
