"""Opens connections, with the password of the moment.

A token of a managed database lives for minutes. So ``password=`` is a function, and it is called
for every new connection. A token may end between that call and the server's look at it: when the
server refuses a password, the function is called once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

import psycopg

from semel.core.frozen import is_async
from semel.stores.background import in_thread
from semel.stores.postgres.errors import not_connected
from semel.stores.postgres.settings import PostgresSettings
from semel.stores.sql.statements import StatementFault


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
            options = {**options, "password": _text(_ask(settings.password))}
    with _connecting(settings, options, again):
        return kind.connect(settings.conninfo, **options)


async def _aconnect(
    settings: PostgresSettings, kind: Any, options: dict[str, Any], *, again: bool
) -> Any:
    if settings.password is not None:
        with _asking():
            options = {**options, "password": _text(await _aask(settings.password))}
    with _connecting(settings, options, again):
        return await kind.connect(settings.conninfo, **options)


def _ask(password: Callable[[], str | Awaitable[str]]) -> object:
    """An async function has a loop of its own here, in a thread: this one may have a loop."""
    if not is_async(password):
        return password()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_awaited(password))).result()


async def _aask(password: Callable[[], str | Awaitable[str]]) -> object:
    """A function that is not async runs in a thread: it may ask a server somewhere."""
    found: object = await _awaited(password) if is_async(password) else await in_thread(password)
    return await found if isawaitable(found) else found


async def _awaited(password: Callable[[], Any]) -> object:
    return await password()


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
