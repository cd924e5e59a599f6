"""Listeners that wake a worker as soon as the store has something new.

PostgreSQL notifies (LISTEN), on a session of its own: a transaction pooler passes nothing on.
SQLite has a counter that changes with every commit; it is read twenty times a second. Where neither
works the worker polls, and logs that it does.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from semel.backoff import jitter
from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import Backend
from semel.stores.sql.statements import StatementFault

if TYPE_CHECKING:
    from semel.stores.postgres.settings import PostgresSettings

EFFECT: Final = "semel_effect"
WORK: Final = "semel_work"
CHANNELS: Final = (EFFECT, WORK)

Wake: TypeAlias = Callable[[str], None]
"""Gets the channel on which there is something new."""

LOOK_EVERY: Final = 0.05
"""Seconds between two looks at SQLite's counter; a look takes some microseconds."""
AGAIN_AFTER: Final = 0.25
"""Seconds from a notification to the second wake-up: not every commit notifies (enqueue.sql)."""
_LONGEST_REST: Final = 30.0
_PATIENCE: Final = 5.0
"""Seconds for a session to open, and for a notification to ourselves to come back."""


class Listener(Protocol):
    """Wakes a worker when there is something new."""

    async def listen(self, wake: Wake) -> None:
        """Listen until cancelled; returns early where listening cannot work."""
        ...


def listener_for(backend: Backend, listen_url: str | None = None) -> Listener | None:
    """The listener of a store, or None where the worker has to poll."""
    scheme = backend.url.partition(":")[0]
    if scheme == "sqlite":
        if listen_url is not None:
            raise ConfigurationError("a listen URL is for PostgreSQL; this store is SQLite")
        from semel.stores.sqlite.backend import parse

        return SqliteListener(parse(backend.url)[0])
    if scheme in ("postgresql", "postgres"):
        from semel.stores.postgres import settings

        own: Any = backend
        found = own._settings
        if listen_url is not None:
            found = settings.parse(listen_url, {"password": found.password})
        return PostgresListener(found)
    return None


class SqliteListener:
    """Looks at ``PRAGMA data_version``: it changes when any other connection has committed."""

    def __init__(self, path: Path, every: float = LOOK_EVERY) -> None:
        self._path = path
        self._every = every

    async def listen(self, wake: Wake) -> None:
        while True:
            with suppress(sqlite3.Error, OSError):
                await self._watch(wake)
            # The file is not there yet, or is busy being made.
            await asyncio.sleep(1.0)

    async def _watch(self, wake: Wake) -> None:
        # Read only: the listener never makes a file. autocommit: no snapshot is held in between.
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
        try:
            seen: object = None
            while True:
                version = connection.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    for channel in CHANNELS:
                        wake(channel)
                await asyncio.sleep(self._every)
        finally:
            connection.close()


class PostgresListener:
    """LISTEN on a session of its own, opened again whenever it is lost."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings

    async def listen(self, wake: Wake) -> None:
        from psycopg import Error

        failures, loop = 0, asyncio.get_running_loop()
        later: dict[str, asyncio.TimerHandle] = {}

        def wake_again(channel: str) -> None:
            del later[channel]
            wake(channel)

        while True:
            try:
                async for channel in self._heard():
                    failures = 0
                    wake(channel)
                    if channel not in later:
                        later[channel] = loop.call_later(AGAIN_AFTER, wake_again, channel)
            except _NoEcho:
                log.warning(
                    "semel: PostgreSQL's notifications do not arrive here, as behind a transaction "
                    "pooler: polling. To listen, give a URL that leads to the server itself"
                )
                return
            except (Error, OSError, TimeoutError, StatementFault) as error:
                failures += 1
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                log.warning("semel: not listening to PostgreSQL, polling meanwhile: %s", reason)
            await asyncio.sleep(min(_LONGEST_REST, 0.5 * 2.0 ** min(failures, 10)) * jitter())

    async def _heard(self) -> AsyncGenerator[str, None]:
        """The channels that notifications come on; all of them once, when it begins to listen."""
        session = await self._connect()
        try:
            for channel in CHANNELS:
                await session.execute(f"LISTEN {channel}".encode())
            # Notify over another session: behind a transaction pooler it does not arrive here.
            async with await self._connect() as caller:
                await caller.execute("SELECT pg_notify(%s, 'echo')", (EFFECT,))
            if not [each async for each in session.notifies(timeout=_PATIENCE, stop_after=1)]:
                raise _NoEcho
            # Something may have come before we listened.
            for channel in CHANNELS:
                yield channel
            async for notification in session.notifies():
                if notification.channel in CHANNELS:
                    yield notification.channel
            # It ends without an error when the session does.
            raise OSError("the session ended")
        finally:
            await session.close()

    async def _connect(self) -> Any:
        from psycopg import AsyncConnection

        from semel.stores.postgres.connect import aconnect

        settings = self._settings
        opening = aconnect(settings, AsyncConnection, autocommit=True, prepare_threshold=None)
        return await asyncio.wait_for(opening, _PATIENCE)


class _NoEcho(Exception):
    """The session gets no notifications."""
