"""Redis Sentinel: the primary is found and followed, and what a failover loses is said."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import semel
from semel.core.operations.requests import Applied, Claim, Claimed, Found, Read
from semel.core.records import Identity, State
from semel.errors import ConfigurationError, StoreUnavailable
from semel.runtime.events import Event
from semel.stores.redis import RedisBackend, operation_retry
from semel.stores.redis.commands import Keys
from semel.stores.redis.operation_retry import Topology
from semel.stores.redis.settings import NodeAddress, parse
from semel.testing.contract.records import claim, complete, new_fence, new_identity
from tests.conftest import note
from tests.servers import SentinelGroup, ValkeyServer
from tests.stores.harness import own_redis
from tests.stores.load import Load
from tests.stores.test_redis import COLOURS, SOON, both, not_done
from tests.stores.test_redis_failover import IN_VAIN, cut, kept
from tests.waiting import PATIENCE, until

RECORDS = "*}:r:*"


class Steady(SentinelGroup):
    """Who leads is decided here: nobody is given up because a busy machine let it wait."""

    def __init__(self) -> None:
        super().__init__(down_after=int(10 * PATIENCE * 1000))

    def mend(self) -> None:
        """Whole, whatever the test before did to it, and empty."""
        for each in (*self.sentinels, *self.servers):
            if each._child is None:
                each.start()
        primary = self.primary
        for server in self.servers:
            server.ask("ACL", "SETUSER", "default", "reset", "on", "nopass", "~*", "&*", "+@all")
        for server in self.servers:
            if server is not primary:
                server.follow(primary)
        primary.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        primary.ask("FLUSHALL")
        for sentinel in self.sentinels:
            self.await_known(sentinel)


@pytest.fixture(scope="module")
def shared() -> Iterator[Steady]:
    with Steady() as group:
        yield group


@pytest.fixture
def group(shared: Steady) -> Steady:
    shared.mend()
    return shared


def new(count: int = 1) -> list[Claim]:
    return [claim(new_identity(), new_fence()) for _ in range(count)]


def replica(group: SentinelGroup) -> ValkeyServer:
    primary = group.primary
    return next(each for each in group.servers if each is not primary)


# ── who is the primary ────────────────────────────────────────────────────────────────────────────


def test_a_url_names_sentinels_and_the_primary_they_watch() -> None:
    settings = parse("redis+sentinel://:pw@one,two:7/pay%20ments/3?sentinel_password=x", {})
    assert [str(seed) for seed in settings.seeds] == ["one:26379", "two:7"]
    assert (settings.service, settings.db, settings.tls) == ("pay ments", 3, False)
    assert parse("rediss+sentinel://one/m", {}).tls
    assert "x" not in settings.url.partition("?")[2]
    for wrong in ("redis+sentinel://one", "redis+sentinel://one/m/shop", "redis://a,b"):
        with pytest.raises(ConfigurationError, match="sentinel://"):
            parse(wrong, {})
    with pytest.raises(ConfigurationError, match="sentinel_"):
        parse("redis://a?sentinel_user=x", {})


@COLOURS
def test_operations_go_to_the_primary(group: Steady, colour: str) -> None:
    with own_redis(f"{group.url}/2", colour) as harness:
        given = new(16)
        assert all(isinstance(reply, Claimed) for reply in harness.race(given))
    assert b"db2:keys=" in group.primary.ask("INFO", "keyspace")


@COLOURS
def test_a_failover_is_followed_and_the_old_primary_is_left(group: Steady, colour: str) -> None:
    with own_redis(group.url, colour) as harness:
        (before,), (after,) = new(), new()
        assert isinstance(harness.perform(before), Claimed)
        old = group.primary
        heir = group.fail_over()
        old.follow(heir)  # the Sentinels would tell it in the end
        assert isinstance(harness.perform(complete(before.identity, before.fence)), Applied)
        assert isinstance(harness.perform(after), Claimed)
        assert len(heir.ask("KEYS", RECORDS)) == 2


def test_what_waits_for_a_dead_primary_is_done_by_its_heir(group: Steady) -> None:
    with both(group.url) as harnesses, ThreadPoolExecutor() as threads:
        begun, given = new(len(harnesses)), new(len(harnesses))
        for harness, op in zip(harnesses, begun, strict=True):
            assert isinstance(harness.perform(op), Claimed)
        until(lambda: len(replica(group).ask("KEYS", RECORDS)) == len(begun))
        old = group.primary
        old.kill()
        asked = [
            threads.submit(harness.perform, op)
            for harness, op in zip(harnesses, given, strict=True)
        ]
        heir = group.fail_over()
        assert all(isinstance(each.result(PATIENCE), Claimed) for each in asked)
        for harness, op in zip(harnesses, begun, strict=True):
            assert isinstance(harness.perform(complete(op.identity, op.fence)), Applied)
        assert len(heir.ask("KEYS", RECORDS)) == 4


@COLOURS
def test_a_replica_that_is_taken_for_the_primary_is_refused(group: Steady, colour: str) -> None:
    other = replica(group)
    remap = {f"127.0.0.1:{group.primary.port}": f"127.0.0.1:{other.port}"}
    with own_redis(group.url, colour, remap=remap, timeout=SOON) as harness:
        assert "replica" in not_done(harness, new()[0])
    assert other.ask("KEYS", RECORDS) == []


@COLOURS
def test_more_than_half_of_the_sentinels_must_say_who_it_is(group: Steady, colour: str) -> None:
    (first, second, _), primary = group.sentinels, group.primary
    first.stop()
    with own_redis(group.url, colour) as harness:
        assert isinstance(harness.perform(new()[0]), Claimed)
    second.stop()
    with own_redis(group.url, colour, timeout=SOON) as harness:
        assert "1 of 3 Sentinels" in not_done(harness, new()[0])
    assert len(primary.ask("KEYS", RECORDS)) == 1


@COLOURS
def test_a_primary_that_sentinels_do_not_know_is_said(group: Steady, colour: str) -> None:
    url = group.url.replace("/mymaster", "/another")
    with own_redis(url, colour) as harness:
        assert "'another'" in not_done(harness, new()[0])


def deaf(server: ValkeyServer) -> None:
    """Nobody can make it a replica: as one that is cut off, it goes on as a primary."""
    server.ask("ACL", "SETUSER", "default", "-replicaof", "-slaveof", "-client|kill", "-failover")


@COLOURS
@pytest.mark.parametrize("asked_again", [True, False], ids=["asked again", "never asked again"])
def test_a_primary_that_does_not_know_of_its_heir_is_left(
    group: Steady, colour: str, asked_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentinels are asked again about once a second. Without that, it would be written to for as
    long as it lives, and everything would be lost when it is made a replica."""
    if asked_again:
        monkeypatch.setattr(operation_retry, "CHECK_AGAIN", 0.0)
    with own_redis(group.url, colour) as harness:
        assert isinstance(harness.perform(new()[0]), Claimed)
        old = group.primary
        deaf(old)
        heir = group.fail_over()
        (op,) = new()
        assert isinstance(harness.perform(op), Claimed)
        has = [name[-32:] for name in (heir if asked_again else old).ask("KEYS", RECORDS)]
        assert op.identity in has


