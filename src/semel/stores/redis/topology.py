"""Which node serves which bucket. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from semel.stores.redis.errors import RedisFault, Remedy
from semel.stores.redis.keys import BUCKETS, SLOT_OF, SLOTS
from semel.stores.redis.settings import NodeAddress, RedisSettings

UNREACHABLE: Final = ("TIME", "CONNECT", "LINK")


class Topology:
    """The map of buckets to nodes. One server serves all; a cluster is asked, and asked again.

    ``doubtful``: a node could not be reached and may have been replaced, so the map must be
    refreshed before it is used. ``version`` counts the refreshes.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._seeds = settings.seeds
        self.cluster = settings.cluster
        self.doubtful = False
        self.version = 0
        self._map: list[NodeAddress | None] = [None] * BUCKETS
        if not self.cluster:
            self._map = [self._seeds[0]] * BUCKETS

    def at(self, bucket: int) -> NodeAddress | None:
        """The node of a bucket; None: the map must be refreshed first."""
        return None if self.doubtful else self._map[bucket]

    def suspect(self, faults: Iterable[RedisFault]) -> None:
        """Mark the map as doubtful if one of the faults says that a node cannot be reached."""
        if self.cluster and any(fault.code in UNREACHABLE for fault in faults):
            self.doubtful = True

    def candidates(self) -> tuple[NodeAddress, ...]:
        """The nodes to ask for the map: those on it first, then those of the URL."""
        return tuple(dict.fromkeys([*filter(None, self._map), *self._seeds]))

    def primaries(self) -> tuple[NodeAddress, ...]:
        """Every node on the map; those of the URL while the map is empty."""
        return tuple(dict.fromkeys(filter(None, self._map))) or self._seeds

    def update(self, slots: Any, asked: NodeAddress) -> None:
        """Take over what CLUSTER SLOTS returned: ``[[first, last, [host, port, …], …], …]``.

        The primary is the first node of each range. A host that is empty or ``?`` is the host that
        was asked.
        """
        nodes: list[NodeAddress | None] = [None] * SLOTS
        for first, last, primary, *_ in slots:
            host = primary[0].decode() if primary[0] else asked.host
            node = NodeAddress(asked.host if host == "?" else host, primary[1])
            nodes[first : last + 1] = [node] * (last + 1 - first)
        self._map = [nodes[SLOT_OF[bucket]] for bucket in range(BUCKETS)]
        self.doubtful = False
        self.version += 1


def not_served(bucket: int) -> RedisFault:
    """The cluster has no node for this bucket."""
    text = f"nobody in the cluster serves slot {SLOT_OF[bucket]}"
    return RedisFault(text, Remedy.WAIT, code="CLUSTERDOWN")
