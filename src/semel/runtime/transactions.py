"""Store operations, joined to an open transaction while there is one: for both colours.

The transaction is the application's own as well: what a handler writes through it commits with the
record, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from semel.core import operations as ops
from semel.core.records import Identity
from semel.errors import ConfigurationError
from semel.stores.base import AsyncTransaction, Backend, Transaction, Transactional

if TYPE_CHECKING:
    import asyncio

Opened = TypeVar("Opened", Transaction, AsyncTransaction)


def transactional(backend: Backend) -> Transactional:
    """The backend as one whose database holds the application's tables, or a clear refusal."""
    if not backend.capabilities.transactions or not isinstance(backend, Transactional):
        raise ConfigurationError(
            f"{backend.url} has no transactions: mode='atomic', phases and effects need a store in "
            "the application's own database (SQLite, PostgreSQL, MariaDB, MySQL)"
        )
    return backend


class _Transact(Generic[Opened]):
    """What both colours do alike. ``left`` is told of the end of every transaction; ``limit`` is
    how many seconds one may lie idle."""

    def __init__(
        self,
        backend: Backend,
        left: Callable[[Identity], None] | None = None,
        limit: float | None = None,
    ) -> None:
        self._backend = backend
        self._left = left
        self._limit = limit
        self._identity: Identity | None = None
        self.transaction: Opened | None = None

    @property
    def _open(self) -> Opened:
        if self.transaction is None:
            raise AssertionError("no transaction is open")
        return self.transaction

    def _begun(self, identity: Identity, opened: Opened | None) -> ops.Begun | ops.Occupied:
        if opened is None:
            return ops.Occupied()
        self.transaction, self._identity = opened, identity
        return ops.Begun()

    def _ended(self) -> None:
        identity, self._identity = self._identity, None
        if identity is not None and self._left is not None:
            self._left(identity)


class Transact(_Transact[Transaction]):
    """Blocking."""

    # Twin of AsyncTransact._perform, by tools.twins
    def perform(self, op: ops.FlowOperation[Any]) -> Any:
        if isinstance(op, ops.StoreOperation):
            return (self.transaction or self._backend.blocking()).perform(op)
        match op:
            case ops.Begin(identity):
                opened = transactional(self._backend).begin(identity, self._limit)
                return self._begun(identity, opened)
            case ops.Ascertain(identity):
                return transactional(self._backend).ascertain(identity)
            case ops.Apart(work):
                return self._apart(work)
            case ops.RollBack():
                return self.end()
            case ops.Save():
                return self._open.savepoint()
            case ops.Flush():
                return self._open.flush()
            case ops.Undo():
                return self._open.undo()
            case ops.Commit():
                self._open.commit()
                return self.end()
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    def _apart(self, work: Callable[[], Any]) -> Any:
        return work()

    # Twin of AsyncTransact.end, by tools.twins
    def end(self) -> None:
        """Roll back what is open, if anything is."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.roll_back()
        self._ended()


class AsyncTransact(_Transact[AsyncTransaction]):
    """Awaited."""

    _last: tuple[ops.FlowOperation[Any], asyncio.Task[Any]] | None = None

    async def perform(self, op: ops.FlowOperation[Any]) -> Any:
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

    async def _perform(self, op: ops.FlowOperation[Any]) -> Any:
        if isinstance(op, ops.StoreOperation):
            return await (self.transaction or self._backend.awaited()).perform(op)
        match op:
            case ops.Begin(identity):
                opened = await transactional(self._backend).abegin(identity, self._limit)
                return self._begun(identity, opened)
            case ops.Ascertain(identity):
                return await transactional(self._backend).aascertain(identity)
            case ops.Apart(work):
                return await self._apart(work)
            case ops.RollBack():
                return await self.end()
            case ops.Save():
                return await self._open.savepoint()
            case ops.Flush():
                return await self._open.flush()
            case ops.Undo():
                return await self._open.undo()
            case ops.Commit():
                await self._open.commit()
                return await self.end()
            case _:
                raise AssertionError(f"no way to perform {op!r}")

    async def _apart(self, work: Callable[[], Any]) -> Any:
        from asyncio import to_thread

        return await to_thread(work)

    async def end(self) -> None:
        """Roll back what is open, if anything is."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            await transaction.roll_back()
        self._ended()
