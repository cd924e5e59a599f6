"""Calling the application's functions: coroutines in the event loop, others in their own threads.

Whatever a deliverer does is a value in the end: it returned, it raised, or its time was up. What it
raises never reaches the worker, not even `SystemExit`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

from semel.core.delivery import DelivererFailed, DelivererReturned, Delivery
from semel.core.frozen import is_async
from semel.log import log
from semel.outbox.registry import Deliverer

_GRACE: Final = 1.0
"""Seconds that a cancelled coroutine has to end; one that takes no notice is left behind."""


class DelivererCalls:
    """The deliverers that are being called in one event loop."""

    def __init__(self) -> None:
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def call(
        self, deliverer: Deliverer, delivery: Delivery
    ) -> DelivererReturned | DelivererFailed:
        """Let the deliverer have it, for as long as its ``timeout`` allows.

        A thread cannot be stopped: past the time-out it goes on, and the next try comes with the
        same downstream key.
        """
        task = asyncio.ensure_future(_outcome(deliverer, delivery))
        try:
            done, _ = await asyncio.wait({task}, timeout=deliverer.timeout.total_seconds())
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if done:
            return task.result()
        await self._stop(task)
        return DelivererFailed(TimeoutError(f"not delivered within {deliverer.timeout}"))

    async def _stop(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=_GRACE)
        if pending:
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)


async def _outcome(deliverer: Deliverer, delivery: Delivery) -> DelivererReturned | DelivererFailed:
    try:
        returned = await called(deliverer.function, delivery)
    except BaseException as error:
        # Cancelled by `DelivererCalls`, nobody reads this. Cancelled by itself, it is a failure.
        # SystemExit would otherwise end the worker.
        return DelivererFailed(error)
    return DelivererReturned(_provider_id(deliverer, returned))


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of either colour returns, or raises."""
    if is_async(function):
        return await function(*arguments)
    returned = await in_thread(lambda: function(*arguments))
    return await _awaited(returned) if inspect.isawaitable(returned) else returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


def _provider_id(deliverer: Deliverer, returned: object) -> str | None:
    if returned is None or isinstance(returned, str):
        return returned
    # It was delivered: what it returned must not have it sent again.
    log.warning(
        "semel: the deliverer of %r returned %s, not the provider's id (text) or None",
        deliverer.name,
        type(returned).__name__,
    )
    return None


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run ``function`` in a new daemon thread.

    No pool: threads that hang would use it up, and a process that ends would wait for them.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            returned = context.run(function)
        except BaseException as error:
            _tell(loop, future, None, error)
        else:
            _tell(loop, future, returned, None)

    threading.Thread(target=work, name="semel-delivery", daemon=True).start()
    return await future


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    returned: object,
    error: BaseException | None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(returned)
        else:
            future.set_exception(_raisable(error))

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop has ended, and with it everybody who would have cared.
        return


def _raisable(error: BaseException) -> BaseException:
    # A future refuses StopIteration.
    return RuntimeError(f"StopIteration: {error}") if isinstance(error, StopIteration) else error
