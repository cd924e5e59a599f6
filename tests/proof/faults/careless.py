"""What must not be made of an error: each of these is a way to get it wrong that people ship.

The campaigns must find every one of them, or they would not find it in semel either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, cast

from semel.core.operations.requests import Claim, Claimed, Complete, Release, StoreOperation
from semel.core.records import Identity
from semel.errors import StoreUnavailable
from semel.stores.base import AsyncStore, AsyncTransaction, Backend, BackendWrapper, system_clock

Handled = Callable[[Any, StoreOperation[Any], StoreUnavailable], Awaitable[Any]]
Mistake = Literal["runs anyway", "frees the key", "thinks nothing of it", "presumes success"]

DAY = 86_400_000_000


async def runs_anyway(store: Any, op: StoreOperation[Any], error: StoreUnavailable) -> Any:
    """The claim was not answered: fail open, customers are waiting."""
    if isinstance(op, Claim):
        now = system_clock()
        return Claimed(now + op.lease, now, now)
    raise error


async def frees_the_key(store: Any, op: StoreOperation[Any], error: StoreUnavailable) -> Any:
    """The completion failed, so nothing happened: let the client try again."""
    if isinstance(op, Complete):
        await store.perform(Release(op.identity, op.fence, DAY, "completion failed"))
    raise error


async def thinks_nothing_of_it(store: Any, op: StoreOperation[Any], error: StoreUnavailable) -> Any:
    """An error is an error: surely the key was not claimed, and need not be given back."""
    if isinstance(op, Claim):
        raise StoreUnavailable(str(error), applied=False)
    raise error


HANDLED: dict[Mistake, Handled] = {
    "runs anyway": runs_anyway,
    "frees the key": frees_the_key,
    "thinks nothing of it": thinks_nothing_of_it,
}


class Careless(BackendWrapper):
    """The store within, whose errors are misunderstood, in the awaited colour."""

    def __init__(self, inner: Backend, mistake: Mistake) -> None:
        super().__init__(inner)
        self._mistake: Mistake = mistake

    def awaited(self) -> AsyncStore:
        handled = HANDLED.get(self._mistake)
        store = self.inner.awaited()
        return store if handled is None else _Misread(store, handled)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        begun = await super().abegin(identity, limit)
        if begun is None or self._mistake != "presumes success":
            return begun
        return cast("AsyncTransaction", _Presumed(begun))


class _Misread:
    def __init__(self, store: AsyncStore, handled: Handled) -> None:
        self._store = store
        self._handled = handled

    async def perform(self, op: StoreOperation[Any], /) -> Any:
        try:
            return await self._store.perform(op)
        except StoreUnavailable as error:
            return await self._handled(self._store, op, error)


class _Presumed:
    """The COMMIT was sent, so it has been done."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def commit(self) -> None:
        with suppress(StoreUnavailable):
            await self._transaction.commit()
