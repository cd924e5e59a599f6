"""Maintenance finds what is due by an index, however much is not; and waits for nobody."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.core.operations.audit import BrowseAudit
from semel.core.operations.lists import (
    CountEffects,
    CountUnsettled,
    DuePlace,
    ListNewest,
    ListNewestEffects,
    SampleRecords,
)
from semel.core.operations.maintenance import (
    Abandon,
    Browse,
    Count,
    CountDue,
    Due,
    Reap,
    Sweep,
    Tended,
    Work,
)
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf, TakeEffects
from semel.core.operations.requests import (
    Claim,
    Complete,
    ReadRecipe,
    Recall,
    Renew,
    StoreOperation,
)
from semel.core.records import Duty, Fence, Identity, OnLapse, State
from semel.core.states import RecordEvent
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres.connection import query
from semel.stores.sql.dialect import dialect
from semel.stores.sqlite import SqliteBackend
from semel.stores.sqlite.writer import SqliteWriter
from semel.testing.contract.records import (
    LEASE,
    ORIGIN,
    RETENTION,
    accept,
    applied,
    demand_found_in_time,
    new_fence,
    new_identity,
    reach,
)
from tests.servers import PostgresServer
from tests.stores.harness import START, Harness, open_harness
from tests.waiting import PATIENCE

ROWS = 100_000
KNOWN = {"all": 0, "application": "shop", "names": '["POST /payments"]'}
MAIL: dict[str, object] = {"names": '["mail"]', "application": ""}
SHELF: dict[str, object] = {"shelf": "delivered"}
STATEMENTS: dict[str, dict[str, object]] = {
    "due": {"duty": 4, "limit": 100, **KNOWN},
    "next_due": {"duty": 4, **KNOWN},
    "put_off": {"limit": 100},
    "sweep": {"limit": 100},
    "abandon": {"limit": 100, "snapshot": b""},
    "expire": {"limit": 100},
    "purge": {"limit": 100},
    "take_effects": {**MAIL, "limit": 100, "fence": bytes(16), "lease": 1},
    "next_effect": MAIL,
    "renew_effects": {"fence": bytes(16), "lease": 1},
    "purge_effects": {"limit": 100},
    "purge_events": {"limit": 100},
    "retire": {"resource": "charge/7", "tenant": "tenant", "application": ""},
    "newest": {"duty": 5, "due": START * 3, "identity": bytes(32), "limit": 50},
    "newest_dead": {"identity": bytes(32), "limit": 50},
    "newest_effects": {**SHELF, "due": START * 3, "number": 9, "name": "mail", "limit": 50},
    "newest_dead_effects": {"number": 9, "name": "mail", "limit": 50},
    "count_effects": {"limit": 100},
}
INDEXES = {
    "newest_dead": "semel_record_(due|dead)",  # where there are none, one does as well
    "count_effects": "semel_effect_due",
    "newest_effects": "semel_effect_due",
    "newest_dead_effects": "semel_effect_due",
    "purge_events": "semel_event_forget",
    "retire": "semel_record_resource",
    "take_effects": "semel_effect_due",
    "next_effect": "semel_effect_due",
    "renew_effects": "semel_effect_due",
    "purge_effects": "semel_effect_due",
}
EVERY_STATEMENT = pytest.mark.parametrize("name", STATEMENTS)

# Most records are completed and not due for a day; a few of each kind are due.
FILLED = """
INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method, path, key,
    on_lapse, terms, created_at, leased_until, forget_at, snapshot, duty, due_at)
SELECT {hash}, CASE WHEN n % 1000 = 0 THEN 2 ELSE 3 END, {fence}, {mark},
    {empty}, 'tenant', 'POST', '/', {mark}, 1, 0, 0, CASE WHEN n % 1000 = 0 THEN 1 END,
    CASE WHEN n % 1000 <> 0 THEN {later} END, CASE WHEN n % 1000 <> 0 THEN {empty} END,
    CASE WHEN n % 1000 = 0 THEN 1 ELSE 5 END,
    CASE WHEN n % 1000 = 0 THEN 1 ELSE {later} + n END
