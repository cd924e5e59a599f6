"""Properties of the Redis store on a cluster alone."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from semel.core.operations.maintenance import Browse, Sweep
from semel.core.operations.requests import Applied, Claim, Claimed, Found, Read, StoreOperation
from semel.core.records import Identity, State
from semel.errors import StoreUnavailable
from semel.stores.redis import RedisBackend
from semel.stores.redis.commands import BUCKETS, SLOT_OF, Keys, bucket_of, sources
from semel.testing.contract.records import ORIGIN, claim, complete, new_fence, new_identity, reach
from tests.servers import ValkeyCluster, ValkeyServer
from tests.servers.server import is_stopped
from tests.stores.harness import CLEAR, Harness, own_redis
from tests.stores.test_redis import both, replied
from tests.waiting import PATIENCE, until

COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])

LIMIT = 0.3
"""Seconds of a time limit that a test waits for. What must succeed is asked for again."""


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
            keys = ("KEY", "KEYS[other]", "MORE", "DUE", "DEADLINE", "MADE")
            given = key in keys or re.fullmatch(r"KEYS\[\d+\]", key)
            assert command == "TIME" or given, (name, command, key)


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
    sizes = [len(node.ask("KEYS", f"{prefix}:*:r:*")) for node in valkey_cluster.primaries]
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
    refused = pytest.raises(StoreUnavailable, match="use rediscluster://")
    with own_redis(f"redis://127.0.0.1:{port}/0", colour) as harness, refused:
        harness.perform(Read(new_identity()))
    refused = pytest.raises(StoreUnavailable, match="use redis://")
    with own_redis(f"rediscluster://127.0.0.1:{valkey.port}", colour) as harness, refused:
        harness.perform(Read(new_identity()))


def test_every_primary_is_examined(valkey_cluster: ValkeyCluster) -> None:
    backend = RedisBackend(valkey_cluster.url, timeout=PATIENCE)
    said = "\n".join(each.text for each in backend.examine())
    backend.close()
    for node in valkey_cluster.primaries:
        assert f"127.0.0.1:{node.port}: a failover may lose" in said


# ── nodes that come and go ────────────────────────────────────────────────────────────────────────


class Steady(ValkeyCluster):
    """Who leads is decided here: no node is given up because a busy machine let it wait."""

    def start(self) -> Steady:
        super().start()
        for node in self.nodes:
            node.configure(cluster_node_timeout=str(int(10 * PATIENCE * 1000)))
        return self

    @property
    def running(self) -> list[ValkeyServer]:
        return [node for node in self.nodes if node._child is not None]

    def replica_of(self, primary: ValkeyServer) -> ValkeyServer:
        port = f"master_port:{primary.port}\r".encode()
        return next(
            node
            for node in self.running
            if port in (said := node.ask("INFO", "replication")) and b"role:slave" in said
        )

    def promote(self, heir: ValkeyServer) -> None:
        """It leads from now on, whether its primary is there or not; and all others know."""
        heir.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        name = node_id(heir)

        def known(node: ValkeyServer) -> bool:
            mine = [line for line in node.ask("CLUSTER", "NODES").split(b"\n") if name in line[:40]]
            return b"master" in mine[0]

        until(lambda: all(map(known, self.answering)))

    @property
    def answering(self) -> list[ValkeyServer]:
        return [node for node in self.running if not is_stopped(node.pid)]

    def mend(self) -> None:
        """Who was killed comes back and follows its heir."""
        for node in self.nodes:
            if node._child is None:
                node.start()
                node.configure(cluster_node_timeout=str(int(10 * PATIENCE * 1000)))
        until(lambda: sum(map(follows, self.nodes)) == len(self.nodes) // 2)
        self.await_ok()


def follows(node: ValkeyServer) -> bool:
    return b"master_link_status:up" in node.ask("INFO", "replication")


@pytest.fixture(scope="module")
def shared() -> Iterator[Steady]:
    """Three primaries, each with a replica."""
    with Steady(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Steady) -> Steady:
    """Whole, whatever the test before did to it."""
    shared.mend()
    return shared


@pytest.fixture
def own(shared: Steady) -> Iterator[str]:
    """A prefix of one's own there."""
    name = f"own{os.urandom(6).hex()}"
    yield name
    for node in shared.running:
        if b"role:master" in node.ask("INFO", "replication"):
            node.ask("EVAL", CLEAR, 0, f"{name}:*")


