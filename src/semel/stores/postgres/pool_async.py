"""The pools of one event loop: callbacks of the loop read the answer to a statement."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final, TypeAlias

from semel.stores.postgres import transaction
from semel.stores.postgres.connect import aconnect
from semel.stores.postgres.connection import (
    DIALECT,
    WRITE,
    Exchange,
    PostgresConnection,
    QuietAsyncConnection,
)
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.postgres.values import KINDS
from semel.stores.sql.pool_async import (
    AsyncConnectionPool,
    AsyncTransactionPool,
    OnEnd,
    nothing,
)
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, usable_after

WatchEnd: TypeAlias = "OnEnd[WatchedConnection]"

_A_TICK: Final = 0.001
"""Seconds by which a timer may be early."""


class WatchedConnection(PostgresConnection):
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
    )

    def __init__(
        self,
        connection: QuietAsyncConnection,
        prepare: bool | None,
        configure: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(connection, prepare, configure)
        self._loop = loop
        self._exchange: Exchange | None = None
        self._on_end: WatchEnd = nothing
        self._watching = self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self.watch()

    def run(self, exchange: Exchange, deadline: float, on_end: WatchEnd) -> asyncio.Future[Rows]:
        """Start ``exchange``. At its end ``on_end`` is called with the error, or None."""
        self._exchange, self._deadline, self._on_end = exchange, deadline, on_end
        self._answer: asyncio.Future[Rows] = self._loop.create_future()
        if self._timer is None or self._timer.when() > deadline:
            self._set_timer()
        answer = self._answer
        self._on_ready()
        return answer

    def rest(self, on_lost: WatchEnd | None) -> None:
        """Be idle: ``on_lost`` is called if the server hangs up."""
        self._on_end = on_lost or nothing

    def watch(self) -> None:
        if not self._watching:
            self._loop.add_reader(self.fd, self._on_ready)
            self._watching = True

    def unwatch(self) -> None:
        """Leave the socket to others, until ``watch``. libpq may close it meanwhile, and its number
        may become that of another socket of this loop."""
        if self._watching and not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
        self._watching = False

    def close(self) -> None:
        self._on_end = nothing
        self.unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._watch_writes(False)
        super().close()

    def _on_ready(self) -> None:
        """The socket is ready for something."""
        if self._exchange is None:
            if not self.alive():
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
            self._loop.add_writer(self.fd, self._on_ready)
        elif self._writing and not writing:
            self._loop.remove_writer(self.fd)
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


class AsyncPostgresPool(AsyncConnectionPool[WatchedConnection]):
    """Connections of libpq's."""

    DIALECT = DIALECT
    KINDS = KINDS
    store_error = staticmethod(store_error)
    _settings: PostgresSettings

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        if not self._idle or deadline <= monotonic():
            return self.loop.create_task(self.execute(statement, deadline))
        self._taken += 1
        conn = self._idle.pop()
        return conn.run(conn.execute(statement), deadline, self._put)

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        conn = await self._take(deadline)
        return await conn.run(conn.execute(statement), deadline, self._put)

    async def _connect(self) -> WatchedConnection:
        settings = self._settings
        connection = await aconnect(settings, QuietAsyncConnection, autocommit=True)
        return WatchedConnection(connection, settings.prepare, settings.configure, self.loop)

    async def _greet(self, conn: WatchedConnection, deadline: float) -> None:
        await conn.run(conn.greet(self._settings.failover), deadline, nothing)

    async def _run(self, conn: WatchedConnection, statement: Statement, deadline: float) -> Rows:
        return await conn.run(conn.execute(statement), deadline, nothing)


class AsyncPostgresTransactionPool(AsyncTransactionPool[WatchedConnection], AsyncPostgresPool):
    """Connections for transactions. A handler waits on the socket itself, in this loop or in a
    thread: semel watches it only while a statement of its own is under way."""

    DATABASE = "PostgreSQL"
    steps = transaction

    def exchange(
        self, conn: WatchedConnection, exchange: Exchange, deadline: float, on_end: WatchEnd
    ) -> asyncio.Future[Rows]:
        def ended(conn: WatchedConnection, error: BaseException | None) -> None:
            conn.unwatch()
            on_end(conn, error)

        conn.watch()
        return conn.run(exchange, deadline, ended)

    async def _take(self, deadline: float) -> WatchedConnection:
        conn = await super()._take(deadline)
        conn.unwatch()
        return conn

    def _put(self, conn: WatchedConnection, error: BaseException | None) -> None:
        if usable_after(error):
            conn.watch()
        super()._put(conn, error)
