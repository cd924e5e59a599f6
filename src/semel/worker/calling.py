"""Calls the application's functions: coroutines in the event loop, others in their own threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from semel.core.frozen import is_async


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain or a coroutine function; returns or raises what it does."""
    if is_async(function):
        return await function(*arguments)
    returned = await in_thread(lambda: function(*arguments))
    return await returned if inspect.isawaitable(returned) else returned


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run ``function`` in a new daemon thread.

    There is no pool: threads that hang would use it up, and a process that ends would wait for
    them.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(returned: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(returned)
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            future.set_exception(error)

    def hand_over(returned: object, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it everybody who waited
            loop.call_soon_threadsafe(settle, returned, error)

    def work() -> None:
        try:
            returned = context.run(function)
        except BaseException as error:
            hand_over(None, error)
        else:
            hand_over(returned, None)

    threading.Thread(target=work, name="semel-delivery", daemon=True).start()
    return await future