def owner(cluster: ValkeyCluster, bucket: int) -> ValkeyServer:
    slot = SLOT_OF[bucket]
    asked = next(node for node in cluster.nodes if node._child is not None)
    for first, last, primary, *_ in asked.ask("CLUSTER", "SLOTS"):
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


def move_keys(bucket: int, source: ValkeyServer, target: ValkeyServer, most: int = 1000) -> int:
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", SLOT_OF[bucket], most)
    if keys:
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)
    return len(keys)


def end_move(cluster: Steady, bucket: int, target: ValkeyServer) -> None:
    others = [node for node in leaders(cluster) if node is not target]
    for node in (target, *others):
        node.ask("CLUSTER", "SETSLOT", SLOT_OF[bucket], "NODE", node_id(target))


def leaders(cluster: Steady) -> list[ValkeyServer]:
    return [node for node in cluster.running if b"role:master" in node.ask("INFO", "replication")]


def ends(cluster: Steady, bucket: int) -> tuple[ValkeyServer, ValkeyServer]:
    """Who has it, and the next one, to whom it goes."""
    nodes, source = leaders(cluster), owner(cluster, bucket)
    return source, nodes[(nodes.index(source) + 1) % len(nodes)]


@COLOURS
def test_a_moved_bucket_is_found(cluster: Steady, own: str, colour: str) -> None:
    with own_redis(cluster.url, colour, prefix=own) as harness:
        identity, fence = in_bucket(77), new_fence()
        assert isinstance(harness.perform(claim(identity, fence)), Claimed)
        source, target = ends(cluster, 77)
        begin_to_move(77, source, target)
        assert move_keys(77, source, target) == 2
        end_move(cluster, 77, target)
        assert isinstance(harness.perform(complete(identity, fence)), Applied)
        assert len(target.ask("KEYS", f"{own}:*:r:*")) == 1
        assert source.ask("KEYS", f"{own}:*") == []
        found = harness.perform(claim(identity, new_fence()))
        assert isinstance(found, Found)


@COLOURS
def test_an_empty_bucket_that_is_being_moved_is_asked_for_where_it_goes(
    cluster: Steady, own: str, colour: str
) -> None:
    """Nothing of it is at the source: ASK. The target then wants to see all keys: TRYAGAIN.

    However often that goes to and fro, the time limit ends it and nothing else.
    """
    with own_redis(cluster.url, colour, prefix=own, timeout=LIMIT) as harness:
        replied(harness, Read(in_bucket(77)))
        source, target = ends(cluster, 77)
        begin_to_move(77, source, target)
        op = claim(in_bucket(77), new_fence())

        def refused_by_target() -> StoreUnavailable | None:
            """Whose time is up before the target has answered does not know, and asks again."""
            error = refusal(harness, op)
            return error if "TRYAGAIN" in str(error) else None

        assert until(refused_by_target).applied is False
        assert isinstance(replied(harness, claim(in_bucket(78), new_fence())), Claimed)
        end_move(cluster, 77, target)
        assert isinstance(replied(harness, op), Claimed)


def led_on(cluster: Steady) -> int:
    """How often somebody was told to ask elsewhere, or again."""
    said = b"".join(node.ask("INFO", "errorstats") for node in leaders(cluster))
    return sum(map(int, re.findall(rb"errorstat_(?:ASK|TRYAGAIN):count=(\d+)", said)))


