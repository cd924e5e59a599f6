"""What can go wrong with PostgreSQL, and what it means. Driver errors are classified only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult

from semel.errors import SchemaError, SemelError, StoreCorrupt, StoreUnavailable
from semel.stores.sql.statements import StatementFault

NO_SUCH_STATEMENT: Final = ("26000", "42P05")
"""A pooler moved us to a server connection that knows other prepared statements than we think."""

_CONTENTION: Final = ("40001", "40P01")
_STALE_PLAN: Final = ("0A000",)
_READ_ONLY: Final = ("25006",)
_SCHEMA: Final = ("42P01", "42703", "3F000")
_IMPOSSIBLE: Final = ("21", "22", "23")
"""Classes cardinality, data and integrity: the schema's own rules were broken."""


def server_fault(result: PGresult | None) -> StatementFault:
    """The fault for an error that the server sent, or for no answer at all."""
    if result is None:
        return StatementFault("the server sent no answer", doubt=True, tries=2)
    # Only the primary message: details may quote a row, and with it a key.
    field = result.error_field
    said = field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b"no reason given"
    state = field(pq.DiagnosticField.SQLSTATE)
    severity = field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    return _fault(
        said.decode("utf-8", "replace").strip(),
        state.decode() if state else None,
        lost=severity != b"ERROR",
    )


def connection_lost(error: psycopg.Error) -> StatementFault:
    """The fault for a connection that ended while the answer was awaited."""
    return StatementFault(_first_line(error), doubt=True, tries=2)


def not_connected(error: psycopg.Error, clean: Callable[[str], str]) -> StatementFault:
    """``clean`` removes passwords from a message, should libpq ever print one."""
    return StatementFault(clean(f"cannot connect: {_first_line(error)}"))


def driver_fault(error: psycopg.Error) -> StatementFault:
    """The fault for a driver error on the caller's own connection."""
    message = error.diag.message_primary or _first_line(error)
    return _fault(message, error.sqlstate, lost=error.sqlstate is None)


def _fault(message: str, sqlstate: str | None, *, lost: bool) -> StatementFault:
    """ERROR means rolled back; FATAL, PANIC or no answer leave doubt."""
    tries = 1
    if lost or sqlstate in (*_STALE_PLAN, *_READ_ONLY):
        tries = 2
    elif sqlstate in _CONTENTION:
        tries = 5
    broken = lost or sqlstate in (*_STALE_PLAN, *_READ_ONLY)
    return StatementFault(message, code=sqlstate, doubt=lost, broken=broken, tries=tries)


def store_error(fault: StatementFault, *, doubt: bool) -> SemelError:
    """The error that the caller of the store gets."""
    state = str(fault.code or "")
    if state in _SCHEMA:
        return SchemaError(f"the tables of semel are missing or old ({fault}): run `semel migrate`")
    if state.startswith(_IMPOSSIBLE):
        return StoreCorrupt(f"PostgreSQL refused what must be possible: {fault} ({state})")
    code = f" ({state})" if state else ""
    return StoreUnavailable(f"PostgreSQL: {fault}{code}", applied=None if doubt else False)


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
