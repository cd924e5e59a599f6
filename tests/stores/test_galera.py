"""A Galera cluster: three nodes that all take writes, and one winner for each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from threading import Barrier
from typing import Any

import pytest

from semel.core import operations as ops
from semel.core.records import State
from semel.errors import ConfigurationError, StoreUnavailable
from semel.stores.base import Backend
from semel.stores.mysql import MysqlBackend, protocol
from semel.testing.contract.records import claim, complete, new_fence, new_identity
from tests.conftest import note
from tests.proof.floors import missing, rounds
from tests.servers import MariadbServer
from tests.servers.galera import GaleraCluster, GaleraNode
from tests.stores.harness import Harness, database_of
from tests.stores.load import Load, Told
from tests.stores.relay import Fate, Relay
from tests.waiting import PATIENCE, until

COLOURS = ("sync", "async")
DATABASE = "shop"
LANES = 4
"""Threads for each node, each with keys of its own."""


class Shared:
    """A cluster for the tests of this file, and another one where a test has left it broken."""

    def __init__(self) -> None:
        self._cluster: GaleraCluster | None = None

    def whole(self) -> GaleraCluster:
        if self._cluster is not None and not is_whole(self._cluster):
            self.close()
        if self._cluster is None:
            self._cluster = GaleraCluster().start()
            self._cluster.nodes[0].execute(f"CREATE DATABASE {DATABASE}")
            MysqlBackend(self._cluster.nodes[0].url_of(DATABASE)).migrate()
        give_up_after(60, self._cluster)
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def give_up_after(seconds: int, cluster: GaleraCluster) -> None:
    """A node that is not heard of for so long is given up: on a busy machine, one that is well."""
    patience = f"evs.inactive_timeout=PT{2 * seconds}S;evs.suspect_timeout=PT{seconds}S"
    for node in cluster.nodes:
        node.execute(f"SET GLOBAL wsrep_provider_options = '{patience}'")


def killed(node: GaleraNode, others: list[GaleraNode]) -> None:
    """The others are told so, and wait for no time-out, in which they might lose each other too."""
    uuid = node.status("gcomm_uuid")
    node.kill()
    for other in others:
        other.give_up(uuid)
    for other in others:
        other.await_members(len(others))


def is_whole(cluster: GaleraCluster) -> bool:
    return all(
        node._child is not None
        and node.status("cluster_size") == str(len(cluster.nodes))
        and node.status("ready") == "ON"
        for node in cluster.nodes
    )


@pytest.fixture(scope="module")
def shared(mariadb: MariadbServer) -> Iterator[Shared]:
    """Where there is no MariaDB, `mariadb` says so and skips."""
    clusters = Shared()
    yield clusters
    clusters.close()


@pytest.fixture
def galera(request: pytest.FixtureRequest, shared: Shared) -> GaleraCluster:
    cluster = shared.whole()
    note(request, str(cluster))
    return cluster


@pytest.fixture
def backends(galera: GaleraCluster) -> Iterator[list[Backend]]:
    """One for each node."""
    opened: list[Backend] = [
        MysqlBackend(node.url_of(DATABASE), timeout=PATIENCE) for node in galera.nodes
    ]
    yield opened
    for backend in opened:
        backend.close()


@contextmanager
def opened(*urls: str) -> Iterator[list[Harness]]:
    """For each URL one in each colour, ready for use."""
    with ExitStack() as stack:
        harnesses: list[Harness] = []
        for url in urls:
            for colour in COLOURS:
                backend = MysqlBackend(url, timeout=PATIENCE)
                harnesses.append(Harness(backend, lambda _: None, 0, colour))
                stack.callback(harnesses[-1].close)
                harnesses[-1].perform(ops.Read(new_identity()))
        yield harnesses


@contextmanager
def behind(node: GaleraNode) -> Iterator[None]:
    """It receives what the others acknowledge, and applies nothing."""
    with node.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        yield
        cursor.execute("UNLOCK TABLES")


# ── one winner ────────────────────────────────────────────────────────────────────────────────────


def raced(
    backends: list[Backend], count: int
) -> list[list[tuple[ops.Claim, ops.Claimed | ops.Found]]]:
    """For each key what each node said, all asked at the same moment."""
    identities = [new_identity() for _ in range(count)]
    starts = [Barrier(len(backends)) for _ in range(LANES)]

    def run(place: int) -> list[tuple[ops.Claim, ops.Claimed | ops.Found]]:
        store, lane = backends[place // LANES].blocking(), place % LANES
        said: list[tuple[ops.Claim, ops.Claimed | ops.Found]] = []
        for identity in identities[lane::LANES]:
            op = claim(identity, new_fence())
            starts[lane].wait(PATIENCE)
            reply = store.perform(op)
            assert isinstance(reply, ops.Claimed | ops.Found)
            said.append((op, reply))
        return said

    with ThreadPoolExecutor(LANES * len(backends)) as threads:
        lanes = list(threads.map(run, range(LANES * len(backends))))
    return [
        list(each)
        for lane in range(LANES)
        for each in zip(*(lanes[node * LANES + lane] for node in range(3)), strict=True)
    ]


def has_one_winner(said: list[tuple[ops.Claim, ops.Claimed | ops.Found]]) -> bool:
    """The others were told of the winner's record."""
    winners = [op for op, reply in said if isinstance(reply, ops.Claimed)]
    seen = {reply.record.fence for _, reply in said if isinstance(reply, ops.Found)}
    return len(winners) == 1 and seen == {winners[0].fence}


