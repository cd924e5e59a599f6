"""What is true of the PostgreSQL store alone; what all stores share is in the contract suite."""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from semel.core.frozen import replace
from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Fetch,
    Fetched,
    Found,
    NoRecord,
    Read,
    Release,
    Renew,
)
from semel.core.records import Fence, Identity, State
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreUnavailable
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.backend import LOCK
from semel.stores.postgres.connection import PostgresConnection, QuietConnection, query
from semel.stores.postgres.pool_sync import wait
from tests.servers import PgBouncer, PostgresServer
from tests.stores.contract import SNAPSHOT
from tests.stores.together import DAY, SOON, claim, complete, hurried
from tests.waiting import PATIENCE, asked, auntil, until

pytestmark = pytest.mark.anyio


@contextmanager
def opened(url: str, **options: Any) -> Iterator[PostgresBackend]:
    """With its schema, and with time enough."""
    backend = PostgresBackend(url, **{"timeout": PATIENCE} | options)
    backend.migrate()
    try:
        yield backend
    finally:
        backend.close()


@asynccontextmanager
async def aopened(url: str, **options: Any) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(url, **{"timeout": PATIENCE} | options)
    await asyncio.to_thread(backend.migrate)
    try:
        yield backend
    finally:
        await backend.aclose()


@contextmanager
def admin(url: str) -> Iterator[Callable[..., Any]]:
    """Ask the database directly: the first column of the first row."""
    with psycopg.connect(url, autocommit=True) as connection:

        def ask(statement: str, *params: object) -> Any:
            cursor = connection.execute(statement.encode(), params or None)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

        yield ask


@pytest.fixture(scope="module")
def lone_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_server(lone_server: PostgresServer) -> PostgresServer:
    """A server that the test may stop, kill and freeze, and has to leave running."""
    assert lone_server.pid
    return lone_server


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """SIGSTOP to the server and all its backends: sockets stay open, nobody answers."""
    pids = [server.pid, *server.child.descendants()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND application_name = 'semel' AND datname = current_database()"
)
"""Somebody of ours, for a lock."""


@contextmanager
def row_locked(url: str, identity: Identity) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT 1 FROM semel_record WHERE identity = %s FOR UPDATE", (bytes(identity),)
        )
        yield
        connection.rollback()


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────

SECRET = "s3cr3t%2Fwith%40signs"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/shop",
        f"postgresql://127.0.0.1:1/shop?user=ann&password={SECRET}",
        f"postgres://ann:{SECRET}@127.0.0.1:1,127.0.0.2:2/shop?target_session_attrs=read-write",
    ],
)
def test_a_password_is_in_no_repr_no_url_and_no_error(url: str) -> None:
    backend = PostgresBackend(url, timeout=SOON)
    with pytest.raises(StoreUnavailable) as performed:
        backend.blocking().perform(claim())
    with pytest.raises(StoreUnavailable) as migrated:
        backend.migrate()
    for text in (backend.url, repr(backend), repr(vars(backend)), performed, migrated):
        assert "s3cr3t" not in str(text)
    assert "ann" in backend.url
    assert "shop" in backend.url
    assert performed.value.applied is False


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@h/shop?pool_sze=3",
        f"postgresql://ann:{SECRET}@h/shop?pool_size=none",
        f"postgresql://ann:{SECRET}@h/shop?pool_size=0",
        f"postgresql://ann:{SECRET}@h/shop?timeout=-1",
        f"postgresql://ann:{SECRET}@h/shop?timeout=soon",
        f"postgresql://ann:{SECRET}@h/shop?prepare=perhaps",
        "postgresql://ann:s3cr3t%zz@h/shop",
        f"mysql://ann:{SECRET}@h/shop",
    ],
)
def test_a_wrong_url_is_a_configuration_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresBackend(url)
    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'pool_sze'.*pool_size"):
        PostgresBackend("postgresql://h/shop?pool_sze=3")


def test_libpq_options_pass_through_and_own_ones_do_not(postgres_url: str) -> None:
    url = f"{postgres_url}&application_name=shop&pool_size=1&timeout=99&prepare=off"
    with opened(url) as backend:
        assert isinstance(backend.blocking().perform(claim()), Claimed)
        assert "application_name=shop" in backend.url
        assert "pool_size" not in backend.url
        with admin(postgres_url) as ask:
            ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'"
            until(lambda: ask(ours) == 1)


