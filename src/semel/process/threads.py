"""Functions of the application's that may hang, each in a thread that nobody has to wait for."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Run ``function`` in a daemon thread; not even the interpreter's end waits for it."""
    made: Future[T] = Future()
    made.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            made.set_result(context.run(function))
        except Exception as error:
            made.set_exception(error)
        except BaseException as error:  # sys.exit() in it must not end the process
            made.set_exception(RuntimeError(f"it raised {type(error).__name__}"))

    threading.Thread(target=work, name="semel-asks", daemon=True).start()
    return made


def to_the_end(answer: Any) -> Any:
    """What a function of either colour returned, in a thread: a coroutine has a loop of its own."""
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
