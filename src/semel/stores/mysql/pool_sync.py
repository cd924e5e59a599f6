"""The pool for threads."""

from __future__ import annotations

from typing import Any

from semel.errors import SemelError
from semel.stores.mysql.connection_sync import Link, dial
from semel.stores.mysql.errors import not_connected, verdict
from semel.stores.mysql.migration import migrate
from semel.stores.mysql.settings import Settings
from semel.stores.sql import pool_sync
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import Fault


class BlockingPool(pool_sync.BlockingPool[Link]):
    """Connections of PyMySQL's."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.pool_size, verdict)
        self._settings = settings
        self._ready = False

    def _run(self, link: Link, statement: Statement, deadline: float) -> Rows:
        return link.run(statement, deadline)

    def _alive(self, link: Link) -> bool:
        return link.alive()

    def _open(self, deadline: float) -> Link:
        link = Link(self._connect(deadline), self._settings)
        try:
            link.greet(deadline, warn=not self._ready)
            if not self._ready:
                link.check_schema(deadline)
                self._ready = True
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, deadline: float) -> Any:
        try:
            return pool_sync.connected(self._dial, _drop, deadline)
        except (SemelError, Fault):
            raise
        except Exception as error:
            raise not_connected(error, self._settings.without_secrets) from None

    def _dial(self) -> Any:
        if self._settings.migrate and not self._ready:
            migrate(self._settings)
        return dial(self._settings)


def _drop(connection: Any) -> None:
    connection._force_close()