def test_making_a_backend_does_no_io() -> None:
    backend = PostgresBackend("postgresql://nowhere.invalid/shop", timeout=timedelta(seconds=1))
    backend.blocking()
    backend.close()


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def explained(ask: Callable[..., Any], name: str, *params: object) -> str:
    """The plan of a statement of ours as the server prepared it."""
    asked = query(name)
    ask(f"PREPARE {asked.name.decode()} AS {asked.text.decode()}")
    ask("SET enable_seqscan = off")  # the table is small: ask what can be used
    values = ", ".join(
        "NULL"
        if value is None
        else f"'\\x{value.hex()}'"
        if isinstance(value, bytes)
        else f"'{value}'"
        for value in params
    )
    plan = ask(f"EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE {asked.name.decode()} ({values})")
    return str(plan)


def test_a_claim_finds_its_record_by_the_primary_key(postgres_url: str) -> None:
    with opened(postgres_url), admin(postgres_url) as ask:
        order = query("claim").order
        op = claim()
        given: dict[str, object] = {"identity": op.identity, "fence": op.fence, "fields": b""}
        given |= {"lease": 1, "fresh_until": None, "terms": 0}
        plan = explained(ask, "claim", *[given.get(name, "x") for name in order])
        assert "semel_record_pkey" in plan
        assert "Index Cond" in plan
        assert "Seq Scan" not in plan


def test_a_completion_finds_its_record_by_the_primary_key(postgres_url: str) -> None:
    with opened(postgres_url), admin(postgres_url) as ask:
        order = query("complete").order
        op = claim()
        given = {"identity": op.identity, "fence": op.fence, "snapshot": b""}
        plan = explained(ask, "complete", *[given.get(name, 1) for name in order])
        assert "semel_record_pkey" in plan
        assert "Seq Scan" not in plan


def test_replay_busy_and_mismatch_write_nothing(postgres_url: str) -> None:
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        store = backend.blocking()
        done, busy = claim(), claim()
        for op in (done, busy):
            assert isinstance(store.perform(op), Claimed)
        store.perform(complete(done))
        rivals = [
            replace(done, fence=Fence(secrets.token_bytes(16))),
            replace(busy, fence=Fence(secrets.token_bytes(16))),
            replace(busy, fence=Fence(secrets.token_bytes(16)), fingerprint="v1:bb"),
        ]
        rows = ask("SELECT array_agg((xmin, xmax)::text) FROM semel_record")
        with psycopg.connect(postgres_url) as connection:
            for op in rivals:
                assert isinstance(backend.on(connection).perform(op), Found)
            # Whoever writes, or locks a row, needs a number of its own first.
            number = connection.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
        assert number == (None,)
        assert ask("SELECT array_agg((xmin, xmax)::text) FROM semel_record") == rows


def test_a_renewal_is_a_hot_update(postgres_url: str) -> None:
    with opened(postgres_url, pool_size=1) as backend, admin(postgres_url) as ask:
        store = backend.blocking()
        for _ in range(50):
            op = claim()
            store.perform(op)
            assert isinstance(store.perform(Renew(op.identity, op.fence, DAY)), Applied)
        backend.close()  # a backend that ends reports its statistics
        until(lambda: connections(ask) == 0)
        row = ask(
            "SELECT array[n_tup_upd, n_tup_hot_upd] FROM pg_stat_user_tables "
            "WHERE relname = 'semel_record'"
        )
        assert row == [50, 50]


def connections(ask: Callable[..., Any]) -> int:
    ours = "FROM pg_stat_activity WHERE application_name = 'semel' AND datname = current_database()"
    found: int = ask(f"SELECT count(*) {ours}")
    return found


# ── schema ────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_schema_says_in_one_sentence_what_to_do(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    with pytest.raises(SchemaError, match="run `semel migrate`") as refused:
        backend.blocking().perform(claim())
    assert "\n" not in str(refused.value)
    backend.migrate()
    assert isinstance(backend.blocking().perform(claim()), Claimed)
    backend.close()


