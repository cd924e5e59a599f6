"""Which node has which bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from semel.stores.redis.errors import RedisFault, Remedy
from semel.stores.redis.keys import BUCKETS, SLOT_OF, SLOTS
from semel.stores.redis.plans import ANY, RedisCall
from semel.stores.redis.settings import NodeAddress, RedisSettings

SLOTS_MAP: Final = RedisCall(ANY, ("CLUSTER", "SLOTS"))
"""Any node can be asked for it."""


LOST: Final = ("TIME", "CONNECT", "LINK")
PATIENCE: Final = 1.0
"""Seconds for one node to say who has what, before the next one is asked."""


class Topology:
    """One server has them all; of a cluster it is learned, and learned anew when it changed."""

    def __init__(self, settings: RedisSettings) -> None:
        self._seeds = settings.seeds
        self.cluster = settings.cluster
        self.doubtful = False
        self.version = 0
        self._map: list[NodeAddress | None] = [None] * BUCKETS
        if not self.cluster:
            self._map = [self._seeds[0]] * BUCKETS

    def at(self, bucket: int) -> NodeAddress | None:
        """None: nobody is known to have it, or it is time to ask again."""
        return None if self.doubtful else self._map[bucket]

    def suspect(self, outcomes: Sequence[Any]) -> None:
        """A node that cannot be reached may have been replaced."""
        if self.cluster and any(
            isinstance(each, RedisFault) and each.code in LOST for each in outcomes
        ):
            self.doubtful = True

    def known(self) -> tuple[NodeAddress, ...]:
        """Whom to ask for the map: who is on it first, then those of the URL."""
        return tuple(dict.fromkeys([*filter(None, self._map), *self._seeds]))

    def primaries(self) -> tuple[NodeAddress, ...]:
        """Everybody on the map; those of the URL while there is none."""
        return tuple(dict.fromkeys(filter(None, self._map))) or self._seeds

    def learn(self, answer: Any, asked: NodeAddress) -> None:
        """From CLUSTER SLOTS: ``[[first, last, [host, port, …], …], …]``; primaries come first."""
        slots: list[NodeAddress | None] = [None] * SLOTS
        for first, last, primary, *_ in answer:
            host = primary[0].decode() if primary[0] else asked.host
            where = NodeAddress(asked.host if host == "?" else host, primary[1])
            slots[first : last + 1] = [where] * (last + 1 - first)
        self._map = [slots[SLOT_OF[bucket]] for bucket in range(BUCKETS)]
        self.doubtful = False
        self.version += 1


def nobody(bucket: int) -> RedisFault:
    text = f"nobody in the cluster serves slot {SLOT_OF[bucket]}"
    return RedisFault(text, Remedy.LATER, code="CLUSTERDOWN")
