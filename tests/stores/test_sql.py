"""Stores on SQL servers: URLs, schema, outages, connections, threads and processes.

What all stores share is in the contract suite; what is true of one dialect alone has its own file.
"""

import asyncio
import secrets
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from semel.core.frozen import replace
from semel.core.operations import Agree, Applied, Claim, Claimed, Fetch, Fetched, Found, Read
from semel.core.operations.maintenance import Reap, Sweep
from semel.core.records import State
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores import open_backend
from semel.testing.contract.records import SNAPSHOT
from semel.testing.contract.terms import terms
from tests.stores.dialects import DIALECTS, Ask, Database, Mysql, SqlBackend
from tests.stores.together import SOON, claim, complete, forked, hurried, raced, rival
from tests.waiting import PATIENCE, auntil, until

pytestmark = pytest.mark.anyio


async def awaited_once(backend: SqlBackend) -> object:
    try:
        return await backend.awaited().perform(claim())
    finally:
        await backend.aclose()


@asynccontextmanager
async def in_both_colours(
    database: Database, **options: Any
) -> AsyncIterator[tuple[SqlBackend, list[Callable[[Any], Any]]]]:
    """What performs an operation in an event loop, and what performs it in a thread."""
    async with database.aopened(**options) as backend:
        blocking = backend.blocking()
        yield (
            backend,
            [backend.awaited().perform, lambda op: asyncio.to_thread(blocking.perform, op)],
        )
        await asyncio.to_thread(backend.close)


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────

SECRET = "s3cr3t%2Fwith%40signs"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"mysql://ann:{SECRET}@127.0.0.1:1/shop", "mysql://ann@127.0.0.1:1/shop"),
        (f"mariadb://ann:{SECRET}@127.0.0.1:1/shop", "mariadb://ann@127.0.0.1:1/shop"),
        (f"postgresql://ann:{SECRET}@127.0.0.1:1/shop", "postgresql://ann@127.0.0.1:1/shop"),
        (
            f"postgresql://127.0.0.1:1/shop?user=ann&password={SECRET}",
            "postgresql://ann@127.0.0.1:1/shop",
        ),
        (
            f"postgres://ann:{SECRET}@127.0.0.1:1,127.0.0.2:2/shop?target_session_attrs=read-write",
            "postgresql://ann@127.0.0.1:1,127.0.0.2:2/shop?target_session_attrs=read-write",
        ),
    ],
    ids=["mysql", "mariadb", "postgresql", "postgresql-query", "postgresql-hosts"],
)
def test_a_password_is_in_no_repr_no_url_and_no_error(url: str, shown: str) -> None:
    backend = open_backend(url, timeout=SOON)
    with pytest.raises(StoreUnavailable) as performed:
        backend.blocking().perform(claim())
    with pytest.raises(StoreUnavailable) as migrated:
        backend.migrate()
    for text in (backend.url, repr(backend), repr(vars(backend)), performed, migrated):
        assert "s3cr3t" not in str(text)
    assert backend.url == shown
    assert performed.value.applied is False


@pytest.mark.parametrize(
    "rest",
    [
        "h/shop?pool_sze=3",
        "h/shop?pool_size=none",
        "h/shop?pool_size=0",
        "h/shop?timeout=-1",
        "h/shop?timeout=soon",
    ],
)
@pytest.mark.parametrize("kind", DIALECTS.values(), ids=DIALECTS)
def test_a_wrong_url_is_a_configuration_error_without_the_password(
    kind: type[Database], rest: str
) -> None:
    refuses(kind, f"{kind.SCHEME}://ann:{SECRET}@{rest}")


