"""Transactions for event loops.

A handler waits on the connection's socket itself, in this loop or in a thread: semel watches the
socket only while a statement of its own is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar, cast

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.errors import SemelError
from semel.stores.open_transactions import HeldIdentity, LazySessions
from semel.stores.postgres import transaction as steps
from semel.stores.postgres.connection import Exchange
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.pool_async import AsyncPostgresPool, WatchedConnection, nothing
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.transaction import PostgresTransactionState, cancel, hang_up
from semel.stores.sql.pool_async import heard, usable_after
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import StatementFault, adrive

R = TypeVar("R")


class AsyncPostgresTransaction(PostgresTransactionState[WatchedConnection]):
    """See `semel.stores.base.AsyncTransaction`."""

    def __init__(
        self,
        pool: AsyncPostgresTransactionPool,
        watched: WatchedConnection,
        identity: Identity | None,
        hold: HeldIdentity,
    ) -> None:
        super().__init__(pool, watched, watched.conn, identity, hold)
        self._pool = pool
        self._under_way: asyncio.Future[None] | None = None
        self._outcome: asyncio.Task[SemelError | None] | None = None

    async def perform(self, op: StoreOperation[R], /) -> R:
        return cast("R", (await self._run(steps.perform(self._conn, op)))[0][0])

    async def savepoint(self) -> None:
        await self._run(steps.command(self._conn, steps.SAVEPOINT))
        self._marked = True

    async def undo(self) -> None:
        self._drop_sessions()
        await self._run(steps.undo(self._conn))

    async def flush(self) -> None:
        if self._sessions is not None:
            await self._sessions.aflush()

    async def commit(self) -> None:
        """In a task, to its end; asked again, it has the same outcome."""
        self._begin_end()
        if self._outcome is None:
            self._outcome = self._pool.keep(self._end(commit=True))
        error = await asyncio.shield(self._outcome)
        if error is not None:
            raise error

    async def roll_back(self) -> None:
        """In a task, like a commit; one that is under way is awaited."""
        with suppress(Exception):
            await asyncio.shield(self.abandon())

    def abandon(self) -> asyncio.Task[SemelError | None]:
        """Roll back without being awaited."""
        self._begin_end()
        if self._outcome is None:
            self._outcome = self._pool.keep(self._end(commit=False))
        return self._outcome

    async def begin(self, identity: Identity | None, limit: float | None) -> bool:
        self._turn.take()
        rows = await self._send(steps.begin(self._conn, identity, limit))
        return bool(rows[0][0])

    # ── semel's own statements ───────────────────────────────────────────────────────────────────

    async def _run(self, exchange: Exchange) -> Rows:
        self._turn.take()
        try:
            self._require_begun()
        except BaseException:
            self._turn.give()
            raise
        try:
            return await self._send(exchange)
        except StatementFault as fault:
            raise store_error(fault, doubt=False) from None  # whatever it was, nothing is committed

    def _send(self, exchange: Exchange) -> asyncio.Future[Rows]:
        """The answer is read whether or not anybody still awaits it."""
        self._under_way = self._pool.loop.create_future()
        return self._pool.watch(self._lent, exchange, self._exchange_over)

    def _exchange_over(self, watched: WatchedConnection, error: Exception | None) -> None:
        watched.unwatch()
        self._broken = self._broken or (error is not None and not usable_after(error))
        self._turn.give()
        if self._under_way is not None:
            self._under_way.set_result(None)
            self._under_way = None

    async def _end(self, *, commit: bool) -> SemelError | None:
        if self._under_way is not None:
            await self._under_way
        return await adrive(self._ending(commit=commit), self._send)


class AsyncPostgresTransactionPool(AsyncPostgresPool):
    """At most ``pool_size`` transactions at once, of one event loop."""

    def __init__(self, settings: PostgresSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self.shelf = LazySessions("postgresql")
        self._endings: set[asyncio.Task[Any]] = set()

    def keep(self, coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """A task that goes on when nobody awaits it; the loop itself holds its tasks weakly."""
        task = self.loop.create_task(coroutine)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def watch(
        self, watched: WatchedConnection, exchange: Exchange, on_end: Any
    ) -> asyncio.Future[Rows]:
        watched.watch()
        return watched.run(exchange, monotonic() + self._settings.timeout, on_end)

    async def begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> AsyncPostgresTransaction | None:
        try:
            try:
                return await self._begin(identity, hold, limit)
            except StatementFault as fault:
                if not fault.contagious:
                    raise
                self.abandon()
                return await self._begin(identity, hold, limit)
        except StatementFault as fault:
            raise store_error(fault, doubt=False) from None

    async def _begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> AsyncPostgresTransaction | None:
        watched = await self._take(monotonic() + self._settings.timeout)
        watched.unwatch()
        transaction = AsyncPostgresTransaction(self, watched, identity, hold)
        won = False
        try:
            won = await transaction.begin(identity, limit)
        finally:
            if not won:
                transaction.abandon()
        return transaction if won else None

    async def ascertain(self, identity: Identity) -> Found | NoRecord:
        """On a new connection: those of the pool may have the same trouble as the doubtful one."""
        deadline = monotonic() + self._settings.timeout
        try:
            watched = await self._connect_in_time(deadline)
            try:
                asked = steps.ascertain(watched.conn, identity, deadline)
                rows = await watched.run(asked, deadline, nothing)
            finally:
                watched.close()
        except StatementFault as fault:
            raise store_error(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, watched: WatchedConnection, *, usable: bool, wipe: bool) -> None:
        if watched.conn.forfeited:
            watched.close()
        elif not usable:
            cancel(watched.conn._pgconn)
            watched.close()
            self._pass_on(None)
        elif wipe:
            wiping = steps.command(watched.conn, steps.WIPE)
            self.watch(watched, wiping, self._put).add_done_callback(heard)
        else:
            watched.watch()
            self._put(watched, None)

    def sever(self, watched: WatchedConnection) -> None:
        """Cut a connection that somebody is using for a statement; the rest is left to them."""
        if not watched.conn.forfeited:  # else it is cut already, and its slot is free
            hang_up(watched.conn._pgconn)
            self._pass_on(None)

    def forfeit(self, watched: WatchedConnection) -> None:
        """Free the slot of a severed connection before its user has noticed. From any thread."""
        watched.conn.forfeited = True
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._pass_on, None)
