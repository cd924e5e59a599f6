"""`semel.current()`: what a running handler can learn about its own key."""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar

from semel.core import keys
from semel.core.model import Fence, Identity
from semel.errors import OutcomeUnknown, doubts
from semel.process.leases import Lease


class Operation:
    """The operation a handler is running."""

    __slots__ = ("_doubts", "_lease")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._doubts: list[OutcomeUnknown] = []

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

    def enter(self) -> None:
        """Make this the running operation of the current context."""
        current_operation.set(self)
        doubts.set(self._doubts)

    def error_behind(self, status: int) -> BaseException | None:
        """The exception behind an answered 5xx: the one being handled right now, or a noted doubt.

        Frameworks answer from within their ``except`` block, so that the exception is in sight.
        """
        if status < 500:
            return None
        return sys.exception() or (self._doubts[-1] if self._doubts else None)


current_operation: ContextVar[Operation] = ContextVar("semel_operation")


def current() -> Operation:
    """The running operation; LookupError outside a request that carries a key."""
    return current_operation.get()
