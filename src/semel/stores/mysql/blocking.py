"""The pool for threads."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, InvalidStateError, wait
from threading import Semaphore, Thread
from time import monotonic
from typing import Any, TypeVar

from semel.core.contract import StoreOperation
from semel.errors import SemelError
from semel.stores.mysql.exchange import check_schema, exchange
from semel.stores.mysql.faults import Fault, not_connected, verdict
from semel.stores.mysql.link import Link, dial
from semel.stores.mysql.migration import migrate
from semel.stores.mysql.settings import Settings
from semel.stores.sql.errand import errand
from semel.stores.sql.plans import Rows, Statement

R = TypeVar("R")


class BlockingPool:
    """At most ``pool_size`` connections; the one used last is used next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slots = Semaphore(settings.pool_size)
        self._idle: deque[Link] = deque()
        self._ready = False
        self._closed = False

    def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R:
        """One operation by itself."""
        steps = errand(op, verdict, doubt=doubt)
        try:
            statement = next(steps)
            while True:
                try:
                    rows = self.execute(statement, deadline)
                except Fault as fault:
                    statement = steps.throw(fault)
                else:
                    statement = steps.send(rows)
        except StopIteration as done:
            reply: R = done.value
            return reply

    def close(self) -> None:
        """Idle connections are closed now, those at work when they are done."""
        self._closed = True
        self._drop_idle()

    def execute(self, statement: Statement, deadline: float) -> Rows:
        if not self._slots.acquire(timeout=max(0.0, deadline - monotonic())):
            size = self._settings.pool_size
            raise Fault(f"no connection came free within the time limit (pool_size={size})")
        try:
            return self._work(self._take() or self._open(deadline), statement, deadline)
        finally:
            self._slots.release()

    def _work(self, link: Link, statement: Statement, deadline: float) -> Rows:
        broken = True
        try:
            rows = link.run(exchange(statement), deadline)
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

    def _take(self) -> Link | None:
        while link := self._pop():
            if link.alive():
                return link
            link.close()
        return None

    def _drop_idle(self) -> None:
        while link := self._pop():
            link.close()

    def _pop(self) -> Link | None:
        try:
            return self._idle.pop()
        except IndexError:  # asking first would race with other threads
            return None

    def _open(self, deadline: float) -> Link:
        link = Link(self._connect(deadline))
        try:
            link.greet(self._settings, deadline, warn=not self._ready)
            if not self._ready:
                link.run(check_schema(), deadline)
                self._ready = True
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, deadline: float) -> Any:
        """In a thread of its own: neither name resolution nor PyMySQL can be given a deadline."""
        opening: Future[Any] = Future()
        Thread(target=self._dial, args=(opening,), name="semel-connect", daemon=True).start()
        wait([opening], max(0.0, deadline - monotonic()))
        if opening.cancel():
            raise Fault("no connection within the time limit")
        try:
            return opening.result()
        except (SemelError, Fault):
            raise
        except Exception as error:
            raise not_connected(error, self._settings.without_secrets) from None

    def _dial(self, opening: Future[Any]) -> None:
        try:
            if self._settings.migrate and not self._ready:
                migrate(self._settings)
            connection = dial(self._settings)
        except BaseException as error:
            _tell(opening, error)
            return
        try:
            opening.set_result(connection)
        except InvalidStateError:
            connection._force_close()  # too late: nobody waits for it any more


def _tell(opening: Future[Any], error: BaseException) -> None:
    try:
        opening.set_exception(error)
    except InvalidStateError:
        return
