"""What a request asks for touches one identity: in a divided table, one partition."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql

from semel.core import operations as ops
from semel.core.records import Fence, Identity, State
from semel.core.states import TABLE
from semel.stores import open_backend
from semel.stores.postgres.connection import DIALECT, query
from semel.stores.postgres.values import BYTEA, INT8, TEXT
from semel.stores.postgres.values import KINDS as MANY
from semel.stores.sql.dialect import dialect
from semel.stores.sql.plans import plan
from semel.testing.contract.records import KINDS, LEASE, accept, claim, complete, new_fence, reach
from tests.servers import PostgresServer
from tests.stores.harness import Harness, divide, partitioned
from tests.stores.test_postgres_batches import type_of

RECORDS = 20_000
PARTITIONS = 16
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])

ROUNDS = {
    "abandon",
    "belongings",
    "browse",
    "browse_unsettled",
    "census",
    "count_due",
    "count_unsettled",
    "due",
    "expire",
    "newest",
    "newest_dead",
    "next_due",
    "purge",
    "put_off",
    "sample",
    "scan",
    "scan_unsettled",
    "sweep",
    "unlike",
}
"""What maintenance, workers and lists ask for, which is about many records."""
BY_HAND = {"erase", "reseal_journal", "reseal_request", "reseal_snapshot"}
"""What operators ask for, one record at a time."""
BY_RESOURCE = {"retire"}
"""An application's own call, about all answers that named a resource."""

FILL = """
INSERT INTO semel_record (identity, state, fence, fingerprint, fields, tenant, method, path, key,
    on_lapse, terms, created_at, leased_until, duty, due_at)
SELECT sha256(int8send(n)), 2, substr(sha256(int8send(n)), 1, 16), 'v1'::bytea, '', '', '', '',
    NULL, 1, 0, 0, 9000000000000000, 1, 9000000000000000
FROM generate_series(1::bigint, %(records)s) n
"""

SHAPE = """
SELECT 'column', attname, format('%s %s %s', atttypid::regtype, attnotnull, attstorage)
FROM pg_attribute WHERE attrelid = 'semel_record'::regclass AND attnum > 0
UNION ALL
SELECT 'default', adnum::text, pg_get_expr(adbin, adrelid)
FROM pg_attrdef WHERE adrelid = 'semel_record'::regclass
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE conrelid = 'semel_record'::regclass
UNION ALL
SELECT 'index', indexname, replace(indexdef, ' ONLY ', ' ')
FROM pg_indexes WHERE tablename = 'semel_record'
ORDER BY 1, 2, 3
"""