def test_the_newest_epoch_counts_and_an_older_one_is_refused() -> None:
    topology = Topology(parse("redis+sentinel://a,b,c/m", {}))
    one, two = NodeAddress("one", 1), NodeAddress("two", 2)
    assert topology.at(0) is None
    assert topology.follow([(1, one), (2, two)]) is None
    assert topology.at(0) == two
    refused = topology.follow([(1, one)])
    assert refused is not None
    assert "replaced before" in str(refused)
    assert topology.at(0) == two
    assert topology.replaced(one)
    assert not topology.replaced(two)
    assert topology.follow([(0, one)] * 3) is None  # all three were set up anew
    assert topology.at(0) == one


def test_a_failover_is_an_event_of_the_guard(group: Steady) -> None:
    heard: list[Event] = []
    guard = semel.Guard(group.url, tenant=None, on_event=heard.append, maintenance=None)
    guard.backend.blocking().perform(new()[0])
    old = group.primary
    old.kill()
    heir = group.fail_over()
    until(lambda: told(guard))
    until(lambda: [each for each in heard if each.name == "store.failover"])
    (event,) = [each for each in heard if each.name == "store.failover"]
    assert event.fields == {"was": f"127.0.0.1:{old.port}", "now": f"127.0.0.1:{heir.port}"}
    guard.close()


def told(guard: semel.Guard) -> bool:
    try:
        return isinstance(guard.backend.blocking().perform(new()[0]), Claimed)
    except StoreUnavailable:
        return False


# ── what a failover loses ─────────────────────────────────────────────────────────────────────────


