"""Connections of one event loop, by asyncmy, and their pool.

A statement runs in a task of its own: a cancelled caller leaves at once, and the connection comes
back to the pool with the answer, or is closed at the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from asyncmy.connection import Connection

from semel.stores.background import keep
from semel.stores.mysql import protocol, transaction
from semel.stores.mysql.driver_internals import ASYNCMY, check
from semel.stores.mysql.errors import driver_fault, not_connected, store_error
from semel.stores.mysql.pool_sync import CHUNK, FLAGS, MysqlConnection, connect
from semel.stores.mysql.protocol import ResultSet
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.mysql.values import KINDS
from semel.stores.sql.pool_async import AsyncConnectionPool, AsyncTransactionPool, OnEnd, heard
from semel.stores.sql.pooled import PooledConnection
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, adrive, drive
from semel.stores.sql.transaction import Exchange

R = TypeVar("R")

_CONNECTION: Any = Connection
"""Its annotations are wrong: a time-out may be a fraction, and autocommit None."""


async def _connect(settings: MysqlSettings) -> Any:
    """A connection of asyncmy's."""
    connection = _CONNECTION(
        user=settings.user,
        password=settings.password,
        host=settings.host,
        port=settings.port,
        db=settings.database,
        unix_socket=settings.socket,
        charset="utf8mb4",
        ssl=settings.tls,
        client_flag=FLAGS,
        connect_timeout=settings.timeout,
        autocommit=None,  # the handshake sets it
    )
    await connection.connect()  # it closes itself when this fails
    return connection


class AsyncMysqlConnection(PooledConnection):
    """A connection to a primary that is ready for packets."""

    __slots__ = ("_server", "_settings", "_transport", "connection")

    def __init__(self, connection: Any, settings: MysqlSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._transport = connection._transport
        self._server = protocol.ServerProfile(CHUNK, 0.0, separately=False)

    async def handshake(self, deadline: float, *, warn: bool) -> None:
        steps = protocol.handshake(self._settings, warn=warn)
        self._server = await adrive(steps, lambda text: self.ask(text, deadline))

    async def run(self, statement: Statement, deadline: float) -> Rows:
        if monotonic() >= self._server.check_at:
            await self.handshake(deadline, warn=False)
        steps = protocol.exchange(statement, separately=self._server.separately)
        return await adrive(steps, lambda text: self.ask(text, deadline))

    async def ask(self, text: str, deadline: float) -> list[ResultSet]:
        """One round trip. A cursor of asyncmy's would do the same in twice as many steps."""
        if fault := protocol.unsendable(text, self._server.max_packet, deadline):
            raise fault
        connection, results, done = self.connection, list[ResultSet](), 0
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await connection.query(text)
                while True:
                    result = connection._result
                    if result.description is not None:
                        results.append(([column[0] for column in result.description], result.rows))
                    done += 1
                    if not result.has_next:
                        return results
                    await connection.next_result()
        except TimeoutError:
            raise protocol.late(done) from None
        except Exception as error:
            raise driver_fault(error, done) from None

    def lost(self) -> bool:
        return bool(self.connection._stream_broken)

    def close(self) -> None:
        """At once: asyncmy would first send what is still to be sent."""
        self.left()
        transport, self._transport = self._transport, None
        self.connection._transport = None
        if transport is None:
            return
        try:
            transport.abort()
        except RuntimeError:  # its loop is closed, and can no longer do it
            if sock := getattr(transport, "_sock", None):
                transport._sock = None
                sock.close()


class AsyncMysqlPool(AsyncConnectionPool[AsyncMysqlConnection]):
    """Connections of asyncmy's."""

    DIALECT = protocol.DIALECT
    KINDS = KINDS
    store_error = staticmethod(store_error)
    _settings: MysqlSettings

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        return keep(self._execute(statement, deadline))

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        conn = await self._take(deadline)
        work = keep(self._work(conn, statement, deadline))
        work.add_done_callback(heard)  # its caller may have left
        return await asyncio.shield(work)

    async def _execute(self, statement: Statement, deadline: float) -> Rows:
        return await self._work(await self._take(deadline), statement, deadline)

    async def _work(
        self, conn: AsyncMysqlConnection, statement: Statement, deadline: float
    ) -> Rows:
        try:
            rows = await conn.run(statement, deadline)
        except BaseException as error:
            self._put(conn, error)
            raise
        self._put(conn, None)
        return rows

    async def _connect(self) -> AsyncMysqlConnection:
        settings = self._settings
        try:
            connection = await _connect(settings)
        except Exception as error:
            raise not_connected(error, settings.without_secrets) from None
        if not self._ready:
            check("asyncmy", connection, ASYNCMY)
        return AsyncMysqlConnection(connection, settings)

    async def _greet(self, conn: AsyncMysqlConnection, deadline: float) -> None:
        await conn.handshake(deadline, warn=not self._ready)

    async def _run(self, conn: AsyncMysqlConnection, statement: Statement, deadline: float) -> Rows:
        return await conn.run(statement, deadline)


class AsyncMysqlTransactionPool(AsyncTransactionPool[MysqlConnection]):
    """Connections for transactions: PyMySQL's, in threads of the pool's own. A handler may use its
    connection in a thread as well as in the loop, and asyncmy's know only the loop."""

    DIALECT = protocol.DIALECT
    KINDS = KINDS
    store_error = staticmethod(store_error)
    DATABASE = "MySQL"
    steps = transaction
    _settings: MysqlSettings

    def __init__(self, settings: MysqlSettings, migrate: Callable[[], object] | None) -> None:
        super().__init__(settings, migrate)
        # One for each connection, and as many for those that look again after a doubt.
        self._threads = ThreadPoolExecutor(2 * self._size, "semel-mysql")

    def exchange(
        self,
        conn: MysqlConnection,
        exchange: Exchange,
        deadline: float,
        on_end: OnEnd[MysqlConnection],
    ) -> asyncio.Future[Rows]:
        answer: asyncio.Future[Rows] = self.loop.create_future()

        def ended(work: asyncio.Future[Rows]) -> None:
            error = work.exception()
            on_end(conn, error)
            if answer.done():
                return
            if error is None:
                answer.set_result(work.result())
            else:
                answer.set_exception(error)

        work = self._in_thread(lambda: drive(exchange, lambda packet: conn.ask(packet, deadline)))
        work.add_done_callback(ended)
        return answer

    async def aclose(self) -> None:
        await super().aclose()
        self._threads.shutdown(wait=False)

    async def _connect(self) -> MysqlConnection:
        settings = self._settings
        opening = self._in_thread(lambda: connect(settings))
        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_late)
            raise
        except Exception as error:
            raise not_connected(error, settings.without_secrets) from None
        return MysqlConnection(connection, settings, self._threads)

    async def _greet(self, conn: MysqlConnection, deadline: float) -> None:
        warn = not self._ready
        await self._in_thread(lambda: conn.handshake(deadline, warn=warn))

    async def _run(self, conn: MysqlConnection, statement: Statement, deadline: float) -> Rows:
        return await self._in_thread(lambda: conn.run(statement, deadline))

    def _in_thread(self, work: Callable[[], R]) -> asyncio.Future[R]:
        return self.loop.run_in_executor(self._threads, work)


def _close_late(opening: asyncio.Future[Any]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()._force_close()
