"""What can go wrong with a server, and what it means. Driver errors are classified only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.errors import SchemaError, SemelError, StoreCorrupt, StoreUnavailable
from semel.stores.sql.statements import StatementFault

DUPLICATE: Final = 1062
WAITED: Final = 1205
NO_SUCH_SAVEPOINT: Final = 1305
TOO_LARGE: Final = 1153
CONTENTION: Final = (1213, 1020)
"""Deadlock, or a Galera node that was not the first; the whole transaction was undone."""
_READ_ONLY: Final = (1290, 1792, 1836)
_NOT_READY: Final = (1047,)
"""A Galera node that is not part of its cluster."""
_SCHEMA: Final = (1146, 1054, 1049)
_IMPOSSIBLE: Final = (1048, 1062, 1064, 1136, 1264, 1292, 1364, 1366, 1406, 1690, 3819, 4025)
"""The schema's own rules were broken, or those of the language."""
DENIED: Final = (1142, 1143)
"""No right to a table, or to a column."""
_REFUSED: Final = (1040, 1044, 1045, *DENIED, 1153, 1203, 1226, 1227)
"""Too many connections, no right, too large."""

_NOT_APPLIED: Final = frozenset(
    (*CONTENTION, WAITED, *_READ_ONLY, *_NOT_READY, *_SCHEMA, *_IMPOSSIBLE, *_REFUSED)
)
"""All other errors, above all those of a commit, leave doubt."""

_QUOTING: Final = (1062, 1064, 1292, 1366)
"""Their messages quote what was sent, and with it perhaps a key."""


class MysqlFault(StatementFault):
    """A statement failed. ``after``: how many statements of the packet were done before it."""

    after = 0


def driver_fault(error: Exception, after: int = 0) -> MysqlFault:
    """The fault for what a driver raised while the answer was awaited.

    A connection stays in use only after the two errors that surely leave no transaction open.
    """
    code = error_code(error)
    message = _message(error, code)
    if code not in _NOT_APPLIED:
        fault = MysqlFault(message, code=code, doubt=True, tries=2)
    else:
        tries = 5 if code in CONTENTION else 2 if code in (*_READ_ONLY, *_NOT_READY) else 1
        broken = code not in (DUPLICATE, *CONTENTION)
        fault = MysqlFault(message, code=code, broken=broken, tries=tries)
    fault.after = after
    return fault


def is_answer(error: Exception) -> bool:
    """Whether the server has sent this error: the drivers' own have numbers from 2000 on."""
    code = error_code(error)
    return code is not None and not 2000 <= code < 3000


def not_connected(error: Exception, clean: Callable[[str], str]) -> MysqlFault:
    code = error_code(error)
    said = clean(_message(error, code))
    return MysqlFault(f"cannot connect: {said}", code=code if code in _SCHEMA else None)


def store_error(fault: StatementFault, *, doubt: bool) -> SemelError:
    """The error that the caller of the store gets."""
    code = fault.code
    if code in _SCHEMA:
        return SchemaError(f"the tables of semel are missing or old ({fault}): run `semel migrate`")
    if code in _IMPOSSIBLE:
        return StoreCorrupt(f"the server refused what must be possible: {fault} ({code})")
    shown = f" ({code})" if code else ""
    return StoreUnavailable(f"MySQL: {fault}{shown}", applied=None if doubt else False)


def error_code(error: BaseException) -> int | None:
    code = error.args[0] if error.args else None
    return code if type(code) is int and code else None


def _message(error: Exception, code: int | None) -> str:
    if code in _QUOTING:
        return "the server refused a statement"
    said = error.args[1] if len(error.args) > 1 else error
    lines = str(said).strip().splitlines()
    return lines[0] if lines else type(error).__name__
