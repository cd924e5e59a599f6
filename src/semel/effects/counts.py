"""Plain counters of what the background loops did; metrics read them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping


class Counts:
    """Numbers by name, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def add_all(self, numbers: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(numbers)

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def copy(self) -> dict[str, int]:
        """All of them, as they are now."""
        with self._lock:
            return dict(self._counts)


def told(numbers: Mapping[str, int]) -> str:
    """``lapse 2, forget 40`` for a line of the log; empty where nothing was done."""
    return ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()) if number)
