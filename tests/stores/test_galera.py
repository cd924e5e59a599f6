"""A Galera cluster: three nodes that all take writes, and one winner for each key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from semel.core.contract import (
    Applied,
    Claim,
    Claimed,
    Found,
    Inquire,
    Lost,
    Read,
    Recall,
    Recalled,
    Suspend,
)
from semel.core.model import State
from semel.errors import StoreUnavailable
from semel.stores.base import Backend
from semel.stores.mysql import MysqlBackend, exchange
from tests.conftest import note
from tests.servers import MariadbServer
from tests.servers.galera import GaleraCluster, GaleraNode
from tests.stores.contract import claim, complete, new_fence, new_identity
from tests.stores.harness import Harness, database_of
from tests.stores.load import Load

DATABASE = "shop"
LANES = 4
"""Threads for each node, each with keys of its own."""


@pytest.fixture(scope="module")
def galera(request: pytest.FixtureRequest, mariadb: MariadbServer) -> Iterator[GaleraCluster]:
    """Where there is no MariaDB, `mariadb` says so and skips."""
    with GaleraCluster() as cluster:
        note(request, str(cluster))
        prepare(cluster)
        yield cluster


@pytest.fixture
def own_galera(mariadb: MariadbServer) -> Iterator[GaleraCluster]:
    with GaleraCluster() as cluster:
        prepare(cluster)
        yield cluster


def prepare(cluster: GaleraCluster) -> None:
    cluster.nodes[0].execute(f"CREATE DATABASE {DATABASE}")
    MysqlBackend(cluster.nodes[0].url_of(DATABASE)).migrate()


@pytest.fixture
def backends(galera: GaleraCluster) -> Iterator[list[Backend]]:
    """One for each node."""
    opened: list[Backend] = [MysqlBackend(node.url_of(DATABASE)) for node in galera.nodes]
    yield opened
    for backend in opened:
        backend.close()


# ── one winner ────────────────────────────────────────────────────────────────────────────────────


def raced(backends: list[Backend], count: int) -> list[list[tuple[Claim, Claimed | Found]]]:
    """For each key what each node said, all asked at the same moment."""
    identities = [new_identity() for _ in range(count)]
    starts = [Barrier(len(backends)) for _ in range(LANES)]

    def run(place: int) -> list[tuple[Claim, Claimed | Found]]:
        store, lane = backends[place // LANES].blocking(), place % LANES
        said: list[tuple[Claim, Claimed | Found]] = []
        for identity in identities[lane::LANES]:
            op = claim(identity, new_fence())
            starts[lane].wait(60)
            reply = store.perform(op)
            assert isinstance(reply, Claimed | Found)
            said.append((op, reply))
        return said

    with ThreadPoolExecutor(LANES * len(backends)) as threads:
        lanes = list(threads.map(run, range(LANES * len(backends))))
    return [
        list(each)
        for lane in range(LANES)
        for each in zip(*(lanes[node * LANES + lane] for node in range(3)), strict=True)
    ]


def has_one_winner(said: list[tuple[Claim, Claimed | Found]]) -> bool:
    """The others were told of the winner's record."""
    winners = [op for op, reply in said if isinstance(reply, Claimed)]
    seen = {reply.record.fence for _, reply in said if isinstance(reply, Found)}
    return len(winners) == 1 and seen == {winners[0].fence}


def conflicts(cluster: GaleraCluster) -> int:
    names = ("local_cert_failures", "local_bf_aborts")
    return sum(int(node.status(name)) for node in cluster.nodes for name in names)


def of_many_keys_each_has_one_winner(
    cluster: GaleraCluster, backends: list[Backend], count: int
) -> None:
    before = conflicts(cluster)
    said = raced(backends, count)
    assert len(said) == count
    assert all(map(has_one_winner, said))
    won = Counter(
        place
        for each in said
        for place, (_, reply) in enumerate(each)
        if isinstance(reply, Claimed)
    )
    # The race was one: the nodes did collide, and none of them was always first.
    assert conflicts(cluster) > before
    assert len(won) == 3
    print(f"{count} keys, winners {dict(won)}, {conflicts(cluster) - before} conflicts")


def test_of_three_nodes_that_claim_a_key_at_once_one_wins(
    galera: GaleraCluster, backends: list[Backend]
) -> None:
    of_many_keys_each_has_one_winner(galera, backends, 200)


@pytest.mark.proof
def test_of_three_nodes_that_claim_two_thousand_keys_one_wins_each(
    galera: GaleraCluster, backends: list[Backend]
) -> None:
    of_many_keys_each_has_one_winner(galera, backends, 2_000)


