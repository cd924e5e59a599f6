"""The keeper: daemon threads of a process that look after what requests leave to them.

One renews the leases of running handlers (a thread, because a blocked event loop must not lose
them). It does nothing else: the other pursues writes that could not be acknowledged and reads the
records others wait for, one after the other, which may take longer than a lease lasts. Both use the
blocking colour of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from semel.core.operations.requests import Claim, StoreOperation, Written
from semel.core.records import Fence, Identity
from semel.runtime.events import Events
from semel.runtime.leases import Lease, Leases, lease_clock
from semel.runtime.waiters import Waiters
from semel.runtime.write_retries import WriteRetries
from semel.stores.base import Store

_IDLE: Final = 1.0
"""Seconds between rounds when nothing asks for an earlier one."""


class Keeper:
    """Owns the threads; each starts with the first thing there is to do."""

    def __init__(
        self,
        store: Callable[[], Store],
        clock: Callable[[], float] = lease_clock,
        events: Events | None = None,
    ) -> None:
        events = events or Events()
        self._store = store
        self._clock = clock
        self.leases = Leases(clock, events)
        self.renewing = RoundsThread("semel-leases", self._renew, clock, events)
        self._other_work = RoundsThread("semel-keeper", self._do_other_work, clock, events)
        self.write_retries = WriteRetries(clock, events)
        self.waiters = Waiters(clock, self._other_work.rouse, events)

    def hold(self, lease: Lease) -> None:
        """Renew ``lease`` until it is let go."""
        self.leases.held[lease.fence] = lease
        if lease.renew_at < self.renewing.next_round:
            self.renewing.rouse(lease.renew_at)

    def let_go(self, lease: Lease) -> None:
        self.leases.held.pop(lease.fence, None)

    def pursue(
        self,
        op: StoreOperation[Written],
        claim: Claim | None = None,
        seen: Fence | None = None,
    ) -> None:
        """Perform ``op``, after ``claim``, until it is acknowledged."""
        self._other_work.rouse(self.write_retries.add(op, claim, seen))

    def settled(self, identity: Identity) -> None:
        """A record changed in this process: whoever waits for it is served right away."""
        if self.waiters.watches and self.waiters.hurry(identity):
            self._other_work.rouse(self._clock())

    def run_once(self) -> float:
        """Do everything that is due; returns when to come again."""
        return min(self._renew(), self._do_other_work())

    def stop(self) -> None:
        """End the threads; what is still pursued is given one last try."""
        self.renewing.stop()
        self._other_work.stop()
        self.write_retries.last_try(self._store)

    def _renew(self) -> float:
        return self.leases.run_once(self._store())

    def _do_other_work(self) -> float:
        store = self._store()
        return min(self.write_retries.run_once(store), self.waiters.run_once(store))


class RoundsThread:
    """A thread that does ``run_once``, sleeps until the time it returned, and does it again."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], float],
        clock: Callable[[], float],
        events: Events,
    ) -> None:
        self._name = name
        self._run_once = run_once
        self.clock = clock
        self._events = events
        self._wake = threading.Condition()
        self.next_round = float("inf")
        self._thread: threading.Thread | None = None
        self._stopping = False

    def rouse(self, at: float) -> None:
        """Be at work at that time, or sooner."""
        if at >= self.next_round:
            return
        with self._wake:
            if at < self.next_round:
                self.next_round = at
                self._wake.notify()
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread after the round it is at."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._rest():
            try:
                again = self._run_once()
            except Exception as error:
                # The thread must outlive any surprise: without it leases lapse under live handlers.
                self._events.emit("round.failed", error=error, loop="keeper")
                again = self.clock() + _IDLE
            with self._wake:
                self.next_round = min(self.next_round, again)

    def _rest(self) -> bool:
        """Wait until the next round is due; False when it is time to end."""
        with self._wake:
            while not self._stopping:
                left = self.next_round - self.clock()
                if left <= 0:
                    # Cleared before the round, so that a request to come sooner made during it
                    # is not lost.
                    self.next_round = float("inf")
                    return True
                self._wake.wait(None if left == float("inf") else left)
            return False
