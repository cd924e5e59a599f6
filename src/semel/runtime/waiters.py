"""Requests that wait for another request with the same key.

A waiter holds no connection. One read per key and process serves all who wait for it, be they
threads or tasks; a change made in this process is looked at right away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from semel.backoff import jitter
from semel.core.operations.handler import Unwoken, Woken
from semel.core.operations.requests import NoRecord, Read
from semel.core.records import Fence, Identity, Micros, State
from semel.errors import StoreUnavailable
from semel.runtime.events import Events
from semel.stores.base import Store

if TYPE_CHECKING:
    import asyncio

_FIRST, _LONGEST, _GROWTH = 0.02, 0.5, 1.5

Wake: TypeAlias = Woken | Unwoken
Tasks: TypeAlias = "dict[asyncio.AbstractEventLoop, list[asyncio.Future[Wake]]]"


class _Slot:
    """One waiting thread: it is woken once, or it has gone."""

    __slots__ = ("_called", "_gone", "_lock", "_wake")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called = threading.Event()
        self._gone = False
        self._wake: Wake | None = None

    def done(self) -> bool:
        return self._gone or self._wake is not None

    def wake(self, wake: Wake) -> bool:
        """Wake the thread. False: it has stopped waiting."""
        with self._lock:
            if self._gone:
                return False
            self._wake = wake
        self._called.set()
        return True

    def wait(self, seconds: float) -> Wake:
        self._called.wait(seconds)
        with self._lock:
            # Woken in the very moment its patience ended, it may have been elected, and has to act.
            self._gone = self._wake is None
            return self._wake or Unwoken()


class _Watch:
    """All who wait for one record in this process."""

    __slots__ = ("due", "fence", "hurried", "identity", "pause", "tasks", "threads")

    def __init__(self, identity: Identity, fence: Fence | None, due: float) -> None:
        self.identity = identity
        self.fence = fence
        self.due = due
        self.pause = _FIRST
        self.hurried = False
        self.threads: list[_Slot] = []
        self.tasks: Tasks = {}


class Waiters:
    """All requests of this process that wait for another one with their key."""

    def __init__(
        self, clock: Callable[[], float], rouse: Callable[[float], None], events: Events
    ) -> None:
        self._clock = clock
        self._events = events
        self._rouse = rouse
        self._lock = threading.Lock()
        self.watches: dict[Identity, _Watch] = {}
        """All who wait; whether anybody does is asked after every write, without the lock."""

    def wait(self, identity: Identity, fence: Fence | None, patience: Micros, room: int) -> Wake:
        """Block the calling thread; at most ``room`` threads wait at once in this process."""
        slot = _Slot()
        with self._lock:
            waiting = sum(not it.done() for each in self.watches.values() for it in each.threads)
            if waiting >= room:
                return Unwoken()
            self._watch(identity, fence).threads.append(slot)
        self._rouse(self._clock() + _FIRST)
        return slot.wait(patience / 1_000_000)

    async def await_(self, identity: Identity, fence: Fence | None, patience: Micros) -> Wake:
        """Suspend the calling task."""
        import asyncio  # here, because a WSGI process need not load it

        loop = asyncio.get_running_loop()
        slot: asyncio.Future[Wake] = loop.create_future()
        with self._lock:
            self._watch(identity, fence).tasks.setdefault(loop, []).append(slot)
        self._rouse(self._clock() + _FIRST)
        timer = loop.call_later(patience / 1_000_000, _wake_tasks, [slot], Unwoken())
        try:
            return await slot
        finally:
            timer.cancel()

    def hurry(self, identity: Identity) -> bool:
        """Read this record in the next round. False: nobody waits for it."""
        with self._lock:
            watch = self.watches.get(identity)
            if watch is None:
                return False
            watch.due = self._clock()
            watch.hurried = True
            return True

    def run_once(self, store: Store) -> float:
        """Read what is due and wake who waited for a change; returns when the next read is due."""
        now = self._clock()
        with self._lock:
            due = [watch for watch in self.watches.values() if watch.due <= now]
        for watch in due:
            if not self._look(watch, store):
                break  # the store is out: the others would wait as long for the same answer
        with self._lock:
            return min((watch.due for watch in self.watches.values()), default=float("inf"))

    def _watch(self, identity: Identity, fence: Fence | None) -> _Watch:
        watch = self.watches.get(identity)
        if watch is None:
            watch = _Watch(identity, fence, self._clock() + _FIRST * jitter())
            self.watches[identity] = watch
        watch.fence = fence  # the newest holder seen; who waited for an earlier one waits on
        return watch

    def _look(self, watch: _Watch, store: Store) -> bool:
        try:
            reply = store.perform(Read(watch.identity))
        except Exception as error:  # also a damaged record, or a bug: the others wait for theirs
            self._events.emit("store.error", error=error, during="wait", operation="Read")
            self._later(watch)
            return not isinstance(error, StoreUnavailable)
        if isinstance(reply, NoRecord) and watch.fence is None and not watch.hurried:
            self._later(watch)  # the transaction that will write it may still be open
        elif isinstance(reply, NoRecord):
            self._close(watch, Unwoken())
        elif (
            reply.record.state in (State.IN_PROGRESS, State.PENDING)
            and reply.record.fence == watch.fence
            and not reply.record.lapsed(reply.now)
        ):
            self._later(watch)  # unchanged
        else:
            self._close(watch, Woken(reply.record, reply.now, elected=False))
        return True

    def _later(self, watch: _Watch) -> None:
        with self._lock:
            tasks = chain.from_iterable(watch.tasks.values())
            if all(each.done() for each in watch.threads) and all(each.done() for each in tasks):
                self.watches.pop(watch.identity, None)
            watch.due = self._clock() + watch.pause * jitter()
            watch.pause = min(_LONGEST, watch.pause * _GROWTH)

    def _close(self, watch: _Watch, wake: Wake) -> None:
        """Wake everybody; the first who still waits is elected to act on the change."""
        with self._lock:
            self.watches.pop(watch.identity, None)
        electing = isinstance(wake, Woken)
        for slot in watch.threads:
            if slot.wake(_elect(wake) if electing else wake):
                electing = False
        for loop, slots in watch.tasks.items():
            waiting = [slot for slot in slots if not slot.done()]
            try:
                loop.call_soon_threadsafe(_wake_tasks, waiting, wake, electing)
            except RuntimeError:
                continue  # the loop is closed, and its tasks with it
            electing = electing and not waiting


def _elect(wake: Wake) -> Wake:
    return Woken(wake.record, wake.now, elected=True) if isinstance(wake, Woken) else wake


def _wake_tasks(slots: list[asyncio.Future[Wake]], wake: Wake, electing: bool = False) -> None:
    for slot in slots:
        if not slot.done():
            slot.set_result(_elect(wake) if electing else wake)
            electing = False
