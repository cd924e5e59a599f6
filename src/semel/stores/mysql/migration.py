"""Bringing the schema up to date, under one lock, however many nodes try.

DDL commits by itself here, so a migration is no transaction: its statements can be repeated, and
the version is recorded when all of them are done.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final

from semel.errors import StoreUnavailable
from semel.stores.base import Finding
from semel.stores.mysql.connection import MysqlConnection, connect
from semel.stores.mysql.errors import DENIED, MysqlFault, not_connected, store_error
from semel.stores.mysql.protocol import DIALECT, rows_of
from semel.stores.mysql.settings import MysqlSettings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, missing_grants, pending, schema_version, upgrade
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, drive

LOCK: Final = "CONCAT('semel.migrate.', MD5(DATABASE()))"
"""Such locks are the server's, not the database's. This one ends with its connection."""
LOCK_WAIT: Final = 3600


def migrate(settings: MysqlSettings) -> int:
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


def examine(settings: MysqlSettings) -> tuple[Finding, ...]:
    """What the user may not do; no try changes anything."""
    with _connected(settings, doubt=False) as conn:
        return missing_grants(partial(_denied, conn))


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
