"""Work that goes on when nobody awaits it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")

_kept: set[asyncio.Task[Any]] = set()


def keep(coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """A task of its own; the loop itself holds its tasks weakly."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


async def in_thread(function: Callable[[], R]) -> R:
    """In a thread of its own: those of the loop may all be busy with waiting for this one."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def tell(setter: Callable[[Any], None], value: object) -> None:
        if not answer.done():
            setter(value)

    def work() -> None:
        setter: Callable[[Any], None] = answer.set_result
        value: object
        try:
            value = function()
        except BaseException as error:
            setter, value = answer.set_exception, error
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(tell, setter, value)

    threading.Thread(target=work, name="semel-background").start()
    return await answer
