"""A value that several may wait for in an event loop."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """A value that will be there; whoever stops waiting for it takes nothing from the others.

    A plain future is cancelled with the one who awaits it, and shielding one costs two more.
    """

    __slots__ = ("_value", "_waiting", "kept")

    def __init__(self) -> None:
        self.kept = False
        self._waiting: list[asyncio.Future[T]] = []

    def keep(self, value: T) -> None:
        """The first value counts."""
        if self.kept:
            return
        self.kept, self._value = True, value
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(value)

    def wait(self) -> asyncio.Future[T]:
        """A future of the caller's own, for the value."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.kept:
            waiter.set_result(self._value)
        else:
            self._waiting.append(waiter)
        return waiter
