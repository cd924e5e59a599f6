"""An event loop for those who do not await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which whoever waits gives up; reached only where the thing never comes."""
LONGER = 2 * PATIENCE
"""Than whatever it is that is called: that says better what it waited for."""


class EventLoopThread:
    """An event loop in a thread of its own, for the awaited colour."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LONGER)

    def close(self) -> None:
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
