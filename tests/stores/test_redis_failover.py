"""Redis Cluster, three primaries and three replicas: what a failover loses, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from semel.core.operations.requests import Claim, Claimed, Found, Read
from semel.core.records import Identity, State
from semel.errors import StoreUnavailable
from semel.stores.redis import RedisBackend
from semel.testing.contract.records import claim, new_fence
from tests.servers import ValkeyCluster, ValkeyServer
from tests.stores.load import Load
from tests.stores.test_redis import both
from tests.stores.test_redis_cluster import Steady, in_bucket, owner
from tests.waiting import PATIENCE, until

BUCKET = 77
AMPLY: dict[str, Any] = {"timeout": PATIENCE}
WAITING: dict[str, Any] = {"wait_replicas": 1, "wait_timeout": PATIENCE / 2}
"""As long as it takes."""
IN_VAIN: dict[str, Any] = {"wait_replicas": 1, "wait_timeout": 0.05}


@pytest.fixture(scope="module")
def shared() -> Iterator[Steady]:
    with Steady(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Steady) -> Steady:
    """Whole, whatever the test before did to it, and empty."""
    shared.mend()
    for node in shared.nodes:
        if b"role:master" in node.ask("INFO", "replication"):
            node.ask("FLUSHALL")
    return shared


def cut(primary: ValkeyServer) -> None:
    """Its replica hears no more of it, and cannot come back to it."""
    primary.ask("ACL", "SETUSER", "default", "-psync", "-sync")
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    until(lambda: b"connected_slaves:0" in primary.ask("INFO", "replication"))


def in_one_bucket(count: int) -> list[Claim]:
    return [claim(in_bucket(BUCKET), new_fence()) for _ in range(count)]


def kept(backend: RedisBackend, ops: list[Claim]) -> list[Claim]:
    return [op for op in ops if isinstance(backend.blocking().perform(Read(op.identity)), Found)]


def test_without_waiting_a_failover_loses_what_was_acknowledged(cluster: Steady) -> None:
    """And nobody is told: a request that is repeated runs again. The guide says so."""
    backend = RedisBackend(cluster.url, **AMPLY)
    before, after = in_one_bucket(50), in_one_bucket(50)
    primary = owner(cluster, BUCKET)
    heir = cluster.replica_of(primary)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    until(lambda: len(heir.ask("KEYS", "*}:r:*")) == len(before))
    cut(primary)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in after)
    primary.kill()
    cluster.promote(heir)
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    backend.close()


def test_with_waiting_whatever_a_failover_loses_was_in_doubt(cluster: Steady) -> None:
    before, after = in_one_bucket(50), in_one_bucket(10)
    primary = owner(cluster, BUCKET)
    heir = cluster.replica_of(primary)
    backend = RedisBackend(cluster.url, **AMPLY, **WAITING)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    backend.close()
    cut(primary)
    backend = RedisBackend(cluster.url, **AMPLY, **IN_VAIN)
    for op in after:
        with pytest.raises(StoreUnavailable) as refused:
            backend.blocking().perform(op)
        assert refused.value.applied is None
    primary.kill()
    cluster.promote(heir)
    backend.close()
    # The heir has no replica of its own to wait for.
    backend = RedisBackend(cluster.url, **AMPLY)
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in after)
    backend.close()


def waiting(primary: ValkeyServer) -> int:
    """How many wait for its replica."""
    clients = primary.ask("CLIENT", "LIST").splitlines()
    return sum(b" flags=b " in each and b" cmd=wait " in each for each in clients)


def test_what_waited_for_a_replica_when_its_primary_was_killed_is_told_by_the_heir(
    cluster: Steady,
) -> None:
    """Not before somebody else has it, too: here the one that was killed, which comes back."""
    primary = owner(cluster, BUCKET)
    heir = cluster.replica_of(primary)
    with (
        both(cluster.url, **AMPLY, **WAITING) as harnesses,
        both(cluster.url, **AMPLY) as others,
        ThreadPoolExecutor() as threads,
    ):
        ops = in_one_bucket(len(harnesses))
        for harness in harnesses:
            harness.perform(in_one_bucket(1)[0])
        with heir.frozen():
            asked = [
                threads.submit(harness.perform, op)
                for harness, op in zip(harnesses, ops, strict=True)
            ]
            until(lambda: waiting(primary) == len(asked))
            primary.kill()
        cluster.promote(heir)
        until(lambda: all(other.record(op.identity) for other in others for op in ops))
        assert not any(each.done() for each in asked)
        cluster.mend()
        assert all(isinstance(each.result(PATIENCE), Claimed) for each in asked)
        for other, op in zip(others, ops, strict=True):
            found = other.record(op.identity)
            assert found is not None
            assert found.fence == op.fence


@pytest.mark.proof
def test_a_primary_killed_under_load_costs_no_key_that_its_replica_acknowledged() -> None:
    """The cluster itself finds out, and chooses the heir."""
    with ValkeyCluster(replicas=1) as cluster:
        url = f"{cluster.url}?timeout=5&wait_replicas=1&wait_timeout=1"
        with Load([url], lanes=6) as load:
            load.more(100)
            dying = owner(cluster, 0)
            dying.kill()
            until(lambda: owner(cluster, 0) is not dying)
            load.more(1, "doubt")  # the heir has nobody to wait for
            dying.start()  # and follows the heir
            dying.await_link()
            load.more(100)
            load.stop()
        assert load.codes == {0}
        assert load.keys("refused") == load.keys("taken") == set()
        backend = RedisBackend(cluster.url, **AMPLY)
        for key in load.keys("claimed"):
            found = backend.blocking().perform(Read(Identity(key[:32])))
            assert isinstance(found, Found)
            assert found.record.fence == key[32:]
            assert found.record.state is State.COMPLETED or key not in load.keys("completed")
        backend.close()
