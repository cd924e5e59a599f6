"""PostgreSQL with a quorum: the primary is killed under load, and no acknowledged key is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from semel.core.contract import Claim, Claimed
from semel.errors import StoreUnavailable
from semel.stores import open_backend
from semel.stores.postgres import PostgresBackend
from tests.servers.postgres_cluster import Node, PostgresCluster
from tests.stores.contract import claim, new_fence, new_identity
from tests.stores.harness import Harness
from tests.stores.load import Load

DATABASE = "postgres"
RECORDS = "SELECT identity || fence, state FROM semel_record"
SEVER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'semel' AND pid <> pg_backend_pid()"
)


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with PostgresCluster() as opened:
        open_backend(opened.url_of(DATABASE)).migrate()
        yield opened


@pytest.fixture
def careless() -> Iterator[PostgresCluster]:
    """Nobody waits for a standby."""
    with PostgresCluster(quorum=False) as opened:
        open_backend(opened.url_of(DATABASE)).migrate()
        yield opened


def kept(node: Node) -> dict[bytes, str]:
    """Every key of the database, with its fence, and the state it is in."""
    with psycopg.connect(node.url_of(DATABASE)) as connection:
        return dict(connection.execute(RECORDS).fetchall())


def lost(load: Load, node: Node) -> set[bytes]:
    """What was acknowledged and is not there."""
    there = kept(node)
    done = {key for key, state in there.items() if state == "completed"}
    return (load.keys("claimed") - there.keys()) | (load.keys("completed") - done)


def nothing_is_lost(load: Load, node: Node) -> None:
    assert load.codes == {0}
    assert lost(load, node) == set()
    # "Surely not applied" is the truth, and a key is nobody else's.
    assert load.keys("left") & kept(node).keys() == set()
    assert load.keys("taken") == load.keys("refused") == set()


# ── the campaign ──────────────────────────────────────────────────────────────────────────────────


def test_a_killed_primary_costs_no_acknowledged_key(cluster: PostgresCluster) -> None:
    url = cluster.url_of(DATABASE)
    with Load([url]) as load:
        load.more(100)
        old = cluster.lose_primary()
        load.more(1, "down")
        cluster.promote(cluster.most_advanced)
        load.more(100)
        # It comes back as if nothing had happened, and stands first in everybody's URL.
        old.start()
        before = kept(old)
        cluster.primary.ask(SEVER)
        load.more(50)
        load.stop()
    nothing_is_lost(load, cluster.primary)
    assert load.keys("doubt")
    assert kept(old) == before


def test_without_a_quorum_the_same_check_sees_losses(careless: PostgresCluster) -> None:
    """The control, made sure of: for a while no standby hears of what is acknowledged."""
    with Load([careless.url_of(DATABASE)]) as load:
        load.more(50)
        for standby in careless.standbys:
            standby.follow(None)
        load.more(50)
        careless.lose_primary()
        load.stop()
    careless.promote(careless.most_advanced)
    assert len(lost(load, careless.primary)) >= 100


def test_a_quorum_is_worth_nothing_when_the_wrong_standby_is_promoted(
    cluster: PostgresCluster,
) -> None:
    """One of two has every commit, and only the one that has more."""
    behind = cluster.standbys[1]
    with Load([cluster.url_of(DATABASE)]) as load:
        load.more(50)
        behind.follow(None)
        load.more(50)
        cluster.lose_primary()
        load.stop()
    assert cluster.most_advanced is not behind
    behind.promote()
    assert len(lost(load, behind)) >= 100


# ── what a store does, in both colours on one cluster ─────────────────────────────────────────────


@contextmanager
def opened(cluster: PostgresCluster, **options: Any) -> Iterator[list[Harness]]:
    with ExitStack() as stack:
        harnesses: list[Harness] = []
        for colour in ("sync", "async"):
            backend = PostgresBackend(cluster.url_of(DATABASE), **options)
            harnesses.append(Harness(backend, lambda _: None, 0, colour))
            stack.callback(harnesses[-1].close)
        for harness in harnesses:
            assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        yield harnesses


def refusal(harness: Harness, op: Claim) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    return refused.value


def test_a_primary_from_before_a_failover_is_refused(cluster: PostgresCluster) -> None:
    with opened(cluster) as harnesses:
        old = cluster.lose_primary()
        cluster.promote(cluster.most_advanced)
        for harness in harnesses:
            assert isinstance(harness.perform(claim(new_identity(), new_fence())), Claimed)
        old.start()
        cluster.primary.ask(SEVER)
        for harness in harnesses:
            op = claim(new_identity(), new_fence())
            assert isinstance(harness.perform(op), Claimed)
            assert op.identity + op.fence in kept(cluster.primary)
        # With nobody else to be had, it is refused and not put up with.
        for node in (*cluster.standbys, cluster.primary):
            node.kill()
        for harness in harnesses:
            refusal(harness, claim(new_identity(), new_fence()))  # perhaps on a dead connection
            error = refusal(harness, claim(new_identity(), new_fence()))
            assert "timeline 1, but 2 was seen" in str(error)
            assert error.applied is False


def test_a_commit_that_waits_for_its_standbys_is_in_doubt_and_then_true(
    cluster: PostgresCluster,
) -> None:
    """Without any standby a commit waits. Asked again with the same fence, it is told as it is."""
    with opened(cluster, timeout=1) as harnesses:
        for standby in cluster.standbys:
            standby.stop()
        ops = [claim(new_identity(), new_fence()) for _ in harnesses]
        for harness, op in zip(harnesses, ops, strict=True):
            assert refusal(harness, op).applied is None
        for standby in cluster.standbys:
            standby.start()
        cluster.await_standbys(1)
        for harness, op in zip(harnesses, ops, strict=True):
            assert isinstance(harness.perform(op), Claimed)
