"""Threads: one for each call that may hang, and those that stand by in every process."""

from __future__ import annotations

import asyncio
import inspect
import os
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


class StandingThread:
    """A thread that does ``work`` until ``stopping`` is set: one in every process that asks for it.

    A forked child has no threads but its own, so it starts another.
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work, self._name = work, name
        self._begun: dict[int, object] = {}
        self._thread: threading.Thread | None = None
        self.stopping = threading.Event()

    def start(self) -> None:
        """Cheap where it runs already."""
        mine = object()
        if self._begun.setdefault(os.getpid(), mine) is not mine:
            return  # setdefault is atomic: of several threads that come first, one starts it
        self.stopping = threading.Event()  # a fork may have copied one while its lock was held
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End it after the step it is at; whether there was one."""
        if self._begun.pop(os.getpid(), None) is None:
            return False
        self.stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        return True


def to_the_end(answer: Any) -> Any:
    """What a function of either colour returned, in a thread: a coroutine has a loop of its own."""
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
