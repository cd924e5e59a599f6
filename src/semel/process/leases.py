"""Leases of handlers that run in this process, and their renewal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from semel.core.contract import Lost, Renew
from semel.core.model import Fence, Identity
from semel.errors import StoreError
from semel.log import log
from semel.stores.base import Store

_RETRY: Final = 10
"""A renewal that failed is tried again after a tenth of the lease."""


class Severable(Protocol):
    """A transaction, as far as it matters here."""

    def sever(self, why: str) -> None: ...


class Lease:
    """The right to run, as this process believes to hold it.

    ``good_until`` is counted on the local monotonic clock from *before* the claim was sent, so it
    never ends later than the store's own ``leased_until``.
    """

    __slots__ = (
        "duration",
        "ends_at",
        "fence",
        "good_until",
        "identity",
        "lost",
        "max_run",
        "renew_at",
        "transaction",
    )

    def __init__(
        self, identity: Identity, fence: Fence, started: float, duration: float, max_run: float
    ) -> None:
        self.identity = identity
        self.fence = fence
        self.duration = duration
        self.max_run = max_run
        self.lost = False
        self.transaction: Severable | None = None
        """What the handler has open; it must not outlive ``max_run``."""
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

    def overrun(self) -> None:
        """Past ``max_run``: left to lapse, so that no key is held for ever."""
        if self.transaction is not None:
            self.lost = True
            self.transaction.sever("the handler ran longer than max_run")

    def held(self, now: float) -> bool:
        """Whether the store still agrees, for all this process can know."""
        return not self.lost and now < self.good_until


class Leases:
    """Every lease held in this process. Adding and discarding are single dict operations."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[Fence, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, lease: Lease) -> None:
        self._held[lease.fence] = lease

    def discard(self, lease: Lease) -> None:
        self._held.pop(lease.fence, None)

    def run_once(self, store: Store) -> float:
        """Renew what is due; returns when the next one is."""
        now = self._clock()
        due = [lease for lease in list(self._held.values()) if lease.renew_at <= now]
        # First these: one of them may be what the store is waiting for.
        for lease in [lease for lease in due if lease.ends_at <= now]:
            self._end(lease)
            due.remove(lease)
        for lease in due:
            if not self._renew(lease, store):
                break  # the store is out: one failure tells enough, the others wait their turn
        return min((lease.renew_at for lease in list(self._held.values())), default=float("inf"))

    def _end(self, lease: Lease) -> None:
        self.discard(lease)
        log.warning("semel: a handler runs longer than max_run; its key is taken from it")
        try:
            lease.overrun()
        except Exception:  # none may end the others' leases
            log.exception("semel: a transaction could not be severed")

    def _renew(self, lease: Lease, store: Store) -> bool:
        asked_at = self._clock()
        try:
            reply = store.perform(
                Renew(lease.identity, lease.fence, int(lease.duration * 1_000_000))
            )
        except Exception as error:  # also a wrong schema, or a bug: none may end the others' leases
            log.warning("semel: a lease could not be renewed: %s", error)
            lease.renew_at = self._clock() + lease.duration / _RETRY
            return not isinstance(error, StoreError)
        if isinstance(reply, Lost):
            lease.lost = True
            self.discard(lease)
            log.warning(
                "semel: a lease was lost while its handler runs; its answer will be refused"
            )
        else:
            lease.good_until = asked_at + lease.duration
            lease.renew_at = asked_at + lease.duration / 3
        return True
