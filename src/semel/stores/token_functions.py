"""Calls the function of an application that returns a password or a token, in either colour.

It may be plain or async, and may ask a server somewhere: no event loop is held up by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any

from semel.core.frozen import is_async
from semel.stores.background import in_thread


def called(function: Callable[[], Any]) -> Any:
    """What it returns, blocking. An async one gets a loop of its own, in a thread: this thread may
    have one."""
    if not is_async(function):
        return function()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _awaited(function)).result()


async def acalled(function: Callable[[], Any]) -> Any:
    """The same in an event loop. A function that is not async is called in a thread."""
    found = await (function() if is_async(function) else in_thread(function))
    return await found if isawaitable(found) else found


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()
