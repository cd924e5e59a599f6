"""Concurrent operations travel together: each is still done once, and answered by itself."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import Any

import psycopg
import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Complete,
    Fetch,
    Found,
    Lost,
    NoRecord,
    Read,
    Release,
    Stale,
    StoreOperation,
)
from semel.core.records import Fence, Identity, State
from semel.core.stored.snapshot import LARGE, brief
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.connection import Exchange, PostgresConnection, query
from semel.stores.postgres.values import BYTEA, INT8, KINDS, TEXT
from semel.stores.sql import plans
from semel.stores.sql.batching import MAX_BATCHED, MAX_ROWS, SLOW_AFTER, BatchKind
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Statement
from tests.forms import in_proof
from tests.proof.floors import missing, rounds
from tests.servers import PgBouncer, PostgresServer
from tests.stores.contract import MINUTE
from tests.stores.test_postgres import (
    UNCONFIRMED,
    admin,
    kill_the_stuck_one,
    row_locked,
    stuck_once,
    waiting_for_standbys,
)
from tests.stores.together import (
    DAY,
    MANY,
    awaited,
    claim,
    complete,
    never_overdue,
    outcomes,
    raced,
    renew,
    rival,
    together,
)
from tests.waiting import PATIENCE, Ahead, turns, until

pytestmark = pytest.mark.anyio


@contextmanager
def uncommitted(url: str, op: Claim) -> Iterator[None]:
    """Somebody claims the same key in a transaction of his own, and takes his time."""
    backend = PostgresBackend(url)
    with psycopg.connect(url) as connection:
        assert isinstance(backend.on(connection).perform(rival(op)), Claimed)
        yield
        connection.rollback()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One where nobody else writes; a test that stops it starts it again."""
    with PostgresServer(settings={"autovacuum": "off"}) as server:
        yield server


# ── what travels together ─────────────────────────────────────────────────────────────────────────


