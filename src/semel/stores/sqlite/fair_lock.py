"""A lock for threads and tasks alike: one holder at a time, first come, first served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Protocol


class _Waiter(Protocol):
    def hand_over(self) -> bool:
        """Give the lock to this waiter; False when it no longer waits."""
        ...


class _ThreadWaiter:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def hand_over(self) -> bool:
        self.lock.release()
        return True


class _TaskWaiter:
    def __init__(self, owner: FairLock) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def hand_over(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _take(self) -> None:
        if self.future.done():
            self._owner.release()
        else:
            self.future.set_result(None)


class FairLock:
    """The lock goes from one holder straight to the next in line; nobody can slip in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._line: deque[_Waiter] = deque()

    def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds."""
        waiter = _ThreadWaiter()
        if self._taken_or_queued(waiter) or waiter.lock.acquire(timeout=timeout):
            return True
        return not self._leave_line(waiter)

    async def aacquire(self, timeout: float) -> bool:  # noqa: ASYNC109 - as `acquire`
        waiter = _TaskWaiter(self)
        if self._taken_or_queued(waiter):
            return True
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            self._give_up(waiter)
            return False
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        return True

    def release(self) -> None:
        """Hand the lock to the next in line who still waits."""
        while True:
            with self._lock:
                if not self._line:
                    self._taken = False
                    return
                waiter = self._line.popleft()
            if waiter.hand_over():
                return

    def _taken_or_queued(self, waiter: _Waiter) -> bool:
        """True: the lock was free and is now taken. False: the waiter stands in line."""
        with self._lock:
            if self._taken:
                self._line.append(waiter)
                return False
            self._taken = True
            return True

    def _leave_line(self, waiter: _Waiter) -> bool:
        """False when the lock was handed to it in the meantime."""
        with self._lock:
            try:
                self._line.remove(waiter)
            except ValueError:
                return False
            return True

    def _give_up(self, waiter: _TaskWaiter) -> None:
        if not self._leave_line(waiter) and waiter.future.done() and not waiter.future.cancelled():
            self.release()  # handed over and given up in one turn; a later hand-over notices
        waiter.future.cancel()
