"""Operations that travel together: what is true in PostgreSQL alone."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from semel.core.operations import Applied, Claim, Claimed, Complete, Found, StoreOperation
from semel.errors import StoreUnavailable
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.connection import Exchange, PostgresConnection, query
from semel.stores.postgres.values import BYTEA, INT8, KINDS, TEXT
from semel.stores.sql import plans
from semel.stores.sql.batches import MAX_ROWS, SLOW_AFTER, BatchKind
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import Statement
from tests.servers import PgBouncer, PostgresServer
from tests.stores.dialects import ON_POSTGRES, Postgres
from tests.stores.together import awaited, claim, complete, rival, together
from tests.waiting import PATIENCE, Ahead, auntil, turns, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(postgres: PostgresServer, postgres_url: str) -> Postgres:
    return Postgres(postgres, postgres_url)


async def test_who_asks_for_a_record_that_takes_long_spoils_no_batch(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Statement] = []
    execute = PostgresConnection.execute

    def noted(conn: PostgresConnection, statement: Statement) -> Exchange:
        sent.append(statement)
        return execute(conn, statement)

    monkeypatch.setattr(PostgresConnection, "execute", noted)
    async with awaited(database.url) as store:
        ops = [claim(number) for number in range(40)]
        await together(store, ops)
        slow = ops.pop(20)
        with database.row_locked(slow.identity):
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


# ── the connection breaks ─────────────────────────────────────────────────────────────────────────


@ON_POSTGRES
async def test_a_commit_that_no_standby_confirmed_is_no_success_for_any_member(
    own_database: Postgres,
) -> None:
    async with awaited(own_database.url) as store:
        with own_database.waiting_for_standbys() as ask:
            tasks = [asyncio.ensure_future(store.perform(claim(number))) for number in range(30)]

            def all_cancelled() -> bool:
                ask(f"SELECT count(pg_cancel_backend(pid)) {own_database.UNCONFIRMED}")
                return all(task.done() for task in tasks)

            await auntil(all_cancelled)
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert {error.applied for error in errors if isinstance(error, StoreUnavailable)} == {None}


# ── poolers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prepare", [None, True])
async def test_batches_work_behind_a_transaction_pooler(
    database: Postgres, prepare: bool | None, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("pgbouncer")  # skips, and says so, where there is none
    with PgBouncer(database.server, pool_size=2) as pooler:
        url = pooler.url_of(database.name)
        async with awaited(url, prepare=prepare) as store:
            ops = [claim(number) for number in range(300)]
            assert {type(reply) for reply in await together(store, ops)} == {Claimed}
            done = await together(store, [complete(op) for op in ops])
            assert {type(reply) for reply in done} == {Applied}
            with database.row_locked(ops[0].identity):
                found = await together(store, [rival(op) for op in ops])
            assert {type(reply) for reply in found} == {Found}
            with Postgres(
                pooler, url
            ).admin() as ask:  # what a batch sets for itself must not stay behind
                for _ in range(10):
                    assert ask("SHOW lock_timeout") == "0"


# ── statements ────────────────────────────────────────────────────────────────────────────────────


def many(kind: type[StoreOperation[Any]], ops: Sequence[Any]) -> tuple[bytes, list[Any]]:
    """The statement for ``ops`` as it is, but patient, to be looked at while it waits."""
    asked = dialect("postgresql").queries[KINDS[kind].statement]
    text = asked.text.replace("'100ms'", "'1h'")
    if kind is Claim:
        rows = [dict(next(plans.plan(op)).params) for op in ops]
    else:
        rows = [{name: getattr(op, name) for name in op.__match_args__} for op in ops]
    return text.encode(), [[row[name] for row in rows] for name in asked.takes]


@contextmanager
def under_way(
    database: Postgres, statement: tuple[bytes, list[Any]]
) -> Iterator[Future[list[Any]]]:
    """The statement in a connection of its own, waiting for somebody's lock."""
    with (
        database.connect() as connection,
        ThreadPoolExecutor(1) as threads,
        database.admin() as ask,
    ):
        pid = connection.info.backend_pid
        cursor = psycopg.RawCursor(connection)
        running = threads.submit(lambda: cursor.execute(*statement).fetchall())
        blocked = f"SELECT cardinality(pg_blocking_pids({pid}))"
        until(lambda: running.done() or ask(blocked))
        assert not running.done(), running.result()
        yield running


def is_free(database: Postgres, op: Claim, insert: bool) -> bool:
    """Whether nobody holds a lock on the record, or on the place where it would be."""
    with psycopg.connect(database.url) as connection:
        connection.execute("SET LOCAL lock_timeout = '100ms'")
        try:
            if insert:
                PostgresBackend(database.url).on(connection).perform(rival(op))
            else:
                locking = f"SELECT {database.where(op.identity)} FOR UPDATE NOWAIT"
                connection.execute(locking.encode())
        except (psycopg.errors.LockNotAvailable, StoreUnavailable):
            return False
        finally:
            connection.rollback()
    return True


@pytest.mark.parametrize("kind", [Claim, Complete])
def test_a_batch_takes_its_locks_in_the_order_of_identities(
    database: Postgres, kind: type[StoreOperation[Any]]
) -> None:
    first, second, third = sorted((claim() for _ in range(3)), key=lambda op: op.identity)
    seed, arriving = claim(), [third, second, first]
    with database.opened() as backend:
        backend.blocking().perform(seed)
        asked: list[Any] = arriving
        locked: AbstractContextManager[object] = database.uncommitted(seed, second)
        if kind is Complete:
            for op in arriving:
                backend.blocking().perform(op)
            asked = [complete(op) for op in arriving]
            locked = database.row_locked(second.identity)
        with ExitStack() as stack:
            lock = stack.enter_context(ExitStack())
            lock.enter_context(locked)
            running = stack.enter_context(under_way(database, many(kind, asked)))
            assert not is_free(database, first, kind is Claim)
            assert is_free(database, third, kind is Claim)
            lock.close()
            assert len(running.result(PATIENCE)) == 3


def test_a_record_forgotten_while_a_batch_claims_it_is_not_also_found(database: Postgres) -> None:
    """The statement still sees the record that was there when it began; its own has replaced it."""
    gone = claim()
    ops = [claim(), rival(gone), claim()]
    with database.opened() as backend:
        backend.blocking().perform(gone)
        with database.transaction() as other:
            other(f"DELETE {database.where(gone.identity)}")
            with under_way(database, many(Claim, ops)) as running:
                other("COMMIT")
                rows = running.result(PATIENCE)
    told = {row[0]: (row[1], row[2]) for row in rows}
    assert told == {op.identity: (None, op.fence) for op in ops}
    assert len(rows) == len(ops)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.statement)
def test_a_batch_finds_its_records_by_the_primary_key(database: Postgres, kind: BatchKind) -> None:
    asked = query(kind.statement)
    with database.opened(), database.admin() as ask:
        ask(
            "INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method,"
            " path, key, on_lapse, terms, created_at, leased_until, duty, due_at) SELECT "
            "sha256(n::text::bytea), 2, substr(sha256(n::text::bytea), 1, 16), 'v1'::bytea, "
            "'', '', '', '', NULL, 1, 0, 0, 0, 1, 0 FROM generate_series(1, 20000) AS n"
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