async def test_many_at_once_need_few_transactions(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_overdue(monkeypatch)
    async with awaited(own_server.url) as store:
        await store.perform(claim())
        ops = [claim(number) for number in range(640)]
        with admin(own_server.url) as ask:
            before = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            assert {type(reply) for reply in await together(store, ops)} == {Claimed}
            claimed = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            replies = await together(store, [renew(op) for op in ops])
            assert {type(reply) for reply in replies} == {Applied}
            renewed = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            replies = await together(store, [complete(op) for op in ops])
            assert {type(reply) for reply in replies} == {Applied}
            completed = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    assert claimed - before < 640 / MAX_ROWS + 5
    assert renewed - claimed < 640 / MAX_ROWS + 5
    assert completed - renewed < 640 / MAX_ROWS + 5


async def test_each_caller_gets_the_reply_to_its_own_operation(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(MANY)]
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
        with admin(postgres_url) as ask:
            kept = "SELECT tenant || method || path || key FROM semel_record WHERE identity = %s"
            for op in ops:
                origin = op.origin
                text = origin.tenant + origin.method + origin.path + origin.key
                assert ask(kept, bytes(op.identity)) == text


async def test_a_batch_does_what_each_operation_would_have_done_alone(postgres_url: str) -> None:
    """Every kind of reply, each from the middle of a batch."""
    async with awaited(postgres_url) as store:
        await store.perform(busy := claim())
        await store.perform(done := claim())
        await store.perform(complete(done))
        late = claim()
        absurd = {
            rival(busy): Found,
            busy: Claimed,  # its own fence: an earlier try of the same claim
            rival(done): Found,
            done: Found,
            replace(late, fresh_until=1): Stale,
            replace(rival(done), fresh_until=1): Found,
        }
        filler = [claim(number) for number in range(40)]
        ops: list[StoreOperation[Any]] = [*filler[:20], *absurd, *filler[20:]]
        replies = await together(store, ops)
        assert [type(reply) for reply in replies[20:26]] == list(absurd.values())
        assert {type(reply) for reply in replies[:20] + replies[26:]} == {Claimed}
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
        assert {type(reply) for reply in replies[:40]} == {Applied}
        reads = [Read(op.identity) for op in [*filler, claim()]]
        replies = await together(store, reads)
        assert [type(reply) for reply in replies] == [Found] * 40 + [NoRecord]


async def test_five_hundred_claims_of_fifty_keys_have_fifty_winners(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        keys = [claim(number) for number in range(50)]
        ops = [rival(op) for _ in range(10) for op in keys]
        replies = await together(store, ops)
        winners = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        assert Counter(op.identity for op in winners) == {op.identity: 1 for op in keys}
        fences = {op.identity: op.fence for op in winners}
        for op, reply in zip(ops, replies, strict=True):
            assert isinstance(reply, Claimed) or reply.record.fence == fences[op.identity]


async def test_the_same_completion_twice_at_once_is_applied_and_told_twice(
    postgres_url: str,
) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(30)]
        await together(store, ops)
        twice = [complete(op) for op in ops for _ in range(2)]
        assert {type(reply) for reply in await together(store, twice)} == {Applied}


@pytest.mark.parametrize("count", [1_000, *in_proof(10_000)])
async def test_of_thousands_of_claims_of_one_key_one_wins(postgres_url: str, count: int) -> None:
    async with awaited(postgres_url) as store:
        first = claim()
        replies = await together(store, [rival(first) for _ in range(count)])
        assert Counter(map(type, replies)) == {Claimed: 1, Found: count - 1}


async def test_replays_in_a_batch_write_nothing(own_server: PostgresServer) -> None:
    async with awaited(own_server.url) as store:
        ops = [claim(number) for number in range(MANY)]
        await together(store, ops)
        await together(store, [complete(op) for op in ops[::2]])
        with admin(own_server.url) as ask:
            rows = ask("SELECT array_agg((identity, xmin, xmax)::text) FROM semel_record")
            number = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
            replies = await together(store, [rival(op) for op in ops])
            replies += await together(store, [Read(op.identity) for op in ops])
            assert {type(reply) for reply in replies} == {Found}
            # Whoever writes, or locks a row, takes the next number.
            assert ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text") == number
            assert ask("SELECT array_agg((identity, xmin, xmax)::text) FROM semel_record") == rows


async def test_large_answers_are_written_and_fetched_alone(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(40)]
        bodies = [
            secrets.token_bytes(size)
            for size in (10, LARGE, MAX_BATCHED, MAX_BATCHED + 1, 500_000) * 8
        ]
        await together(store, ops)
        done = await together(store, [complete(*each) for each in zip(ops, bodies, strict=True)])
        assert {type(reply) for reply in done} == {Applied}
        replies = await together(store, [rival(op) for op in ops])
        replies += await together(store, [Read(op.identity) for op in ops])
        assert [reply.record.snapshot for reply in replies] == [*map(brief, bodies)] * 2
        whole = await together(store, [Fetch(op.identity, op.fence, b"") for op in ops])
        assert [reply.snapshot for reply in whole] == bodies


# ── one member's trouble is its own ───────────────────────────────────────────────────────────────


async def test_an_operation_that_the_server_refuses_spoils_no_other(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        short = replace(claim(), identity=Identity(b"short"))
        fence = replace(claim(), fence=Fence(b"short"))
        nul = replace(claim(), fingerprint="nul \0")
        huge = replace(claim(), lease=2**80)
        ops = [claim(), claim(), short, claim(), fence, claim(), nul, claim(), huge, claim()]
        replies = await outcomes(store, ops)
        bad = [type(reply) for reply in replies if isinstance(reply, Exception)]
        assert bad == [StoreCorrupt, StoreCorrupt, ConfigurationError, StoreCorrupt]
        assert [type(reply) for reply in replies].count(Claimed) == 6
        good = [op for op, reply in zip(ops, replies, strict=True) if type(reply) is Claimed]
        wrong = replace(complete(good[2]), retention=2**63 - 1)  # past the end of time
        completions = [complete(op) for op in good]
        completions[2] = wrong
        replies = await outcomes(store, completions)
        assert isinstance(replies[2], StoreCorrupt)
        assert [type(reply) for reply in replies].count(Applied) == 5


async def test_a_corrupt_record_is_the_error_of_who_asked_for_it(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        with admin(postgres_url) as ask:
            ask("ALTER TABLE semel_record DROP CONSTRAINT semel_record_state_check")
            ask(
                "UPDATE semel_record SET state = 'nonsense' WHERE identity = %s",
                bytes(ops[7].identity),
            )
        for asked in ([rival(op) for op in ops], [Read(op.identity) for op in ops]):
            replies = await outcomes(store, asked)
            assert isinstance(replies.pop(7), StoreCorrupt)
            assert {type(reply) for reply in replies} == {Found}


async def test_cancelled_members_do_not_take_the_others_with_them(postgres_url: str) -> None:
    async with awaited(postgres_url, pool_size=2) as store:
        await store.perform(claim())
        for turn in range(60):
            ops = [claim(number) for number in range(30)]
            tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
            for _ in range(turn % 6):  # cancelled at a different point each time
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            replies = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(reply) for reply in replies[1::2]} == {Claimed}
            assert {type(reply) for reply in replies[::2]} <= {asyncio.CancelledError, Claimed}


async def test_a_locked_record_holds_up_the_others_of_its_batch_only_shortly(
    postgres_url: str,
) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(40)]
        await together(store, ops)
        with row_locked(postgres_url, ops[20].identity):
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            locked = tasks.pop(20)
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}
            assert not locked.done()
            # Whoever comes now is not held up, not even by another try at the same record: all of
            # this is done while it is still locked.
            again = asyncio.ensure_future(store.perform(complete(ops[20])))
            for _ in range(3):
                await together(store, more := [claim(number) for number in range(10)])
                await together(store, [complete(op) for op in more])
        assert isinstance(await locked, Applied)
        assert isinstance(await again, Applied)


