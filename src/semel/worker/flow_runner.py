"""Runs flows that ask a store and the application's own functions: probes, readers of webhooks.

A function may be plain or a coroutine function. A plain one runs in a thread of its own, so that
one that hangs holds up nobody; when its time is over it is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from semel.core.flow import AsyncPerform, Flow, arun, run
from semel.core.operations.handler import Ask, Did, Do, PauseBetweenLooks, Pursue, Raised
from semel.core.operations.requests import FlowOperation, StoreOperation
from semel.runtime.threads import in_thread, to_the_end
from semel.worker.calling import called

if TYPE_CHECKING:
    from semel.guard import Guard

R = TypeVar("R")
T = TypeVar("T")

PATIENCE: Final = timedelta(seconds=30)
"""How long a function of the application may take."""


class FlowRunner:
    """Runs flows on a guard's store, blocking or awaited."""

    def __init__(self, guard: Guard, patience: timedelta = PATIENCE) -> None:
        self._guard = guard
        self._patience = patience.total_seconds()
        self._left_behind: set[asyncio.Task[Any]] = set()

    def run(self, flow: Flow[T]) -> T:
        return run(flow, self.perform)

    async def arun(self, flow: Flow[T]) -> T:
        """`run`, awaited. Cancelled, the flow ends by itself: it may have something to release."""
        return await arun(flow, self.aperform, self._end_alone)

    def _end_alone(self, rest: Flow[Any]) -> None:
        task = asyncio.ensure_future(_ended(rest, self.aperform))
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)

    def perform(self, op: FlowOperation[R]) -> R:
        any_op: FlowOperation[Any] = op
        reply: Any = None
        match any_op:
            case StoreOperation():
                reply = self._guard.backend.blocking().perform(any_op)
            case Ask(probe, inquiry):
                reply = self._call(probe, inquiry)
            case Do(function, arguments):
                try:
                    reply = Did(self._call(function, *arguments))
                except Exception as error:
                    reply = Raised(error)
            case Pursue(write, claim, seen):
                self._guard.runtime.keeper.pursue(write, claim, seen)
            case PauseBetweenLooks(pause):
                time.sleep(pause / 1_000_000)
            case _:
                raise AssertionError(f"no way to perform {op!r}")
        return cast("R", reply)

    async def aperform(self, op: FlowOperation[R]) -> R:
        any_op: FlowOperation[Any] = op
        reply: Any = None
        match any_op:
            case StoreOperation():
                reply = await self._guard.backend.awaited().perform(any_op)
            case Ask(probe, inquiry):
                reply = await self._acall(probe, inquiry)
            case Do(function, arguments):
                try:
                    reply = Did(await self._acall(function, *arguments))
                except Exception as error:
                    reply = Raised(error)
            case Pursue(write, claim, seen):
                self._guard.runtime.keeper.pursue(write, claim, seen)
            case PauseBetweenLooks(pause):
                await asyncio.sleep(pause / 1_000_000)
            case _:
                raise AssertionError(f"no way to perform {op!r}")
        return cast("R", reply)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in a thread; a coroutine runs there too, in a loop of its own."""
        return in_thread(lambda: to_the_end(function(*arguments))).result(self._patience)

    async def _acall(self, function: Callable[..., Any], *arguments: Any) -> Any:
        task = asyncio.ensure_future(_answered(function, *arguments))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._patience)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        # Cancelled, but not waited for: it may not react.
        task.cancel()
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        raise TimeoutError(f"no answer within {self._patience:g} s")


async def _ended(rest: Flow[Any], perform: AsyncPerform) -> None:
    # Nobody is left to hear what the flow raises: its caller has gone.
    with contextlib.suppress(Exception):
        await arun(rest, perform)


async def _answered(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await called(function, *arguments)
    except Exception:
        raise
    except BaseException as error:  # cancelled by itself, or SystemExit, which must not end us
        raise RuntimeError(f"it raised {type(error).__name__}") from error
