"""Answers that this process has lately read, to be repeated for a while without asking the store.

Only completed records are remembered. What an operator does to one of them (evict, retire) is
therefore seen by every process after ``window`` at the latest: whoever does it waits that long.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from semel.core.exchange.answers import Answer, Remembered
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.settings_changed import announce
from semel.core.flow import run
from semel.core.frozen import frozen, replace
from semel.core.operations.requests import Found
from semel.core.records import Identity, Micros, State
from semel.core.stored import snapshot
from semel.errors import ConfigurationError, StoreError
from semel.runtime.leases import lease_clock
from semel.stores.base import Store, performer

LONGEST: Final = timedelta(minutes=5)
"""Whoever evicts or retires waits as long as the window; more would keep nobody's patience."""

ROOM: Final = 32 * 1024 * 1024
"""Bytes, in each process."""

_OVERHEAD: Final = 2304
_PAIR: Final = 176
"""What an entry takes besides its bytes, and each of its headers: measured, CPython 3.11."""

_DRIFT: Final = 1.002
"""Two clocks may go apart by a thousandth while both are being set right; twice that is safe."""


@frozen
class _Entry:
    asked: float
    """Before the store was asked: the record may have changed at any time since."""
    now: Micros
    """The store's clock when it answered, which was no earlier."""
    remembered: Remembered


class ReplayCache:
    """Bounded by time and by bytes: two halves, of which the older is dropped when one is full.

    No lock, which a fork could copy while it is held. Threads that meet here may lose an entry,
    which costs one question to the store.
    """

    def __init__(
        self, window: timedelta, room: int = ROOM, clock: Callable[[], float] = lease_clock
    ) -> None:
        if not isinstance(window, timedelta) or not timedelta(0) < window <= LONGEST:
            raise ConfigurationError(
                f"replay_cache= takes a timedelta of at most {LONGEST}, or None"
            )
        self.window: Final[Micros] = window // timedelta(microseconds=1)
        self.clock = clock
        self._half = room // 2
        self._young: dict[Identity, _Entry] = {}
        self._old: dict[Identity, _Entry] = {}
        self._taken = 0
        self._turned = clock()

    def note(self, found: Found, asked: float) -> None:
        """Remember a completed record; ``asked``: when the store had not yet been asked for it."""
        record = found.record
        if record.state is not State.COMPLETED or record.snapshot is None:
            return
        try:
            kept = snapshot.decode(record.snapshot)
        except StoreError:
            return
        if kept.shadow:
            return  # whether it may be repeated is on record elsewhere
        # Small answers are mostly other things than their bodies.
        headers = sum(_PAIR + len(name) + len(value) for name, value in kept.headers)
        size = _OVERHEAD + len(record.fields) + headers + len(kept.body or b"")
        if size > self._half:
            return
        now = self.clock()
        if self._taken + size > self._half or self._age(self._turned, now) >= self.window:
            self._old, self._young, self._taken, self._turned = self._young, {}, 0, now
        bare = replace(record, snapshot=None)  # without the bytes that were decoded
        self._young[record.identity] = _Entry(asked, found.now, Remembered(bare, kept))
        self._taken += size

    def answer(self, ex: Exchange) -> Answer | None:
        """What the exchange would answer; None where the store must be asked."""
        identity = ex.identity
        entry = self._young.get(identity) or self._old.get(identity)
        if entry is None:
            return None
        age = self._age(entry.asked, self.clock())
        if age >= self.window:
            return None
        return entry.remembered.answer(ex, entry.now + age)

    @staticmethod
    def _age(since: float, now: float) -> Micros:
        return int((now - since) * 1_000_000)


def outlast(store: Store, cache: ReplayCache | None) -> float:
    """Seconds after which no process repeats what it had read by now, whatever its window is."""
    longest = run(announce(0 if cache is None else cache.window), performer(store))
    return longest / 1_000_000 * _DRIFT