def test_tables_dropped_later_say_the_same(postgres_url: str) -> None:
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        backend.blocking().perform(claim())
        ask("DROP TABLE semel_record")
        with pytest.raises(SchemaError, match="run `semel migrate`"):
            backend.blocking().perform(claim())


async def test_a_schema_from_the_future_is_refused(postgres_url: str) -> None:
    async with aopened(postgres_url) as backend:
        with admin(postgres_url) as ask:
            ask("INSERT INTO semel_schema VALUES (999, 'later', 999, 0)")
        for perform in (
            lambda: backend.awaited().perform(claim()),
            lambda: asyncio.to_thread(backend.blocking().perform, claim()),
            lambda: asyncio.to_thread(backend.migrate),
        ):
            with pytest.raises(SchemaError, match=r"999.*upgrade semel"):
                await perform()


def test_eight_nodes_that_migrate_at_once_agree(postgres_url: str) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(8) as nodes, admin(postgres_url) as ask:
        with psycopg.connect(postgres_url) as first:
            first.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            versions = [
                nodes.submit(PostgresBackend(postgres_url, timeout=PATIENCE).migrate)
                for _ in range(8)
            ]
            until(lambda: ask(waiting) == 8)
        assert {version.result() for version in versions} == {
            ask("SELECT count(*) FROM semel_schema")
        }


async def test_migrate_on_open_is_opt_in(postgres_url: str) -> None:
    backend = PostgresBackend(f"{postgres_url}&migrate=on", timeout=PATIENCE)
    replies = await asyncio.gather(*[backend.awaited().perform(claim()) for _ in range(20)])
    assert all(isinstance(reply, Claimed) for reply in replies)
    await backend.aclose()


def test_many_threads_may_open_and_migrate_at_once(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url, migrate=True, pool_size=8, timeout=PATIENCE)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: backend.blocking().perform(claim()), range(40)))
    assert all(isinstance(reply, Claimed) for reply in replies)
    backend.close()


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_of_the_server_the_next_operation_works(own_server: PostgresServer) -> None:
    with opened(own_server.url, pool_size=3) as backend:
        store = backend.blocking()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: store.perform(claim()), range(30)))
        own_server.restart()
        assert isinstance(store.perform(claim()), Claimed)


async def test_the_same_in_an_event_loop(own_server: PostgresServer) -> None:
    async with aopened(own_server.url, pool_size=3) as backend:
        store = backend.awaited()
        await asyncio.gather(*[store.perform(claim()) for _ in range(30)])
        await asyncio.to_thread(own_server.kill)
        with pytest.raises(StoreUnavailable) as down:
            await store.perform(claim())
        assert down.value.applied is False
        await asyncio.to_thread(own_server.start)
        assert isinstance(await store.perform(claim()), Claimed)


async def test_a_frozen_server_is_an_outage_in_time_and_heals(own_server: PostgresServer) -> None:
    async with aopened(own_server.url, pool_size=2) as backend:
        awaited, blocking = backend.awaited(), backend.blocking()
        assert isinstance(await awaited.perform(claim()), Claimed)
        assert isinstance(await asyncio.to_thread(blocking.perform, claim()), Claimed)
        batchers = backend.async_batcher(), backend.batcher()
        with frozen(own_server), hurried(*batchers):
            # More than there are connections: some wait for an answer, some for a connection,
            # and some for one of those to give up. All end while the server is still frozen.
            tries: list[Any] = [awaited.perform(claim()) for _ in range(6)]
            tries += [asyncio.to_thread(blocking.perform, claim()) for _ in range(4)]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        assert isinstance(await awaited.perform(claim()), Claimed)
        assert isinstance(await asyncio.to_thread(blocking.perform, claim()), Claimed)
        await asyncio.to_thread(backend.close)


