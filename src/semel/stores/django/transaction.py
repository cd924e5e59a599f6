"""Transactions on Django's own connection: what the ORM writes commits with the record.

There are two atomic blocks of Django's. The outer one holds the record; the inner one is the
handler's, so that its writes can be undone while the record stays. Django's connections belong to
threads, so the thread that runs the handler enters and leaves both.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from math import ceil
from secrets import token_hex
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db import utils as django_errors

from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreUnavailable
from semel.log import log
from semel.stores.base import Store, system_clock
from semel.stores.open_transactions import ENDED, OVER, HeldIdentity, in_event_loop
from semel.stores.sqlite.backend import SqliteJoinedStore
from semel.stores.sqlite.connection import is_busy, outage

R = TypeVar("R")

_NESTED: Final = (
    "a transaction of Django's is open around this request, so nothing here could be made durable: "
    "leave out transaction.atomic around the guard, or put @transaction.non_atomic_requests on the "
    "view where ATOMIC_REQUESTS opened it"
)
_BY_HAND: Final = (
    "Django does not commit by itself here (AUTOCOMMIT is off), so nothing could be made durable: "
    "leave it on in DATABASES, and where set_autocommit was called turn it on again"
)
_NOT_COMMITTED: Final = "Django has rolled the transaction back instead of committing it"
_LEFT_OPEN: Final = "the handler left an atomic block of Django's open, or closed one of semel's"
_ELSEWHERE: Final = (
    "this view writes to the database {!r} of Django's, which is not the one its key commits in: "
    "the two would not be one transaction. Keep these models in the guard's database, write there "
    "by an effect, or leave out mode='atomic'"
)
UNDOES_ALL: Final = (1213, 1020)
"""Errors of MariaDB and MySQL that undo the whole transaction: a deadlock, a conflict."""
_READS: Final = re.compile(
    r"(?:\s|\(|/\*.*?\*/)*(?:SELECT|SHOW|SET|BEGIN|SAVEPOINT|RELEASE|ROLLBACK)\b", re.I | re.S
)
"""Statements that another database may get: reads, and those that Django sends by itself."""


def _forget_old_errors(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    """Wraps statements: forget an error whose block was rolled back.

    Django keeps its last error in ``rollback_exc`` for ever; only ``needs_rollback`` says whether
    that error still spoils the open block.
    """
    wrapper = context["connection"]
    if not wrapper.needs_rollback:
        wrapper.rollback_exc = None
    try:
        return execute(sql, params, many, context)
    except django_errors.OperationalError as error:
        if wrapper.vendor == "mysql" and error.args and error.args[0] in UNDOES_ALL:
            # Nothing is left to go back to; Django refuses what follows.
            wrapper.needs_rollback, wrapper.rollback_exc = True, error
        raise


def _refuse_writes(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    """Wraps statements in other databases: a write there would not be part of this transaction."""
    if _READS.match(str(sql)) is None:
        raise ConfigurationError(_ELSEWHERE.format(context["connection"].alias))
    return execute(sql, params, many, context)


class _Undone(Exception):
    """Leaves an atomic block and undoes its writes."""


class DjangoTransaction:
    """See `semel.stores.base.Transaction`."""

    def __init__(self, wrapper: Any, engine: DjangoEngine, hold: HeldIdentity) -> None:
        self._wrapper = wrapper
        self._engine = engine
        self._hold: HeldIdentity | None = hold
        self._outer = transaction.atomic(using=wrapper.alias, durable=True)
        self._inner: Any = None
        self._of_phase = True
        """Nothing of the record was asked for before the handler's block."""
        self._end: SemelError | str | None = None
        self._severed: StoreUnavailable | None = None

    def begin(self, identity: Identity | None, limit: float | None) -> bool:
        """False, holding nothing, when another transaction has the identity's lock."""
        blocks: list[Any] = self._wrapper.atomic_blocks
        if blocks and not blocks[-1]._from_testcase:
            raise ConfigurationError(_NESTED)
        if not blocks and not self._wrapper.get_autocommit():
            raise ConfigurationError(_BY_HAND)  # Django would make a savepoint, and commit nothing
        if not self._engine.begin(self._wrapper, self._outer.__enter__):
            return False
        self._wrapper.rollback_exc = None
        self._watch(True)
        try:
            won = self._engine.lock(self._wrapper, identity, limit)
            if won and identity is None:
                DjangoTransaction.savepoint(self)  # this is the thread of an async one too
        except BaseException:
            self._leave()
            raise
        if not won:
            self._leave()
        return won

    @property
    def connection(self) -> Any:
        """Django's own; the ORM needs none."""
        if self._end is not None:
            raise ConfigurationError(OVER)
        return self._wrapper

    @property
    def session(self) -> NoReturn:
        raise ConfigurationError("in Django the ORM is in the transaction already: use a model")

    def perform(self, op: StoreOperation[R], /) -> R:
        if in_event_loop():  # an async view: Django's own thread must run the statements
            awaited: Any = sync_to_async(self._perform)(op)
            return awaited  # type: ignore[no-any-return]
        return self._perform(op)

    def _perform(self, op: StoreOperation[R]) -> R:
        self._demand_open()
        if self._inner is None and self._wrapper.needs_rollback:
            raise StoreUnavailable(_NOT_COMMITTED, applied=False)  # there was nothing to go back to
        self._of_phase = self._of_phase and self._inner is not None
        return self._engine.joined(self._wrapper).perform(op)

    def savepoint(self) -> None:
        self._inner = transaction.atomic(using=self._wrapper.alias)
        self._run(self._inner.__enter__)

    def flush(self) -> None:
        """Leave the handler's block as Django would, also after `set_rollback`.

        When a write of the handler has failed, Django undoes all of them. The handler may have
        caught that error; it is raised here, because it is the outcome. A phase whose writes are
        undone is not passed.
        """
        wrapper = self._wrapper
        undone: bool = wrapper.needs_rollback
        failed: Exception | None = wrapper.rollback_exc if undone else None
        self._leave_inner(None)
        if failed is not None:
            raise failed
        if undone and self._of_phase:
            raise StoreUnavailable(_NOT_COMMITTED, applied=False)

    def undo(self) -> None:
        self._leave_inner(_Undone())

    def _leave_inner(self, error: _Undone | None) -> None:
        self._demand_open()
        inner, self._inner = self._inner, None
        if inner is None:
            return
        blocks: list[Any] = self._wrapper.atomic_blocks
        if not blocks or blocks[-1] is not inner:
            raise ConfigurationError(_LEFT_OPEN)
        if error is not None or self._wrapper.needs_rollback:
            self._run(lambda: self._go_back(undoes=error is not None))
        self._run(lambda: inner.__exit__(type(error) if error else None, error, None))

    def _go_back(self, *, undoes: bool) -> None:
        """Go back to the handler's savepoint, before Django does: Django does not tell when it is
        gone, and the handler's own COMMIT with it."""
        wrapper, all_undone = self._wrapper, self._engine.undone_by_server(self._wrapper)
        if not all_undone:
            _ask(wrapper, wrapper.ops.savepoint_rollback_sql(wrapper.savepoint_ids[-1]))
        self._engine.check_rollback(wrapper)
        if all_undone and undoes:
            raise StoreUnavailable(f"{wrapper.vendor}: {wrapper.rollback_exc}", applied=False)

    def _watch(self, on: bool) -> None:
        """Put the statement wrappers on every connection of this thread, or remove them."""
        for wrapper in connections.all():
            watcher = _forget_old_errors if wrapper is self._wrapper else _refuse_writes
            with suppress(ValueError):
                if on:
                    wrapper.execute_wrappers.append(watcher)
                else:
                    wrapper.execute_wrappers.remove(watcher)

    def _run(self, work: Callable[[], object]) -> None:
        """Call ``work``; an error of the driver becomes one of semel's."""
        try:
            work()
        except Exception as error:
            raise self._engine.semel_error(error, applied=False) from error

    def _demand_open(self) -> None:
        if self._severed is not None:
            raise self._severed
        if self._end is not None:
            raise ConfigurationError(OVER)
        if self._wrapper.connection is None or self._wrapper.closed_in_transaction:
            raise StoreUnavailable("Django's connection was lost, or closed", applied=False)
        if not self._engine.in_transaction(self._wrapper):
            raise ConfigurationError(ENDED)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> None:
        if self._end is None:
            self._end = self._committed() or "committed"
            self._hold = None
        if isinstance(self._end, SemelError):
            raise self._end

    def _committed(self) -> SemelError | None:
        wrapper = self._wrapper
        try:
            self._leave_inner(None)
            # Django would silently leave another block, or roll back.
            if not wrapper.atomic_blocks or wrapper.atomic_blocks[-1] is not self._outer:
                raise ConfigurationError(_LEFT_OPEN)
            if wrapper.needs_rollback:
                raise StoreUnavailable(_NOT_COMMITTED, applied=False)
        except SemelError as error:
            self._leave()
            return error
        self._watch(False)
        nested = bool(wrapper.savepoint_ids)
        hooks: list[Any] = wrapper.run_on_commit
        if not nested:
            wrapper.run_on_commit = []  # an error in one of them is not a failed commit
        try:
            with self._engine.committing(wrapper):
                self._outer.__exit__(None, None, None)
        except SemelError as error:
            return error
        except Exception as error:
            return self._engine.semel_error(error, applied=None)
        finally:
            self._engine.release(wrapper)
        if not nested:
            wrapper.run_on_commit = hooks
            try:
                wrapper.run_and_clear_commit_hooks()
            except Exception:
                log.exception("semel: a function given to transaction.on_commit raised")
        return None

    def roll_back(self) -> None:
        if self._end is None:
            self._end = StoreUnavailable("the transaction was rolled back", applied=False)
            self._leave()

    def _leave(self) -> None:
        """Leave every block that was opened since the beginning, and undo its writes."""
        self._end = self._end or "left"
        self._hold = None
        self._watch(False)
        blocks: list[Any] = self._wrapper.atomic_blocks
        while self._outer in blocks:
            block = blocks[-1]
            with suppress(Exception):
                block.__exit__(_Undone, _Undone(), None)
            if blocks and blocks[-1] is block:
                blocks.pop()
        self._engine.release(self._wrapper)

    def sever(self, why: str) -> bool:
        if self._end is not None:
            return True
        self._severed = StoreUnavailable(f"{self._wrapper.vendor}: {why}", applied=False)
        return self._engine.sever(self._wrapper)


