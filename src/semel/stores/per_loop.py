"""What a backend has open: one object for each process, or one for each event loop.

The key has the process id, so a forked child opens its own. There is no lock, because a fork could
copy it while it is held; `dict.setdefault` is atomic.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.base import AsyncStore, Store

P = TypeVar("P")
A = TypeVar("A", bound="Abandonable")


class Abandonable(Protocol):
    """Can be dropped after its event loop was closed."""

    def abandon(self) -> None: ...


class PerProcess(Generic[P]):
    """One object for each process, made on first use."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._made: dict[int, P] = {}

    def __call__(self) -> P:
        pid = os.getpid()
        found = self._made.get(pid)
        return self._made.setdefault(pid, self._make()) if found is None else found

    def made(self) -> list[P]:
        """What this process has, if it has been made."""
        found = self._made.get(os.getpid())
        return [] if found is None else [found]

    def pop(self) -> P | None:
        """Remove and return what this process has; the caller closes it."""
        return self._made.pop(os.getpid(), None)


class PerLoop(Generic[A]):
    """One object for each running event loop, made on first use."""

    def __init__(self, make: Callable[[], A]) -> None:
        self._make = make
        self._made: dict[tuple[int, asyncio.AbstractEventLoop], A] = {}

    def __call__(self) -> A:
        place = os.getpid(), asyncio.get_running_loop()
        found = self._made.get(place)
        if found is None:
            self.drop_closed()
            found = self._made.setdefault(place, self._make())
        return found

    def made(self) -> list[A]:
        """What the loops of this process have, from any thread."""
        return [one for (pid, _), one in list(self._made.items()) if pid == os.getpid()]

    def drop_closed(self) -> None:
        """Loops may have ended without closing what they had opened."""
        for other in [place for place in list(self._made) if place[1].is_closed()]:
            if forgotten := self._made.pop(other, None):
                forgotten.abandon()

    def pop(self) -> A | None:
        return self._made.pop((os.getpid(), asyncio.get_running_loop()), None)


class OpenedStore:
    """A store that uses what the calling process or event loop has open, in the colour of that."""

    __slots__ = ("_open",)

    def __init__(self, opened: Callable[[], Store | AsyncStore]) -> None:
        self._open = opened

    def perform(self, op: StoreOperation[Any], /) -> Any:
        return self._open().perform(op)
