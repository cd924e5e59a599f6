"""The connections that a handler gets over semel's own transaction, which it may not end.

Each is made for one transaction, over a socket that many use one after the other: once the
transaction is over, every use of it is refused, however late and from whatever thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import pymysql
from pymysql.constants import COMMAND

from semel.stores.background import in_thread
from semel.stores.mysql.errors import MysqlFault
from semel.stores.mysql.transaction import after_handler, before_handler
from semel.stores.open_transactions import refused

if TYPE_CHECKING:
    from semel.stores.mysql.pool_sync import MysqlConnection
    from semel.stores.sql.transaction import ConnectionTurn

    class _PymysqlConnection:
        def __getattr__(self, name: str) -> Any: ...
else:
    _PymysqlConnection = pymysql.Connection

R = TypeVar("R")
_PYMYSQL: Any = pymysql.Connection
"""Its annotations leave out what is private."""


class MysqlHandlerConnection(_PymysqlConnection):
    """A connection of PyMySQL's. Results are read whole before the next user's turn."""

    def __init__(self, conn: MysqlConnection, turn: ConnectionTurn) -> None:
        # Not super().__init__, which connects: a copy shares the socket, and nothing that a handler
        # sets (the class of cursors, converters) stays.
        self.__dict__.update(conn.connection.__dict__)
        self._semel = conn
        self._turn = turn
        self._unfetched: list[Any] = []
        self._result: Any = None

    def __del__(self) -> None: ...

    @property
    def open(self) -> bool:
        return not self._turn.over and self._sock is not None

    @contextmanager
    def _statement(self, text: str | bytes) -> Generator[None]:
        conn = self._semel
        with self._turn.taken():
            try:
                before_handler(conn, text)
                self._write_timeout = conn.connection._write_timeout
                yield
            except MysqlFault as fault:
                raise pymysql.OperationalError(fault.code or 1213, str(fault)) from None
            except Exception as error:
                after_handler(conn, error)
                raise
            conn.connection.server_status = self.server_status
            after_handler(conn, None)

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        if unbuffered:
            raise pymysql.NotSupportedError(
                "cursors that read row by row (SSCursor) are not possible in semel's transaction"
            )
        with self._statement(sql):
            text = sql.encode(self.encoding) if isinstance(sql, str) else sql
            self._execute_command(COMMAND.COM_QUERY, text)
            results = [self._next_unread()]
            while results[-1].has_next:
                results.append(self._next_unread())
        self._result, *self._unfetched = results
        return self._count()

    def _next_unread(self) -> Any:
        self._read_query_result()
        return self._result

    def next_result(self, unbuffered: bool = False) -> int:
        self._result = self._unfetched.pop(0)
        return self._count()

    def _count(self) -> int:
        count: int = self._result.affected_rows
        self._affected_rows = count
        return count

    def ping(self, reconnect: bool = False) -> None:
        with self._statement(b"ping"):
            _PYMYSQL.ping(self, False)

    def select_db(self, db: Any) -> None:
        with self._statement(b"use"):
            _PYMYSQL.select_db(self, db)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        with self._statement(b"set names"):
            _PYMYSQL.set_character_set(self, charset, collation)

    def show_warnings(self) -> Any:
        with self._statement(b"show warnings"):
            return _PYMYSQL.show_warnings(self)

    def __enter__(self) -> Self:
        raise refused("`with connection`, which closes it (`with connection.cursor()` does not)")

    def __exit__(self, *_: object) -> NoReturn:
        raise refused("`with connection`")

    def begin(self) -> NoReturn:
        raise refused("begin(), which commits")

    def commit(self) -> NoReturn:
        raise refused("commit()")

    def rollback(self) -> NoReturn:
        raise refused("rollback()")

    def close(self) -> NoReturn:
        raise refused("close()")

    def connect(self, sock: Any = None) -> NoReturn:
        raise refused("connect()")

    def autocommit(self, value: object) -> NoReturn:
        raise refused("autocommit()")


class AsyncMysqlHandlerConnection:
    """The same for event loops, as asyncmy has it. ``threads``: where the answers are awaited."""

    def __init__(self, blocking: MysqlHandlerConnection, threads: Executor | None) -> None:
        self._blocking = blocking
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        """Settings, and what asks the server nothing."""
        return getattr(self._blocking, name)

    async def away(self, function: Callable[..., R], *given: Any) -> R:
        """Call ``function`` in a thread."""
        if self._threads is None:
            return await in_thread(lambda: function(*given))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*given))

    def cursor(self, cursor: Any = None) -> AsyncMysqlHandlerCursor:
        return AsyncMysqlHandlerCursor(self, self._blocking.cursor(cursor))

    async def query(self, sql: Any, unbuffered: bool = False) -> int:
        return await self.away(self._blocking.query, sql, unbuffered)

    async def ping(self, reconnect: bool = False) -> None:
        await self.away(self._blocking.ping)

    async def select_db(self, db: str) -> None:
        await self.away(self._blocking.select_db, db)

    async def show_warnings(self) -> Any:
        return await self.away(self._blocking.show_warnings)

    async def set_charset(self, charset: str) -> None:
        await self.away(self._blocking.set_character_set, charset)

    async def __aenter__(self) -> NoReturn:
        said = "`async with connection`, which closes it"
        raise refused(f"{said} (`async with connection.cursor()` does not)")

    async def __aexit__(self, *_: object) -> NoReturn:
        raise refused("`async with connection`")

    def ensure_closed(self) -> NoReturn:
        raise refused("close()")


class AsyncMysqlHandlerCursor:
    """A cursor of PyMySQL's whose statements are awaited. Its rows are here when one is done."""

    def __init__(self, connection: AsyncMysqlHandlerConnection, cursor: Any) -> None:
        self.connection = connection
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        """description, rowcount, lastrowid, arraysize and so on."""
        return getattr(self._cursor, name)

    async def execute(self, query: str, args: Any = None) -> int:
        executed: int = await self.connection.away(self._cursor.execute, query, args)
        return executed

    async def executemany(self, query: str, args: Any) -> int | None:
        executed: int | None = await self.connection.away(self._cursor.executemany, query, args)
        return executed

    async def callproc(self, procname: str, args: Any = ()) -> Any:
        return await self.connection.away(self._cursor.callproc, procname, args)

    async def nextset(self) -> Any:
        return self._cursor.nextset()

    async def fetchone(self) -> Any:
        return self._cursor.fetchone()

    async def fetchmany(self, size: int | None = None) -> Any:
        return self._cursor.fetchmany(size)

    async def fetchall(self) -> Any:
        return self._cursor.fetchall()

    async def close(self) -> None:
        self._cursor.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for row in self._cursor:
            yield row