@pytest.mark.parametrize(
    ("dialect", "url"),
    [
        ("postgresql", f"postgresql://ann:{SECRET}@h/shop?prepare=perhaps"),
        ("postgresql", "postgresql://ann:s3cr3t%zz@h/shop"),
        ("postgresql", f"mysql://ann:{SECRET}@h/shop"),
        ("mysql", f"mysql://ann:{SECRET}@h/shop?durable=perhaps"),
        ("mysql", f"mysql://ann:{SECRET}@h/shop?ssl_ca=/there/is/none"),
        ("mysql", f"mysql://ann:{SECRET}@h:port/shop"),
        ("mysql", f"mysql://ann:{SECRET}@h"),
        ("mysql", f"mysql://ann:{SECRET}@h/shop/floor"),
        ("mysql", f"postgresql://ann:{SECRET}@h/shop"),
    ],
)
def test_a_url_that_is_wrong_in_its_dialect_is_a_configuration_error_too(
    dialect: str, url: str
) -> None:
    refuses(DIALECTS[dialect], url)


def refuses(kind: type[Database], url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        kind.BACKEND(url)
    cause = refused.value.__cause__
    assert "s3cr3t" not in f"{refused.value} {cause!r}"
    assert cause is None or isinstance(cause, OSError)


@pytest.mark.parametrize("scheme", DIALECTS)
def test_an_unknown_option_is_named(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=r"'pool_sze'.*pool_size"):
        open_backend(f"{scheme}://h/shop?pool_sze=3")


@pytest.mark.parametrize("scheme", DIALECTS)
def test_making_a_backend_does_no_io(scheme: str) -> None:
    backend = open_backend(f"{scheme}://nowhere.invalid/shop", timeout=timedelta(seconds=1))
    backend.blocking()
    backend.close()


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def test_replay_busy_and_mismatch_write_nothing_and_lock_nothing(own_database: Database) -> None:
    with own_database.opened() as backend, own_database.admin() as ask:
        store = backend.blocking()
        done, busy = claim(), claim()
        for op in (done, busy):
            assert isinstance(store.perform(op), Claimed)
        store.perform(complete(done))
        rivals = [rival(done), rival(busy), replace(rival(busy), fingerprint="v1:bb")]
        with own_database.row_locked(done.identity), own_database.row_locked(busy.identity):
            before = own_database.written(ask)
            for op in rivals:
                assert isinstance(store.perform(op), Found)
            assert own_database.written(ask) == before
            store.perform(claim())
            assert own_database.written(ask) != before


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_big_snapshot_comes_back_whole(database: Database, colour: str) -> None:
    body = secrets.token_bytes(17_000_000)  # more than one packet of MySQL's protocol holds
    async with in_both_colours(database) as (_, performs):
        perform, op = performs[colour == "sync"], claim()
        await perform(op)
        assert isinstance(await perform(complete(op, body)), Applied)
        assert await perform(Fetch(op.identity, op.fence, b"")) == Fetched(body)


# ── schema ────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_schema_says_in_one_sentence_what_to_do(database: Database) -> None:
    backend = database.backend()
    with pytest.raises(SchemaError, match="run `semel migrate`") as refused:
        backend.blocking().perform(claim())
    assert "\n" not in str(refused.value)
    backend.migrate()
    assert isinstance(backend.blocking().perform(claim()), Claimed)
    backend.close()


def test_tables_dropped_later_say_the_same(database: Database) -> None:
    with database.opened() as backend, database.admin() as ask:
        backend.blocking().perform(claim())
        ask("DROP TABLE semel_record CASCADE")
        with pytest.raises(SchemaError, match="run `semel migrate`"):
            backend.blocking().perform(claim())


@pytest.mark.parametrize("key", ["8e03978e-40d5-43e8-bc93-6894a57f9324", "an order's own", "é☃"])
def test_the_view_shows_a_key_as_it_was_sent(database: Database, key: str) -> None:
    with database.opened() as backend, database.admin() as ask:
        op = claim()
        backend.blocking().perform(replace(op, origin=replace(op.origin, key=key)))
        column = "`key`" if isinstance(database, Mysql) else "key"
        of = f"FROM semel_records WHERE identity = '{op.identity.hex()}'"
        assert ask(f"SELECT {column} {of}") == key


def test_the_view_says_in_words_what_a_record_is(database: Database) -> None:
    """And of a request to the route's own path where it came from."""
    ours = terms("shop", "POST /rides")
    with database.opened() as backend, database.admin() as ask:
        store, op = backend.blocking(), claim()
        store.perform(Agree(ours))
        place = replace(op.origin, method="", path="")
        store.perform(replace(op, origin=place, terms=ours.id))
        of = f"FROM semel_records WHERE identity = '{op.identity.hex()}'"
        words = "CONCAT_WS(' ', state, duty, on_lapse, application, method, path, tries)"
        assert ask(f"SELECT {words} {of}") == "in_progress lease unknown shop POST /rides 0"
        assert ask(f"SELECT expires_at {of}") is None
        store.perform(complete(op))
        assert ask(f"SELECT {words} {of}") == "completed expire unknown shop POST /rides 0"
        assert ask(f"SELECT CASE WHEN expires_at > created_at THEN 1 END {of}") == 1
        assert ask(f"SELECT CASE WHEN forget_at > expires_at THEN 1 END {of}") == 1
        assert ask(f"SELECT CASE WHEN due_at = expires_at THEN 1 END {of}") == 1


async def test_a_schema_from_the_future_is_refused(database: Database) -> None:
    async with in_both_colours(database) as (backend, performs):
        with database.admin() as ask:
            ask("INSERT INTO semel_schema VALUES (999, 'later', 999, 0)")
        asked = [perform(claim()) for perform in performs]
        for each in (*asked, asyncio.to_thread(backend.migrate)):
            with pytest.raises(SchemaError, match=r"999.*upgrade semel"):
                await each


def test_eight_nodes_that_migrate_at_once_agree(database: Database) -> None:
    with ThreadPoolExecutor(8) as nodes, database.admin() as ask:
        with database.migration_locked():
            versions = [nodes.submit(database.backend().migrate) for _ in range(8)]
            until(lambda: database.waiting_to_migrate(ask) == 8)
        assert {version.result() for version in versions} == {
            ask("SELECT count(*) FROM semel_schema")
        }


async def test_migrate_on_open_is_opt_in(database: Database) -> None:
    backend = open_backend(f"{database.url}&migrate=on", timeout=PATIENCE)
    replies = await asyncio.gather(*[backend.awaited().perform(claim()) for _ in range(20)])
    assert all(isinstance(reply, Claimed) for reply in replies)
    await backend.aclose()


def test_many_threads_may_open_and_migrate_at_once(database: Database) -> None:
    backend = database.backend(migrate=True, pool_size=8)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: backend.blocking().perform(claim()), range(40)))
    assert all(isinstance(reply, Claimed) for reply in replies)
    backend.close()


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_of_the_server_the_next_operation_works(own_database: Database) -> None:
    with own_database.opened(pool_size=3) as backend:
        store = backend.blocking()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: store.perform(claim()), range(30)))
        own_database.server.restart()
        assert isinstance(store.perform(claim()), Claimed)


