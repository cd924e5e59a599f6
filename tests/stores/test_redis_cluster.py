"""What is true of the Redis store on a cluster alone."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from semel.core.contract import Applied, Claim, Claimed, Found, Read, StoreOperation
from semel.core.model import Identity, State
from semel.core.upkeep import Browse, Sweep
from semel.errors import ConfigurationError, StoreUnavailable
from semel.stores.redis import RedisBackend
from semel.stores.redis.keys import BUCKETS, SLOT_OF, Keys, bucket_of
from semel.stores.redis.scripts import sources
from tests.servers import ValkeyCluster, ValkeyServer
from tests.stores.contract import LEASE, ORIGIN, claim, complete, new_fence, new_identity, reach
from tests.stores.harness import CLEAR, own_redis

COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture
def prefix(valkey_cluster: ValkeyCluster) -> Iterator[str]:
    name = f"own{os.urandom(6).hex()}"
    yield name
    for node in valkey_cluster.primaries:
        node.ask("EVAL", CLEAR, 0, f"{name}:*")


def in_bucket(bucket: int) -> Identity:
    """An identity whose first ten bits say so."""
    return Identity((bucket << 6).to_bytes(2, "big") + os.urandom(30))


# ── slots ─────────────────────────────────────────────────────────────────────────────────────────


def test_slots_are_those_the_server_computes(valkey_cluster: ValkeyCluster) -> None:
    node, keys = valkey_cluster.primaries[0], Keys("semel")
    for bucket in range(0, BUCKETS, 41):
        for key in (*keys.of(in_bucket(bucket)), keys.events(bucket), keys.pulse(bucket)):
            assert node.ask("CLUSTER", "KEYSLOT", key) == SLOT_OF[bucket]
    for kind in ("recipe", "leader"):
        bucket, key = keys.named(kind, "POST /payments/{id} {x}")
        assert node.ask("CLUSTER", "KEYSLOT", key) == SLOT_OF[bucket]


def test_buckets_are_spread_over_the_slots() -> None:
    assert len({*SLOT_OF}) > BUCKETS * 0.95
    thirds = [sum(slot * 3 // 16_384 == third for slot in SLOT_OF) for third in range(3)]
    assert min(thirds) > BUCKETS / 3 * 0.9


def test_buckets_are_in_the_order_of_identities() -> None:
    identities = sorted(new_identity() for _ in range(1000))
    buckets = [bucket_of(identity) for identity in identities]
    assert buckets == sorted(buckets)
    assert bucket_of(bytes(32)) == 0
    assert bucket_of(b"\xff" * 32) == BUCKETS - 1


def test_a_script_names_no_key_that_it_was_not_given() -> None:
    """Every key is one of KEYS, so that a cluster, or a proxy before it, knows where it belongs."""
    for name, source in sources().items():
        for command, key in re.findall(r"redis\.call\('(\w+)',? ?([^,)]*)", source):
            keys = ("KEY", "KEYS[1]", "KEYS[10]", "KEYS[other]", "DEADLINE", "MADE")
            indexes = ("INDEX[duty]", "INDEX[old]", "INDEX[found.duty]")
            assert command == "TIME" or key in (*keys, *indexes), (name, command, key)


@COLOURS
def test_identities_of_every_node_are_kept(
    valkey_cluster: ValkeyCluster, prefix: str, colour: str
) -> None:
    with own_redis(valkey_cluster.url, colour, prefix=prefix) as harness:
        ops = [claim(in_bucket(bucket), new_fence()) for bucket in range(0, BUCKETS, 8)]
        assert all(isinstance(reply, Claimed) for reply in harness.race(ops))
        assert all(harness.record(op.identity) is not None for op in ops)
        listed = harness.perform(Browse((State.IN_PROGRESS,), 1000)).cases
        assert [case.record.identity for case in listed] == sorted(op.identity for op in ops)
    sizes = [len(node.ask("KEYS", f"{prefix}:*:record:*")) for node in valkey_cluster.primaries]
    assert sum(sizes) == len(ops)
    assert min(sizes) > len(ops) / 6


@COLOURS
def test_one_seed_is_enough(valkey_cluster: ValkeyCluster, prefix: str, colour: str) -> None:
    port = valkey_cluster.primaries[1].port
    url = f"rediscluster://127.0.0.1:1,127.0.0.1:{port}"
    with own_redis(url, colour, prefix=prefix) as harness:
        ops = [claim(in_bucket(bucket), new_fence()) for bucket in (0, 300, 600, 900)]
        assert all(isinstance(harness.perform(op), Claimed) for op in ops)


@COLOURS
def test_the_two_kinds_of_url_are_not_mixed_up(
    valkey_cluster: ValkeyCluster, valkey: ValkeyServer, colour: str
) -> None:
    port = valkey_cluster.primaries[0].port
    refused = pytest.raises(ConfigurationError, match="use rediscluster://")
    with own_redis(f"redis://127.0.0.1:{port}/0", colour) as harness, refused:
        harness.perform(Read(new_identity()))
    refused = pytest.raises(ConfigurationError, match="use redis://")
    with own_redis(f"rediscluster://127.0.0.1:{valkey.port}", colour) as harness, refused:
        harness.perform(Read(new_identity()))


def test_every_primary_is_examined(valkey_cluster: ValkeyCluster) -> None:
    backend = RedisBackend(valkey_cluster.url)
    said = "\n".join(each.text for each in backend.examine())
    backend.close()
    for node in valkey_cluster.primaries:
        assert f"127.0.0.1:{node.port}: a failover may lose" in said


# ── nodes that come and go ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture
def replicated() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(replicas=1) as cluster:
        yield cluster


def owner(cluster: ValkeyCluster, bucket: int) -> ValkeyServer:
    slot = SLOT_OF[bucket]
    for first, last, primary, *_ in cluster.primaries[0].ask("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            return next(node for node in cluster.nodes if node.port == primary[1])
    raise AssertionError(f"nobody has slot {slot}")


def node_id(node: ValkeyServer) -> bytes:
    name: bytes = node.ask("CLUSTER", "MYID")
    return name


def begin_to_move(bucket: int, source: ValkeyServer, target: ValkeyServer) -> None:
    slot = SLOT_OF[bucket]
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))


def move_keys(bucket: int, source: ValkeyServer, target: ValkeyServer) -> int:
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", SLOT_OF[bucket], 1000)
    if keys:
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    return len(keys)


def end_move(cluster: ValkeyCluster, bucket: int, target: ValkeyServer) -> None:
    others = [node for node in cluster.primaries if node is not target]
    for node in (target, *others):
        node.ask("CLUSTER", "SETSLOT", SLOT_OF[bucket], "NODE", node_id(target))


@COLOURS
def test_a_moved_bucket_is_found(own_cluster: ValkeyCluster, colour: str) -> None:
    with own_redis(own_cluster.url, colour) as harness:
        identity, fence = in_bucket(77), new_fence()
        assert isinstance(harness.perform(claim(identity, fence)), Claimed)
        source = owner(own_cluster, 77)
        target = next(node for node in own_cluster.primaries if node is not source)
        begin_to_move(77, source, target)
        assert move_keys(77, source, target) == 2
        end_move(own_cluster, 77, target)
        assert isinstance(harness.perform(complete(identity, fence)), Applied)
        assert len(target.ask("KEYS", "*:record:*")) == 1
        assert source.ask("KEYS", "*{04d}*") == []
        found = harness.perform(claim(identity, new_fence()))
        assert isinstance(found, Found)


@COLOURS
def test_an_empty_bucket_that_is_being_moved_is_asked_for_where_it_goes(
    own_cluster: ValkeyCluster, colour: str
) -> None:
    """Nothing of it is at the source: ASK. The target then wants to see all keys: TRYAGAIN.

    However often that goes to and fro, the time limit ends it and nothing else.
    """
    with own_redis(own_cluster.url, colour, timeout=2) as harness:
        source = owner(own_cluster, 77)
        target = next(node for node in own_cluster.primaries if node is not source)
        begin_to_move(77, source, target)
        op = claim(in_bucket(77), new_fence())
        with pytest.raises(StoreUnavailable) as refused:
            harness.perform(op)
        assert refused.value.applied is False
        assert "TRYAGAIN" in str(refused.value)
        assert isinstance(harness.perform(claim(in_bucket(78), new_fence())), Claimed)
        end_move(own_cluster, 77, target)
        assert isinstance(harness.perform(op), Claimed)


@COLOURS
def test_keys_are_neither_lost_nor_doubled_while_buckets_move(
    own_cluster: ValkeyCluster, colour: str
) -> None:
    """Traffic on a few buckets, which go round the nodes meanwhile."""
    buckets = (10, 900)
    with own_redis(own_cluster.url, colour, timeout=20) as harness:
        stop = threading.Event()
        claimed: list[Claim] = []
        errors: list[Exception] = []

        def work(bucket: int) -> None:
            while not stop.is_set():
                op = claim(in_bucket(bucket), new_fence())
                try:
                    assert isinstance(harness.perform(op), Claimed)
                    assert isinstance(harness.perform(complete(op.identity, op.fence)), Applied)
                except Exception as error:
                    errors.append(error)
                    return
                claimed.append(op)

        threads = [threading.Thread(target=work, args=(bucket,)) for bucket in buckets]
        for thread in threads:
            thread.start()
        for bucket in buckets:
            for _ in range(2):
                before = len(claimed)
                source = owner(own_cluster, bucket)
                place = own_cluster.primaries.index(source)
                target = own_cluster.primaries[(place + 1) % 3]
                begin_to_move(bucket, source, target)
                while move_keys(bucket, source, target):
                    pass
                end_move(own_cluster, bucket, target)
                while len(claimed) < before + 20 and not errors:
                    pass
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        for op in claimed:
            found = harness.record(op.identity)
            assert found is not None
            assert (found.state, found.fence) == (State.COMPLETED, op.fence)


@COLOURS
def test_a_failover_is_lived_through_and_what_replicas_had_is_there(
    replicated: ValkeyCluster, colour: str
) -> None:
    options: dict[str, Any] = {"timeout": 20, "wait_replicas": 1, "wait_timeout": 2}
    with own_redis(replicated.url, colour, **options) as harness:
        ops = [claim(in_bucket(bucket), new_fence()) for bucket in range(0, BUCKETS, 16)]
        assert all(isinstance(reply, Claimed) for reply in harness.race(ops))
        owner(replicated, 77).kill()
    options = {"timeout": 20}
    with own_redis(replicated.url, colour, **options) as harness:
        replies = harness.race([complete(op.identity, op.fence) for op in ops])
        assert all(isinstance(reply, Applied) for reply in replies)
        assert isinstance(harness.perform(claim(in_bucket(77), new_fence())), Claimed)


@COLOURS
def test_a_replica_as_seed_says_who_has_what_and_decides_nothing(
    replicated: ValkeyCluster, colour: str
) -> None:
    with own_redis(f"rediscluster://127.0.0.1:{replicated.replicas[0].port}", colour) as harness:
        for bucket in (0, 300, 600, 900):
            assert isinstance(harness.perform(claim(in_bucket(bucket), new_fence())), Claimed)
    assert sum(len(node.ask("KEYS", "*:record:*")) for node in replicated.primaries) == 4


@COLOURS
def test_a_store_in_use_finds_the_new_primary(replicated: ValkeyCluster, colour: str) -> None:
    with own_redis(replicated.url, colour, timeout=20) as harness:
        identity, fence = in_bucket(77), new_fence()
        assert isinstance(harness.perform(claim(identity, fence)), Claimed)
        old = owner(replicated, 77)
        heir = replicated.replicas[replicated.primaries.index(old)]
        assert old.ask("WAIT", 1, 5000) is not None
        await_copy(heir)
        old.kill()
        assert isinstance(harness.perform(complete(identity, fence)), Applied)
        assert b"role:master" in heir.ask("INFO", "replication")


@COLOURS
def test_a_frozen_primary_is_given_up_and_its_heir_is_found(
    replicated: ValkeyCluster, colour: str
) -> None:
    """No connection breaks: only its silence tells."""
    with own_redis(replicated.url, colour, timeout=2) as harness:
        harness.perform(claim(in_bucket(77), new_fence()))
        old = owner(replicated, 77)
        heir = replicated.replicas[replicated.primaries.index(old)]
        os.kill(old.pid, signal.SIGSTOP)
        try:
            op = claim(in_bucket(77), new_fence())
            for _ in heir.child.attempts():
                try:
                    reply = harness.perform(op)
                except StoreUnavailable:
                    continue
                assert isinstance(reply, Claimed)
                break
            assert len(heir.ask("KEYS", "*:record:" + "*")) >= 1
        finally:
            os.kill(old.pid, signal.SIGCONT)


def await_copy(replica: ValkeyServer) -> None:
    for _ in replica.child.attempts():
        if replica.ask("DBSIZE"):
            return


def test_while_a_node_is_down_the_others_go_on(own_cluster: ValkeyCluster) -> None:
    """With cluster-require-full-coverage off; else the whole cluster says no."""
    for node in own_cluster.primaries:
        node.configure(cluster_require_full_coverage="no")
    with own_redis(own_cluster.url, timeout=1) as harness:
        dead = owner(own_cluster, 77)
        alive = next(b for b in range(BUCKETS) if owner(own_cluster, b) is not dead)
        harness.perform(claim(in_bucket(alive), new_fence()))
        dead.kill()
        assert isinstance(harness.perform(claim(in_bucket(alive), new_fence())), Claimed)
        with pytest.raises(StoreUnavailable) as refused:
            harness.perform(claim(in_bucket(77), new_fence()))
        assert refused.value.applied is False
        dead.start()
        own_cluster.await_ok()
        assert isinstance(harness.perform(claim(in_bucket(77), new_fence())), Claimed)


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────


@COLOURS
def test_each_record_is_swept_once_by_its_own_nodes_clock(
    valkey_cluster: ValkeyCluster, prefix: str, colour: str
) -> None:
    with own_redis(valkey_cluster.url, colour, prefix=prefix) as harness:
        ops: list[StoreOperation[Any]] = [
            Claim(in_bucket(bucket), new_fence(), "v1:", b"", ORIGIN, 1)
            for bucket in range(0, BUCKETS, 16)
        ]
        harness.race(ops)
        identity, _ = reach(harness, State.IN_PROGRESS)
        counts = [reply.counts for reply in harness.race([Sweep(1000, LEASE)] * 4)]
        assert sum(sum(count.values()) for count in counts) == len(ops)
        found = harness.record(identity)
        assert found is not None
        assert found.state is State.IN_PROGRESS
