"""Leases of handlers that run in this process, and their renewal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from semel.core.contract import Lost, Renew
from semel.core.model import Fence, Identity
from semel.errors import StoreError
from semel.log import log
from semel.stores.base import Store

_RETRY: Final = 10
"""A renewal that failed is tried again after a tenth of the lease."""


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
    )

    def __init__(
        self, identity: Identity, fence: Fence, started: float, duration: float, max_run: float
    ) -> None:
        self.identity = identity
        self.fence = fence
        self.duration = duration
        self.max_run = max_run
        self.lost = False
        self.start(started)

    def start(self, now: float) -> None:
        """Count from here: it is about to be asked for."""
        self.good_until = now + self.duration
        self.renew_at = now + self.duration / 3
        self.ends_at = now + self.max_run

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
        for lease in due:
            if not self._renew(lease, store):
                break  # the store is out: one failure tells enough, the others wait their turn
        return min((lease.renew_at for lease in list(self._held.values())), default=float("inf"))

    def _renew(self, lease: Lease, store: Store) -> bool:
        asked_at = self._clock()
        if asked_at >= lease.ends_at:
            self.discard(lease)  # past max_run: left to lapse, so that no key is held for ever
            log.warning("semel: a handler runs longer than max_run; its lease is left to lapse")
            return True
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