async def test_a_key_claimed_in_anothers_open_transaction_holds_up_its_batch_only_shortly(
    postgres_url: str,
) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(40)]
        with uncommitted(postgres_url, ops[20]):
            tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
            waiting = tasks.pop(20)
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Claimed}
            assert not waiting.done()
        assert isinstance(await waiting, Claimed)  # the other rolled back


async def test_two_locked_records_hold_up_nobody_behind_them(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        with row_locked(postgres_url, ops[0].identity), row_locked(postgres_url, ops[1].identity):
            locked = [asyncio.ensure_future(store.perform(complete(op))) for op in ops[:2]]
            await asyncio.sleep(0)
            replies = await together(store, [complete(op) for op in ops[2:]])
            assert {type(reply) for reply in replies} == {Applied}
            assert not any(task.done() for task in locked)
        assert {type(reply) for reply in await asyncio.gather(*locked)} == {Applied}


async def test_who_asks_for_a_record_that_takes_long_spoils_no_batch(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Statement] = []
    execute = PostgresConnection.execute

    def noted(conn: PostgresConnection, statement: Statement) -> Exchange:
        sent.append(statement)
        return execute(conn, statement)

    monkeypatch.setattr(PostgresConnection, "execute", noted)
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(40)]
        await together(store, ops)
        slow = ops.pop(20)
        with row_locked(postgres_url, slow.identity):
            waiting = [asyncio.ensure_future(store.perform(complete(slow)))]
            await turns()
            await Ahead().forward(SLOW_AFTER)  # it is noticed as slow
            sent.clear()
            completing = asyncio.ensure_future(together(store, [complete(op) for op in ops]))
            waiting += [asyncio.ensure_future(store.perform(complete(slow))) for _ in range(3)]
            assert {type(reply) for reply in await completing} == {Applied}
            batches: list[Any] = [
                each.params["identity"] for each in sent if each.name == "complete_many"
            ]
            assert batches
            assert not any(bytes(slow.identity) in bytes(each) for each in batches)
        assert {type(reply) for reply in await asyncio.gather(*waiting)} == {Applied}


