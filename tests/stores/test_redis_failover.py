"""Redis Cluster, three primaries and three replicas: what a failover loses, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from semel.core.contract import Claim, Claimed, Found, Read
from semel.core.model import Identity, State
from semel.errors import StoreUnavailable
from semel.stores.redis import RedisBackend
from tests.servers import ValkeyCluster, ValkeyServer
from tests.stores.contract import claim, new_fence, new_identity
from tests.stores.load import Load
from tests.stores.test_redis_cluster import owner

BUCKET = 77
WAITING: dict[str, Any] = {"wait_replicas": 1, "wait_timeout": 0.2}


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(replicas=1) as opened:
        yield opened


def cut(primary: ValkeyServer) -> None:
    """Its replica hears no more of it, and cannot come back to it."""
    primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    for _ in primary.child.attempts():
        if b"connected_slaves:0" in primary.ask("INFO", "replication"):
            return


def await_heir(cluster: ValkeyCluster, dead: ValkeyServer) -> None:
    heir = cluster.replicas[cluster.primaries.index(dead)]
    for _ in heir.child.attempts():
        if b"role:master" in heir.ask("INFO", "replication"):
            return


def in_one_bucket() -> Iterator[Claim]:
    while True:
        identity = (BUCKET << 6).to_bytes(2, "big") + new_identity()[2:]
        yield claim(Identity(identity), new_fence())


def kept(backend: RedisBackend, ops: list[Claim]) -> list[Claim]:
    return [op for op in ops if isinstance(backend.blocking().perform(Read(op.identity)), Found)]


def test_without_waiting_a_failover_loses_what_was_acknowledged(cluster: ValkeyCluster) -> None:
    """And nobody is told: a request that is repeated runs again. The guide says so."""
    backend = RedisBackend(cluster.url, timeout=20)
    before, after = (list(islice(in_one_bucket(), 50)) for _ in range(2))
    primary = owner(cluster, BUCKET)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    assert primary.ask("WAIT", 1, 5000) is not None
    await_copies(cluster, primary, len(before))
    cut(primary)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in after)
    primary.kill()
    await_heir(cluster, primary)
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    backend.close()


def await_copies(cluster: ValkeyCluster, primary: ValkeyServer, count: int) -> None:
    replica = cluster.replicas[cluster.primaries.index(primary)]
    for _ in replica.child.attempts():
        if len(replica.ask("KEYS", "*:record:*")) == count:
            return


def test_with_waiting_whatever_a_failover_loses_was_in_doubt(cluster: ValkeyCluster) -> None:
    backend = RedisBackend(cluster.url, timeout=20, **WAITING)
    before, after = list(islice(in_one_bucket(), 50)), list(islice(in_one_bucket(), 10))
    primary = owner(cluster, BUCKET)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    cut(primary)
    for op in after:
        with pytest.raises(StoreUnavailable) as refused:
            backend.blocking().perform(op)
        assert refused.value.applied is None
    primary.kill()
    await_heir(cluster, primary)
    backend.close()
    # The heir has no replica of its own to wait for.
    backend = RedisBackend(cluster.url, timeout=20)
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in after)
    backend.close()


def test_a_primary_killed_under_load_costs_no_key_that_its_replica_acknowledged(
    cluster: ValkeyCluster,
) -> None:
    url = f"{cluster.url}?timeout=5&wait_replicas=1&wait_timeout=1"
    with Load([url], lanes=6) as load:
        load.more(100)
        dying = cluster.primaries[0]
        dying.kill()
        load.more(1, "doubt")
        await_heir(cluster, dying)
        dying.start()  # and follows the heir, which would otherwise have nobody to wait for
        dying.await_link()
        load.more(100)
        load.stop()
    assert load.codes == {0}
    assert load.keys("refused") == load.keys("taken") == set()
    backend = RedisBackend(cluster.url, timeout=20)
    for key in load.keys("claimed"):
        found = backend.blocking().perform(Read(Identity(key[:32])))
        assert isinstance(found, Found)
        assert found.record.fence == key[32:]
        assert found.record.state is State.COMPLETED or key not in load.keys("completed")
    backend.close()