def conflicts(cluster: GaleraCluster) -> int:
    return sum(map(undone, cluster.nodes))


def winners(said: list[list[tuple[ops.Claim, ops.Claimed | ops.Found]]]) -> Counter[int]:
    """How many keys each node has won; the others were told so."""
    assert all(map(has_one_winner, said))
    return Counter(
        place
        for each in said
        for place, (_, reply) in enumerate(each)
        if isinstance(reply, ops.Claimed)
    )


def test_of_three_nodes_that_claim_a_key_at_once_one_wins(backends: list[Backend]) -> None:
    assert winners(raced(backends, 100)).total() == 100


@pytest.mark.proof
def test_of_three_nodes_that_claim_two_thousand_keys_one_wins_each(
    galera: GaleraCluster, backends: list[Backend]
) -> None:
    """The race is one: the nodes do collide, and none of them is always first."""
    before, won = conflicts(galera), Counter[int]()

    def short() -> dict[str, str]:
        happened = {"conflicts": conflicts(galera) - before, "nodes that won": len(won)}
        return missing(happened, {"conflicts": 1, "nodes that won": 3})

    for _ in rounds(10, short):
        won += winners(raced(backends, 200))
    print(f"{won.total()} keys, winners {dict(won)}, {conflicts(galera) - before} conflicts")


