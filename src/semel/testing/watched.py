"""A backend whose every step can be seen, and stopped: before it is taken, and after.

Nothing of this is in semel: a backend is wrapped. What a step is: an operation of a store, or one
of a transaction's own (begin, savepoint, undo, flush, commit, roll_back, ascertain).
"""

from __future__ import annotations

import threading
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol, TypeVar, cast

from semel.core import operations as ops
from semel.core.frozen import frozen
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.stores.base import (
    AsyncStore,
    AsyncTransaction,
    Backend,
    BackendWrapper,
    Store,
    Transaction,
)

R = TypeVar("R")

_STEPS: Final = frozenset({"savepoint", "undo", "flush", "commit", "roll_back"})
"""The steps of a transaction that are no operations."""
_BACKGROUND: Final = (
    *("semel-keeper", "semel-leases", "semel-renews"),
    *("semel-maintenance", "semel-census"),
)


def in_background() -> bool:
    """Whether this thread is one that semel has beside requests."""
    return threading.current_thread().name.startswith(_BACKGROUND)


@frozen
class Step:
    """One step: ``Claim``, ``Complete``, ``commit`` …

    ``op``: the operation, if it is one. ``within``: the transaction, if it is in one.
    """

    name: str
    op: StoreOperation[Any] | None = None
    within: WatchedSteps | None = None


class Watcher(Protocol):
    """Whoever looks on. What it raises is raised in the place of the step, or of its reply."""

    def before(self, step: Step) -> None: ...

    def after(self, step: Step, reply: object) -> None: ...


class WatchedSteps:
    """What watched stores and transactions have in common."""

    transacts = False

    def __init__(self, inner: Any, watcher: Watcher) -> None:
        self.inner = inner
        self.watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, name: str, op: StoreOperation[Any] | None = None) -> Step:
        return Step(name, op, self if self.transacts else None)


class WatchedStore(WatchedSteps):
    """A store for threads."""

    def perform(self, op: StoreOperation[R], /) -> R:
        step = self.step(type(op).__name__, op)
        self.watcher.before(step)
        reply = self.ask(op)
        self.watcher.after(step, reply)
        return reply

    def ask(self, op: StoreOperation[R]) -> R:
        return cast("R", self.inner.perform(op))


class AsyncWatchedStore(WatchedSteps):
    """A store for event loops."""

    async def perform(self, op: StoreOperation[R], /) -> R:
        step = self.step(type(op).__name__, op)
        self.watcher.before(step)
        reply = await self.ask(op)
        self.watcher.after(step, reply)
        return reply

    async def ask(self, op: StoreOperation[R]) -> R:
        return cast("R", await self.inner.perform(op))


class WatchedTransaction(WatchedStore):
    """A `Transaction`."""

    transacts = True

    def __getattr__(self, name: str) -> Any:
        return partial(self._take, name) if name in _STEPS else super().__getattr__(name)

    def _take(self, name: str) -> None:
        step = self.step(name)
        self.watcher.before(step)
        getattr(self.inner, name)()
        self.watcher.after(step, None)


class AsyncWatchedTransaction(AsyncWatchedStore):
    """An `AsyncTransaction`."""

    transacts = True

    def __getattr__(self, name: str) -> Any:
        return partial(self._take, name) if name in _STEPS else super().__getattr__(name)

    async def _take(self, name: str) -> None:
        step = self.step(name)
        self.watcher.before(step)
        await getattr(self.inner, name)()
        self.watcher.after(step, None)


class WatchedBackend(BackendWrapper):
    """Takes a backend's place. Subclasses may watch with classes of their own."""

    stores: tuple[type[WatchedStore], type[AsyncWatchedStore]] = (WatchedStore, AsyncWatchedStore)
    transactions: tuple[type[WatchedTransaction], type[AsyncWatchedTransaction]] = (
        WatchedTransaction,
        AsyncWatchedTransaction,
    )

    def __init__(self, inner: Backend, watcher: Watcher) -> None:
        super().__init__(inner)
        self.watcher = watcher

    def blocking(self) -> Store:
        return self.stores[0](self.inner.blocking(), self.watcher)

    def awaited(self) -> AsyncStore:
        return self.stores[1](self.inner.awaited(), self.watcher)

    def on(self, connection: Any) -> Any:
        """A store in a transaction of the application's own."""
        joined: Any = cast("Any", self.inner).on(connection)
        return self.stores[iscoroutinefunction(joined.perform)](joined, self.watcher)

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        self.watcher.before(Step("begin"))
        begun = super().begin(identity, limit)
        if begun is None:
            return None
        watched = self.transactions[0](begun, self.watcher)
        self.watcher.after(watched.step("begin"), begun)
        return cast("Transaction", watched)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        self.watcher.before(Step("begin"))
        begun = await super().abegin(identity, limit)
        if begun is None:
            return None
        watched = self.transactions[1](begun, self.watcher)
        self.watcher.after(watched.step("begin"), begun)
        return cast("AsyncTransaction", watched)

    def ascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        self.watcher.before(Step("ascertain"))
        found = super().ascertain(identity)
        self.watcher.after(Step("ascertain"), found)
        return found

    async def aascertain(self, identity: Identity) -> ops.Found | ops.NoRecord:
        self.watcher.before(Step("ascertain"))
        found = await super().aascertain(identity)
        self.watcher.after(Step("ascertain"), found)
        return found