async def test_a_killed_server_is_an_outage_and_back_it_knows_what_it_acknowledged(
    own_database: Database,
) -> None:
    async with in_both_colours(own_database, pool_size=3) as (backend, performs):
        store, ops = backend.awaited(), [claim() for _ in range(30)]
        await asyncio.gather(*map(store.perform, ops))
        await asyncio.to_thread(backend.blocking().perform, claim())
        await asyncio.to_thread(own_database.server.kill)
        for perform in performs:
            with pytest.raises(StoreUnavailable) as down:
                await perform(claim())
            assert down.value.applied is False
        await asyncio.to_thread(own_database.server.start)
        for perform in performs:
            assert isinstance(await perform(claim()), Claimed)
        for op in ops:
            assert isinstance(await store.perform(complete(op)), Applied)


async def test_a_frozen_server_is_an_outage_in_time_and_heals(own_database: Database) -> None:
    async with in_both_colours(own_database, pool_size=2) as (backend, performs):
        awaited, blocking = performs
        for perform in performs:
            assert isinstance(await perform(claim()), Claimed)
        batchers = backend.async_batcher(), backend.batcher()
        with own_database.server.frozen(), hurried(*batchers):
            # More than there are connections: some wait for an answer, some for a connection,
            # and some for one of those to give up. All end while the server is still frozen.
            tries = [awaited(claim()) for _ in range(6)]
            tries += [blocking(claim()) for _ in range(4)]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        for perform in performs:
            assert isinstance(await perform(claim()), Claimed)