def test_a_key_that_a_node_knows_of_and_has_not_applied_is_not_claimed_there_again(
    galera: GaleraCluster,
) -> None:
    """Nor is it said not to be there. All wait for what the first node was acknowledged."""
    first, late, _ = galera.nodes
    with (
        opened(first.url_of(DATABASE)) as firsts,
        opened(late.url_of(DATABASE)) as lates,
        ThreadPoolExecutor() as threads,
    ):
        given = [claim(new_identity(), new_fence()) for _ in COLOURS]
        with behind(late):
            for here, op in zip(firsts, given, strict=True):
                assert isinstance(here.perform(op), ops.Claimed)
            asked: list[Future[Any]] = []
            for there, op in zip(lates, given, strict=True):
                asked.append(threads.submit(there.perform, claim(op.identity, new_fence())))
                asked.append(threads.submit(there.perform, ops.Read(op.identity)))
            until(lambda: len(at_work(late)) == len(asked))
            assert not any(each.done() for each in asked)
        for number, each in enumerate(asked):
            found = each.result(PATIENCE)
            assert isinstance(found, ops.Found)
            assert found.record.fence == given[number // 2].fence


def at_work(node: GaleraNode) -> list[tuple[Any, ...]]:
    """Statements about records that have not come to their end."""
    return node.execute(
        "SELECT id FROM information_schema.processlist"
        " WHERE info LIKE '%semel_record%' AND id <> CONNECTION_ID()"
    )


def test_transactions_are_refused_on_a_node_whose_locks_others_do_not_know(
    backends: list[Backend],
) -> None:
    node = backends[0]
    assert isinstance(node, MysqlBackend)
    with pytest.raises(ConfigurationError, match=r"Galera cluster.*GET_LOCK"):
        node.begin(new_identity())
    with pytest.raises(ConfigurationError, match=r"Galera cluster.*GET_LOCK"):
        node.begin(None)
    assert [finding.severity for finding in node.examine()] == ["limit"]


@pytest.mark.parametrize("colour", COLOURS)
def test_a_change_that_another_node_was_first_with_is_not_acknowledged(
    galera: GaleraCluster, backends: list[Backend], colour: str
) -> None:
    """A rival between the statements and their COMMIT: all is undone, and asked again."""
    second = galera.nodes[1]
    op = inquiry(backends[0])
    before, rivals = undone(second), list[object]()

    def rival(message: bytes) -> Fate:
        if message.endswith(b"COMMIT") and not rivals:
            rivals.append(backends[0].blocking().perform(op))
            until(lambda: undone(second) > before)
        return "pass"

    with Relay(second.port) as relay:
        url = f"mysql://root@127.0.0.1:{relay.port}/{DATABASE}"
        harness = Harness(MysqlBackend(url, timeout=PATIENCE), lambda _: None, 0, colour)
        try:
            harness.perform(ops.Read(op.identity))
            relay.judge = rival
            reply = harness.perform(op)
        finally:
            harness.close()
    assert [type(each) for each in rivals] == [ops.Applied]
    assert isinstance(reply, ops.Lost)
    found = backends[2].blocking().perform(ops.Recall(op.identity))
    assert isinstance(found, ops.Recalled)
    assert found.case.tries == 1


def inquiry(backend: Backend) -> ops.Inquire:
    """A change that can be made once, and is another one's if it was made before."""
    identity, fence = new_identity(), new_fence()
    backend.blocking().perform(claim(identity, fence))
    backend.blocking().perform(ops.Suspend(identity, fence, "timed out"))
    return ops.Inquire(identity, fence, 0, None)


def undone(node: GaleraNode) -> int:
    """How many of its transactions gave way to those of other nodes."""
    return sum(int(node.status(name)) for name in ("local_cert_failures", "local_bf_aborts"))


@pytest.mark.proof
def test_of_changes_that_nodes_make_at_once_each_that_is_acknowledged_is_there(
    galera: GaleraCluster, backends: list[Backend]
) -> None:
    """A transaction that is undone between two of its statements must not end in a COMMIT that is
    acknowledged. In one packet some in a thousand did."""
    op, before = inquiry(backends[0]), conflicts(galera)
    identity, fence = op.identity, op.seen

    def run(backend: Backend, most: int) -> int:
        acknowledged, tries, perform = 0, 0, backend.blocking().perform
        while tries < most:
            reply = perform(ops.Recall(identity))
            assert isinstance(reply, ops.Recalled)
            tries = reply.case.tries
            with suppress(StoreUnavailable):  # as often as that there was a rival
                asked = perform(ops.Inquire(identity, fence, tries, None))
                acknowledged += isinstance(asked, ops.Applied)
        return acknowledged

    def short() -> dict[str, str]:
        return missing({"conflicts": conflicts(galera) - before}, {"conflicts": 1})

    acknowledged = 0
    for number in rounds(3, short):
        with ThreadPoolExecutor(2 * len(backends)) as threads:
            goals = [1_000 * (number + 1)] * 2 * len(backends)
            acknowledged += sum(threads.map(run, backends * 2, goals))
        found = backends[0].blocking().perform(ops.Recall(identity))
        assert isinstance(found, ops.Recalled)
        assert acknowledged == found.case.tries


# ── what one node acknowledged ────────────────────────────────────────────────────────────────────


def test_what_one_node_acknowledged_all_nodes_know(galera: GaleraCluster) -> None:
    """Claimed at one, completed at the next, looked at and claimed again at the third."""
    with opened(*(node.url_of(DATABASE) for node in galera.nodes)) as harnesses:
        for colour in range(len(COLOURS)):
            nodes = harnesses[colour :: len(COLOURS)]
            for number in range(30):
                first, second, third = (nodes[(number + place) % 3] for place in range(3))
                identity, fence = new_identity(), new_fence()
                assert isinstance(first.perform(claim(identity, fence)), ops.Claimed)
                assert isinstance(second.perform(complete(identity, fence)), ops.Applied)
                record = third.record(identity)
                assert record is not None
                assert record.state is State.COMPLETED
                assert isinstance(first.perform(claim(identity, new_fence())), ops.Found)


def test_a_node_that_does_not_catch_up_first_is_seen_to_know_less(
    galera: GaleraCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this is what waiting for the other nodes is for."""
    first, late, _ = galera.nodes
    with opened(first.url_of(DATABASE)) as firsts:
        monkeypatch.setattr(protocol, "CATCH_UP", "DO 0")
        with opened(late.url_of(DATABASE)) as lates, behind(late):
            for here, there in zip(firsts, lates, strict=True):
                op = claim(new_identity(), new_fence())
                assert isinstance(here.perform(op), ops.Claimed)
                assert isinstance(there.perform(ops.Read(op.identity)), ops.NoRecord)


# ── nodes that die ────────────────────────────────────────────────────────────────────────────────


def completed(node: GaleraNode) -> set[bytes]:
    rows = node.execute(
        f"SELECT CONCAT(identity, fence) FROM {DATABASE}.semel_record WHERE state = 3"
    )
    return {bytes(row[0]) for row in rows}


def await_completed(node: GaleraNode, keys: set[bytes]) -> None:
    """What others acknowledged it has received, and applies."""
    until(lambda: keys <= completed(node))


def in_doubt(harness: Harness, op: ops.StoreOperation[Any]) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    assert refused.value.applied is None


def test_what_a_killed_node_was_asked_last_is_told_by_the_others(galera: GaleraCluster) -> None:
    """Its answers stay away: some of what it was asked the others have, the rest nobody. Asked
    again with the same fence, each key is its claimant's. The node comes back, and has all."""
    dying, *others = galera.nodes
    done = Told()
    had, unheard = ([claim(new_identity(), new_fence()) for _ in COLOURS] for _ in range(2))
    with Relay(dying.port) as relay, opened(dying.tcp_url(DATABASE)) as patient:
        url = f"mysql://root@127.0.0.1:{relay.port}/{DATABASE}"

        def fate(message: bytes) -> Fate:
            asked = [op for op in (*had, *unheard) if op.identity.hex().encode() in message]
            if not asked:
                return "pass"
            relay.shut()  # who asks again does not come through
            return "drop" if asked[0] in had else "refuse"

        with opened(url, url) as harnesses:
            for harness in harnesses:
                done.by_hand(harness.perform, 5)
            relay.judge = fate
            for harness, op in zip(harnesses, (*had, *unheard), strict=True):
                in_doubt(harness, op)
        killed(dying, others)
        with opened(*(node.url_of(DATABASE) for node in others)) as harnesses:
            there = set().union(*map(kept_by, others))
            assert [op.identity in there for op in (*had, *unheard)] == [True] * 2 + [False] * 2
            for harness, op in zip(harnesses, (*had, *unheard), strict=True):
                assert isinstance(harness.perform(op), ops.Claimed)
                assert isinstance(harness.perform(claim(op.identity, new_fence())), ops.Found)
        for node in others:
            node.forgive()
        dying.recover()
        dying.await_members(3)
        for harness, op in zip(patient, had, strict=True):
            assert isinstance(harness.perform(complete(op.identity, op.fence)), ops.Applied)
        expected = done.keys("completed") | {op.identity + op.fence for op in had}
        assert len(expected) == 4 * 5 + 2
        for node in galera.nodes:
            await_completed(node, expected)


@pytest.mark.proof
def test_a_killed_node_costs_no_acknowledged_key_and_comes_back(galera: GaleraCluster) -> None:
    """Under load; again, should nothing have been under way by chance."""
    dying, *others = galera.nodes
    with (
        Load([dying.tcp_url(DATABASE)], lanes=2) as here,
        Load([others[0].tcp_url(DATABASE)], lanes=2) as there,
    ):
        here.more(30)
        there.more(30)

        def short() -> dict[str, str]:
            return missing({"in doubt": len(here.keys("doubt"))}, {"in doubt": 1})

        kept: set[bytes] = set()
        for _ in rounds(1, short):
            give_up_after(3, galera)
            dying.kill()
            here.more(1, "down")
            there.more(30)
            kept |= completed(others[1])
            dying.recover()
            dying.await_members(3)
            here.more(30)
        here.stop()
        there.stop()
    assert here.codes == there.codes == {0}
    expected = here.keys("completed") | there.keys("completed") | kept
    for node in galera.nodes:
        await_completed(node, expected)
    assert here.keys("refused") == there.keys("refused") == set()


def test_a_node_that_has_lost_the_others_takes_nothing(galera: GaleraCluster) -> None:
    """Two are gone: the third is no cluster, and says so before anything is done."""
    left, *others = galera.nodes
    with opened(left.url_of(DATABASE)) as harnesses:
        give_up_after(3, galera)
        for node in others:
            node.kill()
        sure: list[ops.Claim] = []
        for harness in harnesses:  # perhaps under way when that is noticed
            op = claim(new_identity(), new_fence())
            with pytest.raises(StoreUnavailable) as refused:
                harness.perform(op)
            sure += [op] if refused.value.applied is False else []
        until(lambda: left.status("ready") == "OFF")
        for harness in harnesses:
            op = claim(new_identity(), new_fence())
            with pytest.raises(StoreUnavailable, match=r"\(1047\)") as refused:
                harness.perform(op)
            assert refused.value.applied is False
            sure.append(op)
    assert not kept_by(left) & {bytes(op.identity) for op in sure}


def kept_by(node: GaleraNode) -> set[bytes]:
    """What it has, which it tells only those who do not mind that it may be old."""
    with node.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION wsrep_dirty_reads = ON")
        cursor.execute("SELECT identity FROM semel_record")
        return {bytes(row[0]) for row in cursor.fetchall()}


@pytest.mark.parametrize("colour", COLOURS)
def test_an_error_after_the_write_leaves_it_in_doubt(
    mariadb: MariadbServer, mariadb_url: str, colour: str
) -> None:
    """A node may leave its cluster between the insert and the look; here a right is missing."""
    MysqlBackend(mariadb_url).migrate()
    database = database_of(mariadb_url)
    user = f"half_{colour}"
    mariadb.execute(f"CREATE USER {user}@'%'")
    for rights, table in (
        ("SELECT", "semel_schema"),
        ("INSERT, SELECT (identity)", "semel_record"),
    ):
        mariadb.execute(f"GRANT {rights} ON {database}.{table} TO {user}@'%'")
    url = f"mysql://{user}@127.0.0.1:{mariadb.port}/{database}"
    harness = Harness(MysqlBackend(url, timeout=PATIENCE), lambda _: None, 0, colour)
    op = claim(new_identity(), new_fence())
    try:
        with pytest.raises(StoreUnavailable) as refused:
            harness.perform(op)
    finally:
        harness.close()
        mariadb.execute(f"DROP USER {user}@'%'")
    assert refused.value.applied is None
    found = MysqlBackend(mariadb_url, timeout=PATIENCE).blocking().perform(ops.Read(op.identity))
    assert isinstance(found, ops.Found)