@pytest.fixture(scope="module")
def harness(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    with partitioned("sync", tmp_path_factory.mktemp("parts"), lambda: postgres) as opened:
        with connected(opened) as connection:
            connection.execute(FILL.encode(), {"records": RECORDS})
            connection.execute("ANALYZE semel_record")
        yield opened


def connected(harness: Harness) -> psycopg.Connection[Any]:
    return psycopg.connect(harness.backend.url)


def touched(harness: Harness, mode: str, name: str, values: Mapping[str, object]) -> set[str]:
    """The partitions that a statement read or wrote, run for real and then undone."""
    asked = query(name)
    types = _types(name)
    with connected(harness) as connection:
        connection.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
        for dear in ("enable_seqscan", "enable_hashjoin"):  # as they are in a table of millions
            connection.execute(f"SET LOCAL {dear} = off".encode())
        declared = f"({', '.join(types[each] for each in asked.order)})" if types else ""
        connection.execute(f"PREPARE asked {declared} AS {asked.text.decode()}".encode())
        given = sql.SQL(", ").join(sql.Literal(values[each]) for each in asked.order)
        (found,) = connection.execute(
            sql.SQL("EXPLAIN (ANALYZE, VERBOSE, FORMAT JSON) EXECUTE asked ({})").format(given)
        ).fetchall()[0]
        connection.rollback()
        connection.execute("DEALLOCATE asked")
    read = {each for node in nodes(found[0]["Plan"]) if (each := part_of(node))}
    return read - {"semel_terms"}  # which is not divided


def _types(name: str) -> dict[str, str]:
    """Only arrays have to be declared."""
    of = {BYTEA: "bytea[]", INT8: "bigint[]", TEXT: "text[]"}
    return {
        name_of: of[type_of(column)]
        for many in MANY.values()
        if many.statement == name
        for name_of, column in many.columns([]).items()
    }


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from nodes(below)


def part_of(node: dict[str, Any]) -> str | None:
    """What a scan that was executed has read. An insert finds its partition by itself."""
    ran = node.get("Actual Loops", 0) > 0
    scan = node["Node Type"].endswith("Scan") and "Relation Name" in node
    return node["Relation Name"] if ran and scan else None


def asked_first(op: ops.StoreOperation[Any]) -> tuple[str, Mapping[str, object]]:
    statement = next(plan(op))
    return statement.name, statement.params


@MODES
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_a_write_touches_one_partition(harness: Harness, mode: str, kind: Any) -> None:
    source = next(row.source for row in TABLE if row.event is kind.event)
    assert source is not None
    identity, fence = reach(harness, source, kind.on_lapse, deferred=kind.deferred)
    name, params = asked_first(kind.make(identity, fence))
    assert len(touched(harness, mode, name, params)) == 1


@MODES
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("kind", [ops.Claim, ops.Accept, ops.Read, ops.Fetch, ops.Recall])
def test_a_claim_or_a_look_touches_one_partition(
    harness: Harness, mode: str, kind: type[ops.StoreOperation[Any]], known: bool
) -> None:
    identity, fence = reach(harness, State.COMPLETED)
    if not known:
        identity = Identity(hashlib.sha256(identity).digest())
    wanted: dict[type[ops.StoreOperation[Any]], ops.StoreOperation[Any]] = {
        ops.Claim: claim(identity, new_fence()),
        ops.Accept: accept(identity, new_fence()),
        ops.Read: ops.Read(identity),
        ops.Fetch: ops.Fetch(identity, fence, b""),
        ops.Recall: ops.Recall(identity),
    }
    name, params = asked_first(wanted[kind])
    inserts = not known and kind in (ops.Claim, ops.Accept)
    # What was inserted is not looked for again: the one partition is that of the row.
    assert len(touched(harness, mode, name, params)) == (0 if inserts else 1)


@MODES
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", MANY.keys())
def test_each_of_a_batch_touches_its_own_partition(
    harness: Harness, mode: str, kind: type[ops.StoreOperation[Any]], size: int
) -> None:
    held = [reach(harness, State.IN_PROGRESS) for _ in range(size)]
    rows = [row_of(kind, identity, fence) for identity, fence in held]
    values = {name: [row[name] for row in rows] for name in rows[0]}
    found = touched(harness, mode, MANY[kind].statement, values)
    with connected(harness) as connection:
        homes = connection.execute(
            "SELECT DISTINCT tableoid::regclass::text FROM semel_record WHERE identity = ANY (%s)",
            ([bytes(identity) for identity, _ in held],),
        ).fetchall()
    assert found == {home for (home,) in homes}


def row_of(
    kind: type[ops.StoreOperation[Any]], identity: Identity, fence: Fence
) -> Mapping[str, object]:
    wanted: dict[type[ops.StoreOperation[Any]], ops.StoreOperation[Any]] = {
        ops.Claim: claim(identity, new_fence()),
        ops.Complete: complete(identity, fence),
        ops.Renew: ops.Renew(identity, fence, LEASE),
        ops.Read: ops.Read(identity),
    }
    return asked_first(wanted[kind])[1]


def test_a_round_touches_them_all_and_is_noticed(harness: Harness) -> None:
    """The control: what is about many records is seen to be."""
    known = {"all": 1, "application": "", "names": "[]"}
    found = touched(harness, "force_custom_plan", "next_due", {"duty": 1, **known})
    assert len(found) == PARTITIONS


def test_every_statement_about_records_is_accounted_for() -> None:
    tried = {
        asked_first(kind.make(Identity(bytes(32)), Fence(bytes(16))))[0] for kind in KINDS.values()
    }
    tried |= {"claim", "accept", "read", "recall", "fetch"} | {
        many.statement for many in MANY.values()
    }
    about = {
        name
        for name, asked in dialect(DIALECT).queries.items()
        if re.search(r"\bsemel_record\b", asked.text)
    }
    assert about == tried | ROUNDS | BY_HAND | BY_RESOURCE


def test_a_divided_table_is_the_same_table(postgres: PostgresServer) -> None:
    """Columns, rules and indexes, by the names that later migrations will use."""
    with postgres.database() as whole, postgres.database() as parts:
        for url in (whole, parts):
            open_backend(url).migrate()
        divide(parts)
        assert shape(whole) == shape(parts)


def test_dividing_keeps_what_is_there(postgres: PostgresServer) -> None:
    with postgres.database() as url:
        backend = open_backend(url)
        backend.migrate()
        wanted = [
            claim(Identity(hashlib.sha256(bytes([n])).digest()), new_fence()) for n in range(50)
        ]
        for op in wanted:
            backend.blocking().perform(op)
        before = rows(url)
        divide(url)
        assert rows(url) == before
        assert len(before) == len(wanted)
        assert isinstance(
            backend.blocking().perform(complete(wanted[0].identity, wanted[0].fence)), ops.Applied
        )
        backend.close()


def rows(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT * FROM semel_record ORDER BY identity").fetchall()


def shape(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(SHAPE.encode()).fetchall()
