"""SQLAlchemy sessions over semel's own transaction.

A session's commit only releases a savepoint, and its rollback only goes back to one
(``join_transaction_mode="create_savepoint"``). Only semel ends the transaction: the dialects here
never commit, roll back or close the connection they are given.

An engine is made once per backend, because SQLAlchemy queries the server when an engine is first
used. Each transaction gives its connection to the engine through a context variable.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from semel.errors import ConfigurationError
from semel.stores.background import in_thread
from semel.stores.open_transactions import OVER, in_event_loop

if TYPE_CHECKING:
    from sqlalchemy.dialects.mysql.asyncmy import MySQLDialect_asyncmy
    from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
else:
    from sqlalchemy.dialects.mysql.asyncmy import MySQLDialect_asyncmy
    from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql

    try:
        from sqlalchemy.dialects.postgresql.psycopg import (
            PGDialect_psycopg,
            PGDialectAsync_psycopg,
        )
    except ImportError:  # SQLite alone needs no psycopg
        PGDialect_psycopg = PGDialectAsync_psycopg = object

_OVER = "semel_over"
_DBAPI_ERRORS = (
    *("Warning", "Error", "InterfaceError", "DatabaseError", "DataError", "OperationalError"),
    *("IntegrityError", "InternalError", "ProgrammingError", "NotSupportedError"),
)
"""The exceptions of PEP 249, by which SQLAlchemy tells a database's errors from others."""


class _Guest:
    """A dialect that never ends the transaction or the connection."""

    supports_statement_cache = True
    awaited: Any
    """The same for event loops."""

    @classmethod
    def get_async_dialect_cls(cls, url: sqlalchemy.URL) -> Any:
        return cls.awaited

    def leave_to_semel(self, dbapi_connection: Any) -> None: ...

    do_begin = do_commit = do_rollback = do_close = do_terminate = leave_to_semel

    def do_rollback_to_savepoint(self, connection: sqlalchemy.Connection, name: str) -> None:
        if _OVER not in connection.info:
            cast("Any", super()).do_rollback_to_savepoint(connection, name)

    def do_release_savepoint(self, connection: sqlalchemy.Connection, name: str) -> None:
        if _OVER not in connection.info:
            cast("Any", super()).do_release_savepoint(connection, name)


class AsyncPostgresGuest(_Guest, PGDialectAsync_psycopg):
    supports_statement_cache = True


class PostgresGuest(_Guest, PGDialect_psycopg):
    supports_statement_cache = True
    awaited = AsyncPostgresGuest


class AsyncMysqlGuest(_Guest, MySQLDialect_asyncmy):
    """Over a connection that has asyncmy's methods, and raises PyMySQL's errors."""

    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        # Not from pymysql.err: after pymysql.install_as_MySQLdb(), Django imports MySQLdb.err, and
        # that name is then a second module with classes that nobody raises.
        import pymysql

        adapter: Any = super().import_dbapi()
        for name in _DBAPI_ERRORS:
            setattr(adapter, name, getattr(pymysql, name))
        return adapter


class MysqlGuest(_Guest, MySQLDialect_pymysql):
    supports_statement_cache = True
    awaited = AsyncMysqlGuest


class AsyncSqliteGuest(_Guest, SQLiteDialect_aiosqlite):
    supports_statement_cache = True


class SqliteGuest(_Guest, SQLiteDialect_pysqlite):
    supports_statement_cache = True
    awaited = AsyncSqliteGuest


registry.register("postgresql.semel", __name__, "PostgresGuest")
registry.register("mysql.semel", __name__, "MysqlGuest")
registry.register("sqlite.semel", __name__, "SqliteGuest")

_given: ContextVar[Any] = ContextVar("semel_given")


class Engines:
    """A blocking and an async engine, each made on first use."""

    def __init__(self, database: str) -> None:
        self._url = f"{database}+semel://"
        self._engines: dict[bool, sqlalchemy.Engine] = {}

    def engine(self, awaited: bool) -> sqlalchemy.Engine:
        made = self._engines.get(awaited)
        return made or self._engines.setdefault(awaited, self._make(awaited))

    def _make(self, awaited: bool) -> sqlalchemy.Engine:
        def take() -> Any:
            connection = _given.get()
            dialect: Any = engine.dialect
            adapters = getattr(dialect, "_psycopg_adapters_map", None)
            if adapters is not None:
                connection._adapters = type(adapters)(adapters)
            if not awaited:
                return connection

            async def ready() -> Any:
                return await connection if self._url.startswith("sqlite") else connection

            return dialect.dbapi.connect(async_creator_fn=ready)

        if awaited:
            made = create_async_engine(self._url, creator=take, poolclass=NullPool)
            engine = made.sync_engine
        else:
            engine = sqlalchemy.create_engine(self._url, creator=take, poolclass=NullPool)
        return engine


