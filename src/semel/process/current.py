"""`semel.current()`: what a running handler can learn about its own key.

An `Operation` is what the handler sees of its `Run`; what the adapter sees of it is not for users.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar

from semel.core import keys
from semel.core.model import Fence, Identity
from semel.core.verdict import says_not_executed
from semel.errors import OutcomeUnknown, doubts
from semel.process.leases import Lease


class Operation:
    """The operation a handler is running."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def identity(self) -> Identity:
        """32 bytes that name this key for good; a nullable foreign key for business rows."""
        return self._lease.identity

    @property
    def fence(self) -> Fence:
        """Proof of this very run."""
        return self._lease.fence

    @property
    def held(self) -> bool:
        """Whether the lease is still this run's, as far as the process can know without asking."""
        return self._lease.held(time.monotonic())

    def downstream_key(self, name: str) -> str:
        """The idempotency key to send to a provider: derived, the same on every retry."""
        return keys.downstream_key(self.identity, name)


class Run:
    """One run of a handler under a lease, and what its answer may hide."""

    __slots__ = ("_doubts", "_noted", "operation")

    def __init__(self, lease: Lease) -> None:
        self.operation = Operation(lease)
        self._doubts: list[OutcomeUnknown] = []
        self._noted: BaseException | None = None

    def enter(self) -> Callable[[], None]:
        """Make this the run of the current context; the result undoes that."""
        before = _run.set(self)
        noted = doubts.set(self._doubts)

        def leave() -> None:
            _run.reset(before)
            doubts.reset(noted)

        return leave

    def note(self, error: BaseException) -> None:
        """Remember an exception that a framework is about to turn into an answer."""
        self._noted = error

    def error_behind(self, status: int) -> BaseException | None:
        """What an answer hides: a doubt of the handler's, or the exception behind a 5xx.

        Most frameworks answer from within their ``except`` block, so that the exception is in
        sight; those that do not are made to note it.
        """
        error = sys.exception() or self._noted if status >= 500 else None
        if self._doubts and not says_not_executed(error):
            return self._doubts[-1]
        return error


_run: ContextVar[Run | None] = ContextVar("semel_run", default=None)


def current_run() -> Run | None:
    """The run that the current context belongs to, if any."""
    return _run.get()


def current() -> Operation:
    """The running operation; LookupError outside a request that carries a key."""
    run = _run.get()
    if run is None:
        raise LookupError("semel.current(): no request with an Idempotency-Key is running here")
    return run.operation
