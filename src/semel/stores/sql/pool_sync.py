"""The pool for threads, for any database server: who has a connection, and when it is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from threading import Semaphore, Thread
from time import monotonic
from typing import Generic, Protocol, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.sql.plans import plan
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, ToStoreError, drive, retried

R = TypeVar("R")
C = TypeVar("C")


class Closable(Protocol):
    """A connection; closing one that is closed does nothing."""

    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)


class ConnectionPool(Generic[L]):
    """At most ``size`` connections; the one used last is used next. A server's own pool says how a
    connection is opened, used and checked."""

    def __init__(self, size: int, store_error: ToStoreError) -> None:
        self._size = size
        self._store_error = store_error
        self._slots = Semaphore(size)
        self._idle: deque[L] = deque()
        self._closed = False

    def _run(self, conn: L, statement: Statement, deadline: float) -> Rows:
        raise NotImplementedError

    def _alive(self, conn: L, deadline: float) -> bool:
        raise NotImplementedError

    def _open(self, deadline: float) -> L:
        raise NotImplementedError

    def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = retried(plan(op), self._store_error, doubt=doubt)
        return drive(steps, lambda statement: self.execute(statement, deadline))

    def close(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        self._closed = True
        self._drop_idle()

    def execute(self, statement: Statement, deadline: float) -> Rows:
        conn, broken = self._borrow(deadline), True
        try:
            rows = self._run(conn, statement, deadline)
            broken = False
            return rows
        except StatementFault as fault:
            broken = fault.broken
            if fault.contagious:
                self._drop_idle()
            raise
        finally:
            try:
                if broken or self._closed:
                    conn.close()
                else:
                    self._idle.append(conn)
            finally:
                self._slots.release()

    def _borrow(self, deadline: float) -> L:
        """A connection, with one of the slots."""
        if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
            said = f"no connection came free within the time limit (pool_size={self._size})"
            raise StatementFault(said)
        try:
            while conn := self._pop():
                if self._alive(conn, deadline):
                    return conn
                conn.close()
            return self._open(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _drop_idle(self) -> None:
        while conn := self._pop():
            conn.close()

    def _pop(self) -> L | None:
        try:
            return self._idle.pop()
        except IndexError:  # asking first would race with other threads
            return None


def connected(connect: Callable[[], C], drop: Callable[[C], None], deadline: float) -> C:
    """Connect until a deadline, in a thread: neither name resolution nor a driver takes one. A
    connection that comes too late is dropped."""
    opening: Future[C] = Future()

    def work() -> None:
        try:
            connection = connect()
        except BaseException as error:
            with suppress(InvalidStateError):  # the caller has given up
                opening.set_exception(error)
            return
        try:
            opening.set_result(connection)
        except InvalidStateError:
            drop(connection)

    Thread(target=work, name="semel-connect", daemon=True).start()
    wait_for([opening], max(0.0, deadline - monotonic()))
    if opening.cancel():
        raise StatementFault("no connection within the time limit")
    return opening.result()
