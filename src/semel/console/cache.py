"""Remembers for some seconds what many people look at, and makes it once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from semel.console.budget import held

T = TypeVar("T")

MOST: Final = 100
"""Things that are remembered at once: addresses have filters, of which there is no end."""


@dataclass(eq=False)
class _Kept:
    """What was made, and until when it is good. The lock is held while it is made."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    until: float = float("-inf")
    made: Any = None


class Cache:
    """By name, what was made, and until when it is good."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, name: Hashable, seconds: float, make: Callable[[], T]) -> T:
        """What was made at most ``seconds`` ago. Whoever comes while it is made waits for it."""
        kept = self._named(name)
        with held(kept.lock):
            if self._clock() >= kept.until:
                kept.made = make()
                kept.until = self._clock() + seconds
            return cast("T", kept.made)

    def forget(self) -> None:
        """What is being made at this moment is for those who wait already, and for nobody after."""
        with self._lock:
            self._kept = {}

    def _named(self, name: Hashable) -> _Kept:
        """Its place; the oldest place goes where there are too many."""
        with self._lock:
            kept = self._kept.pop(name, None) or _Kept()
            self._kept[name] = kept
            if len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]
            return kept
