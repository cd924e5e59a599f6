"""Which node has which bucket."""

from __future__ import annotations

from typing import Any, Final

from semel.errors import ConfigurationError
from semel.stores.redis.faults import Fault, Remedy
from semel.stores.redis.keys import BUCKETS, SLOT_OF, SLOTS
from semel.stores.redis.plans import Call
from semel.stores.redis.settings import Address, Settings

SLOTS_MAP: Final = Call(0, None, (), ("CLUSTER", "SLOTS"))
"""Any node can be asked for it."""


class Topology:
    """One server has them all; of a cluster it is learned, and learned anew when it changed."""

    def __init__(self, settings: Settings) -> None:
        self._seeds = settings.seeds
        self.cluster = settings.cluster
        self._map: list[Address | None] = [None] * BUCKETS
        if not self.cluster:
            self._map = [self._seeds[0]] * BUCKETS

    def at(self, bucket: int) -> Address | None:
        """None: nobody is known to have it."""
        return self._map[bucket]

    def known(self) -> tuple[Address, ...]:
        """Whom to ask for the map: who is on it first, then those of the URL."""
        return tuple(dict.fromkeys([*filter(None, self._map), *self._seeds]))

    def learn(self, answer: Any, asked: Address) -> None:
        """From CLUSTER SLOTS: ``[[first, last, [host, port, …], …], …]``; primaries come first."""
        if isinstance(answer, Fault):
            raise _no_cluster(answer)
        slots: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in answer:
            host = primary[0].decode() if primary[0] else asked.host
            where = Address(asked.host if host == "?" else host, primary[1])
            slots[first : last + 1] = [where] * (last + 1 - first)
        self._map = [slots[SLOT_OF[bucket]] for bucket in range(BUCKETS)]


def _no_cluster(fault: Fault) -> Exception:
    if "cluster support disabled" in str(fault):
        return ConfigurationError("this Redis is no cluster: use redis:// instead")
    return Fault(str(fault), Remedy.LATER, code=fault.code)


def nobody(bucket: int) -> Fault:
    text = f"nobody in the cluster serves slot {SLOT_OF[bucket]}"
    return Fault(text, Remedy.LATER, code="CLUSTERDOWN")
