"""What a backend has open: one for each process, or for each event loop of it.

Keyed by process, so that a forked child finds nothing of its parent's. No lock, which a fork could
copy while it is held: dict.setdefault is atomic.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.base import AsyncStore, Store

R = TypeVar("R")
P = TypeVar("P")
A = TypeVar("A", bound="Abandonable")

_Place: TypeAlias = tuple[int, asyncio.AbstractEventLoop]


class Abandonable(Protocol):
    """What can be dropped when its loop is closed already."""

    def abandon(self) -> None: ...


class PerProcess(Generic[P]):
    """Made when first asked for."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._made: dict[int, P] = {}

    def __call__(self) -> P:
        pid = os.getpid()
        found = self._made.get(pid)
        return self._made.setdefault(pid, self._make()) if found is None else found

    def pop(self) -> P | None:
        """What this process has, which is then its caller's to close."""
        return self._made.pop(os.getpid(), None)


class PerLoop(Generic[A]):
    """The same for each running event loop."""

    def __init__(self, make: Callable[[], A]) -> None:
        self._make = make
        self._made: dict[_Place, A] = {}

    def __call__(self) -> A:
        place = _place()
        found = self._made.get(place)
        if found is None:
            self._tidy()
            found = self._made.setdefault(place, self._make())
        return found

    def pop(self) -> A | None:
        return self._made.pop(_place(), None)

    def _tidy(self) -> None:
        """After loops that ended without closing what they had opened."""
        for other in [place for place in list(self._made) if place[1].is_closed()]:
            if forgotten := self._made.pop(other, None):
                forgotten.abandon()


def _place() -> _Place:
    return os.getpid(), asyncio.get_running_loop()


class Blocking:
    """The store for threads: whatever the calling process has open."""

    __slots__ = ("_open",)

    def __init__(self, opened: Callable[[], Store]) -> None:
        self._open = opened

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._open().perform(op)


class Awaited:
    """The store for event loops."""

    __slots__ = ("_open",)

    def __init__(self, opened: Callable[[], AsyncStore]) -> None:
        self._open = opened

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await self._open().perform(op)
