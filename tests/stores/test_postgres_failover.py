"""PostgreSQL with a quorum: the primary is killed, and no acknowledged key is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from semel.core.operations.requests import Applied, Claim, Claimed, Found
from semel.errors import StoreUnavailable
from semel.stores import open_backend
from semel.stores.postgres import PostgresBackend
from semel.testing.contract.records import claim, complete, new_fence, new_identity
from tests.proof.floors import missing, rounds
from tests.servers.postgres_cluster import Node, PostgresCluster
from tests.stores.harness import Harness
from tests.stores.load import Load, Told
from tests.waiting import PATIENCE, until

DATABASE = "postgres"
RECORDS = (
    "SELECT identity || fence, CASE state WHEN 2 THEN 'in_progress' WHEN 3 THEN 'completed' END"
    " FROM semel_record"
)
SEVER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'semel' AND pid <> pg_backend_pid()"
)
FOLLOWING = "SELECT application_name FROM pg_stat_replication WHERE state = 'streaming'"
STANDING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
"""Commits that wait for a standby."""
WRITTEN = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')"

LIMIT = 0.5
"""Seconds of a time limit that a test waits for. What must succeed is asked for again."""


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresCluster]:
    with PostgresCluster() as opened:
        open_backend(opened.url_of(DATABASE)).migrate()
        yield opened


@pytest.fixture
def cluster(shared: PostgresCluster) -> PostgresCluster:
    """Whole, whatever the test before did to it."""
    mend(shared)
    return shared


def mend(cluster: PostgresCluster) -> None:
    """Who leads stays, and who does not follow it is copied anew."""
    if cluster.primary._child is None:
        cluster.primary.start()
    with psycopg.connect(cluster.primary.url_of(DATABASE)) as connection:
        following = {name for (name,) in connection.execute(FOLLOWING)}
    cluster.standbys = [node for node in cluster.nodes if node.name in following]
    for node in cluster.nodes:
        if node not in (cluster.primary, *cluster.standbys):
            node.stop()
            cluster.rejoin(node)
    cluster.await_standbys(2)


def kept(node: Node) -> dict[bytes, str]:
    """Every key of the database, with its fence, and the state it is in."""
    with psycopg.connect(node.url_of(DATABASE)) as connection:
        return dict(connection.execute(RECORDS).fetchall())


def lost(told: Told, node: Node) -> set[bytes]:
    """What was acknowledged and is not there."""
    there = kept(node)
    done = {key for key, state in there.items() if state == "completed"}
    return (told.keys("claimed") - there.keys()) | (told.keys("completed") - done)


def nothing_is_lost(load: Load, node: Node) -> None:
    assert load.codes == {0}
    assert lost(load, node) == set()
    # "Surely not applied" is the truth, and a key is nobody else's.
    assert load.keys("left") & kept(node).keys() == set()
    assert load.keys("taken") == load.keys("refused") == set()


# ── the campaign ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
def test_a_killed_primary_costs_no_acknowledged_key(cluster: PostgresCluster) -> None:
    """Under load; again, should no commit have been under way by chance."""
    with Load([cluster.url_of(DATABASE)]) as load:
        load.more(100)

        def short() -> dict[str, str]:
            return missing({"in doubt": len(load.keys("doubt"))}, {"in doubt": 1})

        for _ in rounds(1, short):
            fail_over(cluster, load)
        load.stop()
    nothing_is_lost(load, cluster.primary)


def fail_over(cluster: PostgresCluster, load: Load) -> None:
    old = cluster.lose_primary()
    load.more(1, "down")
    cluster.promote(cluster.most_advanced)
    load.more(100)
    # It comes back as if nothing had happened, and stands first in everybody's URL.
    old.start()
    before = kept(old)
    cluster.primary.ask(SEVER)
    load.more(50)
    assert kept(old) == before
    mend(cluster)


# ── the same with every fault in its place, in both colours on one cluster ────────────────────────


@contextmanager
def opened(cluster: PostgresCluster, commit: str = "on", **options: Any) -> Iterator[list[Harness]]:
    """``commit``: what the session waits for, as `synchronous_commit` has it."""
    url = f"{cluster.url_of(DATABASE)}&options=-c%20synchronous_commit%3D{commit}"
    with ExitStack() as stack:
        harnesses: list[Harness] = []
        for colour in ("sync", "async"):
            backend = PostgresBackend(url, **options)
            harnesses.append(Harness(backend, lambda _: None, 0, colour))
            stack.callback(harnesses[-1].close)
        for harness in harnesses:
            assert isinstance(told(harness, claim(new_identity(), new_fence())), Claimed)
        yield harnesses


def told(harness: Harness, op: Claim) -> object:
    """The reply; asked for again, with the same fence, where a short time limit was too short."""

    def ask() -> object:
        try:
            return harness.perform(op)
        except StoreUnavailable:
            return None

    return until(ask)


def refusal(harness: Harness, op: Claim) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as refused:
        harness.perform(op)
    return refused.value


def acknowledged(harnesses: list[Harness], count: int = 5) -> Told:
    """Keys that were claimed and completed, so many in each colour."""
    said = Told()
    for harness in harnesses:
        said.by_hand(harness.perform, count)
    assert len(said.keys("completed")) == count * len(harnesses)
    return said


def test_commits_that_stood_at_a_killed_primary_are_told_by_the_next(
    cluster: PostgresCluster,
) -> None:
    """Some of them a standby has, others nobody. Whoever asked is in doubt, and asks again with the
    same fence: each key is theirs, once."""
    with (
        opened(cluster, "remote_apply", timeout=PATIENCE) as harnesses,
        ThreadPoolExecutor() as threads,
    ):
        done = acknowledged(harnesses)
        had, unheard = ([claim(new_identity(), new_fence()) for _ in harnesses] for _ in range(2))

        def stand(ops: list[Claim], count: int) -> list[Future[StoreUnavailable]]:
            asked = [threads.submit(refusal, *each) for each in zip(harnesses, ops, strict=True)]
            until(lambda: cluster.primary.ask(STANDING) == count)
            return asked

        for standby in cluster.standbys:
            pause(standby)  # it receives, and does not apply what the commit waits for
        asked = stand(had, 2)
        written = cluster.primary.ask(WRITTEN)
        until(lambda: all(standby.received() >= written for standby in cluster.standbys))
        for standby in cluster.standbys:
            standby.stop()
        asked += stand(unheard, 4)
        cluster.lose_primary()
        assert [each.result(PATIENCE).applied for each in asked] == [None] * 4
        for standby in cluster.standbys:
            standby.start()
        cluster.promote(cluster.most_advanced)
        assert lost(done, cluster.primary) == set()
        assert [op.identity + op.fence in kept(cluster.primary) for op in had] == [True] * 2
        assert [op.identity + op.fence in kept(cluster.primary) for op in unheard] == [False] * 2
        for ops in (had, unheard):
            for harness, other, op in zip(harnesses, reversed(harnesses), ops, strict=True):
                assert isinstance(harness.perform(op), Claimed)
                assert isinstance(other.perform(claim(op.identity, new_fence())), Found)
                assert isinstance(harness.perform(complete(op.identity, op.fence)), Applied)


def pause(standby: Node) -> None:
    standby.ask("SELECT pg_wal_replay_pause()")
    until(lambda: standby.ask("SELECT pg_get_wal_replay_pause_state()") == "paused")


def test_without_a_quorum_the_same_check_sees_losses(cluster: PostgresCluster) -> None:
    """The control: nobody waits for a standby, and none hears of what is acknowledged."""
    with opened(cluster, "local", timeout=PATIENCE) as harnesses:
        for standby in cluster.standbys:
            standby.follow(None)
        said = acknowledged(harnesses)
        cluster.lose_primary()
    cluster.promote(cluster.most_advanced)
    assert lost(said, cluster.primary) == said.keys("completed") == said.keys("claimed")


def test_a_quorum_is_worth_nothing_when_the_wrong_standby_is_promoted(
    cluster: PostgresCluster,
) -> None:
    """One of two has every commit, and only the one that has more."""
    ahead, behind = cluster.standbys
    with opened(cluster, timeout=PATIENCE) as harnesses:
        behind.follow(None)
        said = acknowledged(harnesses)
        cluster.lose_primary()
    assert cluster.most_advanced is ahead
    behind.promote()
    cluster.primary, cluster.standbys = behind, []
    assert lost(said, behind) == said.keys("completed") == said.keys("claimed")


def test_a_primary_from_before_a_failover_is_refused(cluster: PostgresCluster) -> None:
    with opened(cluster, timeout=PATIENCE) as harnesses:
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
            seen = re.search(r"timeline (\d+), but (\d+) was seen", str(error))
            assert seen is not None
            assert int(seen[1]) < int(seen[2])
            assert error.applied is False


def test_a_commit_that_waits_for_its_standbys_is_in_doubt_and_then_true(
    cluster: PostgresCluster,
) -> None:
    """Without any standby a commit waits. Asked again with the same fence, it is told as it is."""
    with opened(cluster, timeout=LIMIT) as harnesses:
        for standby in cluster.standbys:
            standby.stop()
        ops = [claim(new_identity(), new_fence()) for _ in harnesses]
        for harness, op in zip(harnesses, ops, strict=True):
            assert refusal(harness, op).applied is None
        for standby in cluster.standbys:
            standby.start()
        cluster.await_standbys(1)
        for harness, op in zip(harnesses, ops, strict=True):
            assert isinstance(told(harness, op), Claimed)
