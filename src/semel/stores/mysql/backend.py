"""`MysqlBackend`: the backend that a ``mysql://`` URL names. And its schema.

DDL commits by itself here, so a migration is no transaction: its statements can be repeated, and
the version is recorded when all of them are done. One lock, however many nodes try.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from math import inf
from typing import Final

from semel.errors import StoreUnavailable
from semel.stores.base import Capabilities, Finding
from semel.stores.mysql.errors import DENIED, MysqlFault, not_connected, store_error
from semel.stores.mysql.pool_async import AsyncMysqlPool
from semel.stores.mysql.pool_sync import MysqlConnection, MysqlPool, connect
from semel.stores.mysql.protocol import DIALECT, rows_of
from semel.stores.mysql.settings import MysqlSettings, parse
from semel.stores.mysql.values import KINDS
from semel.stores.sql.backend import ServerBackend
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, missing_grants, pending, schema_version, upgrade
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive


class MysqlBackend(ServerBackend):
    """Records in MariaDB or MySQL.

    pool_size: connections per process, and per event loop (10).
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    migrate: bring the schema up to date on first use (off).
    durable: refuse a server that may lose in a power cut what it has acknowledged (on).

    Each may also stand in the URL's query.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        migrate: bool | None = None,
        durable: bool | None = None,
    ) -> None:
        options = {
            "pool_size": pool_size,
            "timeout": timeout,
            "migrate": migrate,
            "durable": durable,
        }
        self._settings = settings = parse(url, options)
        given = (settings, partial(_migrate, settings) if settings.migrate else None)
        pools = partial(MysqlPool, *given), partial(AsyncMysqlPool, *given)
        super().__init__(settings.url, settings.timeout, pools, KINDS, store_error)
        self.capabilities: Final = Capabilities(
            durable=settings.durable, shared=True, transactions=False
        )

    def migrate(self) -> int:
        return _migrate(self._settings)

    def examine(self) -> tuple[Finding, ...]:
        """What the user may not do; no try changes anything."""
        with _connected(self._settings, doubt=False) as conn:
            return missing_grants(partial(_denied, conn))


LOCK: Final = "CONCAT('semel.migrate.', MD5(DATABASE()))"
"""Such locks are the server's, not the database's. This one ends with its connection."""
LOCK_WAIT: Final = 3600


def _migrate(settings: MysqlSettings) -> int:
    """Returns the schema's version. There is no deadline: a migration takes as long as it takes."""
    with _connected(settings, doubt=True) as conn:
        execute = partial(_execute, conn)
        # Mostly there is nothing to do, and then a node that hangs with the lock holds up nobody.
        found = drive(schema_version(), execute)
        if not pending(dialect(DIALECT), found):
            return found.version
        rows = rows_of(conn.ask(f"SELECT GET_LOCK({LOCK}, {LOCK_WAIT})", inf))
        if rows[0][0] != 1:
            raise StoreUnavailable("another node has been migrating for an hour", applied=False)
        return drive(upgrade(dialect(DIALECT)), execute)


@contextmanager
def _connected(settings: MysqlSettings, *, doubt: bool) -> Generator[MysqlConnection]:
    try:
        conn = MysqlConnection(connect(settings), settings)
    except Exception as error:
        raise store_error(not_connected(error, settings.without_secrets), doubt=False) from None
    try:
        conn.handshake(inf, warn=False)
        yield conn
    except MysqlFault as fault:
        raise store_error(fault, doubt=doubt) from None
    finally:
        conn.close()


def _denied(conn: MysqlConnection, text: str) -> bool:
    try:
        conn.ask(text, inf)
    except MysqlFault as fault:
        if fault.code in DENIED:
            return True
        if fault.code is None:
            raise
    return False  # no such table: the check of the schema says so


def _execute(conn: MysqlConnection, asked: Statement | Ddl) -> Rows:
    if isinstance(asked, Ddl):
        return rows_of(conn.ask(asked.text, inf))
    return conn.run(asked, inf)
