"""Operations of a process's threads travel together: each is still done once, and told its own."""

import secrets
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import Applied, Claim, Claimed, Found, Read
from semel.core.records import Identity
from semel.errors import StoreCorrupt, StoreUnavailable
from semel.stores.sql.batching import MAX_ROWS
from tests.servers import PostgresServer
from tests.stores.test_postgres import admin, kill_the_stuck_one, row_locked, stuck_once
from tests.stores.together import (
    MANY,
    claim,
    complete,
    hurried,
    never_overdue,
    rival,
    threaded,
)
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"autovacuum": "off"}) as server:
        yield server


def test_many_at_once_need_few_transactions(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    number = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    with threaded(own_server.url) as threads, admin(own_server.url) as ask:
        threads.store.perform(claim())
        ops = [claim(each) for each in range(MANY)]
        before = ask(number)
        assert {type(reply) for reply in threads.outcomes(ops)} == {Claimed}
        claimed = ask(number)
        done = threads.outcomes([complete(op) for op in ops])
        assert {type(reply) for reply in done} == {Applied}
        assert claimed - before <= MANY / MAX_ROWS + 2
        assert ask(number) - claimed <= MANY / MAX_ROWS + 2


def test_each_caller_gets_the_reply_to_its_own_operation(postgres_url: str) -> None:
    with threaded(postgres_url) as threads:
        ops = [claim(number) for number in range(MANY)]
        bodies = [secrets.token_bytes(1 + number * 37) for number in range(MANY)]
        threads.outcomes(ops)
        threads.outcomes([complete(*each) for each in zip(ops, bodies, strict=True)])
        replayed = threads.outcomes([rival(op) for op in ops])
        read = threads.outcomes([Read(op.identity) for op in ops])
    for op, body, *found in zip(ops, bodies, replayed, read, strict=True):
        for reply in found:
            assert isinstance(reply, Found)
            assert (reply.record.identity, reply.record.fence) == (op.identity, op.fence)
            assert reply.record.snapshot == body


def test_without_any_help_threads_that_race_for_keys_have_one_winner_each(
    postgres_url: str,
) -> None:
    with threaded(postgres_url) as threads:
        keys = [claim(number) for number in range(20)]
        ops = [rival(keys[number % 20]) for number in range(400)]
        replies = [future.result() for future in [threads.start(op) for op in ops]]
    won = [op.identity for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
    assert sorted(won) == sorted(op.identity for op in keys)
    assert [type(reply) for reply in replies].count(Found) == 380


def test_one_member_s_trouble_is_its_own(postgres_url: str) -> None:
    with threaded(postgres_url) as threads:
        bad = replace(claim(), identity=Identity(b"short"))
        ops = [claim(), claim(), bad, claim(), claim(), claim()]
        replies = threads.outcomes(ops)
    assert isinstance(replies.pop(2), StoreCorrupt)
    assert {type(reply) for reply in replies} == {Claimed}


def test_a_locked_record_holds_up_the_others_of_its_batch_only_shortly(postgres_url: str) -> None:
    with threaded(postgres_url) as threads:
        ops = [claim(number) for number in range(30)]
        threads.outcomes(ops)
        with row_locked(postgres_url, ops[10].identity):
            futures = threads.held([complete(op) for op in ops])
            locked = futures.pop(10)
            assert {type(future.result(PATIENCE / 2)) for future in futures} == {Applied}
            assert not locked.done()
            # Whoever comes now is not held up: it is still locked.
            assert {type(reply) for reply in threads.outcomes([claim() for _ in range(10)])} == {
                Claimed
            }
        assert isinstance(locked.result(), Applied)


def test_what_takes_long_gives_up_its_place(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threaded(postgres_url) as threads:
        threads.store.perform(claim())
        kind_batcher, hung = threads.kind_batcher(Claim), object()
        kind_batcher._in_flight[hung] = monotonic()  # type: ignore[index]
        kind_batcher._batching = True
        added: list[Any] = []
        monkeypatch.setattr(kind_batcher._slow, "add", added.append)
        assert isinstance(threads.start(claim()).result(PATIENCE), Claimed)
        assert added == [hung]


def test_who_gives_up_while_waiting_was_not_sent_and_another_carries(postgres_url: str) -> None:
    with threaded(postgres_url) as threads:
        threads.store.perform(claim())
        kind_batcher, never = threads.kind_batcher(Claim), object()
        with kind_batcher._lock:
            kind_batcher._in_flight[never] = float("inf")  # type: ignore[index]
            kind_batcher._batching = True
        op = claim()
        with hurried(threads.batcher):
            error = threads.start(op).exception(PATIENCE)
        assert isinstance(error, StoreUnavailable)
        assert error.applied is False
        kind_batcher._finish(never)  # type: ignore[arg-type]
        assert isinstance(threads.store.perform(op), Claimed)


def test_a_connection_killed_in_a_batch_is_survived(postgres_url: str) -> None:
    with threaded(postgres_url) as threads, admin(postgres_url) as ask:
        ops = [claim(number) for number in range(30)]
        threads.outcomes(ops)
        stuck_once(ask, ops[3].identity)
        futures = threads.held([complete(op) for op in ops])
        kill_the_stuck_one(ask)
        assert {type(future.result(PATIENCE)) for future in futures} == {Applied}
        assert ask("SELECT count(*) FROM semel_record WHERE state = 'completed'") == len(ops)


@pytest.mark.proof
def test_connections_killed_all_the_time_are_survived(postgres_url: str) -> None:
    stop = threading.Event()

    def kill() -> None:
        with admin(postgres_url) as ask:
            while not stop.wait(0.02):
                ask(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'semel' AND datname = current_database()"
                )

    with threaded(postgres_url) as threads:
        threads.store.perform(claim())
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            ops = [claim(number) for number in range(300)]
            tried = [_insist(threads.store.perform, op) for op in ops[:20]]
            futures = [threads._pool.submit(_insist, threads.store.perform, op) for op in ops[20:]]
            replies = [*tried, *(future.result() for future in futures)]
        finally:
            stop.set()
            killer.join()
        assert {type(reply) for reply in replies} == {Claimed}
        with admin(postgres_url) as ask:
            assert ask("SELECT count(*) FROM semel_record") == 301


def _insist(perform: Callable[[Any], Any], op: Claim) -> Any:
    """An error means unknown: ask again with the same fence."""
    deadline = monotonic() + PATIENCE
    while True:
        try:
            return perform(op)
        except StoreUnavailable:
            if monotonic() > deadline:
                raise
