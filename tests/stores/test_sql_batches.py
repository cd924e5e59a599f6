"""Concurrent operations travel together: each is still done once, and answered by itself."""

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest

from semel.core import operations
from semel.core.frozen import replace
from semel.core.operations import Applied, Claim, Claimed, Found, Lost, Read, StoreOperation
from semel.core.records import State
from semel.core.stored.snapshot import LARGE, brief
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores.sql.batches import MAX_BATCHED, MAX_ROWS
from semel.testing.contract.records import MINUTE
from tests.forms import in_proof
from tests.proof.floors import missing, rounds
from tests.stores.dialects import Database
from tests.stores.together import (
    DAY,
    MANY,
    awaited,
    claim,
    complete,
    hurried,
    never_overdue,
    outcomes,
    raced,
    renew,
    rival,
    threaded,
    together,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


def claims(count: int) -> list[Claim]:
    return [claim(number) for number in range(count)]


def kinds(replies: Sequence[object]) -> set[type]:
    return {type(reply) for reply in replies}


# ── what travels together ─────────────────────────────────────────────────────────────────────────


async def test_many_at_once_are_written_in_few_steps(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    async with awaited(own_database.url) as store:
        await store.perform(claim())
        ops = claims(640)
        with own_database.admin() as ask:
            steps = [own_database.steps(ask)]
            assert kinds(await together(store, ops)) == {Claimed}
            steps.append(own_database.steps(ask))
            assert kinds(await together(store, [renew(op) for op in ops])) == {Applied}
            steps.append(own_database.steps(ask))
            assert kinds(await together(store, [complete(op) for op in ops])) == {Applied}
            steps.append(own_database.steps(ask))
    for before, after in pairwise(steps):
        assert after - before < 640 / MAX_ROWS + 5


async def test_each_caller_gets_the_reply_to_its_own_operation(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(MANY)
        bodies = [secrets.token_bytes(1 + number * 37) for number in range(MANY)]
        for op, claimed in zip(ops, await together(store, ops), strict=True):
            assert isinstance(claimed, Claimed)
            assert 0 < claimed.leased_until - claimed.now <= op.lease
        done = await together(store, [complete(*each) for each in zip(ops, bodies, strict=True)])
        assert all(
            isinstance(reply, Applied)
            and reply.state is State.COMPLETED
            and reply.expires_at is not None
            and 0 < reply.expires_at - reply.now <= DAY
            for reply in done
        )
        replayed = await together(store, [rival(op) for op in ops])
        read = await together(store, [Read(op.identity) for op in reversed(ops)])
        for op, body, *found in zip(ops, bodies, replayed, reversed(read), strict=True):
            for reply in found:
                assert isinstance(reply, Found)
                record = reply.record
                assert (record.identity, record.fence) == (op.identity, op.fence)
                assert (record.fingerprint, record.fields) == (op.fingerprint, op.fields)
                assert record.snapshot == body
        with database.admin() as ask:
            for op in ops:
                row = ask.row(f"SELECT * {database.where(op.identity)}")
                kept = [_text(row[name]) for name in ("tenant", "method", "path", "key")]
                origin = op.origin
                assert kept == [origin.tenant, origin.method, origin.path, origin.key]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def test_a_batch_does_what_each_operation_would_have_done_alone(database: Database) -> None:
    """Every kind of reply, each from the middle of a batch."""
    async with awaited(database.url) as store:
        await store.perform(busy := claim())
        await store.perform(done := claim())
        await store.perform(complete(done))
        absurd = {
            rival(busy): Found,
            busy: Claimed,  # its own fence: an earlier try of the same claim
            rival(done): Found,
            done: Found,
            replace(claim(), fresh_until=1): operations.Stale,
            replace(rival(done), fresh_until=1): Found,
        }
        filler = claims(40)
        ops: list[StoreOperation[Any]] = [*filler[:20], *absurd, *filler[20:]]
        replies = await together(store, ops)
        assert [type(reply) for reply in replies[20:26]] == list(absurd.values())
        assert kinds(replies[:20] + replies[26:]) == {Claimed}
        renewals = [renew(op) for op in [*filler, done, rival(busy), claim(), busy]]
        replies = await together(store, renewals)
        assert [type(reply) for reply in replies[40:]] == [Lost, Lost, Lost, Applied]
        for op, reply in zip(renewals[:40], replies[:40], strict=True):
            assert isinstance(reply, Applied)
            assert reply.state is State.IN_PROGRESS
            assert reply.leased_until is not None
            assert op.lease - MINUTE < reply.leased_until - reply.now <= op.lease
        ops = [complete(op) for op in filler]
        ops += [complete(done), complete(rival(busy)), complete(claim()), complete(busy)]
        replies = await together(store, ops)
        assert [type(reply) for reply in replies[40:]] == [Applied, Lost, Lost, Applied]
        assert kinds(replies[:40]) == {Applied}
        replies = await together(store, [Read(op.identity) for op in [*filler, claim()]])
        assert [type(reply) for reply in replies] == [Found] * 40 + [operations.NoRecord]


async def test_five_hundred_claims_of_fifty_keys_have_fifty_winners(database: Database) -> None:
    async with awaited(database.url) as store:
        keys = claims(50)
        ops = [rival(op) for _ in range(10) for op in keys]
        replies = await together(store, ops)
        winners = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        assert Counter(op.identity for op in winners) == {op.identity: 1 for op in keys}
        fences = {op.identity: op.fence for op in winners}
        for op, reply in zip(ops, replies, strict=True):
            assert isinstance(reply, Claimed) or reply.record.fence == fences[op.identity]


@pytest.mark.parametrize("count", [1_000, *in_proof(10_000)])
async def test_of_thousands_of_claims_of_one_key_one_wins(database: Database, count: int) -> None:
    async with awaited(database.url) as store:
        first = claim()
        replies = await together(store, [rival(first) for _ in range(count)])
        assert Counter(map(type, replies)) == {Claimed: 1, Found: count - 1}


async def test_the_same_completion_twice_at_once_is_applied_and_told_twice(
    database: Database,
) -> None:
    async with awaited(database.url) as store:
        ops = claims(30)
        await together(store, ops)
        twice = [complete(op) for op in ops for _ in range(2)]
        assert kinds(await together(store, twice)) == {Applied}


async def test_replays_in_a_batch_write_nothing_and_wait_for_no_lock(
    own_database: Database,
) -> None:
    async with awaited(own_database.url) as store:
        ops = claims(MANY)
        await together(store, ops)
        await together(store, [complete(op) for op in ops[::2]])
        with own_database.row_locked(ops[0].identity), own_database.admin() as ask:
            before = own_database.written(ask)
            replies = await together(store, [rival(op) for op in ops])
            replies += await together(store, [Read(op.identity) for op in ops])
            assert kinds(replies) == {Found}
            assert own_database.written(ask) == before


async def test_replays_in_a_batch_stay_together(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    async with awaited(own_database.url) as store:
        ops = claims(MANY)
        await together(store, ops)
        with own_database.admin() as ask:
            before = own_database.steps(ask)
            found = await together(store, [rival(op) for op in ops] + [claim() for _ in range(20)])
            assert Counter(map(type, found)) == {Found: MANY, Claimed: 20}
            assert own_database.steps(ask) - before < MANY / MAX_ROWS + 5


async def test_a_stale_holder_completes_nothing_in_a_batch(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(40)
        await together(store, ops)
        late = [complete(rival(op), b"late") for op in ops[:20]]
        replies = await together(store, [*late, *(complete(op) for op in ops[20:])])
        assert kinds(replies[:20]) == {Lost}
        assert kinds(replies[20:]) == {Applied}
        read = await together(store, [Read(op.identity) for op in ops[:20]])
        assert {reply.record.state for reply in read} == {State.IN_PROGRESS}


async def test_large_answers_are_written_and_fetched_alone(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(40)
        sizes = (10, LARGE, MAX_BATCHED, MAX_BATCHED + 1, 500_000) * 8
        bodies = [secrets.token_bytes(size) for size in sizes]
        await together(store, ops)
        done = await together(store, [complete(*each) for each in zip(ops, bodies, strict=True)])
        assert kinds(done) == {Applied}
        replies = await together(store, [rival(op) for op in ops])
        replies += await together(store, [Read(op.identity) for op in ops])
        assert [reply.record.snapshot for reply in replies] == [*map(brief, bodies)] * 2
        whole = await together(store, [operations.Fetch(op.identity, op.fence, b"") for op in ops])
        assert [reply.snapshot for reply in whole] == bodies


async def test_other_writes_go_alone_as_before(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(20)
        await together(store, ops)
        releases = [operations.Release(op.identity, op.fence, DAY) for op in ops]
        assert kinds(await together(store, releases)) == {Applied}


# ── one member's trouble is its own ───────────────────────────────────────────────────────────────


async def test_an_operation_that_the_server_refuses_spoils_no_other(database: Database) -> None:
    async with awaited(database.url) as store:
        identity = replace(claim(), identity=database.WRONG_IDENTITY)
        fence = replace(claim(), fence=database.WRONG_FENCE)
        nul = replace(claim(), fingerprint="nul \0")
        huge = replace(claim(), lease=2**80)
        ops = [claim(), claim(), identity, claim(), fence, claim(), nul, claim(), huge, claim()]
        replies = await outcomes(store, ops)
        bad = [type(reply) for reply in replies if isinstance(reply, Exception)]
        assert bad == [StoreCorrupt, StoreCorrupt, ConfigurationError, StoreCorrupt]
        good = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        assert len(good) == 6
        completions = [complete(op) for op in good]
        completions[2] = replace(completions[2], retention=2**63 - 1)  # past the end of time
        replies = await outcomes(store, completions)
        assert isinstance(replies.pop(2), StoreCorrupt)
        assert kinds(replies) == {Applied}


async def test_a_corrupt_record_is_the_error_of_who_asked_for_it(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(20)
        await together(store, ops)
        with database.admin() as ask:
            database.corrupt(ask, ops[7].identity)
        for asked in ([rival(op) for op in ops], [Read(op.identity) for op in ops]):
            replies = await outcomes(store, asked)
            assert isinstance(replies.pop(7), StoreCorrupt)
            assert kinds(replies) == {Found}


async def test_cancelled_members_do_not_take_the_others_with_them(database: Database) -> None:
    async with awaited(database.url, pool_size=2) as store:
        await store.perform(claim())
        for turn in range(60):
            tasks = [asyncio.ensure_future(store.perform(op)) for op in claims(30)]
            for _ in range(turn % 6):  # cancelled at a different point each time
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            assert kinds(replies[1::2]) == {Claimed}
            assert kinds(replies[::2]) <= {asyncio.CancelledError, Claimed}


async def test_who_leaves_while_queued_is_not_sent(database: Database) -> None:
    async with awaited(database.url) as store:
        await store.perform(claim())
        ops = claims(10)
        tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
        await asyncio.sleep(0)  # the first ones are under way, the others have queued up
        for task in tasks[5:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        replies = await together(store, [Read(op.identity) for op in ops])
        assert [type(reply) for reply in replies] == [Found] * 5 + [operations.NoRecord] * 5


async def test_a_locked_record_keeps_no_other_of_its_batch_waiting(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(40)
        await together(store, ops)
        with database.row_locked(ops[20].identity):
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            locked = tasks.pop(20)
            # All of this is done while it is still locked.
            assert kinds(await asyncio.gather(*tasks)) == {Applied}
            assert not locked.done()
            # Whoever comes now is not held up, not even by another try at the same record.
            again = asyncio.ensure_future(store.perform(complete(ops[20])))
            for _ in range(5):
                await together(store, more := claims(10))
                await together(store, [complete(op) for op in more])
        assert isinstance(await locked, Applied)
        assert isinstance(await again, Applied)


async def test_a_key_claimed_in_anothers_open_transaction_keeps_no_other_waiting(
    database: Database,
) -> None:
    async with awaited(database.url) as store:
        await store.perform(seed := claim())
        ops = claims(40)
        with database.uncommitted(seed, ops[20]):
            tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
            waiting = tasks.pop(20)
            assert kinds(await asyncio.gather(*tasks)) == {Claimed}
            assert not waiting.done()
        assert isinstance(await waiting, Claimed)  # the other rolled back


async def test_two_locked_records_hold_up_nobody_behind_them(database: Database) -> None:
    async with awaited(database.url) as store:
        ops = claims(20)
        await together(store, ops)
        with database.row_locked(ops[0].identity), database.row_locked(ops[1].identity):
            locked = [asyncio.ensure_future(store.perform(complete(op))) for op in ops[:2]]
            await asyncio.sleep(0)
            assert kinds(await together(store, [complete(op) for op in ops[2:]])) == {Applied}
            assert not any(task.done() for task in locked)
        assert kinds(await asyncio.gather(*locked)) == {Applied}


# ── the connection breaks ─────────────────────────────────────────────────────────────────────────


async def test_a_connection_killed_in_a_batch_is_survived_and_all_is_done_once(
    database: Database,
) -> None:
    async with awaited(database.url) as store:
        ops = claims(30)
        await together(store, ops)
        with database.admin() as ask:
            database.stick(ask, ops[3].identity)
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            await asyncio.to_thread(database.kill_the_stuck_one, ask)
            assert kinds(await asyncio.gather(*tasks)) == {Applied}
            done = "SELECT count(*) FROM semel_record WHERE state = 3"
            assert ask(done) == len(ops)


def killing(database: Database, ended: threading.Event) -> None:
    """All connections of the store, again and again."""
    with database.admin() as ask:
        while not ended.wait(0.05):
            database.kill_all(ask)


@pytest.mark.proof
async def test_connections_killed_all_the_time_lose_and_double_nothing(database: Database) -> None:
    """Claims and completions under fire: an answer may be missing, never wrong."""
    async with awaited(database.url) as store:

        async def pay(number: int) -> tuple[Claim, bytes] | None:
            op, body = claim(number), secrets.token_bytes(50)
            with suppress(StoreUnavailable):
                assert isinstance(await store.perform(op), Claimed)
                assert isinstance(await store.perform(complete(op, body)), Applied)
                return op, body
            return None

        ended = threading.Event()
        firing = asyncio.ensure_future(asyncio.to_thread(killing, database, ended))
        acknowledged: list[tuple[Claim, bytes]] = []
        floor = {"acknowledged": 100}
        for _ in rounds(15, lambda: missing({"acknowledged": len(acknowledged)}, floor)):
            paid = await asyncio.gather(*map(pay, range(64)))
            acknowledged.extend(each for each in paid if each is not None)
        ended.set()
        await firing
        found = await together(store, [Read(op.identity) for op, _ in acknowledged])
        for (op, body), reply in zip(acknowledged, found, strict=True):
            assert isinstance(reply, Found)
            assert (reply.record.fence, reply.record.snapshot) == (op.fence, body)


async def test_a_server_that_is_gone_is_told_to_each_member_in_time(
    own_database: Database,
) -> None:
    async with awaited(own_database.url) as store:
        await together(store, claims(30))
        await asyncio.to_thread(own_database.server.stop)
        began = monotonic()
        errors = await outcomes(store, claims(MANY))
        assert kinds(errors) == {StoreUnavailable}
        assert {error.applied for error in errors} == {False}
        assert len(set(map(id, errors))) == MANY
        assert monotonic() - began < PATIENCE / 2  # nobody waited for the time limit
        await asyncio.to_thread(own_database.server.start)
        assert kinds(await together(store, claims(MANY))) == {Claimed}


async def test_a_missing_schema_is_told_to_each(database: Database) -> None:
    backend = database.backend()
    errors = await outcomes(backend.awaited(), [claim() for _ in range(10)])
    assert kinds(errors) == {SchemaError}
    await backend.aclose()


async def test_closing_waits_for_what_is_queued(database: Database) -> None:
    async with awaited(database.url):
        backend = database.backend()
        tasks = [asyncio.ensure_future(backend.awaited().perform(claim())) for _ in range(300)]
        await asyncio.sleep(0)
        await backend.aclose()
        assert kinds(await asyncio.gather(*tasks)) == {Claimed}


# ── several processes ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
async def test_two_processes_that_want_the_same_keys_in_opposite_order_do_not_deadlock(
    own_database: Database,
) -> None:
    url = own_database.url
    await asyncio.to_thread(own_database.backend().migrate)
    ops = claims(1000)
    opposite = [op for at in range(0, 1000, 50) for op in reversed(ops[at : at + 50])]
    with own_database.admin() as ask:
        before = own_database.deadlocks(ask)
        won = await asyncio.to_thread(raced, url, ops, opposite)
        assert Counter(won) == Counter(op.identity for op in ops)
        assert own_database.deadlocks(ask) == before


# ── threads ───────────────────────────────────────────────────────────────────────────────────────


def test_of_threads_too_many_at_once_are_written_in_few_steps(
    own_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    with threaded(own_database.url) as threads, own_database.admin() as ask:
        threads.store.perform(claim())
        ops = claims(MANY)
        before = own_database.steps(ask)
        assert kinds(threads.outcomes(ops)) == {Claimed}
        claimed = own_database.steps(ask)
        assert kinds(threads.outcomes([complete(op) for op in ops])) == {Applied}
        assert claimed - before <= MANY / MAX_ROWS + 2
        assert own_database.steps(ask) - claimed <= MANY / MAX_ROWS + 2


def test_each_thread_gets_the_reply_to_its_own_operation(database: Database) -> None:
    with threaded(database.url) as threads:
        ops = claims(MANY)
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
    database: Database,
) -> None:
    with threaded(database.url) as threads:
        keys = claims(20)
        ops = [rival(keys[number % 20]) for number in range(400)]
        replies = [future.result() for future in [threads.start(op) for op in ops]]
    won = [op.identity for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
    assert sorted(won) == sorted(op.identity for op in keys)
    assert [type(reply) for reply in replies].count(Found) == 380


def test_a_thread_s_trouble_is_its_own(database: Database) -> None:
    with threaded(database.url) as threads:
        bad = replace(claim(), identity=database.WRONG_IDENTITY)
        replies = threads.outcomes([claim(), claim(), bad, claim(), claim(), claim()])
    assert isinstance(replies.pop(2), StoreCorrupt)
    assert kinds(replies) == {Claimed}


def test_among_threads_a_locked_record_keeps_no_other_of_its_batch_waiting(
    database: Database,
) -> None:
    with threaded(database.url) as threads:
        ops = claims(30)
        threads.outcomes(ops)
        with database.row_locked(ops[10].identity):
            futures = threads.held([complete(op) for op in ops])
            locked = futures.pop(10)
            assert {type(future.result(PATIENCE / 2)) for future in futures} == {Applied}
            assert not locked.done()
            # Whoever comes now is not held up: it is still locked.
            assert kinds(threads.outcomes(claims(10))) == {Claimed}
        assert isinstance(locked.result(), Applied)


def test_what_takes_long_gives_up_its_place(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threaded(database.url) as threads:
        threads.store.perform(claim())
        kind_batcher, hung = threads.kind_batcher(Claim), object()
        kind_batcher._in_flight[hung] = monotonic()  # type: ignore[index]
        kind_batcher._batching = True
        added: list[Any] = []
        monkeypatch.setattr(kind_batcher._slow, "add", added.append)
        assert isinstance(threads.start(claim()).result(PATIENCE), Claimed)
        assert added == [hung]


def test_who_gives_up_while_waiting_was_not_sent_and_another_carries(database: Database) -> None:
    with threaded(database.url) as threads:
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


def test_among_threads_a_connection_killed_in_a_batch_is_survived(database: Database) -> None:
    with threaded(database.url) as threads, database.admin() as ask:
        ops = claims(30)
        threads.outcomes(ops)
        database.stick(ask, ops[3].identity)
        futures = threads.held([complete(op) for op in ops])
        database.kill_the_stuck_one(ask)
        assert {type(future.result(PATIENCE)) for future in futures} == {Applied}
        assert ask("SELECT count(*) FROM semel_record WHERE state = 3") == len(ops)


@pytest.mark.proof
def test_among_threads_connections_killed_all_the_time_are_survived(database: Database) -> None:
    with threaded(database.url) as threads:
        threads.store.perform(claim())
        stop = threading.Event()
        killer = threading.Thread(target=killing, args=(database, stop))
        killer.start()
        try:
            ops = claims(300)
            tried = [_insist(threads.store.perform, op) for op in ops[:20]]
            futures = [threads._pool.submit(_insist, threads.store.perform, op) for op in ops[20:]]
            replies = [*tried, *(future.result() for future in futures)]
        finally:
            stop.set()
            killer.join()
        assert kinds(replies) == {Claimed}
        with database.admin() as ask:
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