async def test_a_server_that_freezes_while_it_is_sent_a_body_is_an_outage_in_time(
    own_database: Database,
) -> None:
    async with in_both_colours(own_database) as (backend, (awaited, blocking)):
        op, body = claim(), bytes(own_database.BODY)
        await awaited(op)
        await blocking(claim())
        batchers = backend.async_batcher(), backend.batcher()
        with own_database.server.frozen(), hurried(*batchers):
            tries = [awaited(complete(op, body)), blocking(complete(op, body))]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}


@pytest.mark.parametrize("port_is", ["silent", "refusing", "raving"])
@pytest.mark.parametrize("kind", DIALECTS.values(), ids=DIALECTS)
def test_a_server_that_cannot_be_reached_is_an_outage_in_time(
    kind: type[Database], port_is: str
) -> None:
    with socket.socket() as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(("127.0.0.1", 0))
        if port_is != "refusing":
            listener.listen()  # connects, and then never says a word, or a wrong one
        if port_is == "raving":
            threads.submit(rave, listener)
        port = listener.getsockname()[1]
        backend = kind.BACKEND(f"{kind.SCHEME}://ann@127.0.0.1:{port}/shop", timeout=SOON)
        with pytest.raises(StoreUnavailable) as down:
            backend.blocking().perform(claim())
        with pytest.raises(StoreUnavailable) as down_too:
            asyncio.run(awaited_once(backend))
        assert down.value.applied is down_too.value.applied is False


def rave(listener: socket.socket) -> None:
    for _ in range(2):
        near, _ = listener.accept()
        near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        near.close()


async def test_a_locked_row_is_an_outage_in_time_and_hurts_no_other(database: Database) -> None:
    async with in_both_colours(database, pool_size=2) as (backend, performs):
        awaited, op = performs[0], claim()
        await awaited(op)
        await performs[1](claim())
        batchers = backend.async_batcher(), backend.batcher()
        with database.row_locked(op.identity):
            for perform in performs:
                with hurried(*batchers), pytest.raises(StoreUnavailable) as blocked:
                    await perform(complete(op))
                assert blocked.value.applied is None
            assert isinstance(await awaited(claim()), Claimed)
        reply = await awaited(complete(op))
        assert isinstance(reply, Applied)
        assert reply.state is State.COMPLETED


def test_a_connection_killed_half_way_is_survived_and_the_work_done_once(
    database: Database,
) -> None:
    with database.opened() as backend, database.admin() as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with ThreadPoolExecutor(1) as threads:
            with database.row_locked(op.identity):
                completing = threads.submit(store.perform, complete(op))
                (first,) = until(lambda: database.waiting(ask))
                database.kill(ask, first)
                until(lambda: {*database.waiting(ask)} - {first})  # it came again
            assert isinstance(completing.result(), Applied)
        found = store.perform(Read(op.identity))
        assert isinstance(found, Found)
        assert found.record.snapshot == SNAPSHOT


def until_alone(database: Database, ask: Ask) -> None:
    """A connection that was closed, such as the migration's, ends when its server comes to it."""
    until(lambda: not database.connections(ask))


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_idle_connections_that_were_killed_are_not_used(
    database: Database, colour: str
) -> None:
    async with in_both_colours(database) as (_, performs):
        with database.admin() as ask:
            until_alone(database, ask)
            for _ in range(2):
                assert isinstance(await performs[colour == "sync"](claim()), Claimed)
                assert database.kill_all(ask) == 1
                until_alone(database, ask)


