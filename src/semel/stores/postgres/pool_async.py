"""The pool of one event loop.

Callbacks of the loop read the answer to a statement, whether or not anybody still awaits it: a
cancelled caller leaves at once, and the connection comes back to the pool with the answer, or is
closed at the deadline. A cancellation never waits for the server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeAlias, TypeVar

import psycopg

from semel.core.operations.requests import StoreOperation
from semel.stores.postgres.connection import (
    DIALECT,
    WRITE,
    Exchange,
    PostgresConnection,
    QuietAsyncConnection,
)
from semel.stores.postgres.errors import not_connected, store_error
from semel.stores.postgres.migration import migrate
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, adrive, retried

R = TypeVar("R")

OnEnd: TypeAlias = "Callable[[WatchedConnection, Exception | None], None]"

_A_TICK: Final = 0.001
"""Seconds by which a timer may be early."""


class WatchedConnection:
    """A connection whose socket is watched by an event loop."""

    __slots__ = (
        "_answer",
        "_deadline",
        "_exchange",
        "_loop",
        "_on_end",
        "_timer",
        "_watching",
        "_writing",
        "conn",
    )

    def __init__(self, conn: PostgresConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.conn = conn
        self._loop = loop
        self._exchange: Exchange | None = None
        self._on_end: OnEnd = _nothing
        self._watching = self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self.watch()

    def run(self, exchange: Exchange, deadline: float, on_end: OnEnd) -> asyncio.Future[Rows]:
        """Start ``exchange``. At its end ``on_end`` is called with the error, or None."""
        self._exchange, self._deadline, self._on_end = exchange, deadline, on_end
        self._answer: asyncio.Future[Rows] = self._loop.create_future()
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer()
        answer = self._answer
        self._on_ready()
        return answer

    def rest(self, on_lost: OnEnd) -> None:
        """Be idle: ``on_lost`` is called if the server hangs up."""
        self._on_end = on_lost

    def watch(self) -> None:
        if not self._watching:
            self._loop.add_reader(self.conn.fd, self._on_ready)
            self._watching = True

    def unwatch(self) -> None:
        """Leave the socket to others, until ``watch``. libpq may close it meanwhile, and its number
        may become that of another socket of this loop."""
        if self._watching and not self._loop.is_closed():
            self._loop.remove_reader(self.conn.fd)
        self._watching = False

    def close(self) -> None:
        self._on_end = _nothing
        self.unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._watch_writes(False)
        self.conn.close()

    def _on_ready(self) -> None:
        """The socket is ready for something."""
        if self._exchange is None:
            if not self.conn.alive():
                self._on_end(self, None)
            return
        try:
            want = next(self._exchange)
        except StopIteration as done:
            self._end(done.value, None)
        except Exception as error:
            self._end([], error)
        else:
            if self._writing or want & WRITE:
                self._watch_writes(bool(want & WRITE))

    def _watch_writes(self, writing: bool) -> None:
        if writing and not self._writing:
            self._loop.add_writer(self.conn.fd, self._on_ready)
        elif self._writing and not writing:
            self._loop.remove_writer(self.conn.fd)
        self._writing = writing

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, self._deadline - monotonic()), self._expire)

    def _expire(self) -> None:
        """The timer may be that of an earlier exchange. It is set again only here, because nearly
        all exchanges end long before."""
        self._timer = None
        if self._exchange is None:
            return
        if self._deadline > monotonic() + _A_TICK:
            self._set_timer()
        else:
            self._end([], StatementFault("no answer within the time limit", doubt=True))

    def _end(self, rows: Rows, error: Exception | None) -> None:
        if self._writing:
            self._watch_writes(False)
        self._exchange = None
        self._on_end(self, error)
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(rows)
        else:
            self._answer.set_exception(error)


def usable_after(error: Exception | None) -> bool:
    """Whether a connection can be used again."""
    return error is None or (isinstance(error, StatementFault) and not error.broken)


def _nothing(watched: WatchedConnection, error: Exception | None) -> None:
    """An ``on_end`` for callers that close the connection themselves."""


class AsyncPostgresPool:
    """At most ``pool_size`` connections; the one used last is used next.

    A caller that finds none waits for one, or for None: the right to open one.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self.loop = asyncio.get_running_loop()
        self._idle: list[WatchedConnection] = []
        self._waiters: deque[asyncio.Future[WatchedConnection | None]] = deque()
        self._opening: set[asyncio.Task[WatchedConnection]] = set()
        self._taken = 0
        self._ready = False
        self._drained: asyncio.Future[None] | None = None

    async def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = retried(plan(op), store_error, doubt=doubt)
        return await adrive(steps, lambda statement: self.execute(statement, deadline))

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when they come back: by their deadline."""
        self._drained = self.loop.create_future()
        self.abandon()
        if self._taken:
            await asyncio.wait([self._drained], timeout=self._settings.timeout)

    def abandon(self) -> None:
        """Close what is idle, without the loop, which may be closed already."""
        while self._idle:
            self._idle.pop().close()

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """Send it at once if a connection is idle."""
        if not self._idle or deadline <= monotonic():
            return self.loop.create_task(self.execute(statement, deadline))
        self._taken += 1
        watched = self._idle.pop()
        return watched.run(watched.conn.execute(statement), deadline, self._put)

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        watched = await self._take(deadline)
        return await watched.run(watched.conn.execute(statement), deadline, self._put)

    async def _take(self, deadline: float) -> WatchedConnection:
        if deadline <= monotonic():
            raise StatementFault("no time was left")
        if self._idle:
            self._taken += 1
            return self._idle.pop()
        if self._taken < self._settings.pool_size:
            self._taken += 1
            watched = None
        else:
            watched = await self._wait_for_connection(deadline)
        return watched or await self._open(deadline)

    async def _wait_for_connection(self, deadline: float) -> WatchedConnection | None:
        waiter: asyncio.Future[WatchedConnection | None] = self.loop.create_future()
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

    def _time_out(self, waiter: asyncio.Future[WatchedConnection | None]) -> None:
        size = self._settings.pool_size
        if not waiter.done():
            waiter.set_exception(
                StatementFault(f"no connection came free within the time limit (pool_size={size})")
            )

    def _put(self, watched: WatchedConnection, error: Exception | None) -> None:
        """Take back a connection after its exchange. If it is lost, the idle ones probably are."""
        if isinstance(error, StatementFault) and error.contagious:
            self.abandon()
        if not usable_after(error) or self._drained is not None:
            watched.close()
            self._pass_on(None)
        else:
            self._pass_on(watched)

    def _pass_on(self, watched: WatchedConnection | None) -> None:
        """Give a connection, or the right to open one, to the next who waits; else keep it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                if watched is not None:
                    watched.rest(_nothing)  # its next user will notice
                waiter.set_result(watched)
                return
        self._taken -= 1
        if watched is not None:
            watched.rest(self._lost)
            self._idle.append(watched)
        elif self._drained is not None and not self._taken and not self._drained.done():
            self._drained.set_result(None)

    def _lost(self, watched: WatchedConnection, error: Exception | None) -> None:
        """The server hung up on an idle connection."""
        self._idle.remove(watched)
        watched.close()

    async def _open(self, deadline: float) -> WatchedConnection:
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

    def _opened_after_cancel(self, opening: asyncio.Task[WatchedConnection]) -> None:
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None:
            self._pass_on(None)
        else:
            self._put(opening.result(), None)

    async def _connect_in_time(self, deadline: float) -> WatchedConnection:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._connect(deadline)
        except TimeoutError:
            raise StatementFault("no connection within the time limit") from None
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None

    async def _connect(self, deadline: float) -> WatchedConnection:
        if self._settings.migrate and not self._ready:
            await asyncio.to_thread(migrate, self._settings)
        connection = await QuietAsyncConnection.connect(self._settings.conninfo, autocommit=True)
        conn = PostgresConnection(connection, self._settings.prepare)
        watched = WatchedConnection(conn, self.loop)

        def run(exchange: Exchange) -> asyncio.Future[Rows]:
            return watched.run(exchange, deadline, _nothing)

        try:
            await run(conn.handshake())
            await run(conn.check_timeline(self._settings.failover))
            if not self._ready:
                checks = check_schema(dialect(DIALECT))
                await adrive(checks, lambda asked: run(conn.execute(asked)))
                self._ready = True
        except BaseException:
            watched.close()
            raise
        return watched
