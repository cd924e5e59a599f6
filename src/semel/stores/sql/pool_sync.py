"""The pool for threads, of any database server: who has a connection, and when it is closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from threading import Semaphore, Thread
from time import monotonic
from typing import Generic, Protocol, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import Fault, Verdict, drive, errand

R = TypeVar("R")
C = TypeVar("C")


class Closing(Protocol):
    """A connection; closing one that is closed does nothing."""

    def close(self) -> None: ...


L = TypeVar("L", bound=Closing)


class BlockingPool(Generic[L]):
    """At most ``size`` connections; the one used last is used next."""

    def __init__(self, size: int, verdict: Verdict) -> None:
        self._size = size
        self._verdict = verdict
        self._slots = Semaphore(size)
        self._idle: deque[L] = deque()
        self._closed = False

    # ── what a server's own pool knows ────────────────────────────────────────────────────────────

    def _run(self, link: L, statement: Statement, deadline: float) -> Rows:
        raise NotImplementedError

    def _alive(self, link: L) -> bool:
        raise NotImplementedError

    def _open(self, deadline: float) -> L:
        raise NotImplementedError

    # ── what all do alike ─────────────────────────────────────────────────────────────────────────

    def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = errand(op, self._verdict, doubt=doubt)
        return drive(steps, lambda statement: self.execute(statement, deadline))

    def close(self) -> None:
        """Idle connections are closed now, those at work when they are done."""
        self._closed = True
        self._drop_idle()

    def execute(self, statement: Statement, deadline: float) -> Rows:
        if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
            raise Fault(f"no connection came free within the time limit (pool_size={self._size})")
        try:
            return self._work(self._take() or self._open(deadline), statement, deadline)
        finally:
            self._slots.release()

    def _work(self, link: L, statement: Statement, deadline: float) -> Rows:
        broken = True
        try:
            rows = self._run(link, statement, deadline)
            broken = False
            return rows
        except Fault as fault:
            broken = fault.broken
            if fault.contagious:
                self._drop_idle()
            raise
        finally:
            if broken or self._closed:
                link.close()
            else:
                self._idle.append(link)

    def _take(self) -> L | None:
        while link := self._pop():
            if self._alive(link):
                return link
            link.close()
        return None

    def _drop_idle(self) -> None:
        while link := self._pop():
            link.close()

    def _pop(self) -> L | None:
        try:
            return self._idle.pop()
        except IndexError:  # asking first would race with other threads
            return None


def connected(dial: Callable[[], C], drop: Callable[[C], None], deadline: float) -> C:
    """A connection, in time: in a thread of its own, for neither name resolution nor a driver can
    be given a deadline. One that comes too late is dropped."""
    opening: Future[C] = Future()
    given = (dial, drop, opening)
    Thread(target=_dial, args=given, name="semel-connect", daemon=True).start()
    wait_for([opening], max(0.0, deadline - monotonic()))
    if opening.cancel():
        raise Fault("no connection within the time limit")
    return opening.result()


def _dial(dial: Callable[[], C], drop: Callable[[C], None], opening: Future[C]) -> None:
    try:
        connection = dial()
    except BaseException as error:
        _tell(opening, error)
        return
    try:
        opening.set_result(connection)
    except InvalidStateError:
        drop(connection)  # nobody waits for it any more


def _tell(opening: Future[C], error: BaseException) -> None:
    try:
        opening.set_exception(error)
    except InvalidStateError:
        return