def test_more_than_the_pool_holds_is_an_outage_in_time_and_surely_not_applied(
    database: Database,
) -> None:
    with database.opened(pool_size=1) as backend, database.admin() as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with ThreadPoolExecutor(1) as threads:
            with database.row_locked(op.identity):
                holding = threads.submit(store.perform, complete(op))
                until(lambda: database.waiting(ask))
                with pytest.raises(StoreUnavailable, match="pool_size=1") as refused:
                    backend.batcher().pool.perform(complete(op), monotonic() + SOON)
            assert refused.value.applied is False
            assert isinstance(holding.result(), Applied)


def test_a_record_that_breaks_the_rules_is_corruption(database: Database) -> None:
    with database.opened() as backend:
        with pytest.raises(StoreCorrupt) as refused:
            backend.blocking().perform(replace(claim(), identity=database.WRONG_IDENTITY))
        assert "a-key-of-the-client" not in str(refused.value)
        assert isinstance(backend.blocking().perform(claim()), Claimed)


# ── rivals ────────────────────────────────────────────────────────────────────────────────────────


def test_a_maintenance_round_passes_over_what_a_request_has_locked(database: Database) -> None:
    with database.opened() as backend:
        store, ops = backend.blocking(), [replace(claim(), lease=1) for _ in range(3)]
        for op in ops:
            store.perform(op)
        with database.row_locked(ops[1].identity):
            assert sum(store.perform(Sweep(10)).counts.values()) == 2
            assert store.perform(Reap(10)).counts == {}
        assert sum(store.perform(Sweep(10)).counts.values()) == 1


def test_two_maintenance_rounds_at_once_share_the_work(database: Database) -> None:
    with database.opened(pool_size=8) as backend:
        store = backend.blocking()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(store.perform, [replace(claim(), lease=1) for _ in range(400)]))
            rounds = list(threads.map(store.perform, [Sweep(40)] * 16))
        swept = [sum(each.counts.values()) for each in rounds]
        while left := sum(store.perform(Sweep(40)).counts.values()):
            swept.append(left)  # one may have passed over what another only looked at
        assert sum(swept) == 400
        assert max(swept) <= 40


def test_a_claim_whose_rival_was_just_not_visible_finds_it(database: Database) -> None:
    """It looks, sees nothing, and inserts: then the rival commits."""
    with database.opened() as backend, database.admin() as ask, ThreadPoolExecutor(1) as threads:
        first, op = claim(), claim()
        backend.blocking().perform(first)
        with database.uncommitted(first, op) as other:
            claiming = threads.submit(backend.blocking().perform, op)
            until(lambda: database.waiting(ask))
            other("COMMIT")
            found = claiming.result()
        assert isinstance(found, Found)
        assert found.record.fence == first.fence


# ── event loops, cancellation, threads, processes ─────────────────────────────────────────────────


async def test_cancelled_operations_leave_the_pool_whole(database: Database) -> None:
    async with database.aopened(pool_size=2) as backend:
        store = backend.awaited()
        await asyncio.gather(*[store.perform(claim()) for _ in range(4)])
        with database.admin() as ask:
            until(lambda: len(database.connections(ask)) <= 2)  # the migration's has ended
            before, connected = database.connections(ask), database.connected(ask)
            for turn in range(200):
                tasks = [asyncio.ensure_future(store.perform(claim())) for _ in range(4)]
                for _ in range(turn % 7):  # cancelled at a different point each time
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, Claimed}
            replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
            assert all(isinstance(reply, Claimed) for reply in replies)
            # Nobody hung up on the server.
            assert {*before} <= {*database.connections(ask)}
            assert database.connected(ask) == connected
            until(lambda: len(database.connections(ask)) <= 2)


