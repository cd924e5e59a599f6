"""Bringing the schema up to date, under one lock, however many nodes try.

Data definition commits by itself here, so a migration is no transaction: its statements can be
repeated, and it is written down when all of them are done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import Final, TypeVar

from semel.errors import StoreUnavailable
from semel.stores.base import Finding
from semel.stores.mysql.connection_sync import Link, dial
from semel.stores.mysql.errors import DENIED, Fault, not_connected, verdict
from semel.stores.mysql.protocol import DIALECT, told
from semel.stores.mysql.settings import Settings
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import Ddl, missing_grants, pending, standing, upgrade
from semel.stores.sql.plans import Rows, Statement

R = TypeVar("R")

LOCK: Final = "CONCAT('semel.migrate.', MD5(DATABASE()))"
"""Such locks are the server's, not the database's."""
PATIENCE: Final = 3600


def migrate(settings: Settings) -> int:
    """Returns the schema's version. There is no deadline: a migration takes as long as it takes."""
    try:
        link = Link(dial(settings), settings)
    except Exception as error:
        raise verdict(not_connected(error, settings.without_secrets), doubt=False) from None
    try:
        link.greet(inf, warn=False)
        # Mostly there is nothing to do, and then a node that hangs with the lock holds up nobody.
        found = _driven(link, standing())
        return _locked(link, _upgrade) if pending(dialect(DIALECT), found) else found.version
    except Fault as fault:
        raise verdict(fault, doubt=True) from None
    finally:
        link.close()


def examine(settings: Settings) -> tuple[Finding, ...]:
    """What the user may not do; no try changes anything."""
    try:
        link = Link(dial(settings), settings)
    except Exception as error:
        raise verdict(not_connected(error, settings.without_secrets), doubt=False) from None
    try:
        link.greet(inf, warn=False)
        return missing_grants(partial(_denied, link))
    except Fault as fault:
        raise verdict(fault, doubt=False) from None
    finally:
        link.close()


def _denied(link: Link, text: str) -> bool:
    try:
        link.ask(text, inf)
    except Fault as fault:
        if fault.code in DENIED:
            return True
        if fault.code is None:
            raise
    return False  # no such table: whoever reads it says so


def _locked(link: Link, work: Callable[[Link], int]) -> int:
    """The lock is the connection's, and goes with it."""
    rows = told(link.ask(f"SELECT GET_LOCK({LOCK}, {PATIENCE})", inf))
    if rows[0][0] != 1:
        raise StoreUnavailable("another node has been migrating for an hour", applied=False)
    return work(link)


def _upgrade(link: Link) -> int:
    return _driven(link, upgrade(dialect(DIALECT)))


def _driven(link: Link, steps: Generator[Statement | Ddl, Rows, R]) -> R:
    asked = next(steps)
    while True:
        rows = _rows(link, asked)
        try:
            asked = steps.send(rows)
        except StopIteration as done:
            result: R = done.value
            return result


def _rows(link: Link, asked: Statement | Ddl) -> Rows:
    if isinstance(asked, Ddl):
        return told(link.ask(asked.text, inf))
    return link.run(asked, inf)
