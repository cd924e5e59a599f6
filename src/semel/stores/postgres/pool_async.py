"""The pool of one event loop: callbacks of the loop read the answer to a statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeAlias

import psycopg

from semel.stores.postgres.connection import (
    DIALECT,
    WRITE,
    Exchange,
    PostgresConnection,
    QuietAsyncConnection,
)
from semel.stores.postgres.errors import not_connected, store_error
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.pool_async import AsyncConnectionPool
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, adrive

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
        "lost",
    )

    def __init__(self, conn: PostgresConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.conn = conn
        self.lost = False  # it is watched when idle
        self._loop = loop
        self._exchange: Exchange | None = None
        self._on_end: OnEnd = nothing
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

    def rest(self, on_lost: OnEnd | None) -> None:
        """Be idle: ``on_lost`` is called if the server hangs up."""
        self._on_end = on_lost or nothing

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
        self._on_end = nothing
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


def nothing(watched: WatchedConnection, error: Exception | None) -> None:
    """An ``on_end`` for callers that close the connection themselves."""


class AsyncPostgresPool(AsyncConnectionPool[WatchedConnection]):
    """Connections of libpq's."""

    def __init__(self, settings: PostgresSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings.pool_size, settings.timeout, store_error)
        self._migrate = migrate
        self._settings = settings
        self._ready = False

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        if not self._idle or deadline <= monotonic():
            return self.loop.create_task(self.execute(statement, deadline))
        self._taken += 1
        watched = self._idle.pop()
        return watched.run(watched.conn.execute(statement), deadline, self._put)

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        watched = await self._take(deadline)
        return await watched.run(watched.conn.execute(statement), deadline, self._put)

    async def _connect_in_time(self, deadline: float) -> WatchedConnection:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._connect(deadline)
        except TimeoutError:
            raise StatementFault("no connection within the time limit") from None
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None

    async def _connect(self, deadline: float) -> WatchedConnection:
        if self._migrate and not self._ready:
            await asyncio.to_thread(self._migrate)
        connection = await QuietAsyncConnection.connect(self._settings.conninfo, autocommit=True)
        conn = PostgresConnection(connection, self._settings.prepare)
        watched = WatchedConnection(conn, self.loop)

        def run(exchange: Exchange) -> asyncio.Future[Rows]:
            return watched.run(exchange, deadline, nothing)

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
