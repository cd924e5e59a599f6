"""Runs flows that ask a store and the application's own functions: probes, readers of webhooks.

A function may be plain or a coroutine function. A plain one runs in a daemon thread of its own: one
that hangs holds up nobody, and when its time is over it is not waited for. There is no pool, which
threads that hang would use up, and for which a process that ends would wait.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from semel.core import operations as ops
from semel.core.flow import Flow, Interrupted, arun, run
from semel.core.frozen import is_async
from semel.runtime.runtime import Owner
from semel.runtime.transactions import transactional

R = TypeVar("R")
T = TypeVar("T")

PATIENCE: Final = timedelta(seconds=30)
"""How long a function of the application may take."""

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that nobody waits for: an event loop does not keep its tasks alive."""


class FlowRunner:
    """Runs flows on the store of ``guard``, blocking or awaited."""

    def __init__(self, guard: Owner, patience: timedelta = PATIENCE) -> None:
        self._guard = guard
        self._patience = patience.total_seconds()

    def run(self, flow: Flow[T], stopping: threading.Event | None = None) -> T:
        """Run it, blocking; ``stopping`` cuts a pause short, and the flow is told."""

        def perform(op: ops.FlowOperation[R]) -> R:
            if stopping is None or not isinstance(op, ops.PauseBetweenLooks):
                return self.perform(op)
            if stopping.wait(op.pause / 1_000_000):
                raise Interrupted
            return cast("R", None)

        return run(flow, perform)

    async def arun(self, flow: Flow[T]) -> T:
        """`run`, awaited. Cancelled, the flow ends by itself: it may have something to release."""

        async def end(rest: Flow[T]) -> None:
            with suppress(Exception):  # nobody is left to hear what it raises
                await arun(rest, self.aperform)

        return await arun(
            flow, self.aperform, lambda rest: _leave(asyncio.ensure_future(end(rest)))
        )

    def perform(self, op: ops.FlowOperation[R]) -> R:
        any_op: ops.FlowOperation[Any] = op
        reply: Any = None
        match any_op:
            case ops.StoreOperation():
                reply = self._guard.runtime.backend.blocking().perform(any_op)
            case ops.Ask(probe, inquiry):
                reply = call(self._patience, probe, inquiry)
            case ops.Do(function, arguments):
                try:
                    reply = ops.Did(call(self._patience, function, *arguments))
                except Exception as error:
                    reply = ops.Raised(error)
            case ops.Ascertain(identity):
                backend = self._guard.runtime.backend
                if backend.capabilities.transactions:
                    reply = transactional(backend).ascertain(identity)
                else:  # it has no transactions under way
                    reply = backend.blocking().perform(ops.Read(identity))
            case ops.Pursue(write, claim, seen):
                self._guard.runtime.keeper.pursue(write, claim, seen)
            case ops.PauseBetweenLooks(pause):
                time.sleep(pause / 1_000_000)
            case _:
                raise AssertionError(f"no way to perform {op!r}")
        return cast("R", reply)

    async def aperform(self, op: ops.FlowOperation[R]) -> R:
        any_op: ops.FlowOperation[Any] = op
        reply: Any = None
        match any_op:
            case ops.StoreOperation():
                reply = await self._guard.runtime.backend.awaited().perform(any_op)
            case ops.Ask(probe, inquiry):
                reply = await acall(self._patience, probe, inquiry)
            case ops.Do(function, arguments):
                try:
                    reply = ops.Did(await acall(self._patience, function, *arguments))
                except Exception as error:
                    reply = ops.Raised(error)
            case ops.Ascertain(identity):
                backend = self._guard.runtime.backend
                if backend.capabilities.transactions:
                    reply = await transactional(backend).aascertain(identity)
                else:
                    reply = await backend.awaited().perform(ops.Read(identity))
            case ops.PauseBetweenLooks(pause):
                await asyncio.sleep(pause / 1_000_000)
            case _:
                return self.perform(op)
        return cast("R", reply)


def call(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of either colour in a thread; a coroutine gets a loop of its own there."""
    made: Future[Any] = Future()
    context = copy_context()

    async def awaited(answer: Any) -> Any:
        return await answer

    def answer() -> Any:
        returned = function(*arguments)
        return asyncio.run(awaited(returned)) if inspect.isawaitable(returned) else returned

    def work() -> None:
        try:
            made.set_result(context.run(answer))
        except Exception as error:
            made.set_exception(error)
        except BaseException as error:  # sys.exit() in it must not end the process
            made.set_exception(RuntimeError(f"it raised {type(error).__name__}"))

    threading.Thread(target=work, name="semel-asks", daemon=True).start()
    return made.result(seconds)


async def acall(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """`call`, awaited: a coroutine function runs in this loop."""

    async def answer() -> Any:
        try:
            return await called(function, *arguments)
        except Exception:
            raise
        except BaseException as error:  # cancelled by itself, or SystemExit: not to end us
            raise RuntimeError(f"it raised {type(error).__name__}") from error

    task = asyncio.ensure_future(answer())
    if await ends_in_time(task, seconds):
        return task.result()
    raise TimeoutError(f"no answer within {seconds:g} s")


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a plain or a coroutine function; returns or raises what it does."""
    if is_async(function):
        return await function(*arguments)
    returned = await in_thread(lambda: function(*arguments))
    return await returned if inspect.isawaitable(returned) else returned


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run ``function`` in a new daemon thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(returned: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(returned)
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            future.set_exception(error)

    def work() -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it everybody who waited
            try:
                returned = context.run(function)
            except BaseException as error:
                # Not kept in a variable: with its traceback it would be a cycle, and what the
                # function has opened would stay open until it is collected.
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, returned, None)

    threading.Thread(target=work, name="semel-delivery", daemon=True).start()
    return await future


async def ends_in_time(task: asyncio.Task[Any], seconds: float, grace: float = 0.0) -> bool:
    """Whether the task ends within ``seconds``; if not, or if we are cancelled, it is cancelled.

    It may not react: it has ``grace`` seconds to end, and is left behind then.
    """
    try:
        await asyncio.wait({task}, timeout=seconds)
        return task.done()
    finally:
        if not task.done():
            task.cancel()
            _leave(task)
            await asyncio.wait({task}, timeout=grace)


def _leave(task: asyncio.Task[Any]) -> None:
    _left_behind.add(task)
    task.add_done_callback(_left_behind.discard)
