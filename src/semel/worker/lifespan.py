"""The lifespan of an ASGI application that a worker runs requests through."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.errors import ConfigurationError
from semel.log import log


class Lifespan:
    """Starts the application before its first request, and ends it, as a server does."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._asked: asyncio.Queue[dict[str, Any]]
        self._told: asyncio.Queue[str]

    async def begin(self) -> None:
        """Start the application once; one without a lifespan is used as it is.

        An application whose start failed is not used; the next call starts it again.
        """
        if self._task is not None:
            return
        self._asked, self._told = asyncio.Queue(), asyncio.Queue()
        task = asyncio.create_task(self._run())
        await self._asked.put({"type": "lifespan.startup"})
        if await self._told.get() == "lifespan.startup.failed":
            task.cancel()
            await asyncio.wait({task})
            raise ConfigurationError("the application's start-up failed; see its log")
        self._task = task

    async def end(self) -> None:
        if self._task is None or self._task.done():
            return
        await self._asked.put({"type": "lifespan.shutdown"})
        await self._told.get()
        await self._task

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._asked.get, self._send)
        except Exception as error:
            # An application without a lifespan raises, and servers use it all the same.
            log.info("semel: the application has no lifespan: %r", error)
        finally:
            self._told.put_nowait("over")

    async def _send(self, message: Any) -> None:
        self._told.put_nowait(message["type"])
