"""Opens connections, with the password of the moment.

A token of a managed database lives for minutes. So ``password=`` is a function, and it is called
for every new connection. A token may end between that call and the server's look at it: when the
server refuses a password, the function is called once more.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg

from semel.stores.postgres.errors import not_connected
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.statements import StatementFault
from semel.stores.token_functions import acalled, called


class _Refused(Exception):
    """The server did not take a password that may have ended just now."""


def connect(settings: PostgresSettings, kind: Any, **options: Any) -> Any:
    """A connection of the class ``kind``, blocking."""
    try:
        return _connect(settings, kind, options, again=True)
    except _Refused:
        return _connect(settings, kind, options, again=False)


async def aconnect(settings: PostgresSettings, kind: Any, **options: Any) -> Any:
    """The same, awaited."""
    try:
        return await _aconnect(settings, kind, options, again=True)
    except _Refused:
        return await _aconnect(settings, kind, options, again=False)


def _connect(settings: PostgresSettings, kind: Any, options: dict[str, Any], *, again: bool) -> Any:
    if settings.password is not None:
        with _asking():
            options = {**options, "password": _text(called(settings.password))}
    with _connecting(settings, options, again):
        return kind.connect(settings.failover.conninfo, **options)


async def _aconnect(
    settings: PostgresSettings, kind: Any, options: dict[str, Any], *, again: bool
) -> Any:
    if settings.password is not None:
        with _asking():
            options = {**options, "password": _text(await acalled(settings.password))}
    with _connecting(settings, options, again):
        return await kind.connect(settings.failover.conninfo, **options)


@contextmanager
def _asking() -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise StatementFault(f"password= failed: {type(error).__name__}: {error}") from error


def _text(found: object) -> str:
    if not isinstance(found, str) or not found:
        raise TypeError(f"it returned {type(found).__name__}, not a text")
    return found


@contextmanager
def _connecting(
    settings: PostgresSettings, options: dict[str, Any], again: bool
) -> Generator[None]:
    """``again``: a password that was refused is worth another try."""
    password = options.get("password", "")
    try:
        yield
    except psycopg.Error as error:
        used: bool = getattr(error.pgconn, "used_password", False)
        if again and password and used:
            raise _Refused from None
        fault = not_connected(error, settings.without_secrets)
        raise StatementFault(str(fault).replace(password or "\0", "***")) from None
