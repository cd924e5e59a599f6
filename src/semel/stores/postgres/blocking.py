"""The pool for threads: waits with poll(2), up to a deadline, whatever the server does."""

from __future__ import annotations

import select
from collections import deque
from concurrent.futures import Future, InvalidStateError
from threading import Semaphore, Thread
from time import monotonic
from typing import TypeVar

import psycopg

from semel.core.contract import StoreOperation
from semel.stores.postgres.errand import errand
from semel.stores.postgres.faults import Fault, not_connected
from semel.stores.postgres.link import WRITE, Connection, Exchange, Link
from semel.stores.postgres.migration import migrate
from semel.stores.postgres.settings import Settings
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
        steps = errand(op, doubt=doubt)
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
            rows = wait(link, link.execute(statement), deadline)
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
            if not _ready(link, 0, 0.0) or link.alive():
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
        link = Link(self._connect(deadline), self._settings.prepare)
        try:
            wait(link, link.greet(), deadline)
            wait(link, link.descend(self._settings.lineage), deadline)
            if not self._ready:
                wait(link, link.check_schema(), deadline)
                self._ready = True
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, deadline: float) -> Connection:
        """In a thread of its own: neither name resolution nor libpq can be given a deadline."""
        opening: Future[Connection] = Future()
        Thread(target=self._dial, args=(opening,), name="semel-connect", daemon=True).start()
        try:
            return opening.result(max(0.0, deadline - monotonic()))
        except TimeoutError:
            if opening.cancel():
                raise Fault("no connection within the time limit") from None
            return opening.result()
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None

    def _dial(self, opening: Future[Connection]) -> None:
        try:
            if self._settings.migrate and not self._ready:
                migrate(self._settings)
            connection = Connection.connect(self._settings.conninfo, autocommit=True)
        except BaseException as error:
            _tell(opening, error)
            return
        try:
            opening.set_result(connection)
        except InvalidStateError:
            connection.close()  # too late: nobody waits for it any more


def _tell(opening: Future[Connection], error: BaseException) -> None:
    try:
        opening.set_exception(error)
    except InvalidStateError:
        return


def wait(link: Link, exchange: Exchange, deadline: float) -> Rows:
    """Run ``exchange`` to its end, or give up at the deadline and leave the connection unusable."""
    try:
        want = next(exchange)
        while True:
            if not _ready(link, want, deadline - monotonic()):
                raise Fault("no answer within the time limit", doubt=True)
            want = next(exchange)
    except StopIteration as done:
        rows: Rows = done.value
        return rows


def _ready(link: Link, want: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(link.fd, select.POLLIN | (select.POLLOUT if want & WRITE else 0))
    return bool(poll.poll(max(0.0, seconds) * 1000))
