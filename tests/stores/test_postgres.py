"""What is true of the PostgreSQL store alone; what all stores share is in the contract suite."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Fence, State
from semel.errors import SchemaError, StoreUnavailable
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.connection import PostgresConnection, QuietConnection, query
from semel.stores.postgres.pool_sync import wait
from tests.servers import PgBouncer, PostgresServer
from tests.stores.dialects import ON_POSTGRES, Ask, Postgres
from tests.stores.together import DAY, claim, complete
from tests.waiting import PATIENCE, asked, until

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


@pytest.fixture
def database(postgres: PostgresServer, postgres_url: str) -> Postgres:
    return Postgres(postgres, postgres_url)


# ── URLs and settings ─────────────────────────────────────────────────────────────────────────────


def test_libpq_options_pass_through_and_own_ones_do_not(database: Postgres) -> None:
    url = f"{database.url}&application_name=shop&pool_size=1&timeout=99&prepare=off"
    with opened(url) as backend:
        assert isinstance(backend.blocking().perform(claim()), ops.Claimed)
        assert "application_name=shop" in backend.url
        assert "pool_size" not in backend.url
        with database.admin() as ask:
            ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'"
            until(lambda: ask(ours) == 1)


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def explained(ask: Ask, name: str, *params: object) -> str:
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


GIVEN = {"claim": {"fields": b"", "lease": 1, "fresh_until": None, "terms": 0, "on_lapse": 1}}
GIVEN["complete"] = {"snapshot": b"", "retention": 1, "tombstone": 1, "resource": 1}


@pytest.mark.parametrize("name", GIVEN)
def test_a_statement_finds_its_record_by_the_primary_key(database: Postgres, name: str) -> None:
    op = claim()
    given = {"identity": op.identity, "fence": op.fence, **GIVEN[name]}
    with database.opened(), database.admin() as ask:
        plan = explained(ask, name, *[given.get(each, "x") for each in query(name).order])
    assert "semel_record_pkey" in plan
    assert "Index Cond" in plan
    assert "Seq Scan" not in plan


def test_a_renewal_is_a_hot_update(database: Postgres) -> None:
    with opened(database.url, pool_size=1) as backend, database.admin() as ask:
        store = backend.blocking()
        for _ in range(50):
            op = claim()
            store.perform(op)
            assert isinstance(store.perform(ops.Renew(op.identity, op.fence, DAY)), ops.Applied)
        backend.close()  # a backend that ends reports its statistics
        until(lambda: not database.connections(ask))
        row = ask(
            "SELECT array[n_tup_upd, n_tup_hot_upd] FROM pg_stat_user_tables "
            "WHERE relname = 'semel_record'"
        )
        assert row == [50, 50]


# ── outages ───────────────────────────────────────────────────────────────────────────────────────


def test_a_read_only_server_is_refused(database: Postgres) -> None:
    with opened(database.url):
        backend = PostgresBackend(f"{database.url}&options=-cdefault_transaction_read_only%3Don")
        with pytest.raises(StoreUnavailable, match=r"read-only.*primary") as refused:
            backend.blocking().perform(claim())
        assert refused.value.applied is False


@ON_POSTGRES
def test_a_standby_is_refused_and_passed_over(own_database: Postgres, database: Postgres) -> None:
    own_server = own_database.server
    with database.opened(), own_database.opened(), made_a_standby(own_server):
        standby = PostgresBackend(own_database.url)
        with pytest.raises(StoreUnavailable, match=r"standby.*primary") as refused:
            standby.blocking().perform(claim())
        assert refused.value.applied is False
        hosts = urlencode({"host": f"{own_server.folder},{database.server.folder}"})
        both = f"postgresql://postgres@/{database.name}?{hosts}"
        with opened(f"{both}&target_session_attrs=read-write") as backend:
            assert isinstance(backend.blocking().perform(claim()), ops.Claimed)


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


def test_a_server_that_may_forget_what_it_acknowledged_is_refused(database: Postgres) -> None:
    with opened(database.url):
        backend = PostgresBackend(f"{database.url}&options=-csynchronous_commit%3Doff")
        with pytest.raises(StoreUnavailable, match="synchronous_commit") as refused:
            backend.blocking().perform(claim())
        assert refused.value.applied is False


@contextmanager
def forgetful(database: Postgres) -> Iterator[None]:
    """Commits are acknowledged before they are on disk, also on connections that are open."""
    with database.admin() as ask:
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


@ON_POSTGRES
@pytest.mark.parametrize("write", [_blocking, _awaited, _transaction, _awaited_transaction])
async def test_a_server_that_begins_to_forget_is_refused_on_open_connections(
    own_database: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[PostgresBackend], Awaitable[None]],
) -> None:
    monkeypatch.setattr("semel.stores.postgres.connection.CHECK_AGAIN", 0.0)
    with opened(own_database.url) as backend:

        async def refusal() -> StoreUnavailable | None:
            try:
                await write(backend)
            except StoreUnavailable as error:
                return error
            return None

        assert await refusal() is None
        with forgetful(own_database):
            error = await asked(refusal, lambda error: error is not None)
            assert error is not None
            assert "synchronous_commit is off" in str(error)
            assert error.applied is False
        await asked(refusal, lambda error: error is None)
        await backend.aclose()


@ON_POSTGRES
def test_a_commit_that_no_standby_confirmed_is_not_called_a_success(
    own_database: Postgres,
) -> None:
    with (
        opened(own_database.url) as backend,
        own_database.waiting_for_standbys() as ask,
        ThreadPoolExecutor(1) as threads,
    ):
        claiming = threads.submit(backend.blocking().perform, claim())
        until(lambda: bool(ask(f"SELECT count(*) {own_database.UNCONFIRMED}")))
        ask(f"SELECT pg_cancel_backend(pid) {own_database.UNCONFIRMED}")
        error = claiming.exception()
    assert isinstance(error, StoreUnavailable)
    assert error.applied is None


def test_an_error_at_commit_comes_after_the_rows_and_is_not_missed(database: Postgres) -> None:
    with opened(database.url) as backend, database.admin() as ask:
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
        found = store.perform(ops.Read(op.identity))
        assert isinstance(found, ops.Found)
        assert found.record.state is State.IN_PROGRESS


def test_serialization_failures_are_tried_again(database: Postgres) -> None:
    """A rival commits what the statement did not see when it began: that is one of them."""
    url = f"{database.url}&options=-cdefault_transaction_isolation%3Dserializable"
    with opened(url) as backend, database.admin() as ask, ThreadPoolExecutor(1) as threads:
        first = claim()
        with psycopg.connect(url) as rival:
            assert isinstance(backend.on(rival).perform(first), ops.Claimed)
            late = replace(first, fence=Fence(secrets.token_bytes(16)))
            claiming = threads.submit(backend.blocking().perform, late)
            until(lambda: database.waiting(ask))
            rival.commit()
            found = claiming.result()
        assert isinstance(found, ops.Found)
        assert found.record.fence == first.fence


# ── on(connection) ────────────────────────────────────────────────────────────────────────────────


def test_joined_operations_live_and_die_with_the_callers_transaction(database: Postgres) -> None:
    with opened(database.url) as backend:
        kept, lost = claim(), claim()
        with psycopg.connect(database.url, row_factory=psycopg.rows.dict_row) as connection:
            assert isinstance(backend.on(connection).perform(kept), ops.Claimed)
            assert isinstance(backend.on(connection).perform(complete(kept)), ops.Applied)
            assert isinstance(backend.blocking().perform(ops.Read(kept.identity)), ops.NoRecord)
            connection.commit()
            assert isinstance(backend.on(connection).perform(lost), ops.Claimed)
            connection.rollback()
        assert isinstance(backend.blocking().perform(ops.Read(kept.identity)), ops.Found)
        assert isinstance(backend.blocking().perform(ops.Read(lost.identity)), ops.NoRecord)


async def test_the_same_on_an_async_connection(database: Postgres) -> None:
    async with aopened(database.url) as backend:
        kept, lost = claim(), claim()
        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            assert isinstance(await backend.on(connection).perform(kept), ops.Claimed)
            assert isinstance(await backend.on(connection).perform(complete(kept)), ops.Applied)
            await connection.commit()
            assert isinstance(await backend.on(connection).perform(lost), ops.Claimed)
            await connection.rollback()
        assert isinstance(await backend.awaited().perform(ops.Read(kept.identity)), ops.Found)
        assert isinstance(await backend.awaited().perform(ops.Read(lost.identity)), ops.NoRecord)


def test_joined_errors_are_the_stores_own(database: Postgres) -> None:
    backend = PostgresBackend(database.url, timeout=PATIENCE)
    with (
        psycopg.connect(database.url) as connection,
        pytest.raises(SchemaError, match="run `semel migrate`"),
    ):
        backend.on(connection).perform(claim())


# ── poolers ───────────────────────────────────────────────────────────────────────────────────────


def connected(url: str) -> PostgresConnection:
    conn = PostgresConnection(QuietConnection.connect(url, autocommit=True), None)
    wait(conn, conn.handshake(), monotonic() + PATIENCE)
    return conn


def test_statements_are_prepared_on_a_direct_connection(database: Postgres) -> None:
    conn = connected(database.url)
    assert conn.prepare is True
    conn.close()


def test_a_pooler_is_noticed_and_nothing_is_prepared(pgbouncer_url: str) -> None:
    conn = connected(pgbouncer_url)
    assert conn.prepare is False
    conn.close()


async def test_prepared_statements_forced_through_a_pooler_still_work(
    database: Postgres, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("pgbouncer")
    with PgBouncer(database.server, pool_size=2) as pooler:
        async with aopened(pooler.url_of(database.name), prepare=True) as backend:
            replies = await asyncio.gather(*[backend.awaited().perform(claim()) for _ in range(99)])
            assert all(isinstance(reply, ops.Claimed) for reply in replies)


async def test_behind_a_transaction_pooler_fifty_at_once_need_two_connections(
    database: Postgres, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("pgbouncer")  # skips, and says so, where there is none
    with PgBouncer(database.server, pool_size=2) as pooler:
        url = pooler.url_of(database.name)
        async with aopened(url, pool_size=50) as backend:
            wanted = [claim() for _ in range(400)]
            claimed = await asyncio.gather(*map(backend.awaited().perform, wanted))
            assert all(isinstance(reply, ops.Claimed) for reply in claimed)
            done = await asyncio.gather(*[backend.awaited().perform(complete(op)) for op in wanted])
            assert all(isinstance(reply, ops.Applied) for reply in done)
            released = await backend.awaited().perform(
                ops.Release(wanted[0].identity, wanted[0].fence, DAY)
            )
            assert not isinstance(released, ops.Applied)
            with ThreadPoolExecutor(20) as threads:
                replies = list(
                    threads.map(backend.blocking().perform, [claim() for _ in range(99)])
                )
            assert all(isinstance(reply, ops.Claimed) for reply in replies)
            backend.close()


def test_without_poll_as_under_eventlet_it_waits_all_the_same(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(database.url) as backend:
        monkeypatch.delattr("select.poll")
        assert isinstance(backend.blocking().perform(claim()), ops.Claimed)
