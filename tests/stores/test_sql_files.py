"""The SQL files against the state table, the plans and each other."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import (
    ABANDONED,
    DUTY_NUMBERS,
    ON_LAPSE_NUMBERS,
    STATE_NUMBERS,
    Duty,
    Fence,
    Identity,
    OnLapse,
    Origin,
    Record,
    State,
)
from semel.core.states import TABLE, RecordEvent, sources
from semel.core.stored.packed import packed_fingerprint
from semel.errors import SchemaError, StoreCorrupt
from semel.stores.sql import migration as migrate
from semel.stores.sql import plans, rows
from semel.stores.sql.dialect import (
    DIALECTS,
    BadQuery,
    Dialect,
    SchemaMigration,
    checked,
    dialect,
    query_files,
)
from semel.stores.sql.migration import SchemaVersion
from semel.stores.sql.statements import Statement, drive
from semel.testing.contract.terms import terms

EVENTS = re.compile(r"^-- event: (.+)$", re.MULTILINE)
HEADER = re.compile(r"\A-- (\w+): .+\n(?:--.*\n)*-- gives: .+\n(?:--.*\n)*-- why: ", re.MULTILINE)
NAMED = re.compile(r"\{(\w+)\}")
"""States, as queries name them."""
EACH_DIALECT = pytest.mark.parametrize("name", DIALECTS)

IDENTITY, FENCE, SEEN = Identity(bytes(32)), Fence(b"f" * 16), Fence(b"s" * 16)
ORIGIN = Origin("tenant", "POST", "/", "key")
ACT = ops.Act("ann", "because")
WORKER = ops.WorkerInfo("id", "", "worker", "run", "host", 1, "1.0")
OPERATIONS: list[ops.StoreOperation[Any]] = [
    ops.requests.Claim(IDENTITY, FENCE, "v1:", b"", ORIGIN, 1),
    ops.requests.Read(IDENTITY),
    ops.requests.Fetch(IDENTITY, FENCE, b""),
    ops.requests.Retake(IDENTITY, SEEN, FENCE, 1),
    ops.requests.Renew(IDENTITY, FENCE, 1),
    ops.requests.Open(IDENTITY, FENCE, b""),
    ops.requests.Complete(IDENTITY, FENCE, b"", 1, 1),
    ops.requests.Release(IDENTITY, FENCE, 1),
    ops.requests.Suspend(IDENTITY, FENCE),
    ops.requests.Lapse(IDENTITY, SEEN, 1),
    ops.requests.Forget(IDENTITY, SEEN),
    ops.requests.SettleHappened(IDENTITY, SEEN, FENCE, b"", 1, 1, ACT),
    ops.requests.SettleAbsent(IDENTITY, SEEN, FENCE, 1, ACT),
    ops.requests.Evict(IDENTITY, SEEN, ACT),
    ops.requests.EvictUnknown(IDENTITY, SEEN, FENCE, 1, ACT),
    ops.requests.EvictUnknown(IDENTITY, SEEN, FENCE, 1, ACT, free=True),
    ops.requests.Register("route", "recipe"),
    ops.requests.Agree(terms()),
    ops.requests.ReadRecipe("route"),
    ops.requests.Accept(IDENTITY, FENCE, "v1:", b"", ORIGIN, b"", 1),
    ops.requests.Recall(IDENTITY),
    ops.requests.Take(IDENTITY, SEEN, FENCE, 1),
    ops.requests.Resume(IDENTITY, SEEN, FENCE, 1),
    ops.requests.Advance(IDENTITY, FENCE, b""),
    ops.requests.SettleCall(IDENTITY, SEEN, FENCE, b"", ACT),
    ops.requests.Inquire(IDENTITY, SEEN, 0, 1),
    ops.maintenance.Due(ops.maintenance.Work.PENDING, 1),
    ops.maintenance.CountDue(1),
    ops.maintenance.Browse((State.UNKNOWN,), 1),
    ops.maintenance.Browse((State.COMPLETED,), 1),
    ops.maintenance.Scan((State.UNKNOWN,), 1),
    ops.maintenance.Scan((State.COMPLETED,), 1),
    ops.maintenance.Count(1),
    ops.lists.ListNewest(Duty.EXPIRE, 1),
    ops.lists.ListNewest(Duty.ASK, 1, ops.lists.DuePlace(None, IDENTITY)),
    ops.lists.ListTerms(1),
    ops.lists.CountUnsettled(1),
    ops.lists.SampleRecords(1, 0),
    ops.lists.ListNewestEffects(ops.outbox.Shelf.WAITING, 1),
    ops.lists.ListNewestEffects(ops.outbox.Shelf.DEAD, 1),
    ops.lists.CountEffects(1),
    ops.maintenance.Sweep(1),
    ops.maintenance.Abandon(1, b""),
    ops.maintenance.Reap(1),
    ops.maintenance.Lead("name", FENCE, 1),
    ops.maintenance.WhoLeads("name"),
    ops.maintenance.Retire("resource", "tenant"),
    ops.outbox.Enqueue("key", None, "name", b""),
    ops.outbox.TakeEffects(FENCE, ("name",), 1, 1),
    ops.outbox.RenewEffects(FENCE, 1),
    ops.outbox.MarkDelivered("key", FENCE, None, 1),
    ops.outbox.MarkFailed("key", FENCE, "error", 1),
    ops.outbox.BrowseEffects(ops.outbox.Shelf.DEAD, 1),
    ops.outbox.FindEffect("key"),
    ops.outbox.Requeue("key", ACT),
    ops.outbox.Requeue("key", ACT, drop=True),
    ops.outbox.NoteEvent("source", "event", 1),
    ops.outbox.NoteEvent("source", "event", None),
    ops.Erase(IDENTITY, SEEN, ACT),
    ops.ListBelongings("tenant", 1),
    ops.ListUnlike(b"E1", 1),
    *(ops.Reseal(IDENTITY, SEEN, part, b"", b"") for part in ops.Part),
    ops.ResealEffect("key", b"", b""),
    ops.Remark(ops.Verb.ERASE, ACT, "tenant"),
    ops.BrowseAudit(1),
    ops.notables.WriteNotables((ops.notables.Notable(ops.notables.NotableKind.REPLAY),), 1),
    ops.notables.BrowseNotables(1),
    ops.notables.BrowseNotables(1, identity=IDENTITY),
    ops.notables.EraseNotables("tenant", 1),
    ops.notables.Prune(1),
    ops.workers.Beat(WORKER, 1),
    ops.workers.Beat(WORKER, None),
    ops.workers.ListWorkers(1),
]
FOLLOWING = {
    "read_terms",
    "read_effect",
    "due",
    "take_effects",
    "clock",
    "purge",
    "sweep",
    "purge_effects",
    "purge_events",
    "purge_surplus",
    "purge_workers",
}
"""Statements that are never the first of a plan."""


QUERIES = Path(plans.__file__).parent / "queries"
SOURCES = {
    path.relative_to(QUERIES).with_suffix("").as_posix(): path.read_text("utf-8")
    for path in sorted(QUERIES.rglob("*.sql"))
}
TRANSITIONS = {name: text for name, text in SOURCES.items() if EVENTS.search(text)}


def states_in(text: str) -> set[State]:
    values = {state.value for state in State}
    return {State(word) for word in NAMED.findall(text) if word in values}


def body(source: str) -> str:
    return re.sub(r"--[^\n]*", "", source)


def parts(source: str) -> tuple[str, str]:
    """What a statement sets and under which condition; what it only looks for comes before both."""
    _, _, main = body(source).rpartition("\n)\n") if "AS MATERIALIZED" in source else ("", "", "")
    # What is in brackets has conditions of its own.
    text = re.sub(r"\(SELECT [^()]*\)", "", main or changing(body(source)))
    before, _, after = text.rpartition("WHERE")
    return before, after


def changing(text: str) -> str:
    """Of several statements the one that changes something."""
    return next((part for part in text.split(";") if "UPDATE semel_record" in part), text)


def events_of(source: str) -> list[RecordEvent]:
    return [RecordEvent(word) for word in EVENTS.findall(source)]


INSERTING = {RecordEvent.CLAIM, RecordEvent.ACCEPT}
CHANGING = {name: text for name, text in TRANSITIONS.items() if not INSERTING & {*events_of(text)}}


@pytest.mark.parametrize("name", sorted(TRANSITIONS.keys() - CHANGING.keys()))
def test_what_inserts_a_record_inserts_it_as_the_table_says(name: str) -> None:
    assert states_in(body(SOURCES[name])) == {
        row.target for row in TABLE if row.event in events_of(SOURCES[name])
    }


@pytest.mark.parametrize("name", CHANGING)
def test_a_statement_leads_from_and_to_what_the_table_says(name: str) -> None:
    events = events_of(SOURCES[name])
    before, after = parts(SOURCES[name])
    expected_from = {source for event in events for source in sources(event)}
    expected_to = {row.target for row in TABLE if row.event in events and row.target}
    assert states_in(after) == expected_from
    if re.search(r"\bstate = ", before):
        assert states_in(before) == expected_to
    elif before.lstrip().startswith("DELETE"):
        assert not expected_to
    else:
        assert expected_to == expected_from


def test_a_sweep_does_what_a_lapse_does() -> None:
    swept, lapsed = (parts(SOURCES[name])[0] for name in ("sweep", "lapse"))
    assert swept.replace("{retention}", ":retention").split() == lapsed.split()


THE_FENCE = r":fence|:seen|given\.column2|given\.fence|ELT\(FIELD\(identity, :identity\), :fence\)"


@pytest.mark.parametrize("name", CHANGING)
def test_a_statement_that_changes_a_record_names_the_fence_or_locks_it(name: str) -> None:
    _, condition = parts(SOURCES[name])
    if re.search(r"^-- takes: limit", SOURCES[name], re.MULTILINE):
        assert "LIMIT :limit {locked}" in SOURCES[name]
    elif events_of(SOURCES[name]) != [RecordEvent.RETIRE]:
        assert re.search(rf"\bfence = ({THE_FENCE})", condition)


def test_every_event_of_the_contract_has_a_statement() -> None:
    have = {RecordEvent(word) for text in TRANSITIONS.values() for word in EVENTS.findall(text)}
    # Atomic mode claims and completes with the two statements for these, in one transaction.
    assert have == set(RecordEvent) - {RecordEvent.CLAIM_COMPLETE}


@pytest.mark.parametrize("name", SOURCES)
def test_every_file_has_a_header(name: str) -> None:
    match = HEADER.search(SOURCES[name])
    assert match is not None
    assert match[1] == name.rpartition("/")[2]


@EACH_DIALECT
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: type(op).__name__)
def test_a_plan_gives_what_its_statement_takes(name: str, op: ops.StoreOperation[Any]) -> None:
    statement = next(plans.plan(op))
    assert set(statement.params) == set(dialect(name).queries[statement.name].takes)


def test_every_operation_of_a_store_has_a_plan() -> None:
    named = [
        *vars(ops.requests).values(),
        *vars(ops.maintenance).values(),
        *vars(ops.lists).values(),
        *vars(ops.outbox).values(),
        *vars(ops.audit).values(),
        *vars(ops.erasure).values(),
        *vars(ops.resealing).values(),
        *vars(ops.notables).values(),
        *vars(ops.workers).values(),
    ]
    every = {item for item in named if isinstance(item, type)}
    asked = {item for item in every if issubclass(item, ops.StoreOperation)} - {ops.StoreOperation}
    assert {type(op) for op in OPERATIONS} == asked


def test_no_statement_is_without_a_user() -> None:
    used = {next(plans.plan(op)).name for op in OPERATIONS} | FOLLOWING
    used |= {"schema_exists", "schema_version", "schema_record"}
    many = {"claim_many", "complete_many"}
    assert used | many | {"read_many", "renew_many"} == set(dialect("postgresql").queries)
    assert used | many | {"look"} == set(dialect("sqlite").queries)
    own = {"read_many", "renew_many", "schema_engines"}
    assert used | many | own == set(dialect("mysql").queries)


# ── databases whose writes tell nothing ───────────────────────────────────────────────────────────

WRITES = {name: query for name, query in dialect("mysql").queries.items() if len(query.parts) > 1}


def test_no_statement_asks_a_database_for_what_it_cannot_tell() -> None:
    for name, query in dialect("mysql").queries.items():
        for part in query.parts:
            if not part.startswith("WITH page AS ("):  # a part of a look; it can write none
                assert not re.search(r"\b(RETURNING|WITH|ON CONFLICT|excluded)\b|[{}]", part), name
    assert all(len(query.parts) == 1 for query in dialect("postgresql").queries.values())


@pytest.mark.parametrize("name", [name for name in WRITES if "picked" in WRITES[name].text])
def test_what_is_picked_is_locked_and_meets_all_that_is_asked_of_it(name: str) -> None:
    pick, *rest = WRITES[name].parts
    assert pick.endswith("LIMIT :limit FOR UPDATE SKIP LOCKED")
    for part in rest:
        _, _, asked = part.partition(" IN (:picked)")
        assert asked.removeprefix(" AND ").removesuffix(" FOR UPDATE") in pick


@pytest.mark.parametrize("name", WRITES)
def test_no_assignment_reads_what_another_has_assigned_before(name: str) -> None:
    """MySQL assigns from left to right, where the standard knows only the old values."""
    own = {"register", "lead", "complete_many"}  # written for it
    for part in WRITES[name].parts:
        if name in own or not part.startswith("UPDATE"):
            continue
        assigned: set[str] = set()
        for column, value in assignments(part):
            assert not assigned & {*re.findall(r"\w+", re.sub(r"'\w+'|:\w+", "", value))}, column
            assigned.add(column)
        assert assigned


def assignments(update: str) -> list[list[str]]:
    """Columns and what they are set to; a comma within brackets ends none."""
    given, depth, texts = update.partition(" SET ")[2].partition(" WHERE ")[0], 0, [""]
    for character in given:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            texts.append("")
        else:
            texts[-1] += character
    return [text.strip().split(" = ", 1) for text in texts]


# ── migrations ────────────────────────────────────────────────────────────────────────────────────


def apply(connection: sqlite3.Connection) -> int:
    upgrade = migrate.upgrade(dialect("sqlite"))
    step = next(upgrade)
    while True:
        if isinstance(step, migrate.Ddl):
            found = connection.execute(step.text).fetchall()
        else:
            text = dialect("sqlite").queries[step.name].text
            found = connection.execute(text, {**step.params, "now": 5}).fetchall()
        try:
            step = upgrade.send(found)
        except StopIteration as done:
            return int(done.value)


def schema(connection: sqlite3.Connection) -> dict[str, str]:
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in found}


def test_the_schema_is_the_sum_of_the_migrations() -> None:
    upgraded, summed = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    assert apply(upgraded) == len(dialect("sqlite").migrations)
    for migration in dialect("sqlite").migrations:
        for text in migration.statements:
            summed.execute(text)
    assert schema(upgraded) == schema(summed)
    assert {"semel_record", "semel_effect", "semel_event"} <= schema(upgraded).keys()
    applied = upgraded.execute("SELECT version, name, applied_at FROM semel_schema").fetchall()
    assert applied == [(m.version, m.name, 5) for m in dialect("sqlite").migrations]
    upgraded.close()
    summed.close()


def test_a_second_upgrade_changes_nothing() -> None:
    connection = sqlite3.connect(":memory:")
    apply(connection)
    before = connection.total_changes
    apply(connection)
    assert connection.total_changes == before
    connection.close()


@EACH_DIALECT
def test_a_schema_from_the_future_is_refused_in_one_sentence(name: str) -> None:
    known = migrate.latest(dialect(name))
    with pytest.raises(SchemaError, match=rf"version {known + 1}.* only {known}: upgrade semel"):
        migrate.pending(dialect(name), SchemaVersion(known + 1, oldest=known + 1))


def test_a_migration_that_allows_for_no_older_program_takes_the_records_from_under_it() -> None:
    """Such a program may have its connections open, and looks at no version any more."""
    changed = ("ALTER TABLE semel_record DROP COLUMN reason",)
    with pytest.raises(BadQuery, match="leaves it its table"):
        checked(SchemaMigration(2, "changed", 2, changed))
    checked(SchemaMigration(2, "added", 1, changed))
    checked(SchemaMigration(2, "moved", 2, ("ALTER TABLE semel_record RENAME TO semel_kept",)))


@EACH_DIALECT
def test_a_newer_schema_that_allows_for_older_programs_is_worked_with(name: str) -> None:
    """Nodes are upgraded one after the other."""
    newer = SchemaVersion(migrate.latest(dialect(name)) + 1, oldest=1)
    assert migrate.pending(dialect(name), newer) == ()
    check_schema(name, newer)


def check_schema(name: str, found: SchemaVersion) -> None:
    """As a store does that finds this version."""

    def execute(asked: Statement) -> list[list[int]]:
        exists = asked.name == "schema_exists"
        return [[int(found.version > 0)]] if exists else [[found.version, found.oldest]]

    drive(migrate.check_schema(dialect(name)), execute)


@EACH_DIALECT
def test_a_schema_that_is_missing_says_what_to_run(name: str) -> None:
    with pytest.raises(SchemaError, match="run `semel migrate`"):
        check_schema(name, SchemaVersion(0, 0))
    check_schema(name, SchemaVersion(migrate.latest(dialect(name)), 1))


@EACH_DIALECT
def test_all_dialects_have_the_same_columns(name: str) -> None:
    """In another order, where that takes less room."""
    here, there = columns(dialect(name)), columns(dialect("sqlite"))
    assert list(map(sorted, here)) == list(map(sorted, there))


NUMBERS: dict[str, Mapping[Any, int]] = {
    "state": STATE_NUMBERS,
    "duty": DUTY_NUMBERS,
    "on_lapse": ON_LAPSE_NUMBERS,
}


@EACH_DIALECT
@pytest.mark.parametrize("column", NUMBERS)
def test_a_number_means_the_same_in_every_file(name: str, column: str) -> None:
    """In the rule of its column, in the view, and in every statement that is sent."""
    given = {number: str(word) for word, number in NUMBERS[column].items()}
    first, *others = dialect(name).migrations
    schema = "\n".join(first.statements)
    assert not others, "does a later migration change a number?"
    assert f"CHECK ({column} BETWEEN {min(given)} AND {max(given)})" in schema
    shown = re.search(rf"CASE record\.{column}\b(.*?)END AS {column}", schema, re.DOTALL)
    assert shown is not None
    words = re.findall(r"WHEN (\d) THEN '(\w+)'", shown[1])
    assert {int(number): word for number, word in words} == given


@EACH_DIALECT
def test_no_statement_has_a_number_without_its_name(name: str) -> None:
    pairs = {(str(n), str(word)) for given in NUMBERS.values() for word, n in given.items()}
    for query, text in query_files(name).items():
        named = re.findall(r"(\d+) /\* (\w+) \*/", text)
        assert set(named) <= pairs, query
        left = re.sub(r"\d+ /\* \w+ \*/", "", re.sub(r"--[^\n]*", "", text))
        bare = re.findall(r"\b(?:state|duty|on_lapse)\b (?:=|<>|IN \(|<|>) ?(\d)", left)
        assert not bare, query


def columns(found: Dialect) -> list[list[str]]:
    texts = [text for migration in found.migrations for text in migration.statements]
    kinds = "BLOB|TEXT|INTEGER|bytea|text|bigint|integer|smallint"
    kinds += "|BINARY|VARBINARY|VARCHAR|MEDIUMTEXT|MEDIUMBLOB|LONGBLOB|BIGINT|INT|TINYINT"
    return [
        re.findall(rf"^    `?(\w+)`? +(?:{kinds})\b", text, re.MULTILINE)
        for text in texts_of(texts)
    ]


def texts_of(statements: list[str]) -> list[str]:
    return [text for text in statements if text.startswith("CREATE TABLE")]


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────

GOOD: tuple[Any, ...] = (
    bytes(32),
    STATE_NUMBERS[State.COMPLETED],
    bytes(16),
    "v1:",
    b"",
    ON_LAPSE_NUMBERS[OnLapse.UNKNOWN],
    1,
    None,
    2,
    3,
    b"answer",
    None,
    None,
    4,
)


PACKED = packed_fingerprint(f"v1.{'x' * 21}A")
USUAL: dict[str, tuple[Any, ...]] = {
    "as it was kept before": GOOD,
    "answered": (*GOOD[:3], PACKED, *GOOD[4:]),
    "just claimed": (
        *(GOOD[0], STATE_NUMBERS[State.IN_PROGRESS], GOOD[2], PACKED, b"", GOOD[5], 1, 3),
        *(None, None, None, None, None, 4),
    ),
}
"""The last two take the short way through `rows.record`."""


def test_a_good_row_is_a_record() -> None:
    record, now = rows.record_and_now([GOOD])
    assert now == 4
    assert record is not None
    made = [*GOOD[:13]]
    made[1], made[5] = State.COMPLETED, OnLapse.UNKNOWN
    assert record == Record(*made)
    assert rows.record_and_now([(GOOD[0], "completed", *GOOD[2:])])[0] == record  # as Redis has it
    # Another shape takes the long way, to the same.
    retired, _ = rows.record_and_now([(*GOOD[:12], 5, 4)])
    assert retired == replace(record, retired_at=5)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (0, b"short"),
        (0, "text" * 8),
        (1, "paid"),
        (1, None),
        (1, b"completed"),
        (1, 0),
        (1, 7),
        (5, 4),
        (2, bytes(15)),
        (2, None),
        (3, None),
        (3, b""),
        (4, "text"),
        (5, "perhaps"),
        (6, None),
        (6, "1"),
        (6, 1.5),
        (7, "soon"),
        (8, None),
        (9, b""),
        (10, None),
        (10, "text"),
        (11, 7),
        (12, "soon"),
        (13, None),
    ],
)
@pytest.mark.parametrize("usual", USUAL)
def test_a_row_that_cannot_be_true_is_corrupt(usual: str, column: int, value: object) -> None:
    good = USUAL[usual]
    if value is None and good[column] is None:
        return  # as it is anyway
    with pytest.raises(StoreCorrupt):
        rows.record_and_now([(*good[:column], value, *good[column + 1 :])])


@pytest.mark.parametrize("usual", ["answered", "just claimed"])
def test_the_short_way_through_a_row_leads_where_the_long_one_does(
    usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = rows.record(USUAL[usual])
    assert short.fingerprint == f"v1.{'x' * 21}A"
    monkeypatch.setattr(rows, "_USUAL", {})
    assert rows.record(USUAL[usual]) == short


@pytest.mark.parametrize("changed", [{1: "in_progress"}, {1: "unknown"}, {1: "pending"}])
def test_a_record_that_no_life_leads_to_is_corrupt(changed: dict[int, object]) -> None:
    row = tuple(changed.get(column, value) for column, value in enumerate(GOOD))
    with pytest.raises(StoreCorrupt):
        rows.record_and_now([row])


@pytest.mark.parametrize("found", [[], [GOOD, GOOD], [GOOD[:-1]], [()]])
def test_an_answer_of_the_wrong_shape_is_corrupt(found: list[tuple[Any, ...]]) -> None:
    with pytest.raises(StoreCorrupt):
        rows.record_and_now(found)


@pytest.mark.parametrize("row", [("paid", None, None, 1), ("completed", None, None, None), (1,)])
def test_a_write_answered_with_nonsense_is_corrupt(row: tuple[Any, ...]) -> None:
    with pytest.raises(StoreCorrupt):
        rows.written([row])


@pytest.mark.parametrize(
    "text",
    [*(f"stores/sql/sent/{name}/abandon.sql" for name in DIALECTS), "stores/redis/lua/abandon.lua"],
)
def test_every_store_gives_a_request_that_was_not_run_the_same_reason(text: str) -> None:
    """Encryption tells by the reason which answers many records share."""
    assert f"'{ABANDONED}'" in (Path(semel.__file__).parent / text).read_text()