class GuestSession(Session):
    """A session that connects on first use: in an event loop it can await only there."""

    def __init__(self, engine: sqlalchemy.Engine, connection: Any, **options: Any) -> None:
        # A commit only releases a savepoint: nobody else can have changed the rows since.
        super().__init__(
            join_transaction_mode="create_savepoint", expire_on_commit=False, **options
        )
        self._semel_engine = engine
        self._semel_given = connection
        self._semel_joined: sqlalchemy.Connection | None = None
        self._semel_over = False
        self.semel_beside: Session | None = None
        """The application's own session of this request, if it has one already."""

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Refuse where objects of the other session were changed: their changes would be lost."""
        if changed := _changed(self.semel_beside):
            raise ConfigurationError(
                f"a {type(changed[0]).__name__} that was loaded before the transaction began was "
                "changed in it: bring it over first, with merge() of the session"
            )
        super().flush(objects)

    def get_bind(self, mapper: Any = None, **given: Any) -> sqlalchemy.Connection:
        if self._semel_over:
            raise ConfigurationError(OVER)
        table: Any = (
            given.get("clause") if mapper is None else sqlalchemy.inspect(mapper).local_table
        )
        info: Any = getattr(getattr(table, "metadata", None), "info", {})
        if info.get("bind_key") is not None:
            raise ConfigurationError(
                f"{table} is in the database {info['bind_key']!r}, outside semel's transaction"
            )
        if self._semel_joined is None:
            token = _given.set(self._semel_given)
            try:
                joined = self._semel_engine.connect()
            finally:
                _given.reset(token)
            joined.begin()
            self._semel_joined = joined
        return self._semel_joined

    def semel_leave(self) -> None:
        """Close the session without a statement to the database."""
        self._semel_over = True
        joined = self._semel_joined
        if joined is not None and not joined.closed:
            joined.info[_OVER] = True
        self.close()
        if joined is not None:
            joined.close()


def _changed(session: Session | AsyncSession | None) -> list[object]:
    """The objects that a session has not written yet."""
    return [] if session is None else [*session.new, *session.dirty, *session.deleted]


class JoinedSessions:
    """The sessions of one transaction: one blocking and one async, each made on first use.

    ``connect``: makes a DBAPI connection in the transaction; True: for an event loop.
    """

    def __init__(self, engines: Engines, connect: Callable[[bool], Any]) -> None:
        self._engines = engines
        self._connect = connect
        self._blocking: GuestSession | None = None
        self._awaited: AsyncSession | None = None
        self._given: list[Any] = []

    @property
    def session(self) -> Session | AsyncSession:
        if in_event_loop():
            if self._awaited is None:
                self._awaited = AsyncSession(
                    sync_session_class=GuestSession,
                    engine=self._engines.engine(True),
                    connection=self._give(True),
                )
            return self._awaited
        if self._blocking is None:
            self._blocking = GuestSession(self._engines.engine(False), self._give(False))
        return self._blocking

    def flush(self) -> None:
        """Flush both sessions, from a thread without an event loop."""
        if self._blocking is not None:
            self._blocking.flush()
        if self._awaited is not None and _changed(self._awaited):
            asyncio.run(self._awaited.flush())

    async def aflush(self) -> None:
        if self._awaited is not None:
            await self._awaited.flush()
        if self._blocking is not None and _changed(self._blocking):
            await in_thread(self._blocking.flush)

    def leave(self) -> None:
        """Close the sessions; the transaction stays as it is."""
        blocking, awaited = self._blocking, self._awaited
        self._blocking = self._awaited = None
        for session in (blocking, awaited and awaited.sync_session):
            if session is not None:
                cast("GuestSession", session).semel_leave()
        while self._given:
            _stop(self._given.pop())

    def _give(self, awaited: bool) -> Any:
        connection = self._connect(awaited)
        self._given.append(connection)
        return connection


def _stop(connection: Any) -> None:
    """End aiosqlite's thread without closing the connection it was given."""
    thread = getattr(connection, "_thread", None)
    if thread is None or thread.ident is None:
        return
    connection._connection = None
    # From a thread without an event loop: aiosqlite would reply to this loop, which may be closed
    # by then.
    stopping = threading.Thread(target=connection.stop, name="semel-session")
    stopping.start()
    stopping.join()