async def test_a_server_that_freezes_while_it_is_sent_a_body_is_an_outage_in_time(
    own_server: PostgresServer,
) -> None:
    async with aopened(own_server.url) as backend:
        op, body = claim(), bytes(30_000_000)  # more than a socket buffers
        await backend.awaited().perform(op)
        await asyncio.to_thread(backend.blocking().perform, claim())
        batchers = backend.async_batcher(), backend.batcher()
        with frozen(own_server), hurried(*batchers):
            outcomes = await asyncio.gather(
                backend.awaited().perform(complete(op, body)),
                asyncio.to_thread(backend.blocking().perform, complete(op, body)),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} == {StoreUnavailable}
        backend.close()


@pytest.mark.parametrize("port_is", ["silent", "refusing"])
def test_a_server_that_cannot_be_reached_is_an_outage_in_time(port_is: str) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if port_is == "silent":
            listener.listen()  # connects, and then never says a word
        backend = PostgresBackend(
            f"postgresql://ann@127.0.0.1:{listener.getsockname()[1]}/shop", timeout=SOON
        )
        with pytest.raises(StoreUnavailable) as down:
            backend.blocking().perform(claim())
        with pytest.raises(StoreUnavailable) as down_too:
            asyncio.run(awaited_once(backend))
        assert down.value.applied is down_too.value.applied is False


async def awaited_once(backend: PostgresBackend) -> object:
    try:
        return await backend.awaited().perform(claim())
    finally:
        await backend.aclose()


async def test_a_locked_row_is_an_outage_in_time_and_hurts_no_other(postgres_url: str) -> None:
    async with aopened(postgres_url, pool_size=2) as backend:
        store, op = backend.awaited(), claim()
        await store.perform(op)
        await asyncio.to_thread(backend.blocking().perform, claim())
        batchers = backend.async_batcher(), backend.batcher()
        with row_locked(postgres_url, op.identity):
            with hurried(*batchers), pytest.raises(StoreUnavailable) as blocked:
                await store.perform(complete(op))
            assert blocked.value.applied is None
            with hurried(*batchers), pytest.raises(StoreUnavailable):
                await asyncio.to_thread(backend.blocking().perform, complete(op))
            assert isinstance(await store.perform(claim()), Claimed)
        reply = await store.perform(complete(op))
        assert isinstance(reply, Applied)
        assert reply.state is State.COMPLETED
        backend.close()


def test_a_connection_killed_half_way_is_survived_and_the_work_done_once(postgres_url: str) -> None:
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE%'"
        with ThreadPoolExecutor(1) as threads:
            with row_locked(postgres_url, op.identity):
                completing = threads.submit(store.perform, complete(op))
                until(lambda: bool(ask(f"SELECT count(*) {waiting}")))
                assert ask(f"SELECT pg_terminate_backend(pid) {waiting}")
                until(lambda: bool(ask(f"SELECT count(*) {waiting}")))  # it came again
            assert isinstance(completing.result(), Applied)
        found = store.perform(Read(op.identity))
        assert isinstance(found, Found)
        assert found.record.snapshot == SNAPSHOT


def test_idle_connections_that_were_killed_are_not_used(postgres_url: str) -> None:
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        store = backend.blocking()
        until_alone(ask)
        for _ in range(2):
            assert isinstance(store.perform(claim()), Claimed)
            assert kill_connections(ask) == 1


async def test_idle_connections_of_a_loop_that_were_killed_are_not_used(postgres_url: str) -> None:
    async with aopened(postgres_url) as backend:
        store = backend.awaited()
        with admin(postgres_url) as ask:
            until_alone(ask)
            for _ in range(2):
                assert isinstance(await store.perform(claim()), Claimed)
                assert kill_connections(ask) == 1


def until_alone(ask: Callable[..., Any]) -> None:
    """A connection that was closed, such as the migration's, ends when its server comes to it."""
    until(lambda: connections(ask) == 0)


def kill_connections(ask: Callable[..., Any]) -> int:
    ours = "FROM pg_stat_activity WHERE application_name = 'semel' AND datname = current_database()"
    killed: int = ask(f"SELECT count(pg_terminate_backend(pid, 100000)) {ours}")
    return killed


