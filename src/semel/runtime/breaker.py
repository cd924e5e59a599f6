"""The circuit breaker: while the store is out, requests are refused at once instead of each trying.

Asked once for each request, before anything of it reaches the store. What has begun is never
stopped by it: to complete, release or renew is always tried, since nothing is gained by refusing a
write that only this process can make, and its success is the first news that the store is back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from semel.core.frozen import frozen
from semel.core.operations.requests import Read
from semel.core.records import Identity, Micros
from semel.errors import ConfigurationError, SemelError, StoreUnavailable
from semel.runtime.pools import report_pools

if TYPE_CHECKING:
    from semel.runtime.runtime import Runtime

Circuit: TypeAlias = Literal["closed", "open"]

FAILURES: Final = 5
"""In a row, without a success between them."""
LASTING: Final = 0.1
"""Seconds they must have lasted: a connection that breaks may fail many requests at one instant,
and the next may be served by another."""
FIRST: Final = 0.5
"""Seconds until the first trial; each of the next comes after twice as long, up to a limit."""


class Breaker:
    """Closed: everything passes. Open: one request at a time is let through, to try.

    ``longest``: the time between two trials at most; None: it never opens. No lock, which a fork
    could copy while it is held; threads that meet here may miscount a failure by one.
    """

    def __init__(
        self,
        longest: timedelta | None,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[Circuit], None] = lambda circuit: None,
    ) -> None:
        if longest is not None and not (isinstance(longest, timedelta) and longest > timedelta(0)):
            raise ConfigurationError(
                "breaker= takes the longest time between two trials of a store that is out, a "
                "timedelta, or None"
            )
        self._longest = None if longest is None else longest.total_seconds()
        self._clock = clock
        self._tell = tell
        self.failures = 0
        """So many in a row."""
        self._since = 0.0
        self._pause = self._try_at = 0.0
        self._tried: dict[tuple[float, int], object] = {}
        self.is_open = False

    @property
    def circuit(self) -> Circuit:
        return "open" if self.is_open else "closed"

    def refuses(self) -> Micros | None:
        """None: go on. Else the time until somebody may try again."""
        if not self.is_open:
            return None
        now, at = self._clock(), self._try_at
        mine = object()
        if now >= at and self._tried.setdefault((at, os.getpid()), mine) is mine:
            # The next one is on its way whether this one reports or not: it may hang, or vanish.
            self._next_trial(now)
            return None
        return max(1, int((self._try_at - now) * 1_000_000))

    def failed(self, started: float) -> None:
        """The store gave no usable answer to what was asked of it at ``started``."""
        if self.is_open or self._longest is None:
            return
        if not self.failures:
            self._since = started
        self.failures += 1
        now = self._clock()
        if self.failures >= FAILURES and now - self._since >= LASTING:
            self._pause, self._tried = FIRST / 2, {}
            self._next_trial(now)
            self.is_open = True
            self._tell("open")

    def succeeded(self) -> None:
        """The store answered. A call may be left out while it is closed and counts no failures."""
        if self.failures or self.is_open:
            # Both: a success that comes while another thread opens it has taken the count already.
            self.failures = 0
            if self.is_open:
                self.is_open = False
                self._tell("closed")

    def _next_trial(self, now: float) -> None:
        self._pause = min(self._longest or FIRST, self._pause * 2)
        self._try_at = now + self._pause


# ── does the store answer: for checks of readiness ─────────────────────────────────────────────

QUESTION: Final = Read(Identity(b"\0" * 32))
"""No key has this identity: it costs one trip, changes nothing and finds nothing."""


@frozen
class Health:
    """Whether the store answered, and what the breaker makes of it."""

    up: bool
    circuit: Circuit
    """``open``: requests are refused at once."""
    seconds: float
    """How long the answer took."""
    error: str | None = None
    """In a sentence, why there was none."""


# Twin of alook, by tools.twins
def look(runtime: Runtime) -> Health:
    """Ask the store something, and say whether it answered."""
    asked = time.monotonic()
    try:
        runtime.backend.blocking().perform(QUESTION)
    except SemelError as error:
        return _report(runtime, asked, error)
    return _report(runtime, asked, None)


async def alook(runtime: Runtime) -> Health:
    """`look`, awaited."""
    asked = time.monotonic()
    try:
        await runtime.backend.awaited().perform(QUESTION)
    except SemelError as error:
        return _report(runtime, asked, error)
    return _report(runtime, asked, None)


def _report(runtime: Runtime, asked: float, error: SemelError | None) -> Health:
    """Tell the breaker and the subscribers how the store answered.

    An answer closes the breaker. Only a store that gave no answer counts as out: a missing schema
    is an answer.
    """
    breaker = runtime.breaker
    if error is None:
        breaker.succeeded()
    elif isinstance(error, StoreUnavailable):
        breaker.failed(asked)
    reason = None if error is None else str(error) or type(error).__name__
    health = Health(error is None, breaker.circuit, time.monotonic() - asked, reason)
    up, seconds, circuit = health.up, health.seconds, health.circuit
    runtime.events.emit("store.health", up=up, seconds=seconds, circuit=circuit)
    report_pools(runtime.backend, runtime.events)
    return health
