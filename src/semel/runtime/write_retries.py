"""Retries writes in the background until the store acknowledges them: the second stage.

The first stage is `_insist` of `core/exchange/settle.py`: it tries again while the request waits
and its lease lasts. Here the request is over: its client got an error, and will ask again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from semel.backoff import jitter
from semel.core.operations.requests import Applied, Claim, Complete, StoreOperation, Written
from semel.core.records import Fence
from semel.errors import StoreError
from semel.runtime.events import Events
from semel.stores.base import Store

_HORIZON: Final = 15 * 60.0
"""Seconds after which a write is given up; by then its lease has long lapsed."""
_LIMIT: Final = 10_000
"""Writes pursued at once: a longer outage must not fill the memory with snapshots."""
_FIRST, _LONGEST = 0.1, 5.0


class _Retry:
    __slots__ = ("attempt", "claim", "due", "give_up_at", "op", "seen", "tells_outcome")

    def __init__(
        self, op: StoreOperation[Written], claim: Claim | None, seen: Fence | None, due: float
    ) -> None:
        self.op, self.claim, self.seen = op, claim, seen
        self.due, self.give_up_at = due, due + _HORIZON
        self.attempt = 0
        self.tells_outcome = isinstance(op, Complete) or claim is not None
        """Whether its loss is reported. Of other writes the lapse of the lease does the work."""


class WriteRetries:
    """A queue of writes, each tried again with growing, jittered pauses until acknowledged."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._queue: deque[_Retry] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(
        self, op: StoreOperation[Written], claim: Claim | None = None, seen: Fence | None = None
    ) -> float:
        """Add a write, and the claim it needs first; returns when it is due.

        It is tried again while there is no record, or while the record still has the fence
        ``seen``: what the write takes back may be on its way.
        """
        now = self._clock()
        with self._lock:
            if len(self._queue) >= _LIMIT:
                self._queue.popleft()
                why = "too many unacknowledged writes, the oldest is given up"
                self._events.emit("write.lost", why=why)
            self._queue.append(_Retry(op, claim, seen, now))
        return now

    def run_once(self, store: Store) -> float:
        """Try what is due; returns when the next one is.

        An outage ends the round: the others would wait as long for the same answer, and with them
        the requests whose records this thread reads.
        """
        now = self._clock()
        with self._lock:
            due = [item for item in self._queue if item.due <= now]
        for item in due:
            if not self._try(item, store):
                break
        with self._lock:
            return min((item.due for item in self._queue), default=float("inf"))

    def last_try(self, store: Callable[[], Store]) -> None:
        """Try each write once more as the process ends. After that the leases lapse."""
        for item in list(self._queue):
            if not self._try(item, store()):
                break

    def _try(self, item: _Retry, store: Store) -> bool:
        """One try; False when the store is out."""
        try:
            if item.claim is not None:
                store.perform(item.claim)
            reply = store.perform(item.op)
        except Exception as error:  # also a wrong schema, or a bug: the others are not to suffer
            name = type(item.op).__name__
            self._events.emit("store.error", error=error, during="pursue", operation=name)
            self._again(item)
            return not isinstance(error, StoreError)
        if isinstance(reply, Applied):
            self._drop(item)
        elif reply.record is not None and reply.record.fence != item.seen:
            self._drop(item, "an outcome came too late to be recorded; see the record's own")
        else:
            # What it takes back may still be on its way: look again until it can no longer be.
            self._again(item)
        return True

    def _again(self, item: _Retry) -> None:
        now = self._clock()
        item.attempt += 1
        pause = min(_LONGEST, _FIRST * 2 ** min(item.attempt, 10))
        item.due = now + pause * jitter()
        if now >= item.give_up_at:
            self._drop(item, "an outcome could not be recorded in time")

    def _drop(self, item: _Retry, why_lost: str | None = None) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it may have made room for another
            self._queue.remove(item)
        if why_lost is not None and item.tells_outcome:
            self._events.emit("write.lost", why=why_lost)
