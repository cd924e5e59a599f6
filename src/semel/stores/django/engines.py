"""What a transaction on Django's own connection does differently on SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from django.db import utils as django_errors

from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreUnavailable
from semel.stores.base import Store, system_clock
from semel.stores.open_transactions import ENDED
from semel.stores.sql.plans import plan
from semel.stores.sqlite.connection import is_busy, outage, run

R = TypeVar("R")

_MIGRATE: Final = (
    "the database of Django has no tables of semel, or old ones: put "
    "'semel.frameworks.django' into INSTALLED_APPS and run `manage.py migrate`"
)


class DjangoEngine(Protocol):
    """One kind of database. ``wrapper``: Django's connection object."""

    def begin(self, wrapper: Any, enter: Callable[[], None]) -> bool:
        """Call ``enter`` to open the transaction; False when another one prevents it."""
        ...

    def lock(self, wrapper: Any, identity: Identity | None, limit: float | None) -> bool:
        """Try the identity's lock, without waiting, as the first statement; False: it is taken."""
        ...

    def joined(self, wrapper: Any) -> Store:
        """The store inside the open transaction."""
        ...

    def in_transaction(self, wrapper: Any) -> bool: ...

    def semel_error(self, error: BaseException, *, applied: bool | None) -> SemelError:
        """semel's error for one of the driver, or for Django's error around it."""
        ...

    def committing(self, wrapper: Any) -> Any:
        """A context for the commit: raises when the server reports a success it is not sure of."""
        ...

    def sever(self, wrapper: Any) -> bool:
        """End the connection from any thread; False when that cannot be done."""
        ...


def engine(name: str) -> DjangoEngine:
    """The engine for ``sqlite`` or ``postgresql``."""
    if name not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"Django on {name}: semel cannot join Django's own transactions")
    return DjangoSqliteEngine() if name == "sqlite" else DjangoPostgresEngine()


def _cause(error: BaseException) -> BaseException:
    """The driver's own error, which Django wraps."""
    return error.__cause__ or error if isinstance(error, django_errors.Error) else error


def missing(error: SemelError) -> SemelError:
    """For missing tables: the error that tells a Django user how to make them."""
    return SchemaError(_MIGRATE) if isinstance(error, SchemaError) else error


class DjangoSqliteEngine:
    """SQLite has one writer at a time: a transaction that has begun holds every lock."""

    def begin(self, wrapper: Any, enter: Callable[[], None]) -> bool:
        # Take the write lock at once: SQLite may refuse it to a transaction that has read first.
        mode, wrapper.transaction_mode = wrapper.transaction_mode, "IMMEDIATE"
        try:
            enter()
        except django_errors.OperationalError as error:
            cause = _cause(error)
            if isinstance(cause, sqlite3.Error) and is_busy(cause):
                return False  # the other transaction may hold this very key
            raise
        finally:
            wrapper.transaction_mode = mode
        return True

    def lock(self, wrapper: Any, identity: Identity | None, limit: float | None) -> bool:
        return True

    def joined(self, wrapper: Any) -> Store:
        return _SqliteJoined(wrapper.connection)

    def in_transaction(self, wrapper: Any) -> bool:
        return bool(wrapper.connection is not None and wrapper.connection.in_transaction)

    def semel_error(self, error: BaseException, *, applied: bool | None) -> SemelError:
        cause = _cause(error)
        if isinstance(cause, sqlite3.OperationalError) and "no such savepoint" in str(cause):
            return ConfigurationError(ENDED)
        if isinstance(cause, sqlite3.Error):
            return missing(outage(cause, applied=applied))
        return StoreUnavailable(f"SQLite: {cause}", applied=applied)

    @contextmanager
    def committing(self, wrapper: Any) -> Generator[None]:
        yield

    def sever(self, wrapper: Any) -> bool:
        """Interrupt the running statement. A handler between statements cannot be stopped: after a
        rollback behind its back, its next write would commit by itself.
        """
        with suppress(Exception):
            wrapper.connection.interrupt()
        return False


class _SqliteJoined:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def perform(self, op: StoreOperation[R], /) -> R:
        try:
            return run(self._connection, plan(op), system_clock())
        except sqlite3.Error as error:
            raise missing(outage(error, applied=False)) from error


class DjangoPostgresEngine:
    """PostgreSQL has the identity's advisory lock, as in semel's own transactions."""

    def begin(self, wrapper: Any, enter: Callable[[], None]) -> bool:
        enter()
        return True

    def lock(self, wrapper: Any, identity: Identity | None, limit: float | None) -> bool:
        from psycopg import Cursor

        from semel.stores.postgres.transaction import locking

        # Whatever level Django sets: each statement must see what was committed before it.
        level = b"" if wrapper.savepoint_ids else b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED;"
        asked = b"SELECT true" if identity is None else locking(identity, limit)
        cursor: Cursor[Any] = Cursor(wrapper.connection)
        cursor.execute(level + asked)
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        return bool(row and row[0])

    def joined(self, wrapper: Any) -> Store:
        from semel.stores.postgres.psycopg_sync import JoinedStore

        return _PostgresJoined(JoinedStore(wrapper.connection))

    def in_transaction(self, wrapper: Any) -> bool:
        from semel.stores.postgres.transaction import FAILED, IN_TRANSACTION

        if wrapper.connection is None:
            return False
        return wrapper.connection.pgconn.transaction_status in (IN_TRANSACTION, FAILED)

    def semel_error(self, error: BaseException, *, applied: bool | None) -> SemelError:
        import psycopg

        from semel.stores.postgres.errors import driver_fault, store_error
        from semel.stores.postgres.transaction import NO_SUCH_SAVEPOINT, refused_commit

        cause = _cause(error)
        if not isinstance(cause, psycopg.Error):
            return StoreUnavailable(f"PostgreSQL: {cause}", applied=applied)
        fault = driver_fault(cause)
        if applied is None or fault.code in NO_SUCH_SAVEPOINT:
            return refused_commit(fault)
        return missing(store_error(fault, doubt=False))

    @contextmanager
    def committing(self, wrapper: Any) -> Generator[None]:
        connection, unsure = wrapper.connection, list[Any]()

        def noticed(notice: Any) -> None:
            if notice.source_function == "SyncRepWaitForLSN":
                unsure.append(notice)

        connection.add_notice_handler(noticed)
        try:
            yield
        finally:
            connection.remove_notice_handler(noticed)
        if unsure:
            raise StoreUnavailable("PostgreSQL: committed here, but no standby confirmed it")

    def sever(self, wrapper: Any) -> bool:
        from semel.stores.postgres.transaction import hang_up

        hang_up(wrapper.connection.pgconn)
        return True


class _PostgresJoined:
    def __init__(self, store: Store) -> None:
        self._store = store

    def perform(self, op: StoreOperation[R], /) -> R:
        try:
            return self._store.perform(op)
        except SemelError as error:
            raise missing(error) from error