FROM numbers
"""
EFFECTS = """
INSERT INTO semel_effect
    (key, application, name, payload, order_key, state, created_at, due_at)
SELECT 'key' || n, '', 'mail', {empty}, CASE WHEN n % 2 = 0 THEN 'order' || n END,
    CASE WHEN n % 1000 = 0 THEN 'waiting' ELSE 'delivered' END, 0,
    CASE WHEN n % 1000 = 0 THEN 1 ELSE {later} + n END
FROM numbers
"""
EVENTS = (
    "INSERT INTO semel_event (source, event, forget_at) SELECT 's', 'e' || n, {later} FROM numbers"
)


@pytest.fixture(scope="module")
def filled(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with postgres.database() as url:
        PostgresBackend(url).migrate()
        with psycopg.connect(url, autocommit=True) as connection:
            numbers = f"(SELECT generate_series(1, {ROWS}) AS n) AS numbers"
            words = {
                "hash": "sha256(n::text::bytea)",
                "fence": "substr(sha256(n::text::bytea), 1, 16)",
                "mark": "'v1'::bytea",
                "empty": "''::bytea",
                "later": str(START * 2),
            }
            for text in (FILLED, EFFECTS, EVENTS):
                text = text.format(**words).replace("FROM numbers", f"FROM {numbers}")
                connection.execute(text.encode())
            for table in ("semel_record", "semel_effect", "semel_event"):
                connection.execute(f"ANALYZE {table}".encode())
            yield connection


@EVERY_STATEMENT
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_postgresql_finds_what_is_due_by_an_index(
    filled: psycopg.Connection[Any], name: str, mode: str
) -> None:
    asked = query(name)
    filled.execute(f"SET plan_cache_mode = {mode}".encode())
    filled.execute(b"PREPARE asked AS " + asked.text)
    try:
        values = ", ".join(literal(STATEMENTS[name][parameter]) for parameter in asked.order)
        text = f"EXPLAIN (COSTS OFF) EXECUTE asked {f'({values})' if values else ''}"
        found = "\n".join(row[0] for row in filled.execute(text.encode()).fetchall())
    finally:
        filled.execute("DEALLOCATE asked")
    assert re.search(INDEXES.get(name, "semel_record_due"), found)
    assert not re.search("Seq Scan on semel_(record|effect|event)", found)  # there are few terms
    assert re.search(r"Index Cond: .*(due_at|forget_at|resource|identity <)", found)


def test_postgresql_reads_no_more_of_the_index_than_a_page_has(
    filled: psycopg.Connection[Any],
) -> None:
    """Also in the middle, and whatever the planner believes of a limit that is a parameter."""
    asked = query("newest")
    filled.execute(b"SET plan_cache_mode = force_generic_plan")
    filled.execute(b"PREPARE asked AS " + asked.text)
    try:
        given = {**STATEMENTS["newest"], "due": START * 2 + ROWS // 2}
        values = ", ".join(literal(given[parameter]) for parameter in asked.order)
        text = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE asked ({values})"
        found = "\n".join(row[0] for row in filled.execute(text.encode()).fetchall())
    finally:
        filled.execute("DEALLOCATE asked")
    read = re.search(r"Index Scan Backward .*actual rows=(\d+)", found)
    assert read is not None, found
    assert int(read[1]) < 200, found


def test_postgresql_sorts_no_dead_letters_for_a_page(filled: psycopg.Connection[Any]) -> None:
    """Also where nobody will ask about thousands of records again."""
    asked = query("newest_dead")
    with filled.transaction(force_rollback=True):
        filled.execute(
            b"UPDATE semel_record SET state = 5, duty = 4, due_at = NULL, forget_at = NULL"
            b" WHERE state = 3 AND get_byte(identity, 9) < 8"
        )
        filled.execute(b"ANALYZE semel_record")
        filled.execute(b"PREPARE asked AS " + asked.text)
        values = ", ".join(literal({"identity": b"\xff" * 33, "limit": 50}[p]) for p in asked.order)
        text = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE asked ({values})"
        found = "\n".join(row[0] for row in filled.execute(text.encode()).fetchall())
        filled.execute("DEALLOCATE asked")
    assert "Sort" not in found
    read = re.search(r"semel_record_dead .*actual rows=(\d+)", found)
    assert read is not None, found
    assert int(read[1]) <= 50, found


def test_records_of_one_time_are_listed_once_across_pages(
    postgres_url: str, backend: PostgresBackend
) -> None:
    store = backend.blocking()
    made: set[bytes] = set()
    for _ in range(20):
        identity, fence = claimed(backend, lease=LEASE)
        store.perform(Complete(identity, fence, b"", RETENTION, 0))
        made.add(identity)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE semel_record SET due_at = 7")
    seen: list[bytes] = []
    before: DuePlace | None = None
    while True:
        page = store.perform(ListNewest(Duty.EXPIRE, 3, before))
        seen += [each.glimpse.identity for each in page.found]
        if (before := page.until) is None:
            break
    assert seen == sorted(made, reverse=True)


def literal(value: object) -> str:
    return f"'\\x{value.hex()}'" if isinstance(value, bytes) else f"'{value}'"


@pytest.fixture(scope="module")
def filled_file() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for migration in dialect("sqlite").migrations:
        for text in migration.statements:
            connection.execute(text)
    more = f"SELECT n + 1 FROM numbers WHERE n < {ROWS // 10}"
    numbers = f"WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL {more})"
    words = {
        "hash": "randomblob(32)",
        "fence": "randomblob(16)",
        "mark": "x'7631'",
        "empty": "x''",
        "later": START * 2,
    }
    for text in (FILLED, EFFECTS, EVENTS):
        connection.execute(f"{numbers} {text.format(**words)}")
    yield connection
    connection.close()


@EVERY_STATEMENT
def test_sqlite_finds_what_is_due_by_an_index(filled_file: sqlite3.Connection, name: str) -> None:
    text = dialect("sqlite").queries[name].text
    given = {**STATEMENTS[name], "now": START}
    rows = filled_file.execute(f"EXPLAIN QUERY PLAN {text}", given).fetchall()
    steps = [str(row[3]) for row in rows]
    index = INDEXES.get(name, "semel_record_due")
    assert any(re.search(rf"SEARCH .* USING .*INDEX {index} \(", step) for step in steps), steps
    large = r"SCAN (semel_(?!terms)|effect|other|record)"
    assert not [step for step in steps if re.match(large, step)], steps
    assert name != "newest_dead" or not [step for step in steps if "TEMP B-TREE" in step], steps


# ── the columns of the index ──────────────────────────────────────────────────────────────────────


@contextmanager
def file_harness(folder: Path) -> Iterator[tuple[Harness, sqlite3.Connection]]:
    with open_harness("sqlite-sync", folder, lambda: pytest.fail("no server is needed")) as harness:
        connection = sqlite3.connect(folder / "records.db")
        yield harness, connection
        connection.close()


def test_after_every_round_a_record_is_somebodys_duty_in_time(tmp_path: Path) -> None:
    with file_harness(tmp_path) as (harness, _):
        made = [reach(harness, state)[0] for state in State]
        made.append(reach(harness, State.IN_PROGRESS, OnLapse.RELEASE)[0])
        made.append(reach(harness, State.IN_PROGRESS, OnLapse.RELEASE, deferred=True)[0])
        made.append(reach(harness, State.IN_PROGRESS, OnLapse.RESUME)[0])
        renewed, fence = reach(harness, State.IN_PROGRESS)
        made.append(renewed)
        harness.travel(LEASE // 2)
        applied(harness, Renew(renewed, fence, LEASE))
        harness.travel(LEASE // 2)
        rounds: list[StoreOperation[Tended]]
        rounds = [Sweep(100), Abandon(100, b""), Reap(100)]
        for _ in range(4):
            for op in rounds:
                harness.perform(op)
                cases = harness.perform(Browse(tuple(State), 100)).cases
                assert {case.record.identity for case in cases} <= {*made}
                for case in cases:
                    demand_found_in_time(harness, case.record.identity)
            harness.travel(RETENTION)


@pytest.mark.parametrize("name", ["sweep", "lapse"])
def test_a_lease_that_was_renewed_in_between_does_not_lapse(tmp_path: Path, name: str) -> None:
    """Also where another process renews between the sweeper's two statements."""
    with file_harness(tmp_path) as (harness, connection):
        identity, fence = reach(harness, State.IN_PROGRESS)
        harness.travel(LEASE // 2)
        applied(harness, Renew(identity, fence, LEASE))
        given = {"identity": identity, "seen": fence, "limit": 100, "retention": 1}
        now = START + LEASE
        rows = connection.execute(
            dialect("sqlite").queries[name].text, {**given, "now": now}
        ).fetchall()
        assert rows == []
        connection.rollback()


def test_a_lease_that_lasts_is_nobodys_work_although_it_is_listed_as_due(tmp_path: Path) -> None:
    """As where another process renews while somebody looks: the lease decides, not its place."""
    with file_harness(tmp_path) as (harness, connection):
        identity, _ = reach(harness, State.IN_PROGRESS, OnLapse.RESUME)
        with connection:
            connection.execute("UPDATE semel_record SET due_at = 1")
        assert harness.perform(Due(Work.LAPSED, 100)).cases == ()
        harness.travel(LEASE)
        (case,) = harness.perform(Due(Work.LAPSED, 100)).cases
        assert case.record.identity == identity


# ── locks ─────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def locked(url: str, table: str) -> Iterator[None]:
    """Somebody holds every row of the table that is there now."""
    with psycopg.connect(url) as connection:
        connection.execute(f"SELECT 1 FROM {table} FOR UPDATE".encode())
        yield
        connection.rollback()


def claimed(backend: PostgresBackend, **changes: Any) -> tuple[Any, Fence]:
    op = Claim(new_identity(), new_fence(), "v1:", b"", ORIGIN, changes.pop("lease", 1), **changes)
    backend.blocking().perform(op)
    return op.identity, op.fence


@pytest.fixture
def backend(postgres_url: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    yield backend
    backend.close()


def test_maintenance_leaves_what_is_locked_and_does_the_rest(
    postgres_url: str, backend: PostgresBackend
) -> None:
    store = backend.blocking()
    held = [claimed(backend)[0] for _ in range(3)]
    with locked(postgres_url, "semel_record"):
        free = [claimed(backend)[0] for _ in range(2)]
        assert store.perform(Sweep(100)).counts == {RecordEvent.LAPSE.value: 2}
        listed = store.perform(Due(Work.UNKNOWN, 100)).cases
        assert {case.record.identity for case in listed} == set(free)
    assert store.perform(Sweep(100)).counts == {RecordEvent.LAPSE.value: len(held)}


@pytest.mark.parametrize("op", [Reap(100), Abandon(100, b""), Sweep(100)])
def test_no_round_waits_for_a_lock(
    postgres_url: str, backend: PostgresBackend, op: StoreOperation[Any]
) -> None:
    store = backend.blocking()
    for _ in range(3):
        identity, fence = claimed(backend, lease=LEASE)
        store.perform(Complete(identity, fence, b"", 0, 0))
        claimed(backend)
    with locked(postgres_url, "semel_record"):
        assert store.perform(op).counts == {}


def test_workers_do_not_wait_for_each_others_effects(
    postgres_url: str, backend: PostgresBackend
) -> None:
    store = backend.blocking()
    for n in range(3):
        store.perform(Enqueue(f"held {n}", None, "mail", b"", f"order {n}"))
    with locked(postgres_url, "semel_effect"):
        store.perform(Enqueue("free", None, "mail", b""))
        store.perform(Enqueue("behind", None, "mail", b"", "order 1"))
        taken = store.perform(TakeEffects(new_fence(), ("mail",), 100, LEASE))
        assert [effect.key for effect in taken.effects] == ["free"]


# ── what only one transaction sees ────────────────────────────────────────────────────────────────


def test_an_effect_exists_if_and_only_if_its_transaction_committed(
    postgres_url: str, backend: PostgresBackend
) -> None:
    op = TakeEffects(new_fence(), ("mail",), 100, LEASE)
    with psycopg.connect(postgres_url) as connection:
        assert backend.on(connection).perform(Enqueue("undone", None, "mail", b"")).applied
        assert backend.blocking().perform(op).effects == ()
        connection.rollback()
    assert backend.blocking().perform(op).effects == ()
    with psycopg.connect(postgres_url) as connection:
        assert backend.on(connection).perform(Enqueue("done", None, "mail", b"")).applied
        assert not backend.on(connection).perform(Enqueue("done", None, "mail", b"")).applied
        connection.commit()
    assert [effect.key for effect in backend.blocking().perform(op).effects] == ["done"]


def test_an_effect_in_a_file_exists_if_and_only_if_its_transaction_committed(
    tmp_path: Path,
) -> None:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/semel.db", timeout=PATIENCE)
    backend.migrate()
    op = TakeEffects(new_fence(), ("mail",), 100, LEASE)
    connection = sqlite3.connect(tmp_path / "semel.db")
    assert backend.on(connection).perform(Enqueue("undone", None, "mail", b"")).applied
    connection.rollback()
    assert backend.blocking().perform(op).effects == ()
    assert backend.on(connection).perform(Enqueue("done", None, "mail", b"")).applied
    connection.commit()
    assert [effect.key for effect in backend.blocking().perform(op).effects] == ["done"]
    connection.close()
    backend.close()


async def test_an_effect_is_written_with_the_callers_awaited_connection(
    postgres_url: str, backend: PostgresBackend
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        kept = await backend.on(connection).perform(Enqueue("key", None, "mail", b""))
        assert kept.applied
        taken = await backend.on(connection).perform(
            TakeEffects(new_fence(), ("mail",), 100, LEASE)
        )
        assert [effect.key for effect in taken.effects] == ["key"]


def test_renewed_records_are_put_off_and_never_clog_the_sweep(
    postgres_url: str, backend: PostgresBackend
) -> None:
    store = backend.blocking()
    for _ in range(5):
        identity, fence = claimed(backend, lease=LEASE)
        store.perform(Renew(identity, fence, LEASE))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE semel_record SET due_at = 1")  # the ends of their first leases
        assert store.perform(Sweep(100)).counts == {}
        (late,) = (
            connection.execute("SELECT count(*) FROM semel_record WHERE due_at = 1").fetchone()
            or ()
        )
        assert late == 0


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_the_first_list_of_a_process_does_not_run_in_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    asked: list[str] = []
    ask = SqliteWriter.ask

    def noted(writer: SqliteWriter, steps: Any) -> Any:
        asked.append(threading.current_thread().name)
        return ask(writer, steps)

    monkeypatch.setattr(SqliteWriter, "ask", noted)
    backend = SqliteBackend(f"sqlite:///{tmp_path}/semel.db", timeout=PATIENCE)
    op = ListNewest(Duty.EXPIRE, 10)
    if colour == "sync":
        backend.blocking().perform(op)
    else:
        await backend.awaited().perform(op)
    assert len(asked) == 1
    assert asked[0] != "semel-sqlite"
    await backend.aclose()


@pytest.mark.parametrize(
    "op",
    [
        Due(Work.PENDING, 10),
        Browse((State.PENDING,), 10),
        ListNewest(Duty.EXPIRE, 10),
        ListNewestEffects(Shelf.WAITING, 10),
        Count(10),
        CountDue(10),
        BrowseAudit(10),
        BrowseEffects(Shelf.WAITING, 10),
        CountEffects(10),
        CountUnsettled(10),
        SampleRecords(10, 0),
        Recall(Identity(bytes(32))),
        ReadRecipe("shop"),
    ],
    ids=lambda op: type(op).__name__,
)
async def test_whoever_only_looks_into_a_file_needs_no_write_lock(
    tmp_path: Path, op: StoreOperation[Any]
) -> None:
    backend = SqliteBackend(f"sqlite:///{tmp_path}/semel.db", timeout=PATIENCE)
    backend.blocking().perform(accept(Identity(bytes(32)), new_fence()))
    connection = sqlite3.connect(tmp_path / "semel.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    assert backend.blocking().perform(op) is not None
    assert await backend.awaited().perform(op) is not None
    connection.close()
    await backend.aclose()
