"""Leases and fences of the handlers that run in this process.

A lease says how long a claim holds without being renewed: after it others may decide about the
record. A fence names one run; it is 128 random bits, made before the claim. The lease protects
against a process that died, the fence against one that only seemed dead: when it comes back, its
writes show a fence that no longer holds the record, and change nothing.

A process counts its lease from before it asked for it, by a clock that goes on while the machine
sleeps: so it never believes in a lease longer than the store does. A handler that runs on when its
lease is lost cannot be stopped; its answer is not kept, and its caller is told that the outcome is
unknown.

Leases that are due are renewed together, the first to end first. Each renewal is an operation of
its own; several threads ask for them at once, and the store carries concurrent ones in one
statement. So thousands of leases take no longer than a few dozen round trips.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from semel.core.operations.requests import Applied, Claim, Renew, StoreOperation, Written
from semel.core.records import Fence, Identity, State
from semel.errors import StoreError
from semel.log import log
from semel.runtime.events import Events, short
from semel.runtime.waiters import Waiters
from semel.runtime.write_retries import WriteRetries
from semel.stores.base import Store

_RETRY: Final = 10
"""A renewal that failed is tried again after a tenth of the lease."""
_SEVER_AGAIN: Final = 5.0
"""Seconds before a transaction that could not be severed is tried again."""
_ABREAST: Final = 64
"""Renewals under way at once: as many as a store carries in one statement."""
_ROUND: Final = 512
"""Renewals in one round: a lease that comes due meanwhile, and ends sooner, is in the next one."""


class Lease:
    """The right to run, as this process believes to hold it.

    ``good_until`` is counted by `lease_clock` from *before* the claim was sent, so it never ends
    later than the store's own ``leased_until``.
    """

    __slots__ = (
        *("_transaction", "duration", "ended", "ends_at", "fence"),
        *("good_until", "identity", "lost", "max_run", "renew_at"),
    )

    def __init__(
        self, identity: Identity, fence: Fence, started: float, duration: float, max_run: float
    ) -> None:
        self.identity = identity
        self.fence = fence
        self.duration = duration
        self.max_run = max_run
        self.lost = False
        self.ended: str | None = None
        """Why it is not renewed any more. A transaction opened after that is severed at once."""
        self._transaction: Any = None
        self.start(started)

    def start(self, now: float) -> None:
        """Count from here: it is about to be asked for."""
        self.good_until = now + self.duration
        self.renew_at = now + self.duration / 3
        self.ends_at = now + self.max_run

    def is_transaction(self) -> None:
        """Good for as long as its transaction lasts: nothing to renew, only an end to see to."""
        self.good_until = float("inf")
        self.renew_at = self.ends_at

    @property
    def transaction(self) -> Any:
        """What the handler has open; it must not outlive the lease's end."""
        return self._transaction

    @transaction.setter
    def transaction(self, opened: Any) -> None:
        self._transaction = opened
        if opened is not None and self.ended is not None:
            opened.sever(self.ended)  # its end, seen by another thread, came just before

    def end(self, why: str) -> bool:
        """Let it lapse, and sever its transaction. False: that failed, and must be tried again."""
        self.ended = why
        if self._transaction is None:
            return True
        self.lost = True
        return bool(self._transaction.sever(why))

    def held(self, now: float) -> bool:
        """Whether it still runs, as far as this process knows without asking the store."""
        return not self.lost and now < self.good_until


