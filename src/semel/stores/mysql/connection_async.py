"""One awaited connection: a packet out, its result sets in, up to a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any, TypeVar

from asyncmy.connection import Connection

from semel.stores.mysql.connection_sync import CHUNK, FLAGS
from semel.stores.mysql.errors import Fault, judged
from semel.stores.mysql.protocol import (
    Manners,
    ResultSet,
    check_schema,
    exchange,
    greet,
    obstacle,
)
from semel.stores.mysql.settings import Settings
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import adrive

T = TypeVar("T")

_CONNECTION: Any = Connection
"""What it takes is written down wrongly: a time-out may be a fraction, autocommit left alone."""


async def dial(settings: Settings) -> Any:
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
        autocommit=None,  # it is set with all the rest
    )
    await connection.connect()  # what goes wrong here, it closes itself
    return connection


class Wire:
    """A connection to a primary that is ready for packets."""

    __slots__ = ("_done", "_manners", "_settings", "_transport", "connection")

    def __init__(self, connection: Any, settings: Settings) -> None:
        self.connection = connection
        self._settings = settings
        self._transport = connection._transport
        self._manners = Manners(CHUNK, 0.0, apart=False)
        self._done = 0

    async def greet(self, deadline: float, *, warn: bool) -> None:
        self._manners = await self._drive(greet(self._settings, warn=warn), deadline)

    async def run(self, statement: Statement, deadline: float) -> Rows:
        if monotonic() >= self._manners.check_at:
            await self.greet(deadline, warn=False)
        return await self._drive(exchange(statement, apart=self._manners.apart), deadline)

    async def check_schema(self, deadline: float) -> None:
        await self._drive(check_schema(), deadline)

    async def _drive(self, steps: Generator[str, Sequence[ResultSet], T], deadline: float) -> T:
        return await adrive(steps, lambda text: self.ask(text, deadline))

    async def ask(self, text: str, deadline: float) -> list[ResultSet]:
        """One round trip."""
        if fault := obstacle(text, self._manners.most, deadline):
            raise fault
        try:
            async with asyncio.timeout(deadline - monotonic()):
                return await self._results(text)
        except TimeoutError:
            raise Fault("no answer within the time limit", doubt=True) from None
        except Exception as error:
            raise judged(error, self._done) from None

    async def _results(self, text: str) -> list[ResultSet]:
        """Without a cursor of asyncmy's, which would do the same in twice as many steps."""
        connection, results = self.connection, list[ResultSet]()
        self._done = 0
        await connection.query(text)
        while True:
            result = connection._result
            if result.description is not None:
                results.append(([column[0] for column in result.description], result.rows))
            self._done += 1
            if not result.has_next:
                return results
            await connection.next_result()

    def alive(self) -> bool:
        return not self.connection._stream_broken

    def close(self) -> None:
        """At once: asyncmy would first send what is still to be sent."""
        transport, self._transport = self._transport, None
        self.connection._transport = None
        if transport is not None:
            _abort(transport)


def _abort(transport: Any) -> None:
    try:
        transport.abort()
    except RuntimeError:  # its loop is closed, and can no longer do it
        if sock := getattr(transport, "_sock", None):
            transport._sock = None
            sock.close()