def lost(group: Steady) -> str:
    """What doctor says about it."""
    backend = RedisBackend(group.url, timeout=PATIENCE)
    try:
        found = [each for each in backend.examine() if "a failover replaced" in each.text]
        return found[0].text if found else ""
    finally:
        backend.close()


def test_without_waiting_what_was_acknowledged_is_lost_and_everybody_can_see_it(
    group: Steady, caplog: pytest.LogCaptureFixture
) -> None:
    backend = RedisBackend(group.url, timeout=PATIENCE)
    before, after = new(20), new(20)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    until(lambda: len(replica(group).ask("KEYS", RECORDS)) == len(before))
    assert lost(group) == ""
    old = group.primary
    cut(old)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in after)
    old.kill()
    heir = group.fail_over()
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    backend.close()
    assert f"127.0.0.1:{old.port} by 127.0.0.1:{heir.port}" in caplog.text
    # A process that comes later was not there, and is told all the same.
    assert f"127.0.0.1:{old.port} by 127.0.0.1:{heir.port}" in lost(group)


def test_with_waiting_whatever_is_lost_was_in_doubt(group: Steady) -> None:
    before, after = new(20), new(5)
    backend = RedisBackend(group.url, timeout=PATIENCE, wait_replicas=1, wait_timeout=PATIENCE / 2)
    assert all(isinstance(backend.blocking().perform(op), Claimed) for op in before)
    backend.close()
    old = group.primary
    cut(old)
    backend = RedisBackend(group.url, timeout=PATIENCE, **IN_VAIN)
    for op in after:
        with pytest.raises(StoreUnavailable) as refused:
            backend.blocking().perform(op)
        assert refused.value.applied is None
    backend.close()
    old.kill()
    group.fail_over()
    backend = RedisBackend(group.url, timeout=PATIENCE)
    assert kept(backend, before) == before
    assert kept(backend, after) == []
    backend.close()


@COLOURS
def test_a_primary_without_its_replica_begins_nothing_where_it_is_told_so(
    group: Steady, colour: str
) -> None:
    """``min-replicas-to-write`` of the server."""
    primary = group.primary
    cut(primary)
    primary.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    with own_redis(group.url, colour) as harness:
        assert "NOREPLICAS" in not_done(harness, new()[0])
    assert primary.ask("KEYS", RECORDS) == []


KILLS = 3


@pytest.mark.proof
@pytest.mark.parametrize("waits", [True, False], ids=["waited for", "not waited for"])
def test_primaries_killed_under_load(request: pytest.FixtureRequest, waits: bool) -> None:
    """The Sentinels themselves find out, and choose the heir. What its replica had acknowledged is
    there; what no replica was waited for may be gone, and each failover is on record."""
    options = "timeout=5" + ("&wait_replicas=1&wait_timeout=1" if waits else "")
    with SentinelGroup(replicas=1) as group:
        with Load([f"{group.url}?{options}"], lanes=6) as load:
            for _ in range(KILLS):
                load.more(50)
                dying = group.primary
                dying.kill()
                heir = group.heir_of(dying)
                load.more(1, "doubt" if waits else "completed")  # the heir has no replica
                dying.start()
                dying.follow(heir)
                for sentinel in group.sentinels:
                    group.await_known(sentinel)
            load.more(50)
            load.stop()
        assert load.codes == {0}
        gone = missing(group, load)
        assert not (waits and gone)
        assert int(group.primary.ask("HGET", Keys("semel").primary, "changes")) >= KILLS
        said = ", ".join(f"{len(load.keys(kind)):,} {kind}" for kind in ("completed", "doubt"))
        lost = "none lost" if waits else f"{len(gone):,} lost, {KILLS} failovers on record"
        note(request, f"Sentinel, {KILLS} primaries killed under load: {said}; {lost}", "proof")


def missing(group: SentinelGroup, load: Load) -> set[bytes]:
    """The keys that were acknowledged, and are gone or are less than they were."""
    backend = RedisBackend(group.url, timeout=PATIENCE)
    gone = load.keys("refused") | load.keys("taken")
    for key in load.keys("claimed"):
        found = backend.blocking().perform(Read(Identity(key[:32])))
        held = isinstance(found, Found) and found.record.fence == key[32:] and found.record.state
        if held is not State.COMPLETED and (not held or key in load.keys("completed")):
            gone.add(key)
    backend.close()
    return gone