def _in_thread(name: str) -> Any:
    """The blocking method as a coroutine function, in the thread that Django's async code uses."""
    method = getattr(DjangoTransaction, name)

    async def call(self: AsyncDjangoTransaction, *given: Any) -> Any:
        return await sync_to_async(method)(self, *given)

    return call


class AsyncDjangoTransaction(DjangoTransaction):
    """See `semel.stores.base.AsyncTransaction`."""

    perform: Any = _in_thread("perform")
    savepoint: Any = _in_thread("savepoint")
    undo: Any = _in_thread("undo")
    flush: Any = _in_thread("flush")
    commit: Any = _in_thread("commit")
    roll_back: Any = _in_thread("roll_back")


# ── what differs between databases ────────────────────────────────────────────────────────────────

_MIGRATE: Final = (
    "the database of Django has no tables of semel, or old ones: put "
    "'semel.frameworks.django' into INSTALLED_APPS and run `manage.py migrate`"
)


def missing(error: SemelError) -> SemelError:
    """For missing tables: the error that tells a Django user how to make them."""
    return SchemaError(_MIGRATE) if isinstance(error, SchemaError) else error


class SchemaHintStore:
    """A store; where tables are missing, the error says how Django makes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def perform(self, op: StoreOperation[R], /) -> R:
        try:
            return self._store.perform(op)
        except SchemaError as error:
            raise missing(error) from error


def _cause(error: BaseException) -> BaseException:
    """The driver's own error, which Django wraps."""
    return error.__cause__ or error if isinstance(error, django_errors.Error) else error


