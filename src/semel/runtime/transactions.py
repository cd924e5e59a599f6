"""Store operations, joined to an open transaction while there is one: for both colours.

The transaction is the application's own as well: what a handler writes through it commits with the
record, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.core.operations.handler import (
    Apart,
    Ascertain,
    Begin,
    Begun,
    Commit,
    Flush,
    Occupied,
    RollBack,
    Save,
    Undo,
)
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError
from semel.stores.base import AsyncTransaction, Backend, Transaction, Transactional

if TYPE_CHECKING:
    import asyncio


def transactional(backend: Backend) -> Transactional:
    """The backend as one whose database holds the application's tables, or a clear refusal."""
    if not backend.capabilities.transactions or not isinstance(backend, Transactional):
        raise ConfigurationError(
            f"{backend.url} has no transactions: mode='atomic', phases and effects need a store in "
            "the application's own database (SQLite, PostgreSQL)"
        )
    return backend


def _nobody_waits(identity: Identity) -> None:
    """The default: nobody is told. Phases and look-ups need no more."""


class _Transact:
    """What both colours do alike. ``left`` is told of the end of every transaction; ``limit`` is
    how many seconds one may lie idle."""

    def __init__(
        self,
        backend: Backend,
        left: Callable[[Identity], None] = _nobody_waits,
        limit: float | None = None,
    ) -> None:
        self._backend = backend
        self._left = left
        self._limit = limit
        self._identity: Identity | None = None

    def _leave(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None:
            self._left(identity)


class Transact(_Transact):
    """Blocking."""

    transaction: Transaction | None = None

    def perform(self, op: FlowOperation[Any]) -> Any:
        if isinstance(op, StoreOperation):
            transaction = self.transaction
            return (transaction or self._backend.blocking()).perform(op)
        match op:
            case Begin(identity):
                return self._begin(identity)
            case Ascertain(identity):
                return transactional(self._backend).ascertain(identity)
            case Apart(work):
                return work()
            case RollBack():
                return self.end()
            case Save():
                return self._open.savepoint()
            case Flush():
                return self._open.flush()
            case Undo():
                return self._open.undo()
            case Commit():
                self._open.commit()
                return self.end()
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    @property
    def _open(self) -> Transaction:
        if self.transaction is None:
            raise AssertionError("no transaction is open")
        return self.transaction

    def _begin(self, identity: Identity) -> Begun | Occupied:
        backend = transactional(self._backend)
        self.transaction = backend.begin(identity, self._limit)
        if self.transaction is None:
            return Occupied()
        self._identity = identity
        return Begun()

    def end(self) -> None:
        """Roll back what is open, if anything is."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.roll_back()
        self._leave()


class AsyncTransact(_Transact):
    """Awaited."""

    transaction: AsyncTransaction | None = None
    _last: tuple[FlowOperation[Any], asyncio.Task[Any]] | None = None

    async def perform(self, op: FlowOperation[Any]) -> Any:
        """Perform ``op``. A finishing one is a task of its own, which its caller's cancellation
        does not end. Asked for again, it is the same task: two would share the connection."""
        if not op.finishing:
            return await self._perform(op)
        import asyncio  # here, because a WSGI process need not load it

        if self._last is None or self._last[0] is not op:
            self._last = op, asyncio.ensure_future(self._perform(op))
        try:
            reply = await asyncio.shield(self._last[1])
        except Exception:
            self._last = None  # told: the next time it is asked for, it is done anew
            raise
        self._last = None
        return reply

    async def _perform(self, op: FlowOperation[Any]) -> Any:
        if isinstance(op, StoreOperation):
            transaction = self.transaction
            return await (transaction or self._backend.awaited()).perform(op)
        match op:
            case Begin(identity):
                return await self._begin(identity)
            case Ascertain(identity):
                return await transactional(self._backend).aascertain(identity)
            case Apart(work):
                from asyncio import to_thread

                return await to_thread(work)
            case RollBack():
                return await self.end()
            case Save():
                return await self._open.savepoint()
            case Flush():
                return await self._open.flush()
            case Undo():
                return await self._open.undo()
            case Commit():
                await self._open.commit()
                return await self.end()
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    @property
    def _open(self) -> AsyncTransaction:
        if self.transaction is None:
            raise AssertionError("no transaction is open")
        return self.transaction

    async def _begin(self, identity: Identity) -> Begun | Occupied:
        backend = transactional(self._backend)
        self.transaction = await backend.abegin(identity, self._limit)
        if self.transaction is None:
            return Occupied()
        self._identity = identity
        return Begun()

    async def end(self) -> None:
        """Roll back what is open, if anything is."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            await transaction.roll_back()
        self._leave()
