"""The connections that a handler gets over semel's own transaction, which it may not end.

Each is made for one transaction, over a socket that many use one after the other: once the
transaction is over, every use of it is refused, however late and from whatever thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pymysql
from pymysql.constants import COMMAND

from semel.stores.background import in_thread
from semel.stores.mysql.errors import MysqlFault
from semel.stores.mysql.transaction import after_handler, before_handler
from semel.stores.open_transactions import refusing

if TYPE_CHECKING:
    from semel.stores.mysql.pool_sync import MysqlConnection
    from semel.stores.sql.transaction import ConnectionTurn

    class _PymysqlConnection:
        def __getattr__(self, name: str) -> Any: ...
else:
    _PymysqlConnection = pymysql.Connection

_PYMYSQL: Any = pymysql.Connection
"""Its annotations leave out what is private."""


class MysqlHandlerConnection(_PymysqlConnection):
    """A connection of PyMySQL's. Results are read whole before the next user's turn."""

    __enter__: Any = refusing(
        "`with connection`, which closes it (`with connection.cursor()` does not)"
    )
    __exit__: Any = refusing("`with connection`")
    begin: Any = refusing("begin(), which commits")
    commit: Any = refusing("commit()")
    rollback: Any = refusing("rollback()")
    close: Any = refusing("close()")
    connect: Any = refusing("connect()")
    autocommit: Any = refusing("autocommit()")

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
            results: list[Any] = []
            while not results or results[-1].has_next:
                self._read_query_result()
                results.append(self._result)
        self._unfetched = results
        return self.next_result()

    def next_result(self, unbuffered: bool = False) -> int:
        self._result = self._unfetched.pop(0)
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


def _in_thread(name: str) -> Any:
    """The blocking method as a coroutine function, in the thread where the answer is awaited."""

    async def call(
        self: AsyncMysqlHandlerConnection | AsyncMysqlHandlerCursor, *given: Any, **named: Any
    ) -> Any:
        work = partial(getattr(self.blocking, name), *given, **named)
        threads: Executor | None = self.threads
        if threads is None:
            return await in_thread(work)
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    return call


def _at_once(name: str) -> Any:
    """The same for what asks the server nothing."""

    async def call(self: AsyncMysqlHandlerCursor, *given: Any, **named: Any) -> Any:
        return getattr(self.blocking, name)(*given, **named)

    return call


class AsyncMysqlHandlerConnection:
    """The same for event loops, as asyncmy has it. ``threads``: where the answers are awaited."""

    query: Any = _in_thread("query")
    ping: Any = _in_thread("ping")
    select_db: Any = _in_thread("select_db")
    show_warnings: Any = _in_thread("show_warnings")
    set_charset: Any = _in_thread("set_character_set")
    __aenter__: Any = refusing(
        "`async with connection`, which closes it (`async with connection.cursor()` does not)"
    )
    __aexit__: Any = refusing("`async with connection`")
    ensure_closed: Any = refusing("close()")

    def __init__(self, blocking: MysqlHandlerConnection, threads: Executor | None) -> None:
        self.blocking = blocking
        self.threads = threads

    def __getattr__(self, name: str) -> Any:
        """Settings, and what asks the server nothing."""
        return getattr(self.blocking, name)

    def cursor(self, cursor: Any = None) -> AsyncMysqlHandlerCursor:
        return AsyncMysqlHandlerCursor(self, self.blocking.cursor(cursor))


class AsyncMysqlHandlerCursor:
    """A cursor of PyMySQL's whose statements are awaited. Its rows are here when one is done."""

    execute: Any = _in_thread("execute")
    executemany: Any = _in_thread("executemany")
    callproc: Any = _in_thread("callproc")
    nextset: Any = _at_once("nextset")
    fetchone: Any = _at_once("fetchone")
    fetchmany: Any = _at_once("fetchmany")
    fetchall: Any = _at_once("fetchall")
    close: Any = _at_once("close")

    def __init__(self, connection: AsyncMysqlHandlerConnection, cursor: Any) -> None:
        self.connection = connection
        self.blocking = cursor
        self.threads = connection.threads

    def __getattr__(self, name: str) -> Any:
        """description, rowcount, lastrowid, arraysize and so on."""
        return getattr(self.blocking, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.blocking.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for row in self.blocking:
            yield row