class _EngineDefaults:
    """What a database does where its class says nothing else.

    ``wrapper``: Django's connection object, whose connection is open.
    """

    def begin(self, wrapper: Any, enter: Callable[[], None]) -> bool:
        """Call ``enter`` to open the transaction; False when another one prevents it."""
        enter()
        return True

    def lock(self, wrapper: Any, identity: Identity | None, limit: float | None) -> bool:
        """Try the identity's lock, without waiting, as the first statement; False: it is taken."""
        return True

    def in_transaction(self, wrapper: Any) -> bool:
        """Whether a transaction is open. Where the driver does not tell, the savepoint of the
        handler's block shows in the end whether it is still the one that was begun."""
        return True

    def undone_by_server(self, wrapper: Any) -> bool:
        """Whether the failed statement has undone the whole transaction."""
        return False

    def check_rollback(self, wrapper: Any) -> None:
        """Raise when a rollback just now has not undone all that was written."""

    def release(self, wrapper: Any) -> None:
        """After the end: give back what does not end with the transaction."""

    def committing(self, wrapper: Any) -> AbstractContextManager[None]:
        """For the commit: raises when the server reports a success it is not sure of."""
        return nullcontext()


class DjangoSqliteEngine(_EngineDefaults):
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

    def joined(self, wrapper: Any) -> Store:
        """The store inside the open transaction."""
        return SchemaHintStore(SqliteJoinedStore(wrapper.connection, system_clock))

    def in_transaction(self, wrapper: Any) -> bool:
        return bool(wrapper.connection.in_transaction)

    def semel_error(self, error: BaseException, *, applied: bool | None) -> SemelError:
        """semel's error for one of the driver, or for Django's error around it."""
        cause = _cause(error)
        if isinstance(cause, sqlite3.OperationalError) and "no such savepoint" in str(cause):
            return ConfigurationError(ENDED)
        if isinstance(cause, sqlite3.Error):
            return missing(outage(cause, applied=applied))
        return StoreUnavailable(f"SQLite: {cause}", applied=applied)

    def sever(self, wrapper: Any) -> bool:
        """End the connection from any thread; False when that cannot be done.

        Interrupts the running statement. A handler between statements cannot be stopped: after a
        rollback behind its back, its next write would commit by itself.
        """
        with suppress(Exception):
            wrapper.connection.interrupt()
        return False


