"""One at a time, first come, first served, for threads and event loops alike."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Protocol


class _Place(Protocol):
    def call(self) -> bool:
        """It is your turn; False when nobody is there any more."""
        ...


class _ThreadsPlace:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def call(self) -> bool:
        self.lock.release()
        return True


class _TasksPlace:
    def __init__(self, gate: FairLock) -> None:
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def call(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._enter)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _enter(self) -> None:
        if self.future.done():
            self._gate.leave()
        else:
            self.future.set_result(None)


class FairLock:
    """A lock that both colours can wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._line: deque[_Place] = deque()

    def enter(self, patience: float) -> bool:
        """Wait for at most so many seconds."""
        place = _ThreadsPlace()
        if self._entered(place) or place.lock.acquire(timeout=patience):
            return True
        return not self._step_out(place)

    async def aenter(self, patience: float) -> bool:
        place = _TasksPlace(self)
        if self._entered(place):
            return True
        try:
            async with asyncio.timeout(patience):
                await place.future
        except TimeoutError:
            self._forgo(place)
            return False
        except asyncio.CancelledError:
            self._forgo(place)
            raise
        return True

    def leave(self) -> None:
        """To the next in line, without letting anybody in between."""
        while True:
            with self._lock:
                if not self._line:
                    self._taken = False
                    return
                place = self._line.popleft()
            if place.call():
                return

    def _entered(self, place: _Place) -> bool:
        with self._lock:
            if self._taken:
                self._line.append(place)
                return False
            self._taken = True
            return True

    def _step_out(self, place: _Place) -> bool:
        """False when it has been called in the meantime."""
        with self._lock:
            try:
                self._line.remove(place)
            except ValueError:
                return False
            return True

    def _forgo(self, place: _TasksPlace) -> None:
        if not self._step_out(place) and place.future.done() and not place.future.cancelled():
            self.leave()  # called and given up in one turn of the loop; if later, the call notices
        place.future.cancel()
