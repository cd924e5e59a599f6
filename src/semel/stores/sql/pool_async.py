"""The pool of one event loop, for any database server: who has a connection, and who gets it next.

A statement is read to its end, or to its deadline, whether or not anybody still awaits it: a
cancelled caller leaves at once, and a cancellation never waits for the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from semel.core.operations.requests import Found, NoRecord, StoreOperation
from semel.core.records import Identity
from semel.stores.background import in_thread
from semel.stores.open_transactions import HeldIdentity, LazySessions
from semel.stores.sql.plans import plan
from semel.stores.sql.pooled import (
    PooledConnection,
    PoolStatistics,
    ServerPool,
    ServerSettings,
)
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import (
    Statement,
    StatementFault,
    adrive,
    retried,
    usable_after,
)
from semel.stores.sql.transaction import AsyncServerTransaction, Exchange, TransactionSteps

R = TypeVar("R")


L = TypeVar("L", bound=PooledConnection)

_A_TICK: Final = 0.001
"""Seconds by which a timer may be early."""

OnEnd: TypeAlias = Callable[[L, BaseException | None], None]
"""Called with the connection and the error, if any."""


class AsyncConnectionPool(ServerPool, Generic[L]):
    """At most ``pool_size`` connections; the one used last is used next, so that those which are
    not needed grow idle; a timer closes them.

    A caller that finds none waits for one, or for None: the right to open one. A server's own pool
    says how a connection is opened and used. ``migrate`` is called before the first is made.
    """

    def __init__(self, settings: ServerSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self.loop = asyncio.get_running_loop()
        self._idle: list[L] = []
        self._trimming: asyncio.TimerHandle | None = None
        self._waiters: deque[asyncio.Future[L | None]] = deque()
        self._opening: set[asyncio.Task[L]] = set()
        self._taken = 0
        self._drained: asyncio.Future[None] | None = None

    async def _connect(self) -> L:
        """Open a connection; a fault when that fails."""
        raise NotImplementedError

    async def _greet(self, conn: L, deadline: float) -> None:
        """Check that the server is one that keeps what it acknowledges."""
        raise NotImplementedError

    async def _run(self, conn: L, statement: Statement, deadline: float) -> Rows:
        """A statement on a connection that is not in the pool yet."""
        raise NotImplementedError

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """Send it, or let it wait for a connection; it goes on when nobody awaits it."""
        raise NotImplementedError

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        raise NotImplementedError

    async def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = retried(plan(op), self.store_error, doubt=doubt)
        return await adrive(steps, lambda statement: self.execute(statement, deadline))

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when they come back: by their deadline."""
        self._drained = self.loop.create_future()
        self.abandon()
        if self._taken:
            await asyncio.wait([self._drained], timeout=self._timeout)

    def abandon(self) -> None:
        """Close what is idle, without the loop, which may be closed already."""
        while self._idle:
            self._idle.pop().close()
        if self._trimming is not None:
            self._trimming.cancel()
            self._trimming = None

    def statistics(self) -> PoolStatistics:
        waiting = sum(not waiter.done() for waiter in self._waiters)
        return self._connections.statistics(len(self._idle), waiting)

    def _trim(self) -> None:
        """Close connections that nobody has needed for long; the first is the longest idle."""
        self._trimming, now = None, monotonic()
        while self._idle and self._idle[0].idle_since <= now - self._max_idle:
            self._idle.pop(0).close()
        if self._idle:
            self._trim_in(self._idle[0].idle_since + self._max_idle - now)

    def _trim_in(self, seconds: float) -> None:
        self._trimming = self.loop.call_later(max(_A_TICK, seconds), self._trim)

    async def _take(self, deadline: float) -> L:
        if deadline <= monotonic():
            raise StatementFault("no time was left")
        while self._idle:
            idle = self._idle.pop()
            if not idle.lost() and idle.expires_at > monotonic():
                self._taken += 1
                return idle
            idle.close()
        if self._taken < self._size:
            self._taken += 1
            conn = None
        else:
            conn = await self._wait_for_connection(deadline)
        return conn or await self._open(deadline)

    async def _wait_for_connection(self, deadline: float) -> L | None:
        waiter: asyncio.Future[L | None] = self.loop.create_future()
        timer = self.loop.call_later(max(0.0, deadline - monotonic()), self._time_out, waiter)
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            # It may have been given one and cancelled in the same turn of the loop.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())
            raise
        finally:
            timer.cancel()

    def _time_out(self, waiter: asyncio.Future[L | None]) -> None:
        if not waiter.done():
            waiter.set_exception(self._none_came_free())

    def _put(self, conn: L, error: BaseException | None) -> None:
        """Take back a connection after its statement. If it is lost, the idle ones probably are."""
        if isinstance(error, StatementFault) and error.contagious:
            self.abandon()
        if self._drained is None and usable_after(error):
            self._pass_on(conn)
        else:
            conn.close()
            self._pass_on(None)

    def _pass_on(self, conn: L | None) -> None:
        """Give a connection, or the right to open one, to the next who waits; else keep it."""
        now = monotonic()
        if conn is not None and conn.expires_at <= now:
            conn.close()
            conn = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                if conn is not None:
                    conn.rest(None)  # its next user will notice
                waiter.set_result(conn)
                return
        self._taken -= 1
        if conn is not None:
            conn.rest(self._lost)
            conn.idle_since = now
            self._idle.append(conn)
            if self._trimming is None:
                self._trim_in(self._max_idle)
        elif self._drained is not None and not self._taken and not self._drained.done():
            self._drained.set_result(None)

    def _lost(self, conn: L, error: BaseException | None) -> None:
        """The server hung up on an idle connection."""
        self._idle.remove(conn)
        conn.close()

    async def _open(self, deadline: float) -> L:
        """In a task: a connection that is half made for a cancelled caller serves the next."""
        opening = self.loop.create_task(self._connect_in_time(deadline))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._opening.add(opening)  # the loop itself holds its tasks only weakly
            opening.add_done_callback(self._opened_after_cancel)
            raise
        except BaseException:
            self._pass_on(None)
            raise

    async def _connect_in_time(self, deadline: float) -> L:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                if self._migrate and not self._ready:
                    await in_thread(self._migrate)
                conn = await self._connect()
                conn.join(self._connections)
                try:
                    await self._greet(conn, deadline)
                    if not self._ready:
                        checks = self._check_schema()
                        await adrive(checks, lambda asked: self._run(conn, asked, deadline))
                except BaseException:
                    conn.close()
                    raise
                return conn
        except TimeoutError:
            raise StatementFault("no connection within the time limit") from None

    def _opened_after_cancel(self, opening: asyncio.Task[L]) -> None:
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None:
            self._pass_on(None)
        else:
            self._put(opening.result(), None)