class DjangoPostgresEngine(_EngineDefaults):
    """The same for PostgreSQL, which has the identity's advisory lock."""

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

        return SchemaHintStore(JoinedStore(wrapper.connection))

    def in_transaction(self, wrapper: Any) -> bool:
        from semel.stores.postgres.transaction import FAILED, IN_TRANSACTION

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

        hang_up(wrapper.connection)
        return True


class DjangoMysqlEngine(_EngineDefaults):
    """The same for MariaDB and MySQL, over mysqlclient or PyMySQL.

    Django turns autocommit off for a transaction: what a handler writes after a statement that has
    ended it is not committed. The savepoint of the handler's block tells that it was ended.
    """

    def begin(self, wrapper: Any, enter: Callable[[], None]) -> bool:
        if not wrapper.in_atomic_block:
            # Of the next transaction alone; whatever level Django sets.
            _ask(wrapper, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        enter()
        return True

    def lock(self, wrapper: Any, identity: Identity | None, limit: float | None) -> bool:
        """A phase has a lock too: by that alone a connection is known (`sever`)."""
        from semel.stores.mysql.transaction import OF_CLUSTER, lock_name

        if _ask(wrapper, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'") in (("wsrep_on", "ON"),):
            raise ConfigurationError(OF_CLUSTER)
        name = f"'semel.{token_hex(16)}'" if identity is None else lock_name(identity)
        held, won, idle = _ask(wrapper, f"SELECT {name}, GET_LOCK({name}, 0), @@wait_timeout")
        wrapper.semel_lock = (held, idle) if won == 1 else None
        if won == 1 and limit is not None:
            _ask(wrapper, f"SET wait_timeout = LEAST({idle}, {max(1, ceil(limit))})")
        return bool(won == 1)

    def joined(self, wrapper: Any) -> Store:
        from semel.stores.mysql.joined_stores import joined_store

        store: Any = joined_store(wrapper.connection)
        return SchemaHintStore(store)

    def semel_error(self, error: BaseException, *, applied: bool | None) -> SemelError:
        from semel.stores.mysql.errors import NO_SUCH_SAVEPOINT, driver_fault, store_error
        from semel.stores.mysql.transaction import refused_commit

        cause = _cause(error)
        if isinstance(cause, SemelError):
            return cause
        if not isinstance(cause, Exception):
            return StoreUnavailable(f"MySQL: {cause}", applied=applied)
        fault = driver_fault(cause)
        if applied is None or fault.code == NO_SUCH_SAVEPOINT:
            return refused_commit(fault)
        return missing(store_error(fault, doubt=False))

    def undone_by_server(self, wrapper: Any) -> bool:
        failed = wrapper.rollback_exc if wrapper.needs_rollback else None
        return failed is not None and failed.args[:1] in ((code,) for code in UNDOES_ALL)

    def check_rollback(self, wrapper: Any) -> None:
        """See `semel.stores.mysql.transaction.undo`: temporary tables are told apart."""
        from semel.stores.mysql.transaction import ALL_UNDONE, KEPT

        if not _incomplete(wrapper):
            return
        if not self.undone_by_server(wrapper):
            # Only a statement that reads a table forgets the warnings of the one before it.
            _ask(wrapper, "SELECT 1 FROM information_schema.engines LIMIT 1")
            _ask(wrapper, "ROLLBACK")
            if not _incomplete(wrapper):
                raise StoreUnavailable(f"MySQL: {ALL_UNDONE}", applied=False)
        raise ConfigurationError(KEPT)

    def release(self, wrapper: Any) -> None:
        """Where that fails the connection is closed, and its lock ends with it."""
        held, wrapper.semel_lock = getattr(wrapper, "semel_lock", None), None
        if held is None or wrapper.connection is None:
            return
        name, idle = held
        try:
            _ask(wrapper, f"DO RELEASE_LOCK('{name}')")
            _ask(wrapper, f"SET wait_timeout = {idle}")
        except Exception:
            with suppress(Exception):
                wrapper.close()

    def sever(self, wrapper: Any) -> bool:
        """By another connection: mysqlclient does not tell its socket."""
        from semel.stores.django.backend import mysql_url
        from semel.stores.mysql.settings import parse
        from semel.stores.mysql.transaction import kill

        held = getattr(wrapper, "semel_lock", None)
        if held is not None and wrapper.connection is not None:
            settings = parse(mysql_url(wrapper.settings_dict), {})
            kill(settings, held[0], wrapper.connection.thread_id())
        return True


def _ask(wrapper: Any, statement: str) -> Any:
    """The first row, if there are any. By the driver: Django's own cursors are watched."""
    return next(iter(_rows(wrapper, statement)), None)


def _rows(wrapper: Any, statement: str) -> Sequence[Any]:
    cursor = wrapper.connection.cursor()
    try:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else ()
    finally:
        cursor.close()


def _incomplete(wrapper: Any) -> bool:
    from semel.stores.mysql.transaction import NOT_COMPLETE

    return any(code == NOT_COMPLETE for _, code, _ in _rows(wrapper, "SHOW WARNINGS"))


DjangoEngine: TypeAlias = DjangoSqliteEngine | DjangoPostgresEngine | DjangoMysqlEngine
ENGINES: Final[dict[str, DjangoEngine]] = {
    "sqlite": DjangoSqliteEngine(),
    "postgresql": DjangoPostgresEngine(),
    "mysql": DjangoMysqlEngine(),
}
"""What differs between the databases whose transactions semel can join."""