async def test_who_leaves_while_queued_is_not_sent(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        await store.perform(claim())
        ops = [claim(number) for number in range(10)]
        tasks = [asyncio.ensure_future(store.perform(op)) for op in ops]
        await asyncio.sleep(0)  # the first ones are under way, the others have queued up
        for task in tasks[5:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        replies = await together(store, [Read(op.identity) for op in ops])
        assert [type(reply) for reply in replies] == [Found] * 5 + [NoRecord] * 5


# ── the connection breaks ─────────────────────────────────────────────────────────────────────────


async def test_a_connection_killed_in_a_batch_is_survived_and_all_is_done_once(
    postgres_url: str,
) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(30)]
        await together(store, ops)
        with admin(postgres_url) as ask:
            stuck_once(ask, ops[3].identity)
            tasks = [asyncio.ensure_future(store.perform(complete(op))) for op in ops]
            await asyncio.to_thread(kill_the_stuck_one, ask)
            assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Applied}
            done = "SELECT count(*) FROM semel_record WHERE state = 'completed'"
            assert ask(done) == len(ops)


@pytest.mark.proof
async def test_connections_killed_all_the_time_lose_and_double_nothing(postgres_url: str) -> None:
    """Claims and completions under fire: an answer may be missing, never wrong."""
    async with awaited(postgres_url) as store:
        with admin(postgres_url) as ask:
            ended = asyncio.Event()

            async def fire() -> None:
                kill = (
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "
                    "application_name = 'semel' AND datname = current_database()"
                )
                while not ended.is_set():
                    await asyncio.to_thread(ask, kill)
                    await asyncio.sleep(0.05)

            async def pay(number: int) -> tuple[Claim, bytes] | None:
                op, body = claim(number), secrets.token_bytes(50)
                with suppress(StoreUnavailable):
                    assert isinstance(await store.perform(op), Claimed)
                    assert isinstance(await store.perform(complete(op, body)), Applied)
                    return op, body
                return None

            firing = asyncio.ensure_future(fire())
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
    own_server: PostgresServer,
) -> None:
    async with awaited(own_server.url) as store:
        await together(store, [claim(number) for number in range(30)])
        await asyncio.to_thread(own_server.stop)
        began = monotonic()
        errors = await outcomes(store, [claim(number) for number in range(MANY)])
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert {error.applied for error in errors} == {False}
        assert len(set(map(id, errors))) == MANY
        assert monotonic() - began < PATIENCE / 2  # nobody waited for the time limit
        await asyncio.to_thread(own_server.start)
        replies = await together(store, [claim(number) for number in range(MANY)])
        assert {type(reply) for reply in replies} == {Claimed}


async def test_a_commit_that_no_standby_confirmed_is_no_success_for_any_member(
    own_server: PostgresServer,
) -> None:
    async with awaited(own_server.url) as store:
        with waiting_for_standbys(own_server) as ask:
            tasks = [asyncio.ensure_future(store.perform(claim(number))) for number in range(30)]
            while not all(task.done() for task in tasks):
                ask(f"SELECT count(pg_cancel_backend(pid)) {UNCONFIRMED}")
                await asyncio.sleep(0.01)
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert {error.applied for error in errors if isinstance(error, StoreUnavailable)} == {None}


