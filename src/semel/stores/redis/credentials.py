"""Who a new connection logs in as: what the URL says, or what ``credentials=`` returns.

A token of a managed server lives for minutes, so the function is called for each new connection.
When the server refuses what it returned, the connection is opened once more and it is asked again:
the token may have ended in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias

from semel.core.frozen import is_async
from semel.stores.background import in_thread
from semel.stores.redis.errors import RedisFault, Remedy
from semel.stores.redis.settings import RedisSettings

Credentials: TypeAlias = tuple[str | None, str]
Provider: TypeAlias = Callable[[], Credentials | Awaitable[Credentials]]


class Login(NamedTuple):
    """``renewed``: the next one may be another, so one that is refused is no wrong setting."""

    user: str | None
    password: str | None
    renewed: bool


def login(settings: RedisSettings, sentinel: bool) -> Login:
    """The login of a new connection, for threads."""
    provider, user, password = _said(settings, sentinel)
    if provider is None:
        return Login(user, password, renewed=False)
    with _asking():
        return _checked(_called(provider))


async def alogin(settings: RedisSettings, sentinel: bool) -> Login:
    """The same for event loops. A function that is not async may block, so a thread calls it."""
    provider, user, password = _said(settings, sentinel)
    if provider is None:
        return Login(user, password, renewed=False)
    with _asking():
        found: Any = await (provider() if is_async(provider) else in_thread(provider))
        return _checked(await found if isawaitable(found) else found)


def _said(settings: RedisSettings, sentinel: bool) -> tuple[Any, str | None, str | None]:
    if sentinel:
        own = settings.sentinel_user, settings.sentinel_password
        return settings.sentinel_credentials, *own
    return settings.credentials, settings.user, settings.password


def _called(provider: Provider) -> object:
    """An async function gets an event loop of its own, in a thread: this one may have a loop."""
    if not is_async(provider):
        return provider()

    async def awaited() -> object:
        found: Any = provider()
        return await found

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, awaited()).result()


def _checked(found: Any) -> Login:
    user, password = found
    if not (user is None or isinstance(user, str)) or not isinstance(password, str):
        raise TypeError("credentials= must return a user, or None, and a password")
    return Login(user, password, renewed=True)


@contextmanager
def _asking() -> Generator[None]:
    """What it raised is not shown: its text may hold a secret."""
    try:
        yield
    except Exception as error:
        text = f"credentials= failed: {type(error).__name__}"
        raise RedisFault(text, Remedy.WAIT, broken=True, code="CONNECT") from error
