"""The psycopg connection that a handler gets, in either colour, over semel's own transaction.

It is made for one transaction, over a libpq connection that many use one after the other: once the
transaction is over, every use of it is refused, however late and from whatever thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, BaseConnection, Connection, pq
from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

from semel.errors import ConfigurationError
from semel.stores.open_transactions import ENDED, OVER, SHARED, in_event_loop, refused
from semel.stores.postgres.connection import PostgresConnection

RV = TypeVar("RV")


class ConnectionTurn:
    """Lets one user at a time use a libpq connection, which cannot serve two at once.

    Ending the transaction takes the last turn: later users are refused, and a user in the middle
    of a statement is noticed.
    """

    def __init__(self, conn: PostgresConnection) -> None:
        self.conn = conn
        self.over = False
        self.ended_by_handler = False
        """The handler ended the transaction itself."""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def status(self) -> int:
        return self.conn._pgconn.transaction_status

    @property
    def forked(self) -> bool:
        """In a forked child: the socket is still the parent's."""
        return os.getpid() != self._pid

    def check(self) -> None:
        if self.over or self.forked:
            raise ConfigurationError(OVER)
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def take(self) -> None:
        self.check()
        if not self._lock.acquire(blocking=False):
            raise ConfigurationError(OVER if self.over else SHARED)

    def give(self) -> None:
        if not self.over:
            self._lock.release()

    @contextmanager
    def taken(self) -> Generator[None]:
        """For a handler's statement."""
        self.take()
        try:
            yield
        finally:
            self.ended_by_handler = (
                self.ended_by_handler or self.status == pq.TransactionStatus.IDLE
            )
            self.give()
        if self.ended_by_handler:
            raise ConfigurationError(ENDED)

    def end(self) -> bool:
        """Nobody uses the connection from now on; False when somebody is in the middle of it."""
        self.over = True
        return not self.forked and self._lock.acquire(blocking=False)

    def listen(self, connection: BaseConnection[Any]) -> None:
        """Get the server's notices first: one reports a commit that no standby confirmed."""
        pgconn, ours = self.conn._pgconn, self.conn._noticed
        theirs = pgconn.notice_handler

        def both(notice: PGresult) -> None:
            ours(notice)
            if theirs is not None:
                theirs(notice)

        pgconn.notice_handler = both
        connection.prepare_threshold = None  # its names would clash with those of the one before

    def unhook(self) -> None:
        """Restore semel's own notice handler."""
        self.conn._pgconn.notice_handler = self.conn._noticed
        self.conn._pgconn.notify_handler = None


class _HandlerConnection:
    """What a handler may not do with its connection, in both colours: end the transaction."""

    _turn: ConnectionTurn

    def __del__(self, *_: object) -> None: ...

    def commit(self) -> NoReturn:
        raise refused("commit()")

    def rollback(self) -> NoReturn:
        raise refused("rollback()")

    def close(self) -> NoReturn:
        raise refused("close()")

    def set_autocommit(self, value: bool) -> NoReturn:
        raise refused("autocommit")

    def _set_autocommit(self, value: bool) -> NoReturn:
        raise refused("autocommit")


class PostgresHandlerConnection(_HandlerConnection, Connection[Any]):
    """For threads."""

    def __init__(self, turn: ConnectionTurn) -> None:
        super().__init__(turn.conn._pgconn)
        self._turn = turn
        turn.listen(self)

    @property
    def closed(self) -> bool:
        return self._turn.over or super().closed

    def wait(self, gen: PQGen[RV], *how: Any, **named: Any) -> RV:  # psycopg's releases differ
        with self._turn.taken():
            return super().wait(gen, *how, **named)

    def _check_connection_ok(self) -> None:
        self._turn.check()
        super()._check_connection_ok()

    def __enter__(self) -> Self:
        raise refused("`with connection`, which commits (`with connection.transaction()` does not)")

    def __exit__(self, *_: object) -> NoReturn:
        raise refused("`with connection`")


class AsyncPostgresHandlerConnection(_HandlerConnection, AsyncConnection[Any]):
    """For event loops."""

    def __init__(self, turn: ConnectionTurn) -> None:
        super().__init__(turn.conn._pgconn)
        self._turn = turn
        turn.listen(self)

    @property
    def closed(self) -> bool:
        return self._turn.over or super().closed

    async def wait(self, gen: PQGen[RV], *how: Any, **named: Any) -> RV:
        with self._turn.taken():
            return await super().wait(gen, *how, **named)

    def _check_connection_ok(self) -> None:
        self._turn.check()
        super()._check_connection_ok()

    async def __aenter__(self) -> Self:
        raise refused("`async with connection`, which commits (connection.transaction() does not)")

    async def __aexit__(self, *_: object) -> NoReturn:
        raise refused("`async with connection`")


class HandlerConnections:
    """The connections of one transaction: one for each colour, made when first asked for."""

    def __init__(self, turn: ConnectionTurn) -> None:
        self._turn = turn
        self._blocking: PostgresHandlerConnection | None = None
        self._awaited: AsyncPostgresHandlerConnection | None = None
        self.used = False

    @property
    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        self._turn.check()
        self.used = True
        if in_event_loop():
            if self._awaited is None:
                self._awaited = AsyncPostgresHandlerConnection(self._turn)
            return self._awaited
        if self._blocking is None:
            self._blocking = PostgresHandlerConnection(self._turn)
        return self._blocking

    def another(self, awaited: bool) -> PostgresHandlerConnection | AsyncPostgresHandlerConnection:
        """One that is not the handler's own, for a session."""
        self.used = True
        return (
            AsyncPostgresHandlerConnection(self._turn)
            if awaited
            else PostgresHandlerConnection(self._turn)
        )