@COLOURS
def test_what_is_asked_of_a_bucket_at_any_stage_of_its_move_is_done_once(
    cluster: Steady, own: str, colour: str
) -> None:
    """With its keys at the source, on the way, and at the target: it waits for the end of the move,
    and is done there."""
    bucket = 500
    with (
        own_redis(cluster.url, colour, prefix=own, timeout=PATIENCE) as harness,
        ThreadPoolExecutor() as threads,
    ):
        held = [claim(in_bucket(bucket), new_fence()) for _ in range(3)]
        assert all(isinstance(harness.perform(op), Claimed) for op in held)
        source, target = ends(cluster, bucket)
        begun: list[Claim] = []
        asked: list[Future[Any]] = []

        def ask(op: Claim) -> None:
            """A completion of what is there, and a claim of what is not, both led on and on."""
            before = led_on(cluster)
            begun.append(claim(in_bucket(bucket), new_fence()))
            asked.append(threads.submit(harness.perform, complete(op.identity, op.fence)))
            asked.append(threads.submit(harness.perform, begun[-1]))
            until(lambda: led_on(cluster) > before)

        begin_to_move(bucket, source, target)
        ask(held[0])
        assert move_keys(bucket, source, target, 2) == 2
        ask(held[1])
        move_keys(bucket, source, target)
        ask(held[2])
        end_move(cluster, bucket, target)
        kinds = [type(each.result(PATIENCE)) for each in asked]
        assert kinds == [Applied, Claimed] * 3
        assert source.ask("KEYS", f"{own}:*") == []
        assert len(target.ask("KEYS", f"{own}:*:r:*")) == 6
        for op, state in [(op, State.COMPLETED) for op in held] + [
            (op, State.IN_PROGRESS) for op in begun
        ]:
            found = harness.record(op.identity)
            assert found is not None
            assert (found.state, found.fence) == (state, op.fence)


@pytest.mark.proof
@COLOURS
def test_keys_are_neither_lost_nor_doubled_while_buckets_move(
    cluster: Steady, own: str, colour: str
) -> None:
    """Traffic on a few buckets, which go round the nodes meanwhile."""
    buckets = (10, 900)
    with own_redis(cluster.url, colour, prefix=own, timeout=PATIENCE) as harness:
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

        def reached(goal: int) -> bool:
            return len(claimed) >= goal or bool(errors)

        threads = [threading.Thread(target=work, args=(bucket,)) for bucket in buckets]
        for thread in threads:
            thread.start()
        for bucket in buckets * 5:
            source, target = ends(cluster, bucket)
            begin_to_move(bucket, source, target)
            while move_keys(bucket, source, target):
                pass
            end_move(cluster, bucket, target)
            goal = len(claimed) + 20
            until(partial(reached, goal))
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        for op in claimed:
            found = harness.record(op.identity)
            assert found is not None
            assert (found.state, found.fence) == (State.COMPLETED, op.fence)


def test_a_failover_is_lived_through_and_what_replicas_had_is_there(
    cluster: Steady, own: str
) -> None:
    waiting = {"wait_replicas": 1, "wait_timeout": PATIENCE / 2}
    with both(cluster.url, prefix=own, timeout=PATIENCE, **waiting) as harnesses:
        ops = [
            [claim(in_bucket(bucket), new_fence()) for bucket in range(0, BUCKETS, 16)]
            for _ in harnesses
        ]
        for harness, mine in zip(harnesses, ops, strict=True):
            assert all(isinstance(reply, Claimed) for reply in harness.race(mine))
    old = owner(cluster, 77)
    heir = cluster.replica_of(old)
    old.kill()
    cluster.promote(heir)
    with both(cluster.url, prefix=own, timeout=PATIENCE) as harnesses:
        for harness, mine in zip(harnesses, ops, strict=True):
            replies = harness.race([complete(op.identity, op.fence) for op in mine])
            assert all(isinstance(reply, Applied) for reply in replies)
            assert isinstance(harness.perform(claim(in_bucket(77), new_fence())), Claimed)


@COLOURS
def test_a_replica_as_seed_says_who_has_what_and_decides_nothing(
    cluster: Steady, own: str, colour: str
) -> None:
    seed = cluster.replica_of(owner(cluster, 77))
    with own_redis(f"rediscluster://127.0.0.1:{seed.port}", colour, prefix=own) as harness:
        for bucket in (0, 300, 600, 900):
            assert isinstance(harness.perform(claim(in_bucket(bucket), new_fence())), Claimed)
    assert sum(len(node.ask("KEYS", f"{own}:*:r:*")) for node in leaders(cluster)) == 4


