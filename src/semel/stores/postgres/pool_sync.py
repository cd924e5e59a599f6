"""The pool for threads: waits with poll(2), up to a deadline, whatever the server does."""

from __future__ import annotations

import select
from time import monotonic

import psycopg

from semel.stores.postgres.connection import WRITE, Connection, Exchange, Link
from semel.stores.postgres.errors import Fault, not_connected, verdict
from semel.stores.postgres.migration import migrate
from semel.stores.postgres.settings import Settings
from semel.stores.sql import pool_sync
from semel.stores.sql.plans import Rows, Statement


class BlockingPool(pool_sync.BlockingPool[Link]):
    """Connections of libpq's."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.pool_size, verdict)
        self._settings = settings
        self._ready = False

    def _run(self, link: Link, statement: Statement, deadline: float) -> Rows:
        return wait(link, link.execute(statement), deadline)

    def _alive(self, link: Link) -> bool:
        return not ready(link, 0, 0.0) or link.alive()

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
        try:
            return pool_sync.connected(self._dial, Connection.close, deadline)
        except psycopg.Error as error:
            raise not_connected(error, self._settings.without_secrets) from None

    def _dial(self) -> Connection:
        if self._settings.migrate and not self._ready:
            migrate(self._settings)
        return Connection.connect(self._settings.conninfo, autocommit=True)


def wait(link: Link, exchange: Exchange, deadline: float) -> Rows:
    """Run ``exchange`` to its end, or give up at the deadline and leave the connection unusable."""
    try:
        want = next(exchange)
        while True:
            if not ready(link, want, deadline - monotonic()):
                raise Fault("no answer within the time limit", doubt=True)
            want = next(exchange)
    except StopIteration as done:
        rows: Rows = done.value
        return rows


def ready(link: Link, want: int, seconds: float) -> bool:
    """Whether there is something to read, or room to write, before that much time has passed."""
    poll = select.poll()
    poll.register(link.fd, select.POLLIN | (select.POLLOUT if want & WRITE else 0))
    return bool(poll.poll(max(0.0, seconds) * 1000))