async def test_cancelling_does_not_wait_for_a_server_that_does_not_answer(
    database: Database,
) -> None:
    async with database.aopened(pool_size=2) as backend:
        store, op = backend.awaited(), claim()
        await store.perform(op)
        with database.row_locked(op.identity), database.admin() as ask:
            completing = asyncio.ensure_future(store.perform(complete(op)))
            await asyncio.to_thread(until, lambda: database.waiting(ask))
            completing.cancel()
            with pytest.raises(asyncio.CancelledError):  # while the row is locked
                await completing
            assert isinstance(await store.perform(claim()), Claimed)
        # The answer is still read by somebody: the connection comes back.
        replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
        assert all(isinstance(reply, Claimed) for reply in replies)


async def test_cancelling_while_connecting_gives_the_slot_back(database: Database) -> None:
    async with database.aopened(pool_size=1) as backend:
        store = backend.awaited()
        for turn in range(30):
            task = asyncio.ensure_future(store.perform(claim()))
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert isinstance(await store.perform(claim()), Claimed)


def test_each_event_loop_has_its_own_connections(database: Database) -> None:
    with database.opened() as backend:
        store = backend.awaited()

        async def use() -> object:
            return await store.perform(claim())

        for _ in range(3):  # loops that end without closing what they opened
            assert isinstance(asyncio.run(use()), Claimed)
        assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        with database.admin() as ask:
            until_alone(database, ask)


@pytest.mark.parametrize("options", [{"max_lifetime": 1e-6}, {"max_idle": 1e-6}], ids=list)
async def test_connections_past_their_time_or_not_needed_are_closed(
    database: Database, options: dict[str, float]
) -> None:
    def are_gone() -> bool:
        backend.trim_pools()  # as maintenance does; loops have a timer
        return backend.pool_statistics()["operations"].size == 0

    async with database.aopened(**options) as backend:
        for _ in range(3):
            assert isinstance(await backend.awaited().perform(claim()), Claimed)
            await auntil(are_gone)
            assert isinstance(await asyncio.to_thread(backend.blocking().perform, claim()), Claimed)
            await auntil(are_gone)
        assert backend.pool_statistics()["operations"].opened == 6
        backend.close()


def test_a_forked_child_opens_its_own_connections(database: Database) -> None:
    with database.opened() as backend, database.admin() as ask:
        store, mine, theirs = backend.blocking(), claim(), claim()
        until_alone(database, ask)
        store.perform(mine)
        before, inherited = database.connections(ask), backend.batcher()

        def child() -> None:
            assert isinstance(store.perform(theirs), Claimed)
            assert backend.batcher() is not inherited
            backend.close()
            inherited.pool.close()

        assert forked(child) == 0
        # The child's is gone, the parent's is the same.
        until(lambda: database.connections(ask) == before)
        assert isinstance(store.perform(complete(mine)), Applied)
        assert isinstance(store.perform(Read(theirs.identity)), Found)
        assert database.connections(ask) == before


def test_one_of_many_threads_wins_a_key(database: Database) -> None:
    with database.opened(pool_size=4) as backend:
        first = claim()
        rivals = [rival(first) for _ in range(64)]
        start = threading.Barrier(16)

        def race(op: Claim) -> object:
            if not start.broken and op in rivals[:16]:
                start.wait()
            return backend.blocking().perform(op)

        with ThreadPoolExecutor(16) as threads:
            replies = list(threads.map(race, rivals))
        assert sum(isinstance(reply, Claimed) for reply in replies) == 1


def test_of_processes_that_race_for_many_keys_each_key_has_one_winner(database: Database) -> None:
    ops = [claim() for _ in range(150)]
    with database.opened():
        won = raced(database.url, ops, ops, ops, colours=("sync", "async", "sync"))
    assert Counter(won) == Counter(op.identity for op in ops)
