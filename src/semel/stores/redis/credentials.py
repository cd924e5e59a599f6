"""Who a new connection logs in as: what the URL says, or what ``credentials=`` returns.

A token of a managed server lives for minutes, so the function is called for each new connection.
When the server refuses what it returned, the connection is opened once more and it is asked again:
the token may have ended in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from semel.stores.redis.errors import RedisFault, Remedy
from semel.stores.redis.settings import RedisSettings
from semel.stores.token_functions import acalled, called

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
        return _checked(called(provider))


async def alogin(settings: RedisSettings, sentinel: bool) -> Login:
    """The same for event loops."""
    provider, user, password = _said(settings, sentinel)
    if provider is None:
        return Login(user, password, renewed=False)
    with _asking():
        return _checked(await acalled(provider))


def _said(settings: RedisSettings, sentinel: bool) -> tuple[Any, str | None, str | None]:
    if sentinel:
        own = settings.sentinel_user, settings.sentinel_password
        return settings.sentinel_credentials, *own
    return settings.credentials, settings.user, settings.password


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
