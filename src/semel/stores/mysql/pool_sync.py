"""The pool for threads."""

from __future__ import annotations

from typing import Any

from semel.errors import SemelError
from semel.stores.mysql.connection import MysqlConnection, connect
from semel.stores.mysql.errors import not_connected, store_error
from semel.stores.mysql.migration import migrate
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.sql.pool_sync import ConnectionPool, connected
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault


class MysqlPool(ConnectionPool[MysqlConnection]):
    """Connections of PyMySQL's."""

    def __init__(self, settings: MysqlSettings) -> None:
        super().__init__(settings.pool_size, store_error)
        self._settings = settings
        self._ready = False

    def _run(self, conn: MysqlConnection, statement: Statement, deadline: float) -> Rows:
        return conn.run(statement, deadline)

    def _alive(self, conn: MysqlConnection, deadline: float) -> bool:
        return conn.alive()

    def _open(self, deadline: float) -> MysqlConnection:
        try:
            connection = connected(self._connect, _drop, deadline)
        except (SemelError, StatementFault):
            raise
        except Exception as error:
            raise not_connected(error, self._settings.without_secrets) from None
        conn = MysqlConnection(connection, self._settings)
        try:
            conn.handshake(deadline, warn=not self._ready)
            if not self._ready:
                conn.check_schema(deadline)
                self._ready = True
        except BaseException:
            conn.close()
            raise
        return conn

    def _connect(self) -> Any:
        if self._settings.migrate and not self._ready:
            migrate(self._settings)
        return connect(self._settings)


def _drop(connection: Any) -> None:
    connection._force_close()