def test_more_than_the_pool_holds_is_an_outage_in_time_and_surely_not_applied(
    postgres_url: str,
) -> None:
    with opened(postgres_url, pool_size=1) as backend, admin(postgres_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        with ThreadPoolExecutor(1) as threads:
            with row_locked(postgres_url, op.identity):
                holding = threads.submit(store.perform, complete(op))
                until(lambda: ask(WAITING))
                with pytest.raises(StoreUnavailable, match="pool_size=1") as refused:
                    backend.batcher()._pool.perform(complete(op), monotonic() + SOON)
            assert refused.value.applied is False
            assert isinstance(holding.result(), Applied)


def test_a_read_only_server_is_refused(postgres_url: str) -> None:
    with opened(postgres_url):
        backend = PostgresBackend(f"{postgres_url}&options=-cdefault_transaction_read_only%3Don")
        with pytest.raises(StoreUnavailable, match=r"read-only.*primary") as refused:
            backend.blocking().perform(claim())
        assert refused.value.applied is False


def test_a_standby_is_refused_and_passed_over(
    own_server: PostgresServer, postgres: PostgresServer, postgres_url: str
) -> None:
    with opened(postgres_url), opened(own_server.url), made_a_standby(own_server):
        standby = PostgresBackend(own_server.url)
        with pytest.raises(StoreUnavailable, match=r"standby.*primary") as refused:
            standby.blocking().perform(claim())
        assert refused.value.applied is False
        hosts = urlencode({"host": f"{own_server.folder},{postgres.folder}"})
        both = f"postgresql://postgres@/{database(postgres_url)}?{hosts}"
        with opened(f"{both}&target_session_attrs=read-write") as backend:
            assert isinstance(backend.blocking().perform(claim()), Claimed)


@contextmanager
def made_a_standby(server: PostgresServer) -> Iterator[None]:
    """Of nobody: it takes no writes."""
    signal = server.data / "standby.signal"
    server.stop()
    signal.touch()
    server.start()
    try:
        yield
    finally:
        server.stop()
        signal.unlink()
        server.start()


def test_a_server_that_may_forget_what_it_acknowledged_is_refused(postgres_url: str) -> None:
    with opened(postgres_url):
        backend = PostgresBackend(f"{postgres_url}&options=-csynchronous_commit%3Doff")
        with pytest.raises(StoreUnavailable, match="synchronous_commit") as refused:
            backend.blocking().perform(claim())
        assert refused.value.applied is False


@contextmanager
def forgetful(server: PostgresServer) -> Iterator[None]:
    """Commits are acknowledged before they are on disk, also on connections that are open."""
    with admin(server.url) as ask:
        ask("ALTER SYSTEM SET synchronous_commit = off")
        ask("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            ask("ALTER SYSTEM RESET synchronous_commit")
            ask("SELECT pg_reload_conf()")


async def _blocking(backend: PostgresBackend) -> None:
    backend.blocking().perform(claim())


async def _awaited(backend: PostgresBackend) -> None:
    await backend.awaited().perform(claim())


async def _transaction(backend: PostgresBackend) -> None:
    begun = backend.begin(claim().identity)
    assert begun is not None
    begun.roll_back()


async def _awaited_transaction(backend: PostgresBackend) -> None:
    begun = await backend.abegin(claim().identity)
    assert begun is not None
    await begun.roll_back()


@pytest.mark.parametrize("write", [_blocking, _awaited, _transaction, _awaited_transaction])
async def test_a_server_that_begins_to_forget_is_refused_on_open_connections(
    own_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[PostgresBackend], Awaitable[None]],
) -> None:
    monkeypatch.setattr("semel.stores.postgres.connection.CHECK_AGAIN", 0.0)
    with opened(own_server.url) as backend:

        async def refusal() -> StoreUnavailable | None:
            try:
                await write(backend)
            except StoreUnavailable as error:
                return error
            return None

        assert await refusal() is None
        with forgetful(own_server):
            error = await asked(refusal, lambda error: error is not None)
            assert error is not None
            assert "synchronous_commit is off" in str(error)
            assert error.applied is False
        await asked(refusal, lambda error: error is None)
        await backend.aclose()


def test_a_commit_that_no_standby_confirmed_is_not_called_a_success(
    own_server: PostgresServer,
) -> None:
    with (
        opened(own_server.url) as backend,
        waiting_for_standbys(own_server) as ask,
        ThreadPoolExecutor(1) as threads,
    ):
        claiming = threads.submit(backend.blocking().perform, claim())
        until(lambda: bool(ask(f"SELECT count(*) {UNCONFIRMED}")))
        ask(f"SELECT pg_cancel_backend(pid) {UNCONFIRMED}")
        error = claiming.exception()
    assert isinstance(error, StoreUnavailable)
    assert error.applied is None


UNCONFIRMED = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@contextmanager
def waiting_for_standbys(server: PostgresServer) -> Iterator[Callable[..., Any]]:
    """A commit is one when a standby has confirmed it, and there is none."""
    with admin(server.url) as ask:
        try:
            ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            ask("SELECT pg_reload_conf()")
            _see_one_wait(server.url, ask)
            yield ask
        finally:
            ask("ALTER SYSTEM RESET synchronous_standby_names")
            ask("SELECT pg_reload_conf()")
            until(lambda: ask("SHOW synchronous_standby_names") == "")


def _see_one_wait(url: str, ask: Callable[..., Any]) -> None:
    """Not every process of a server hears of a setting at once."""
    seen = threading.Event()

    def commit() -> None:
        with admin(url) as write:
            while not seen.is_set():
                write("SELECT pg_logical_emit_message(true, 'a', 'write')")

    with ThreadPoolExecutor(1) as threads:
        committing = threads.submit(commit)
        until(lambda: bool(ask(f"SELECT count(*) {UNCONFIRMED}")))
        seen.set()
        ask(f"SELECT count(pg_cancel_backend(pid)) {UNCONFIRMED}")
        committing.result()


def test_an_error_at_commit_comes_after_the_rows_and_is_not_missed(postgres_url: str) -> None:
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        store, op = backend.blocking(), claim()
        store.perform(op)
        ask(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'not today'; END $$"
        )
        ask(
            "CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON semel_record "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        with pytest.raises(StoreUnavailable, match="not today") as refused:
            store.perform(complete(op))
        assert refused.value.applied is False
        found = store.perform(Read(op.identity))
        assert isinstance(found, Found)
        assert found.record.state is State.IN_PROGRESS


def test_serialization_failures_are_tried_again(postgres_url: str) -> None:
    """A rival commits what the statement did not see when it began: that is one of them."""
    url = f"{postgres_url}&options=-cdefault_transaction_isolation%3Dserializable"
    with opened(url) as backend, admin(postgres_url) as ask, ThreadPoolExecutor(1) as threads:
        first = claim()
        with psycopg.connect(url) as rival:
            assert isinstance(backend.on(rival).perform(first), Claimed)
            late = replace(first, fence=Fence(secrets.token_bytes(16)))
            claiming = threads.submit(backend.blocking().perform, late)
            until(lambda: ask(WAITING))
            rival.commit()
            found = claiming.result()
        assert isinstance(found, Found)
        assert found.record.fence == first.fence


def test_a_record_that_breaks_the_rules_is_corruption(postgres_url: str) -> None:
    with opened(postgres_url) as backend:
        with pytest.raises(StoreCorrupt):
            backend.blocking().perform(replace(claim(), identity=Identity(b"short")))
        assert isinstance(backend.blocking().perform(claim()), Claimed)


def stuck_once(ask: Callable[..., Any], identity: Identity) -> None:
    """The first change of the record never ends by itself; it waits for no lock either."""
    ask("CREATE SEQUENCE times")
    ask(
        "CREATE FUNCTION stick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.identity = '\\x{identity.hex()}' AND nextval('times') = 1 "
        "THEN PERFORM pg_sleep(3600); END IF; RETURN NEW; END $$"
    )
    ask(
        "CREATE TRIGGER sticky BEFORE INSERT OR UPDATE ON semel_record "
        "FOR EACH ROW EXECUTE FUNCTION stick()"
    )


def kill_the_stuck_one(ask: Callable[..., Any]) -> None:
    stuck = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    until(lambda: ask(f"SELECT count(pg_terminate_backend(pid)) {stuck}"))


# ── event loops, cancellation, threads, processes ─────────────────────────────────────────────────


async def test_cancelled_operations_leave_the_pool_whole(postgres_url: str) -> None:
    async with aopened(postgres_url, pool_size=2) as backend:
        store = backend.awaited()
        await store.perform(claim())
        for turn in range(200):
            tasks = [asyncio.ensure_future(store.perform(claim())) for _ in range(4)]
            for _ in range(turn % 5):  # cancelled at a different point each time
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, Claimed}
        replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
        assert all(isinstance(reply, Claimed) for reply in replies)
        with admin(postgres_url) as ask:
            until(lambda: connections(ask) <= 2)


async def test_cancelling_does_not_wait_for_a_server_that_does_not_answer(
    postgres_url: str,
) -> None:
    async with aopened(postgres_url, pool_size=2) as backend:
        store, op = backend.awaited(), claim()
        await store.perform(op)
        with row_locked(postgres_url, op.identity), admin(postgres_url) as ask:
            completing = asyncio.ensure_future(store.perform(complete(op)))
            await auntil(lambda: ask(WAITING))
            completing.cancel()
            with pytest.raises(asyncio.CancelledError):  # while the row is locked
                await completing
            assert isinstance(await store.perform(claim()), Claimed)
        # The answer is still read by somebody: the connection comes back.
        replies = await asyncio.gather(*[store.perform(claim()) for _ in range(20)])
        assert all(isinstance(reply, Claimed) for reply in replies)


async def test_cancelling_while_connecting_gives_the_slot_back(postgres_url: str) -> None:
    async with aopened(postgres_url, pool_size=1) as backend:
        store = backend.awaited()
        for turn in range(30):
            task = asyncio.ensure_future(store.perform(claim()))
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert isinstance(await store.perform(claim()), Claimed)


def test_each_event_loop_has_its_own_connections(postgres_url: str) -> None:
    with opened(postgres_url) as backend:
        store = backend.awaited()

        async def use() -> object:
            return await store.perform(claim())

        for _ in range(3):  # loops that end without closing what they opened
            assert isinstance(asyncio.run(use()), Claimed)
        assert isinstance(asyncio.run(awaited_once(backend)), Claimed)
        with admin(postgres_url) as ask:
            until(lambda: connections(ask) == 0)


def test_a_forked_child_opens_its_own_connections(postgres_url: str) -> None:
    ours = (
        "SELECT array_agg(pid) FROM pg_stat_activity "
        "WHERE application_name = 'semel' AND datname = current_database()"
    )
    with opened(postgres_url) as backend, admin(postgres_url) as ask:
        store, mine, theirs = backend.blocking(), claim(), claim()
        until_alone(ask)
        store.perform(mine)
        before, inherited = ask(ours), backend.batcher()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                done = isinstance(store.perform(theirs), Claimed)
                backend.close()
                inherited.close()
                code = 0 if done else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        until(lambda: ask(ours) == before)  # the child's is gone, the parent's is the same
        assert isinstance(store.perform(complete(mine)), Applied)
        assert isinstance(store.perform(Read(theirs.identity)), Found)
        assert ask(ours) == before


def test_a_big_snapshot_comes_back_whole(postgres_url: str) -> None:
    with opened(postgres_url) as backend:
        store, op, body = backend.blocking(), claim(), secrets.token_bytes(8_000_000)
        store.perform(op)
        store.perform(complete(op, body))
        assert store.perform(Fetch(op.identity, op.fence, b"")) == Fetched(body)


async def test_a_big_snapshot_comes_back_whole_in_an_event_loop(postgres_url: str) -> None:
    async with aopened(postgres_url) as backend:
        store, op, body = backend.awaited(), claim(), secrets.token_bytes(8_000_000)
        await store.perform(op)
        await store.perform(complete(op, body))
        assert await store.perform(Fetch(op.identity, op.fence, b"")) == Fetched(body)


def test_one_of_many_threads_wins_a_key(postgres_url: str) -> None:
    with opened(postgres_url, pool_size=4) as backend:
        first = claim()
        rivals = [replace(first, fence=Fence(secrets.token_bytes(16))) for _ in range(64)]
        start = threading.Barrier(16)

        def race(op: Claim) -> object:
            if not start.broken and op in rivals[:16]:
                start.wait()
            return backend.blocking().perform(op)

        with ThreadPoolExecutor(16) as threads:
            replies = list(threads.map(race, rivals))
        assert sum(isinstance(reply, Claimed) for reply in replies) == 1


# ── on(connection) ────────────────────────────────────────────────────────────────────────────────


def test_joined_operations_live_and_die_with_the_callers_transaction(postgres_url: str) -> None:
    with opened(postgres_url) as backend:
        kept, lost = claim(), claim()
        with psycopg.connect(postgres_url, row_factory=psycopg.rows.dict_row) as connection:
            assert isinstance(backend.on(connection).perform(kept), Claimed)
            assert isinstance(backend.on(connection).perform(complete(kept)), Applied)
            assert isinstance(backend.blocking().perform(Read(kept.identity)), NoRecord)
            connection.commit()
            assert isinstance(backend.on(connection).perform(lost), Claimed)
            connection.rollback()
        assert isinstance(backend.blocking().perform(Read(kept.identity)), Found)
        assert isinstance(backend.blocking().perform(Read(lost.identity)), NoRecord)


async def test_the_same_on_an_async_connection(postgres_url: str) -> None:
    async with aopened(postgres_url) as backend:
        kept, lost = claim(), claim()
        async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
            assert isinstance(await backend.on(connection).perform(kept), Claimed)
            assert isinstance(await backend.on(connection).perform(complete(kept)), Applied)
            await connection.commit()
            assert isinstance(await backend.on(connection).perform(lost), Claimed)
            await connection.rollback()
        assert isinstance(await backend.awaited().perform(Read(kept.identity)), Found)
        assert isinstance(await backend.awaited().perform(Read(lost.identity)), NoRecord)


def test_joined_errors_are_the_stores_own(postgres_url: str) -> None:
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    with (
        psycopg.connect(postgres_url) as connection,
        pytest.raises(SchemaError, match="run `semel migrate`"),
    ):
        backend.on(connection).perform(claim())


# ── poolers ───────────────────────────────────────────────────────────────────────────────────────


def connected(url: str) -> PostgresConnection:
    conn = PostgresConnection(QuietConnection.connect(url, autocommit=True), None)
    wait(conn, conn.handshake(), monotonic() + PATIENCE)
    return conn


def test_statements_are_prepared_on_a_direct_connection(postgres_url: str) -> None:
    conn = connected(postgres_url)
    assert conn.prepare is True
    conn.close()


def test_a_pooler_is_noticed_and_nothing_is_prepared(pgbouncer_url: str) -> None:
    conn = connected(pgbouncer_url)
    assert conn.prepare is False
    conn.close()


async def test_prepared_statements_forced_through_a_pooler_still_work(
    postgres: PostgresServer, postgres_url: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("pgbouncer")
    with PgBouncer(postgres, pool_size=2) as pooler:
        async with aopened(pooler.url_of(database(postgres_url)), prepare=True) as backend:
            replies = await asyncio.gather(*[backend.awaited().perform(claim()) for _ in range(99)])
            assert all(isinstance(reply, Claimed) for reply in replies)


async def test_behind_a_transaction_pooler_fifty_at_once_need_two_connections(
    postgres: PostgresServer, postgres_url: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("pgbouncer")  # skips, and says so, where there is none
    with PgBouncer(postgres, pool_size=2) as pooler:
        url = pooler.url_of(database(postgres_url))
        async with aopened(url, pool_size=50) as backend:
            ops = [claim() for _ in range(400)]
            claimed = await asyncio.gather(*map(backend.awaited().perform, ops))
            assert all(isinstance(reply, Claimed) for reply in claimed)
            done = await asyncio.gather(*[backend.awaited().perform(complete(op)) for op in ops])
            assert all(isinstance(reply, Applied) for reply in done)
            released = await backend.awaited().perform(Release(ops[0].identity, ops[0].fence, DAY))
            assert not isinstance(released, Applied)
            with ThreadPoolExecutor(20) as threads:
                replies = list(
                    threads.map(backend.blocking().perform, [claim() for _ in range(99)])
                )
            assert all(isinstance(reply, Claimed) for reply in replies)
            backend.close()


def database(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]
