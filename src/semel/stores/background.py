"""Work that goes on when its caller is cancelled: tasks and threads that are kept alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")

_kept: set[asyncio.Task[Any]] = set()


def keep(coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
    """Run the coroutine in a task that cannot be garbage-collected: the loop keeps only weak
    references to its tasks."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return task


async def in_thread(function: Callable[[], R]) -> R:
    """Run ``function`` in a new thread. All threads of the loop's own pool may be waiting for its
    result, so it must not queue behind them."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: object) -> None:
        if not answer.done():
            setter(value)

    def work() -> None:
        setter: Callable[[Any], None] = answer.set_result
        value: object
        try:
            value = function()
        except StopIteration as error:  # a future refuses it
            setter, value = answer.set_exception, RuntimeError(f"StopIteration: {error}")
        except BaseException as error:
            setter, value = answer.set_exception, error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, setter, value)

    threading.Thread(target=work, name="semel-background").start()
    return await answer
