"""Remembers for some seconds what many people look at, and makes it once for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Cache:
    """By name, what was made, and until when it is good."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def get(self, name: str, seconds: float, make: Callable[[], T]) -> T:
        """What was made at most ``seconds`` ago. Whoever comes while it is made waits for it."""
        with self._locks.setdefault(name, threading.Lock()):
            kept = self._made.get(name)
            if kept is None or self._clock() >= kept[0] + seconds:
                made = make()
                kept = self._made[name] = (self._clock(), made)
            return cast("T", kept[1])