@pytest.mark.proof
def test_of_changes_that_nodes_make_at_once_each_that_is_acknowledged_is_there(
    galera: GaleraCluster, backends: list[Backend]
) -> None:
    """A transaction that is undone between two of its statements must not end in a COMMIT that is
    acknowledged. In one packet some in a thousand did."""
    identity, fence = new_identity(), new_fence()
    store = backends[0].blocking()
    store.perform(claim(identity, fence))
    store.perform(Suspend(identity, fence, "timed out"))
    before, most = conflicts(galera), 3_000

    def run(backend: Backend) -> int:
        acknowledged, tries, perform = 0, 0, backend.blocking().perform
        while tries < most:
            reply = perform(Recall(identity))
            assert isinstance(reply, Recalled)
            tries = reply.case.tries
            with suppress(StoreUnavailable):  # as often as that there was a rival
                asked = perform(Inquire(identity, fence, tries, None))
                acknowledged += isinstance(asked, Applied)
        return acknowledged

    with ThreadPoolExecutor(2 * len(backends)) as threads:
        acknowledged = sum(threads.map(run, backends * 2))
    found = store.perform(Recall(identity))
    assert isinstance(found, Recalled)
    assert acknowledged == found.case.tries
    assert conflicts(galera) > before


# ── what one node acknowledged ────────────────────────────────────────────────────────────────────


def test_what_one_node_acknowledged_all_nodes_know(galera: GaleraCluster) -> None:
    """Claimed at one, completed at the next, looked at and claimed again at the third."""
    for colour in ("sync", "async"):
        nodes = [
            Harness(MysqlBackend(node.url_of(DATABASE)), lambda _: None, 0, colour)
            for node in galera.nodes
        ]
        try:
            for number in range(60):
                first, second, third = (nodes[(number + place) % 3] for place in range(3))
                identity, fence = new_identity(), new_fence()
                assert isinstance(first.perform(claim(identity, fence)), Claimed)
                assert isinstance(second.perform(complete(identity, fence)), Applied)
                record = third.record(identity)
                assert record is not None
                assert record.state is State.COMPLETED
                assert isinstance(first.perform(claim(identity, new_fence())), Found)
        finally:
            for harness in nodes:
                harness.close()


def test_a_node_that_does_not_catch_up_first_is_seen_to_know_less(
    backends: list[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this is what waiting for the other nodes is for."""
    monkeypatch.setattr(exchange, "CATCH_UP", "DO 0")
    for _ in range(5_000):
        identity, fence = new_identity(), new_fence()
        assert isinstance(backends[0].blocking().perform(claim(identity, fence)), Claimed)
        if isinstance(backends[1].blocking().perform(complete(identity, fence)), Lost):
            return
    pytest.fail("a claim was always there at once: the tests above prove nothing")


# ── nodes that die ────────────────────────────────────────────────────────────────────────────────


def completed(node: GaleraNode) -> set[bytes]:
    rows = node.execute(
        f"SELECT CONCAT(identity, fence) FROM {DATABASE}.semel_record WHERE state = 'completed'"
    )
    return {bytes(row[0]) for row in rows}


def test_a_killed_node_costs_no_acknowledged_key_and_comes_back(galera: GaleraCluster) -> None:
    dying, *others = galera.nodes
    with (
        Load([dying.tcp_url(DATABASE)], lanes=2) as here,
        Load([others[0].tcp_url(DATABASE)], lanes=2) as there,
    ):
        here.more(30)
        there.more(30)
        dying.kill()
        here.more(1, "down")
        there.more(30)
        kept = completed(others[1])
        dying.recover()
        dying.await_members(3)
        here.more(30)
        here.stop()
        there.stop()
    assert here.codes == there.codes == {0}
    for node in galera.nodes:
        done = completed(node)
        assert here.keys("completed") | there.keys("completed") <= done
        assert kept <= done
    assert here.keys("doubt")
    assert here.keys("refused") == there.keys("refused") == set()


def test_a_node_that_has_lost_the_others_takes_nothing(own_galera: GaleraCluster) -> None:
    """Two are gone: the third is no cluster, and says so before anything is done."""
    left, *others = own_galera.nodes
    backend = MysqlBackend(left.url_of(DATABASE), timeout=2)
    assert isinstance(backend.blocking().perform(claim(new_identity(), new_fence())), Claimed)
    for node in others:
        node.kill()
    sure: list[Claim] = []
    for _ in left.child.attempts():
        op = claim(new_identity(), new_fence())
        with pytest.raises(StoreUnavailable) as refused:
            backend.blocking().perform(op)
        if refused.value.applied is False:
            sure.append(op)
        if "(1047)" in str(refused.value):
            assert refused.value.applied is False
            break
    backend.close()
    assert not kept_by(left) & {bytes(op.identity) for op in sure}


def kept_by(node: GaleraNode) -> set[bytes]:
    """What it has, which it tells only those who do not mind that it may be old."""
    with node.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION wsrep_dirty_reads = ON")
        cursor.execute("SELECT identity FROM semel_record")
        return {bytes(row[0]) for row in cursor.fetchall()}


@pytest.mark.parametrize("colour", ["sync", "async"])
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
    harness = Harness(MysqlBackend(url), lambda _: None, 0, colour)
    op = claim(new_identity(), new_fence())
    try:
        with pytest.raises(StoreUnavailable) as refused:
            harness.perform(op)
    finally:
        harness.close()
        mariadb.execute(f"DROP USER {user}@'%'")
    assert refused.value.applied is None
    found = MysqlBackend(mariadb_url).blocking().perform(Read(op.identity))
    assert isinstance(found, Found)