class Leases:
    """Every lease held in this process."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self._clock = clock
        self._events = events
        self.held: dict[Fence, Lease] = {}
        """By fence. No lock: adding one, or removing one, is a single operation of a dict."""

    def __len__(self) -> int:
        return len(self.held)

    def run_once(self, store: Store) -> float:
        """Renew what is due, first to end first; returns when the next one is."""
        now = self._clock()
        due = [lease for lease in list(self.held.values()) if lease.renew_at <= now]
        # These end first: the store may be waiting for a transaction of one of them.
        for lease in [lease for lease in due if lease.ends_at <= now]:
            due.remove(lease)
            if lease.ended is None:
                self._events.emit("lease.overrun", identity=short(lease.identity))
            self._sever(lease, "the handler ran longer than max_run")
        due.sort(key=attrgetter("good_until"))
        # The first is renewed alone: if the store is out, one failure shows it.
        if due and self._renew(due[0], store):
            self._renew_together(deque(due[1:_ROUND]), store)
        return min((lease.renew_at for lease in list(self.held.values())), default=float("inf"))

    def _renew_together(self, due: deque[Lease], store: Store) -> None:
        """Several at once, until all are renewed or the store is out."""

        def work() -> None:
            while due:
                try:
                    lease = due.popleft()
                except IndexError:  # another thread took the last one
                    return
                if not self._renew(lease, store):
                    due.clear()

        threads = [
            threading.Thread(target=work, name="semel-renews", daemon=True)
            for _ in range(min(_ABREAST, len(due)) - 1)
        ]
        started: list[threading.Thread] = []
        with contextlib.suppress(RuntimeError):  # as many as the system grants
            for thread in threads:
                thread.start()
                started.append(thread)
        work()
        for thread in started:
            thread.join()

    def _sever(self, lease: Lease, why: str) -> None:
        try:
            severed = lease.end(why)
        except Exception:  # none may end the others' leases
            log.exception("semel: a transaction could not be severed")
            severed = True
        if severed:
            self.held.pop(lease.fence, None)
        else:
            lease.renew_at = lease.ends_at = self._clock() + _SEVER_AGAIN

    def _renew(self, lease: Lease, store: Store) -> bool:
        """One renewal; False when the store is out."""
        asked_at = self._clock()
        op = Renew(lease.identity, lease.fence, int(lease.duration * 1_000_000))
        try:
            reply = store.perform(op)
        except Exception as error:  # also a wrong schema, or a bug: none may end the others' leases
            self._events.emit("store.error", error=error, during="renew", operation="Renew")
            lease.renew_at = self._clock() + lease.duration / _RETRY
            return not isinstance(error, StoreError)
        if isinstance(reply, Applied):
            lease.good_until = asked_at + lease.duration
            lease.renew_at = asked_at + lease.duration / 3
            self._events.emit("lease.renewed", identity=short(lease.identity))
        elif (
            (record := reply.record) is not None
            and record.fence == lease.fence
            and record.state is State.COMPLETED
        ):
            self.held.pop(lease.fence, None)  # completed while the renewal was on its way
        else:
            lease.lost = True
            self._events.emit("lease.lost", identity=short(lease.identity))
            self._sever(lease, "the lease was lost")
        return True


# --- the clock that leases are counted by
#
# It goes on while the machine is suspended, as the store's clock does: a process that wakes must
# not believe in a lease that ran out while it slept. Where the system has no such clock, the
# monotonic one is used.

lease_clock: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds since the machine was started, sleep included. No function of ours: it is asked twice in
every request."""


# --- fences: 128 random bits each, drawn from the system many at a time
#
# One draw can cost as much as the rest of a small request; the bits are the same.

_BYTES: Final = 16
_MANY: Final = 256

_drawn: list[Fence] = []


def new_fence() -> Fence:
    """A fence that nobody else has, in any thread, process or life."""
    try:
        return _drawn.pop()
    except IndexError:
        bits = os.urandom(_BYTES * _MANY)
        _drawn.extend(Fence(bits[at : at + _BYTES]) for at in range(_BYTES, len(bits), _BYTES))
        return Fence(bits[:_BYTES])


# A forked child must not draw what its parent will: a fence is unique for all time.
os.register_at_fork(after_in_child=_drawn.clear)


# --- the threads

_IDLE: Final = 1.0
"""Seconds between rounds when nothing asks for an earlier one."""


class Keeper:
    """The daemon threads of a process that look after what requests leave to them.

    One renews leases (a thread, because a blocked event loop must not lose them). It does nothing
    else: the other retries writes and reads the records that others wait for, one after the other,
    which may take longer than a lease lasts. Both use the blocking colour of the store. Each starts
    with the first thing there is to do.
    """

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
        self, op: StoreOperation[Written], claim: Claim | None = None, seen: Fence | None = None
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
        self, name: str, run_once: Callable[[], float], clock: Callable[[], float], events: Events
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
        while self._is_due():
            try:
                again = self._run_once()
            except Exception as error:
                # The thread must outlive any surprise: without it leases lapse under live handlers.
                self._events.emit("round.failed", error=error, loop="keeper")
                again = self.clock() + _IDLE
            with self._wake:
                self.next_round = min(self.next_round, again)

    def _is_due(self) -> bool:
        """Wait until the next round; False when it is time to end."""
        with self._wake:
            while not self._stopping:
                left = self.next_round - self.clock()
                if left <= 0:
                    # Before the round: a request to come sooner, made during it, is not lost.
                    self.next_round = float("inf")
                    return True
                self._wake.wait(None if left == float("inf") else left)
            return False