async def test_a_missing_schema_is_told_to_each(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    errors = await outcomes(backend.awaited(), [claim() for _ in range(10)])
    assert {type(error) for error in errors} == {SchemaError}
    await backend.aclose()


async def test_closing_waits_for_what_is_queued(postgres_url: str) -> None:
    async with awaited(postgres_url):
        backend = PostgresBackend(postgres_url, timeout=PATIENCE)
        tasks = [asyncio.ensure_future(backend.awaited().perform(claim())) for _ in range(300)]
        await asyncio.sleep(0)
        await backend.aclose()
        assert {type(reply) for reply in await asyncio.gather(*tasks)} == {Claimed}


# ── several processes ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
async def test_two_processes_that_want_the_same_keys_in_opposite_order_do_not_deadlock(
    own_server: PostgresServer,
) -> None:
    await asyncio.to_thread(PostgresBackend(own_server.url).migrate)
    ops = [claim(number) for number in range(1000)]
    opposite = [op for at in range(0, 1000, 50) for op in reversed(ops[at : at + 50])]
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"
    with admin(own_server.url) as ask:
        before = ask(deadlocks)
        won = await asyncio.to_thread(raced, own_server.url, ops, opposite)
        assert Counter(won) == Counter(op.identity for op in ops)
        assert ask(deadlocks) == before


# ── poolers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prepare", [None, True])
async def test_batches_work_behind_a_transaction_pooler(
    postgres: PostgresServer,
    postgres_url: str,
    prepare: bool | None,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue("pgbouncer")  # skips, and says so, where there is none
    with PgBouncer(postgres, pool_size=2) as pooler:
        url = pooler.url_of(postgres_url.partition("@/")[2].partition("?")[0])
        async with awaited(url, prepare=prepare) as store:
            ops = [claim(number) for number in range(300)]
            assert {type(reply) for reply in await together(store, ops)} == {Claimed}
            done = await together(store, [complete(op) for op in ops])
            assert {type(reply) for reply in done} == {Applied}
            with row_locked(postgres_url, ops[0].identity):
                found = await together(store, [rival(op) for op in ops])
            assert {type(reply) for reply in found} == {Found}
            with admin(url) as ask:  # what a batch sets for itself must not stay behind
                for _ in range(10):
                    assert ask("SHOW lock_timeout") == "0"


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def many(kind: type[StoreOperation[Any]], ops: Sequence[Any]) -> tuple[bytes, dict[str, Any]]:
    """The statement for ``ops`` as it is, but patient, to be looked at while it waits."""
    text = dialect("postgresql").text(KINDS[kind].statement).replace("'100ms'", "'1h'")
    if kind is Claim:
        rows = [dict(next(plans.plan(op)).params) for op in ops]
    else:
        rows = [{name: getattr(op, name) for name in op.__match_args__} for op in ops]
    return text.encode(), {name: [row[name] for row in rows] for name in rows[0]}


@contextmanager
def under_way(url: str, statement: tuple[bytes, dict[str, Any]]) -> Iterator[Future[list[Any]]]:
    """The statement in a connection of its own, waiting for somebody's lock."""
    with (
        psycopg.connect(url, autocommit=True) as connection,
        ThreadPoolExecutor(1) as threads,
        admin(url) as ask,
    ):
        pid = connection.info.backend_pid
        running = threads.submit(lambda: connection.execute(*statement).fetchall())
        blocked = f"SELECT cardinality(pg_blocking_pids({pid}))"
        until(lambda: running.done() or ask(blocked))
        assert not running.done(), running.result()
        yield running


def is_free(url: str, op: Claim, insert: bool) -> bool:
    """Whether nobody holds a lock on the record, or on the place where it would be."""
    locking = "SELECT FROM semel_record WHERE identity = %s FOR UPDATE NOWAIT"
    with psycopg.connect(url) as connection:
        connection.execute("SET LOCAL lock_timeout = '100ms'")
        try:
            if insert:
                PostgresBackend(url).on(connection).perform(rival(op))
            else:
                connection.execute(locking, (bytes(op.identity),))
        except (psycopg.errors.LockNotAvailable, StoreUnavailable):
            return False
        finally:
            connection.rollback()
    return True


@pytest.mark.parametrize("kind", [Claim, Complete])
def test_a_batch_takes_its_locks_in_the_order_of_identities(
    postgres_url: str, kind: type[StoreOperation[Any]]
) -> None:
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    first, second, third = sorted((claim() for _ in range(3)), key=lambda op: op.identity)
    arriving: list[Any] = [third, second, first]
    locked = uncommitted(postgres_url, second)
    if kind is Complete:
        for op in arriving:
            backend.blocking().perform(op)
        arriving = [complete(op) for op in arriving]
        locked = row_locked(postgres_url, second.identity)
    with ExitStack() as stack:
        lock = stack.enter_context(ExitStack())
        lock.enter_context(locked)
        running = stack.enter_context(under_way(postgres_url, many(kind, arriving)))
        assert not is_free(postgres_url, first, kind is Claim)
        assert is_free(postgres_url, third, kind is Claim)
        lock.close()
        assert len(running.result(PATIENCE)) == 3
    backend.close()


def test_a_record_forgotten_while_a_batch_claims_it_is_not_also_found(postgres_url: str) -> None:
    """The statement still sees the record that was there when it began; its own has replaced it."""
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    gone = claim()
    backend.blocking().perform(gone)
    ops = [claim(), rival(gone), claim()]
    with psycopg.connect(postgres_url) as other:
        other.execute("DELETE FROM semel_record WHERE identity = %s", (bytes(gone.identity),))
        with under_way(postgres_url, many(Claim, ops)) as running:
            other.commit()
            rows = running.result(PATIENCE)
    assert {row[0]: (row[1], row[2]) for row in rows} == {
        op.identity: (None, op.fence) for op in ops
    }
    assert len(rows) == len(ops)
    backend.close()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.statement)
def test_a_batch_finds_its_records_by_the_primary_key(postgres_url: str, kind: BatchKind) -> None:
    PostgresBackend(postgres_url, timeout=PATIENCE).migrate()
    asked = query(kind.statement)
    with admin(postgres_url) as ask:
        ask(
            "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method,"
            " path, key, on_lapse, terms, created_at, leased_until, duty, due_at) SELECT "
            "sha256(n::text::bytea), 'in_progress', substr(sha256(n::text::bytea), 1, 16), 'v1', "
            "'', '', '', '', '', 'unknown', 0, 0, 0, 'lease', 0 FROM generate_series(1, 20000) AS n"
        )
        ask("ANALYZE semel_record")
        types = {BYTEA: "bytea[]", INT8: "bigint[]", TEXT: "text[]"}
        declared = {name: types[type_of(column)] for name, column in kind.columns([]).items()}
        order = ", ".join(declared[name] for name in asked.order)
        ask(f"PREPARE batch ({order}) AS {asked.text.decode()}")
        for mode in ("force_custom_plan", "force_generic_plan"):
            ask(f"SET plan_cache_mode = {mode}")
            values = ", ".join(
                f"array_fill('1'::{declared[name][:-2]}, array[{MAX_ROWS}])" for name in asked.order
            )
            plan = str(ask(f"EXPLAIN (FORMAT JSON) EXECUTE batch ({values})"))
            assert "semel_record_pkey" in plan
            assert "Index Cond" in plan
            assert "'Seq Scan'" not in plan


def type_of(array: Any) -> int:
    """That of its elements, as its header has it."""
    return int.from_bytes(array[8:12], "big")


async def test_other_writes_go_alone_as_before(postgres_url: str) -> None:
    async with awaited(postgres_url) as store:
        ops = [claim(number) for number in range(20)]
        await together(store, ops)
        releases = [Release(op.identity, op.fence, DAY) for op in ops]
        assert {type(reply) for reply in await together(store, releases)} == {Applied}