def test_a_store_in_use_finds_the_new_primary(cluster: Steady, own: str) -> None:
    """It asks the others until one of them has taken over."""
    with (
        both(cluster.url, prefix=own, timeout=PATIENCE) as harnesses,
        ThreadPoolExecutor() as threads,
    ):
        ops = [claim(in_bucket(77), new_fence()) for _ in harnesses]
        for harness, op in zip(harnesses, ops, strict=True):
            assert isinstance(harness.perform(op), Claimed)
        old = owner(cluster, 77)
        heir = cluster.replica_of(old)
        until(lambda: len(heir.ask("KEYS", f"{own}:*:r:*")) == len(ops))
        old.kill()
        before = asked_around(cluster)
        asked = [
            threads.submit(harness.perform, complete(op.identity, op.fence))
            for harness, op in zip(harnesses, ops, strict=True)
        ]
        until(lambda: asked_around(cluster) > before + 10)
        assert not any(each.done() for each in asked)
        cluster.promote(heir)
        assert all(isinstance(each.result(PATIENCE), Applied) for each in asked)


def asked_around(cluster: Steady) -> int:
    """How often nodes were asked who has what."""
    said = b"".join(node.ask("INFO", "commandstats") for node in cluster.answering)
    return sum(map(int, re.findall(rb"cmdstat_cluster\|slots:calls=(\d+)", said)))


def test_a_frozen_primary_is_given_up_and_its_heir_is_found(cluster: Steady, own: str) -> None:
    """No connection breaks: only its silence tells. First what was sent to it is not answered, then
    who greets it on a new connection, for it has no heir yet."""
    with both(cluster.url, prefix=own, timeout=1.5) as harnesses, ThreadPoolExecutor() as threads:
        ops = [claim(in_bucket(77), new_fence()) for _ in harnesses]
        for harness in harnesses:
            replied(harness, Read(in_bucket(77)))
        old = owner(cluster, 77)
        heir = cluster.replica_of(old)
        with old.frozen():
            for _ in ("sent", "not even greeted"):
                assert list(threads.map(refusal, harnesses, ops))
            cluster.promote(heir)
            replies = list(threads.map(replied, harnesses, ops))
            assert all(isinstance(reply, Claimed) for reply in replies)
            assert len(heir.ask("KEYS", f"{own}:*:r:*")) == len(ops)


def refusal(harness: Harness, op: StoreOperation[Any]) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    return refused.value


def test_while_a_node_is_down_the_others_go_on(cluster: Steady, own: str) -> None:
    dead = owner(cluster, 77)
    heir = cluster.replica_of(dead)
    alive = next(bucket for bucket in range(BUCKETS) if owner(cluster, bucket) is not dead)
    with (
        both(cluster.url, prefix=own, timeout=PATIENCE) as harnesses,
        both(cluster.url, prefix=own, timeout=LIMIT) as hasty,
    ):
        for harness in (*harnesses, *hasty):
            replied(harness, claim(in_bucket(alive), new_fence()))
        dead.kill()
        for harness, other in zip(harnesses, hasty, strict=True):
            assert isinstance(harness.perform(claim(in_bucket(alive), new_fence())), Claimed)
            assert refusal(other, claim(in_bucket(77), new_fence())).applied is False
        cluster.promote(heir)
        for harness in harnesses:
            assert isinstance(harness.perform(claim(in_bucket(77), new_fence())), Claimed)


@pytest.fixture
def own_cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.mark.proof
def test_while_a_node_is_down_and_has_no_replica_the_others_go_on(
    own_cluster: ValkeyCluster,
) -> None:
    """With cluster-require-full-coverage off; else the whole cluster says no."""
    for node in own_cluster.primaries:
        node.configure(cluster_require_full_coverage="no")
    with own_redis(own_cluster.url, timeout=1) as harness:
        dead = owner(own_cluster, 77)
        alive = next(b for b in range(BUCKETS) if owner(own_cluster, b) is not dead)
        replied(harness, claim(in_bucket(alive), new_fence()))
        dead.kill()
        assert isinstance(replied(harness, claim(in_bucket(alive), new_fence())), Claimed)
        assert refusal(harness, claim(in_bucket(77), new_fence())).applied is False
        dead.start()
        own_cluster.await_ok()
        assert isinstance(replied(harness, claim(in_bucket(77), new_fence())), Claimed)


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


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
        counts = [reply.counts for reply in harness.race([Sweep(1000)] * 4)]
        assert sum(sum(count.values()) for count in counts) == len(ops)
        found = harness.record(identity)
        assert found is not None
        assert found.state is State.IN_PROGRESS
