"""How much of a process the pages of a console may take, which requests must share with them.

Python runs one thread at a time. A page is many milliseconds of computing, in which no request gets
on. So the console works in pieces of some milliseconds, and pauses after each for so long that it
is at work for no more than its share of the time. Pages then take longer, and requests do not.

Time counts as it passes, not as CPU time: where a machine or a store is busy, work takes longer,
and the console steps back further.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

PIECE: Final = 0.002
"""Seconds of work after which a page pauses."""
LONGEST: Final = 3.0
"""Seconds that pages pause at most for what was done before them."""
_CHUNKS: Final = 20
"""Pieces of text between two looks at the clock."""


class WorkBudget:
    """A share of the time, for all pages of a process together. None: as they come."""

    def __init__(
        self,
        share: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._pauses = 0.0 if share is None else 1 / share - 1
        """Seconds of pause for each second of work."""
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_at = float("-inf")
        """When there was a pause for all that was done."""
        self._mine = threading.local()
        self.idle = 0
        """Threads that wait for another one."""

    def run(self, work: Callable[[], T]) -> T:
        """Make a page in this thread, as soon as there was a pause for those before it."""
        self._pause()
        _here.budget = self
        try:
            return work()
        finally:
            _here.budget = None
            self._charge()

    def breathe(self) -> None:
        """Pause, if this thread was at work for long enough."""
        if self._clock() - self._mine.since >= PIECE:
            self._charge()
            self._pause()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Meanwhile this thread waits for another one, which is no work."""
        self._charge()
        self.idle += 1
        try:
            yield
        finally:
            self.idle -= 1
            self._mine.since = self._clock()

    def _charge(self) -> None:
        with self._lock:
            now = self._clock()
            owed = max(self._free_at, now) + (now - self._mine.since) * self._pauses
            self._free_at = min(owed, now + LONGEST)

    def _pause(self) -> None:
        rest = self._free_at - self._clock()
        if rest > 0:
            self._sleep(rest)
        self._mine.since = self._clock()


class _Here(threading.local):
    """What the page that this thread makes is paid from."""

    budget: WorkBudget | None = None


_here: Final = _Here()


def paced(pieces: Iterable[str]) -> Iterator[str]:
    """The same pieces, with pauses between them."""
    for number, each in enumerate(pieces):
        if _here.budget is not None and number % _CHUNKS == 0:
            _here.budget.breathe()
        yield each


@contextmanager
def held(lock: threading.Lock) -> Generator[None]:
    """Hold a lock; that this thread waits for it costs the budget nothing."""
    if not lock.acquire(blocking=False):
        if _here.budget is None:
            lock.acquire()
        else:
            with _here.budget.waiting():
                lock.acquire()
    try:
        yield
    finally:
        lock.release()