class AsyncTransactionPool(AsyncConnectionPool[L]):
    """At most ``pool_size`` transactions at once, of one event loop, on connections of their own:
    handlers that hold all of them must not keep renewals and completions of others waiting."""

    DATABASE: str
    """The server's name, for messages."""
    steps: TransactionSteps[L]

    def __init__(self, settings: ServerSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        self.sessions = LazySessions(self.DIALECT)

    def exchange(
        self, conn: L, exchange: Exchange, deadline: float, on_end: OnEnd[L]
    ) -> asyncio.Future[Rows]:
        """Run the exchange to its end or the deadline, whoever awaits it. ``on_end`` is called
        before the future is done."""
        raise NotImplementedError

    async def begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> AsyncServerTransaction | None:
        """None when another one has the identity's lock."""
        try:
            try:
                return await self._begin(identity, hold, limit)
            except StatementFault as fault:
                if not fault.contagious:
                    raise
                self.abandon()  # nothing was begun: a new connection may do
                return await self._begin(identity, hold, limit)
        except StatementFault as fault:
            raise self.store_error(fault, doubt=False) from None

    async def _begin(
        self, identity: Identity | None, hold: HeldIdentity, limit: float | None
    ) -> AsyncServerTransaction | None:
        conn = await self._take(self.deadline())
        transaction = AsyncServerTransaction(self, conn, identity, hold)
        won = False
        try:
            won = await transaction.begin(identity, limit)
        finally:
            if not won:
                transaction.begin_end(commit=False)
        return transaction if won else None

    async def ascertain(self, identity: Identity) -> Found | NoRecord:
        """On a new connection: those of the pool may have the same trouble as the doubtful one."""
        deadline = self.deadline()
        try:
            conn = await self._connect_in_time(deadline)
            try:
                asked = self.steps.ascertain(conn, identity, deadline)
                rows = await self.exchange(conn, asked, deadline, nothing)
            finally:
                conn.close()
        except StatementFault as fault:
            raise self.store_error(fault, doubt=True) from None
        return cast("Found | NoRecord", rows[0][0])

    def give_back(self, conn: L, *, usable: bool, wipe: bool) -> None:
        if not usable:
            self.steps.cancel(conn)
            conn.close()
            self._pass_on(None)
        elif wipe:
            wiped = self.exchange(conn, self.steps.wipe(conn), self.deadline(), self._put)
            wiped.add_done_callback(heard)
        else:
            self._put(conn, None)

    def free_slot(self) -> None:
        """Let another begin. From any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._pass_on, None)


def nothing(conn: object, error: BaseException | None) -> None:
    """For callers that close the connection themselves."""


def heard(answer: asyncio.Future[Any]) -> None:
    """Retrieve the error, which has closed the connection; nobody else needs it."""
    if not answer.cancelled():
        answer.exception()
