"""The one way tests wait: look again until it is so, or say what never became so."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 20.0
_PAUSE = 0.01


def until(look: Callable[[], T], *, seconds: float = SECONDS) -> T:
    """What ``look`` returns, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {look}")
        time.sleep(_PAUSE)
    return seen


async def auntil(look: Callable[[], T], *, seconds: float = SECONDS) -> T:
    """`until`, leaving the event loop to others between two looks."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {look}")
        await asyncio.sleep(_PAUSE)
    return seen


async def asked(
    ask: Callable[[], Awaitable[T]], enough: Callable[[T], bool], *, seconds: float = SECONDS
) -> T:
    """The first answer that is ``enough``."""
    deadline = time.monotonic() + seconds
    while not enough(answer := await ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s: {answer}")
        await asyncio.sleep(_PAUSE)
    return answer
