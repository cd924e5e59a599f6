"""The one way tests wait: look again until it is so, or say what never became so.

Nothing waits for a while and hopes: what an event loop would do later, it does at once when its
clock is put forward.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TURNS = 20
"""Of an event loop: enough for what has come due, and what follows from it, without a thread."""

PATIENCE = 120.0
"""Seconds after which a test that waits for something gives up.

Reached only where the thing never happens, however slow the machine: no test is right because
something happened sooner, or wrong because it happened later.
"""
_PAUSE = 0.01


def patient(url: str) -> str:
    """A store's URL, with time enough: nothing that must succeed races the limit of five seconds
    that a store has by itself."""
    return f"{url}{'&' if '?' in url else '?'}timeout={PATIENCE:g}"


def until(look: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """What ``look`` returns, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {look}")
        time.sleep(_PAUSE)
    return seen


async def auntil(look: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """`until`, leaving the event loop to others between two looks."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {look}")
        await asyncio.sleep(_PAUSE)
    return seen


async def asked(
    ask: Callable[[], Awaitable[T]], enough: Callable[[T], bool], *, seconds: float = PATIENCE
) -> T:
    """The first answer that is ``enough``."""
    deadline = time.monotonic() + seconds
    while not enough(answer := await ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {answer}")
        await asyncio.sleep(_PAUSE)
    return answer


class Ahead:
    """The clock of the running event loop, put forward by hand; it is never put back."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._by = loop.time, 0.0
        loop.time = self._now  # type: ignore[method-assign]

    def _now(self) -> float:
        return self._time() + self._by

    async def forward(self, seconds: float) -> None:
        """Returns when whatever came due within ``seconds`` has been done."""
        self._by += seconds
        await turns()


async def turns() -> None:
    """Let the event loop do what it can do without waiting."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
