"""Connections of one event loop, by asyncmy, and their pool.

A statement runs in a task of its own: a cancelled caller leaves at once, and the connection comes
back to the pool with the answer, or is closed at the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, TypeVar

from asyncmy.connection import Connection

from semel.core.operations.requests import StoreOperation
from semel.errors import SemelError
from semel.stores.background import in_thread
from semel.stores.mysql.connection import CHUNK, FLAGS
from semel.stores.mysql.errors import MysqlFault, driver_fault, not_connected, store_error
from semel.stores.mysql.migration import migrate
from semel.stores.mysql.protocol import (
    DIALECT,
    ResultSet,
    ServerProfile,
    exchange,
    handshake,
    unsendable,
)
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, adrive, retried

R = TypeVar("R")
T = TypeVar("T")

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


class AsyncMysqlConnection:
    """A connection to a primary that is ready for packets."""

    __slots__ = ("_server", "_settings", "_transport", "connection")

    def __init__(self, connection: Any, settings: MysqlSettings) -> None:
        self.connection = connection
        self._settings = settings
        self._transport = connection._transport
        self._server = ServerProfile(CHUNK, 0.0, separately=False)

    async def handshake(self, deadline: float, *, warn: bool) -> None:
        self._server = await self._drive(handshake(self._settings, warn=warn), deadline)

    async def run(self, statement: Statement, deadline: float) -> Rows:
        if monotonic() >= self._server.check_at:
            await self.handshake(deadline, warn=False)
        return await self._drive(exchange(statement, separately=self._server.separately), deadline)

    async def check_schema(self, deadline: float) -> None:
        await adrive(check_schema(dialect(DIALECT)), lambda asked: self.run(asked, deadline))

    async def _drive(self, steps: Generator[str, Sequence[ResultSet], T], deadline: float) -> T:
        return await adrive(steps, lambda text: self.ask(text, deadline))

    async def ask(self, text: str, deadline: float) -> list[ResultSet]:
        """One round trip. A cursor of asyncmy's would do the same in twice as many steps."""
        if fault := unsendable(text, self._server.max_packet, deadline):
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
            raise MysqlFault("no answer within the time limit", doubt=True) from None
        except Exception as error:
            raise driver_fault(error, done) from None

    def alive(self) -> bool:
        return not self.connection._stream_broken

    def close(self) -> None:
        """At once: asyncmy would first send what is still to be sent."""
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


class AsyncMysqlPool:
    """At most ``pool_size`` connections; the one used last is used next."""

    def __init__(self, settings: MysqlSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(settings.pool_size)
        self._idle: list[AsyncMysqlConnection] = []
        self._working: set[asyncio.Task[Rows]] = set()
        self._ready = False
        self._closed = False

    async def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = retried(plan(op), store_error, doubt=doubt)
        return await adrive(steps, lambda statement: self.execute(statement, deadline))

    async def aclose(self) -> None:
        """Close idle connections now, and those in use when they come back: by their deadline."""
        self.abandon()
        if self._working:
            await asyncio.wait(self._working, timeout=self._settings.timeout)

    def abandon(self) -> None:
        """Close what is idle, without the loop, which may be closed already."""
        self._closed = True
        self._drop_idle()

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """In one task, which nobody cancels."""
        work = self._loop.create_task(self._work_in_turn(statement, deadline))
        self._working.add(work)  # the loop itself holds its tasks only weakly
        work.add_done_callback(self._working.discard)
        return work

    async def execute(self, statement: Statement, deadline: float) -> Rows:
        await self._take_slot(deadline)
        work = self._loop.create_task(self._work(statement, deadline))
        self._working.add(work)
        work.add_done_callback(self._done)
        return await asyncio.shield(work)

    async def _take_slot(self, deadline: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._slots.acquire()
        except TimeoutError:
            size = self._settings.pool_size
            raise MysqlFault(
                f"no connection came free within the time limit (pool_size={size})"
            ) from None

    async def _work_in_turn(self, statement: Statement, deadline: float) -> Rows:
        await self._take_slot(deadline)
        try:
            return await self._work(statement, deadline)
        finally:
            self._slots.release()

    def _done(self, work: asyncio.Task[Rows]) -> None:
        self._working.discard(work)
        self._slots.release()
        if not work.cancelled():
            work.exception()  # its caller may have left

    async def _work(self, statement: Statement, deadline: float) -> Rows:
        conn = self._take() or await self._open(deadline)
        broken = True
        try:
            rows = await conn.run(statement, deadline)
            broken = False
            return rows
        except MysqlFault as fault:
            broken = fault.broken
            if fault.contagious:
                self._drop_idle()
            raise
        finally:
            if broken or self._closed:
                conn.close()
            else:
                self._idle.append(conn)

    def _take(self) -> AsyncMysqlConnection | None:
        while self._idle:
            conn = self._idle.pop()
            if conn.alive():
                return conn
            conn.close()
        return None

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _open(self, deadline: float) -> AsyncMysqlConnection:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._connect(deadline)
        except TimeoutError:
            raise MysqlFault("no connection within the time limit") from None
        except (SemelError, MysqlFault):
            raise
        except Exception as error:
            raise not_connected(error, self._settings.without_secrets) from None

    async def _connect(self, deadline: float) -> AsyncMysqlConnection:
        if self._settings.migrate and not self._ready:
            await in_thread(lambda: migrate(self._settings))
        conn = AsyncMysqlConnection(await _connect(self._settings), self._settings)
        try:
            await conn.handshake(deadline, warn=not self._ready)
            if not self._ready:
                await conn.check_schema(deadline)
                self._ready = True
        except BaseException:
            conn.close()
            raise
        return conn
