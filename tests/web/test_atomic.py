"""Atomic mode through every adapter: record, rows and outbox commit together or not at all.

Every test looks at the database with a connection of its own: what an application answers proves
nothing about what was written.
"""

import asyncio
import itertools
import json
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from starlette.applications import Starlette

import semel
from semel.core.records import Identity
from semel.stores.mysql.handler_connections import AsyncMysqlHandlerConnection
from semel.web.asgi import Middleware
from tests.databases import DRIVER_ERRORS, aexecuted, executed
from tests.waiting import PATIENCE, until
from tests.web.bank import (
    ASGI,
    COLOURS,
    NOTHING,
    PAID,
    STORES,
    Bank,
    Ledger,
    Put,
    Says,
    Script,
    Sql,
    Step,
    Use,
    bank,
    opened,
    pay,
)
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Wire, scope_of

MakeBank = Callable[..., Bank]
ON_POSTGRES = pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
ON_SERVERS = pytest.mark.parametrize("ledger", ["postgres", "mariadb"], indirect=True)
AWAITED = (psycopg.AsyncConnection, AsyncMysqlHandlerConnection)
LEFT_OPEN = {
    False: "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' "
    "AND datname = current_database()",
    True: "SELECT 1 FROM information_schema.innodb_trx "
    "JOIN information_schema.processlist ON id = trx_mysql_thread_id WHERE db = DATABASE()",
}

WAIT = int(PATIENCE * 1000)
"""Milliseconds that PostgreSQL may take to end a connection."""

PAIRS_TRIED = (
    *(("asgi", "postgres"), ("fastapi", "sqlite"), ("def", "postgres")),
    *(("wsgi", "postgres"), ("flask", "sqlite")),
    *(("fastapi", "mariadb"), ("def", "mariadb"), ("flask", "mariadb")),
)
"""Both colours on every database; the others are proof (`conftest.py`)."""


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened(request.param, tmp_path, request.getfixturevalue) as one:
        yield one


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_bank(
    colour: str, ledger: Ledger, make_guard: MakeGuard, runner: asyncio.Runner
) -> MakeBank:
    def make(script: Script, factory: Any = semel.ietf, **options: Any) -> Bank:
        policy = factory(mode="atomic", **options)
        guard = make_guard(ledger.store, policy=policy, maintenance=None)
        return bank(colour, guard, ledger, runner, script)

    return make


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, logger="semel"):
        yield
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def failing(error: BaseException) -> Script:
    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        raise error

    return script


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────


def key_for(it: object) -> Ask:
    """One of many that a test sends to one application."""
    return Ask(key=f"a-key-of-some-length-{it}")


def test_an_answer_is_kept_with_its_writes_and_replayed(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    for runs, status in enumerate([200, 201, 302, 400, 404, 422], start=1):
        one.ledger.clear()
        one.plays(pay(says=Says(status)))
        first, again = one.send(key_for(status)), one.send(key_for(status))
        assert (first.status, first.body, first.replayed) == (status, b"paid", False)
        assert (again.status, again.body, again.replayed) == (status, b"paid", True)
        assert first.one("idempotency-expires") == again.one("idempotency-expires") is not None
        assert one.ledger.all() == PAID
        assert one.script.runs == runs


def test_the_effect_carries_the_key_that_the_handler_was_given(make_bank: MakeBank) -> None:
    def script() -> Generator[Step, Any, Says]:
        key = yield Put("receipt")
        return Says(pieces=(key.encode(),))

    one = make_bank(script)
    column = "CAST(`key` AS CHAR)" if one.ledger.mysql else "key"
    assert [(one.send().body.decode(),)] == one.ledger.ask(f"SELECT {column} FROM semel_effect")


def test_an_effect_of_an_earlier_life_of_the_key_is_another(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    assert one.send().status == 201
    ((identity,),) = one.ledger.ask("SELECT identity FROM semel_record")
    one.guard.operator().evict(Identity(bytes(identity)), by="ann", reason="a test")
    assert one.send().status == 201
    assert one.ledger.all() == (2, 2, ["completed"])


def test_a_released_answer_leaves_nothing_not_even_a_record(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    for status in (401, 403, 429, 500, 503):
        one.ledger.clear()
        one.plays(pay(says=Says(status)))
        assert (one.send(key_for(status)).status, one.ledger.all()) == (status, NOTHING)
        one.plays(pay())
        assert (one.send(key_for(status)).status, one.ledger.all()) == (201, PAID)


def test_a_kept_error_is_stored_without_its_writes(make_bank: MakeBank) -> None:
    one = make_bank(pay(says=Says(503)), semel.stripe)
    first, again = one.send(), one.send()
    assert (first.status, again.status, again.replayed) == (503, 503, True)
    assert first.body == again.body
    assert one.ledger.all() == (0, 0, ["completed"])
    assert one.script.runs == 1


def test_a_kept_exception_is_stored_without_its_writes(make_bank: MakeBank) -> None:
    one = make_bank(failing(ValueError("no")), semel.stripe)
    assert one.send().status == 500
    assert one.send().replayed
    assert (one.ledger.all(), one.script.runs) == ((0, 0, ["completed"]), 1)


def test_an_exception_leaves_nothing_and_a_retry_runs_at_once(make_bank: MakeBank) -> None:
    one = make_bank(failing(ValueError("no")))
    assert (one.send().status, one.ledger.all()) == (500, NOTHING)
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


def test_a_handler_that_says_not_executed_leaves_nothing(make_bank: MakeBank) -> None:
    one = make_bank(
        failing(semel.NotExecuted("the provider is closed")), semel.payments, probe=None
    )
    assert (one.send().status, one.ledger.all()) in ((500, NOTHING), (503, NOTHING))
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


@pytest.mark.parametrize("error", [semel.OutcomeUnknown("?"), TimeoutError("?")])
def test_an_unknown_outcome_is_on_record_and_its_writes_are_undone(
    make_bank: MakeBank, error: Exception
) -> None:
    one = make_bank(failing(error))
    assert one.send().status == 500
    assert one.ledger.all() == (0, 0, ["unknown"])
    one.plays(pay())
    again = one.send()
    assert (again.status, again.code) == (409, "outcome-unknown")
    assert one.script.runs == 1


def test_a_keep_that_raises_leaves_the_outcome_unknown(make_bank: MakeBank) -> None:
    def keep(response: object) -> bool:
        raise ZeroDivisionError

    one = make_bank(pay(), keep=keep)
    assert one.send().code == "outcome-unknown"
    assert one.ledger.all() == (0, 0, ["unknown"])
    assert one.send().code == "outcome-unknown"


def test_keep_decides_what_is_kept(make_bank: MakeBank) -> None:
    one = make_bank(pay(says=Says(404)), keep={201})
    assert (one.send().status, one.ledger.all()) == (404, NOTHING)
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


# ── large answers, streams ────────────────────────────────────────────────────────────────────────


def test_an_answer_too_large_to_keep_is_sent_whole_and_leaves_a_receipt(
    make_bank: MakeBank,
) -> None:
    one = make_bank(pay(says=Says(200, (b"x" * 100,))), max_response_body=10)
    assert one.send().body == b"x" * 100
    again = one.send()
    assert (again.status, again.code) == (409, "body-not-kept")
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


@pytest.mark.parametrize("limit", [10, 1000])
def test_a_streamed_answer_is_sent_after_the_commit(make_bank: MakeBank, limit: int) -> None:
    one = make_bank(pay(says=Says(200, (b"x" * 40, b"y" * 40))), max_response_body=limit)
    assert one.send().body == b"x" * 40 + b"y" * 40
    again = one.send()
    assert again.replayed or again.code == "body-not-kept"
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


@pytest.mark.parametrize("limit", [10, 1000])
def test_an_answer_that_breaks_off_leaves_nothing(
    make_bank: MakeBank, limit: int, colour: str
) -> None:
    broken = Says(200, (b"x" * 40, b"y" * 40), ValueError("broke off"))
    one = make_bank(pay(says=broken), max_response_body=limit)
    reply = one.send()
    assert (reply.status, b"x" in reply.body) == (500, False)
    if colour in ("fastapi", "def"):
        # Starlette has a task beside the stream, which it then cancels: what a cancelled task may
        # have sent is in doubt.
        assert one.ledger.all() == (0, 0, ["unknown"])
        return
    assert one.ledger.all() == NOTHING
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


def test_an_answer_that_breaks_off_in_doubt_is_unknown(make_bank: MakeBank) -> None:
    broken = Says(200, (b"x" * 40, b"y" * 40), semel.OutcomeUnknown("?"))
    one = make_bank(pay(says=broken))
    assert one.send().status == 500
    assert one.ledger.all() == (0, 0, ["unknown"])


# ── a handler that meddles ────────────────────────────────────────────────────────────────────────

FORBIDDEN: dict[str, Callable[[Any], Any]] = {
    "commit": lambda operation: operation.transaction.commit(),
    "rollback": lambda operation: operation.transaction.rollback(),
    "close": lambda operation: operation.transaction.close(),
}


def test_a_handlers_own_commit_is_refused_with_a_sentence(make_bank: MakeBank) -> None:
    said: list[str] = []

    def meddling(name: str) -> Script:
        def script() -> Generator[Step, Any, Says]:
            yield from pay()()
            try:
                yield Use(FORBIDDEN[name])
            except semel.ConfigurationError as error:
                said.append(str(error))
                raise
            return Says()

        return script

    one = make_bank(pay())
    for name in FORBIDDEN:
        one.ledger.clear()
        one.plays(meddling(name))
        assert (one.send(key_for(name)).status, one.ledger.all()) == (500, NOTHING)
        assert f"leave out {name}()" in said[-1]
        one.plays(pay())
        assert (one.send(key_for(name)).status, one.ledger.all()) == (201, PAID)


def sneaking(*statements: str, says: Says | None) -> Script:
    """Ends the transaction behind semel's back; answers, or lets it show."""

    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        try:
            for statement in statements:
                yield Sql(statement)
        except semel.ConfigurationError:
            if says is None:
                raise
        if says is None:
            raise ValueError("after the commit")
        return says

    return script


def test_a_commit_as_text_leaves_the_outcome_unknown_never_nothing_happened(
    make_bank: MakeBank,
) -> None:
    one = make_bank(pay())
    ways = itertools.product(
        [("COMMIT",), ("COMMIT", "BEGIN")], [Says(), Says(500), Says(429), None]
    )
    for runs, (statements, says) in enumerate(ways, start=1):
        one.ledger.clear()
        one.plays(sneaking(*statements, says=says))
        reply = one.send(key_for(runs))
        assert (reply.status, reply.code) == (500, "outcome-unknown")
        assert one.ledger.all() == (1, 1, ["unknown"])
        one.plays(pay())
        assert one.send(key_for(runs)).code == "outcome-unknown"
        assert (len(one.ledger.payments()), one.script.runs) == (1, runs)


def test_a_rollback_as_text_is_not_taken_for_a_success(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    for number, says in enumerate([Says(), None]):
        one.ledger.clear()
        one.plays(sneaking("ROLLBACK", says=says))
        assert one.send(key_for(number)).code == "outcome-unknown"
        assert one.ledger.all() == (0, 0, ["unknown"])
        assert one.send(key_for(number)).code == "outcome-unknown"


@pytest.mark.parametrize("ledger", ["mariadb"], indirect=True)
@pytest.mark.parametrize("says", [Says(), Says(500)])
def test_a_statement_that_commits_leaves_the_outcome_unknown(
    make_bank: MakeBank, says: Says
) -> None:
    """CREATE TABLE commits, though this one fails."""

    def script() -> Generator[Step, Any, Says]:
        yield Sql("INSERT INTO payment VALUES ('before')")
        with suppress(*DRIVER_ERRORS):
            yield Sql("CREATE TABLE payment (name int)")
        with suppress(semel.ConfigurationError):
            yield Sql("INSERT INTO payment VALUES ('after')")
        return says

    one = make_bank(script)
    assert one.send().code == "outcome-unknown"
    assert one.send().code == "outcome-unknown"
    assert (one.script.runs, one.ledger.payments()) == (1, ["before"])
    assert one.ledger.all() == (1, 0, ["unknown"])


def test_a_claim_that_was_rolled_back_by_text_is_not_taken_for_another_s(
    make_bank: MakeBank,
) -> None:
    """In the transaction that the handler has begun instead, its record is not there."""
    one = make_bank(pay())
    instead = ["ROLLBACK; BEGIN"]
    if one.ledger.sqlite or one.ledger.mysql:
        instead = ["ROLLBACK AND CHAIN"] if one.ledger.mysql else ["ROLLBACK", "BEGIN IMMEDIATE"]
    one.plays(sneaking(*instead, says=Says()))
    assert [one.send().code for _ in range(2)] == ["outcome-unknown"] * 2
    assert (one.script.runs, one.ledger.all()) == (1, (0, 0, ["unknown"]))


ODD = {
    "PREPARE odd FROM 'CREATE TABLE odd (id integer)'; EXECUTE odd": "unknown",
    "PREPARE odd FROM 'COMMIT AND CHAIN'; EXECUTE odd": "unknown",
    "PREPARE odd FROM 'ROLLBACK AND CHAIN'; EXECUTE odd": "unknown",
    "CALL commits()": "unknown",
    "LOCK TABLES payment WRITE": "unknown",
    "FLUSH TABLES payment WITH READ LOCK": "unknown",
    "SET autocommit = 1": "unknown",
    "XA START 'odd'": "completed",
    "SET completion_type = 'CHAIN'": "completed",
    "SET completion_type = 'RELEASE'": "completed",
    "SET timestamp = 1": "completed",
    "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE'": "completed",
    "SET unique_checks = 0, check_constraint_checks = 0": "completed",
    "CREATE TEMPORARY TABLE odd (id integer)": "completed",
    "DO RELEASE_ALL_LOCKS()": "completed",
    "SELECT GET_LOCK('odd', 0)": "completed",
    "KILL QUERY CONNECTION_ID()": "completed",
    "KILL CONNECTION_ID()": "nothing",
}
"""What a handler may do to its session on MariaDB, and what its record is then."""


@pytest.mark.parametrize("ledger", ["mariadb"], indirect=True)
@pytest.mark.parametrize("statement", ODD)
def test_odd_statements_end_in_one_effect_or_in_doubt(make_bank: MakeBank, statement: str) -> None:
    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        with suppress(semel.ConfigurationError, *DRIVER_ERRORS):
            for each in statement.split("; "):
                yield Sql(each)
        return Says()

    one = make_bank(script)
    one.ledger.ask("DROP PROCEDURE IF EXISTS commits")
    one.ledger.ask("CREATE PROCEDURE commits() BEGIN COMMIT; START TRANSACTION; END")
    replies = [one.send() for _ in range(2)]
    one.ledger.ask("DROP TABLE IF EXISTS odd")
    payments, _, states = one.ledger.all()
    if ODD[statement] == "completed":
        assert [(reply.status, reply.replayed) for reply in replies] == [(201, False), (201, True)]
        assert (one.script.runs, payments, states) == (1, 1, ["completed"])
    elif ODD[statement] == "unknown":
        assert [reply.code for reply in replies] == ["outcome-unknown"] * 2
        assert states == ["unknown"]
        assert (one.script.runs, payments <= 1) == (1, True)
    else:
        assert [reply.code for reply in replies] == ["not-executed"] * 2
        assert (payments, states) == (0, [])


@pytest.mark.parametrize("ledger", ["mariadb"], indirect=True)
@pytest.mark.parametrize("says", [Says(500), Says(429), None])
def test_writes_that_the_server_cannot_undo_leave_the_outcome_unknown(
    make_bank: MakeBank, says: Says | None
) -> None:
    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        yield Sql("INSERT INTO notes VALUES (1)")
        if says is None:
            raise ValueError("after that")
        return says

    one = make_bank(script)
    one.ledger.ask("DROP TABLE IF EXISTS notes")
    one.ledger.ask("CREATE TABLE notes (id integer) ENGINE = MyISAM")
    try:
        assert [one.send().code for _ in range(2)] == ["outcome-unknown"] * 2
        assert one.ledger.ask("SELECT count(*) FROM notes") == [(1,)]
        assert (one.script.runs, one.ledger.all()) == (1, (0, 0, ["unknown"]))
    finally:
        one.ledger.ask("DROP TABLE notes")


def test_sql_that_failed_under_a_success_keeps_nothing_and_a_retry_runs(
    make_bank: MakeBank,
) -> None:
    """PostgreSQL has aborted the transaction; others have only undone the one statement."""

    def script() -> Generator[Step, Any, Says]:
        yield Sql("INSERT INTO payment VALUES ('a')")
        yield Put("receipt")
        with suppress(*DRIVER_ERRORS):
            yield Sql("INSERT INTO payment VALUES ('a')")
        return Says()

    one = make_bank(script)
    reply = one.send()
    if one.ledger.sqlite or one.ledger.mysql:
        assert (reply.status, one.ledger.all()) == (201, PAID)
        return
    assert (reply.status, reply.code, one.ledger.all()) == (503, "not-executed", NOTHING)
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


@ON_SERVERS  # a file has no search path
def test_a_handler_that_hides_semels_tables_keeps_nothing(make_bank: MakeBank) -> None:
    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        yield Sql("USE mysql" if one.ledger.mysql else "SET LOCAL search_path = nowhere")
        return Says()

    one = make_bank(script)
    assert (one.send().code, one.ledger.all()) == ("not-executed", NOTHING)
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


@ON_POSTGRES  # SQLite checks foreign keys only where a connection asks before it begins
def test_a_constraint_that_is_checked_at_commit_keeps_nothing(make_bank: MakeBank) -> None:
    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        yield Sql("INSERT INTO refund VALUES ('of no payment')")
        return Says()

    one = make_bank(script)
    one.ledger.ask(
        "CREATE TABLE IF NOT EXISTS refund"
        " (name TEXT REFERENCES payment (name) DEFERRABLE INITIALLY DEFERRED)"
    )
    reply = one.send()
    assert (reply.code, one.ledger.all()) == ("not-executed", NOTHING)
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


WHO = {False: "SELECT pg_backend_pid()", True: "SELECT CONNECTION_ID()"}


def end_connection(ledger: Ledger, number: int) -> None:
    if not ledger.mysql:
        ledger.ask(f"SELECT pg_terminate_backend({number}, {WAIT})")
        return
    ledger.ask(f"KILL {number}")
    left = f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"
    until(lambda: ledger.ask(left) == [])


@ON_SERVERS  # a file has no connection that could die
def test_a_connection_that_dies_in_the_handler_keeps_nothing(make_bank: MakeBank) -> None:
    one = make_bank(pay())

    def dying(says: Says | None) -> Script:
        def script() -> Generator[Step, Any, Says]:
            ((pid,),) = yield Sql(WHO[one.ledger.mysql])
            yield from pay()()
            end_connection(one.ledger, pid)
            if says is None:
                raise ValueError("the handler noticed")
            return says

        return script

    for says in (Says(), Says(500), None):
        one.plays(dying(says))
        reply = one.send()
        assert reply.status in (500, 503)
        assert one.ledger.all() == NOTHING
    one.plays(pay())
    assert (one.send().status, one.ledger.all()) == (201, PAID)


@ON_SERVERS
@pytest.mark.parametrize("factory", [semel.ietf, semel.stripe])
def test_a_doubt_is_on_record_although_the_connection_died_with_the_handler(
    make_bank: MakeBank, factory: Any
) -> None:
    """Else a retry would send the payment again that may have been sent."""
    one = make_bank(pay(), factory)

    def script() -> Generator[Step, Any, Says]:
        ((pid,),) = yield Sql(WHO[one.ledger.mysql])
        yield from pay()()
        end_connection(one.ledger, pid)
        raise semel.OutcomeUnknown("sent, and no answer")

    one.plays(script)
    assert one.send().status == 500
    state = "unknown" if factory is semel.ietf else "completed"
    assert one.ledger.all() == (0, 0, [state])
    again = one.send()
    assert one.script.runs == 1
    assert again.replayed if factory is semel.stripe else again.code == "outcome-unknown"


def test_what_goes_on_after_the_answer_cannot_use_the_transaction(make_bank: MakeBank) -> None:
    kept: list[Any] = []

    def script() -> Generator[Step, Any, Says]:
        yield from pay()()
        yield Use(lambda operation: kept.append(operation.transaction))
        return Says()

    one = make_bank(script)
    assert one.send().status == 201
    with pytest.raises((semel.ConfigurationError, *DRIVER_ERRORS)):
        use_late(kept[0])
    assert one.ledger.all() == PAID


def use_late(connection: Any) -> None:
    said = "INSERT INTO payment VALUES ('late')"
    if isinstance(connection, AWAITED):
        asyncio.run(aexecuted(connection, said))
    else:
        executed(connection, said)


# ── who may not run ───────────────────────────────────────────────────────────────────────────────


def test_another_payload_is_refused_and_changes_nothing(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    one.send(Ask(body=b'{"amount": 1}'))
    reply = one.send(Ask(body=b'{"amount": 2}'))
    assert (reply.status, reply.code) == (422, "key-reused")
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


def test_tenants_with_one_key_are_independent(
    ledger: Ledger, colour: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    guard = make_guard(
        ledger.store,
        tenant=lambda request: request.headers["x-tenant"],
        policy=semel.ietf(mode="atomic"),
    )
    one = bank(colour, guard, ledger, runner, pay())
    bodies = [one.send(Ask(headers=(("x-tenant", who),))).body for who in ("a", "b", "a")]
    assert bodies[0] == bodies[2] != bodies[1]
    assert (ledger.all(), one.script.runs) == ((2, 2, ["completed"] * 2), 2)


def test_an_answer_whose_resource_was_retired_is_not_repeated(make_bank: MakeBank) -> None:
    def script() -> Generator[Step, Any, Says]:
        yield Use(lambda operation: operation.resource("ride/1"))
        return (yield from pay()())

    one = make_bank(script)
    assert one.send().status == 201
    assert one.guard.retire("ride/1") == 1
    assert one.send().code == "replay-impossible"
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


def test_an_expired_key_is_not_run_again(make_bank: MakeBank) -> None:
    one = make_bank(pay())
    assert one.send().status == 201
    one.ledger.ask("UPDATE semel_record SET due_at = created_at")
    assert one.send().code == "key-expired"
    assert one.script.runs == 1


def test_a_key_of_the_previous_settings_is_replayed(
    ledger: Ledger, colour: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    before = semel.ietf(mode="atomic")
    old = bank(colour, make_guard(ledger.store, policy=before), ledger, runner, pay())
    first = old.send()
    after = semel.ietf(mode="atomic", scope="tenant", previous=before)
    new = bank(colour, make_guard(ledger.store, policy=after), ledger, runner, pay())
    again = new.send()
    assert (again.replayed, again.body) == (True, first.body)
    assert (ledger.all(), new.script.runs) == (PAID, 0)


@pytest.mark.parametrize("seen_before", [True, False])
def test_a_replay_writes_nothing_and_needs_no_transaction(
    make_bank: MakeBank,
    seen_before: bool,
    colour: str,
    make_guard: MakeGuard,
    runner: asyncio.Runner,
) -> None:
    """Familiar: by the process that ran it. The other one looks under the lock, and rolls back."""
    one = make_bank(pay())
    first = one.send()
    if not seen_before:
        guard = make_guard(one.ledger.store, policy=one.guard.policy, maintenance=None)
        guard.start()
        one = bank(colour, guard, one.ledger, runner, pay())
    else:
        backend: Any = one.guard.backend
        backend.begin = backend.abegin = None
    with watched(one.ledger) as writes:
        replies = [one.send() for _ in range(5)]
        assert writes() == 0
    assert {(reply.replayed, reply.body) for reply in replies} == {(True, first.body)}
    assert one.ledger.all() == PAID


@pytest.mark.parametrize("body", [b"{}", b'{"another": 1}'])
def test_one_who_may_not_run_leaves_no_transaction_open(
    make_bank: MakeBank, colour: str, make_guard: MakeGuard, runner: asyncio.Runner, body: bytes
) -> None:
    one = make_bank(pay())
    one.send()
    stranger = bank(
        colour, make_guard(one.ledger.store, policy=one.guard.policy), one.ledger, runner, pay()
    )
    assert stranger.send(Ask(body=body)).status in (201, 422)
    if not one.ledger.sqlite:
        # Soon: nobody waits for the answer to a ROLLBACK.
        until(lambda: one.ledger.ask(LEFT_OPEN[one.ledger.mysql]) == [])
    assert stranger.send(Ask(key="another-key-of-some-length")).status == 201


class watched:  # noqa: N801 - used like a function
    """Counts transactions that have written, since it was entered."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __enter__(self) -> Callable[[], int]:
        if self._ledger.sqlite:
            self._file = sqlite3.connect(self._ledger.file)
        else:
            self._still()
        before = self._count()
        return lambda: self._count() - before

    def _count(self) -> int:
        if self._ledger.sqlite:
            return int(self._file.execute("PRAGMA data_version").fetchone()[0])
        if self._ledger.mysql:
            written = "SHOW GLOBAL STATUS WHERE variable_name REGEXP 'Innodb_rows_(ins|upd|del)'"
            return sum(int(count) for _, count in self._ledger.ask(written))
        # A transaction has a number of its own only once it writes.
        asked = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
        return int(self._ledger.ask(asked)[0][0])

    def _still(self) -> None:
        """The numbers are the whole server's: it must write nothing by itself."""
        if self._ledger.mysql:
            return
        for statement in ("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"):
            self._ledger.ask(statement)
        cleaning = "SELECT 1 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
        until(lambda: self._ledger.ask(cleaning) == [])

    def __exit__(self, *_: object) -> None:
        if self._ledger.sqlite:
            self._file.close()


# ── the guard ─────────────────────────────────────────────────────────────────────────────────────


def test_a_store_without_transactions_is_refused_in_one_sentence_when_the_guard_is_made() -> None:
    with pytest.raises(semel.ConfigurationError, match="memory:// has no transactions: mode='at"):
        semel.Guard("memory://", tenant=None, policy=semel.ietf(mode="atomic"))
    route = semel.Route("POST", "/x", semel.ietf(mode="atomic"))
    with pytest.raises(semel.ConfigurationError, match="has no transactions"):
        semel.Guard("memory://", tenant=None, routes=[route])


def test_a_leased_route_has_no_transaction_and_says_so(
    ledger: Ledger, colour: str, make_guard: MakeGuard, runner: asyncio.Runner
) -> None:
    said: list[str] = []

    def script() -> Generator[Step, Any, Says]:
        try:
            yield Sql("INSERT INTO payment VALUES ('a')")
        except semel.ConfigurationError as error:
            said.append(str(error))
        return Says()

    assert bank(colour, make_guard(ledger.store), ledger, runner, script).send().status == 201
    assert said == [
        "no transaction is open here: use a route with mode='atomic', or a phase",
    ]


# ── functions ─────────────────────────────────────────────────────────────────────────────────────


def put(operation: Any) -> None:
    executed(operation.transaction, "INSERT INTO payment VALUES ('a')")
    operation.enqueue("receipt", {})


def test_once_in_a_transaction(ledger: Ledger, make_guard: MakeGuard) -> None:
    guard = make_guard(ledger.store, policy=semel.ietf(mode="atomic"))
    tries = 0

    def job() -> str:
        nonlocal tries
        tries += 1
        put(semel.operation())
        if tries == 1:
            raise ValueError("once")
        return "done"

    with pytest.raises(ValueError, match="once"):
        guard.once("a-key-of-some-length", job, name="pay")
    assert ledger.all() == NOTHING
    results = [guard.once("a-key-of-some-length", job, name="pay") for _ in range(3)]
    assert [(result.value, result.replayed) for result in results] == [
        ("done", False),
        ("done", True),
        ("done", True),
    ]
    assert (ledger.all(), tries) == (PAID, 2)


def test_once_whose_function_commits_says_so_and_is_not_run_again(
    ledger: Ledger, make_guard: MakeGuard
) -> None:
    guard = make_guard(ledger.store, policy=semel.ietf(mode="atomic"))

    def job() -> str:
        put(semel.operation())
        executed(semel.operation().transaction, "COMMIT")
        return "done"

    with pytest.raises(semel.ConfigurationError, match="ended semel's transaction itself"):
        guard.once("a-key-of-some-length", job, name="pay")
    with pytest.raises(semel.Refused, match="outcome-unknown"):
        guard.once("a-key-of-some-length", job, name="pay")
    assert ledger.all() == (1, 1, ["unknown"])


async def test_aonce_in_a_transaction(ledger: Ledger) -> None:
    guard = semel.Guard(ledger.store, tenant=None, policy=semel.ietf(mode="atomic"))
    started, go = asyncio.Event(), asyncio.Event()

    async def job() -> str:
        operation = semel.async_operation()
        await aexecuted(operation.transaction, "INSERT INTO payment VALUES ('a')")
        await operation.enqueue("receipt", {})
        started.set()
        await go.wait()
        return "done"

    def once() -> Any:
        return guard.aonce("a-key-of-some-length", job, name="pay")

    leader = asyncio.ensure_future(once())
    await started.wait()
    with pytest.raises(semel.Refused, match="in-flight"):
        await once()
    leader.cancel()
    await asyncio.wait([leader])
    assert ledger.all() == NOTHING
    go.set()
    await guard.asgi(Starlette()).drain()
    again = await once()
    assert (again.value, again.replayed, ledger.all()) == ("done", True, PAID)
    await guard.aclose()


# ── colours ───────────────────────────────────────────────────────────────────────────────────────


def test_every_handler_gets_an_operation_and_a_connection_of_its_own_colour(
    make_bank: MakeBank, colour: str
) -> None:
    seen: list[tuple[str, Any]] = []

    def script() -> Generator[Step, Any, Says]:
        yield Use(lambda operation: seen.append((type(operation).__name__, operation.transaction)))
        return Says()

    one = make_bank(script)
    assert one.send().status == 201
    ((kind, connection),) = seen
    awaited = colour in ("asgi", "fastapi")
    assert kind == ("AsyncOperation" if awaited else "Operation")
    if one.ledger.sqlite:
        assert isinstance(connection, sqlite3.Connection)
    elif one.ledger.mysql:
        wanted: type = AsyncMysqlHandlerConnection if awaited else pymysql.Connection
        assert isinstance(connection, wanted)
    else:
        wanted = psycopg.AsyncConnection if awaited else psycopg.Connection
        assert isinstance(connection, wanted)


# ── a client that leaves ──────────────────────────────────────────────────────────────────────────


class Cancelled:
    """Awaits a request, whose task is cancelled as its n-th wait begins, or ``late``, as it ends.

    The waits of a task are counted and not timed: however fast the database is, each is met.
    """

    def __init__(self, work: Coroutine[Any, Any, None], at: int, *, late: bool) -> None:
        self._work, self.left, self._late = work, at, late

    def __await__(self) -> Generator[Any, Any, None]:
        waits, error = self._work, None
        while True:
            try:
                future = waits.send(None) if error is None else waits.throw(error)
            except StopIteration:
                return
            self.left -= 1
            if self.left == 0:
                self._cancel(future)
            try:
                error = None
                yield future
            except BaseException as thrown:
                error = thrown

    def _cancel(self, future: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._late and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


@pytest.mark.parametrize("colour", ASGI, indirect=True)
@pytest.mark.parametrize("says", [Says(), Says(500), None])
def test_cancelled_at_any_wait_a_request_is_whole_or_nothing(
    make_bank: MakeBank, runner: asyncio.Runner, says: Says | None
) -> None:
    one = make_bank(pay(says=says) if says else failing(semel.OutcomeUnknown("?")))
    whole = Whole(one, says)
    for late in (False, True):
        for at in itertools.count(1):
            wire = Wire(key_for(f"{late}-{at}"))
            work = Cancelled(one.app(scope_of(wire.ask), wire.receive, wire.send), at, late=late)
            runner.run(whole.after(awaited(work)))
            if work.left > 0:
                break  # it has ended, and was not cancelled
    whole.end()


@pytest.mark.proof
@pytest.mark.parametrize("colour", ASGI, indirect=True)
@pytest.mark.parametrize("says", [Says(), Says(500), None])
def test_cancelled_at_any_moment_a_request_is_whole_or_nothing(
    make_bank: MakeBank, runner: asyncio.Runner, says: Says | None
) -> None:
    """The server's task is cancelled after n turns of the loop, for n = 0, 1, 2, …"""
    one = make_bank(pay(says=says) if says else failing(semel.OutcomeUnknown("?")))
    whole = Whole(one, says)
    for turn in itertools.count():
        wire = Wire(key_for(turn))
        work = one.app(scope_of(wire.ask), wire.receive, wire.send)
        if runner.run(whole.after(work, turns=turn)):
            break  # it had ended before
    whole.end()


async def awaited(work: Cancelled) -> None:
    await work


class Whole:
    """Looks at what requests leave that were cancelled: all of it, or nothing."""

    def __init__(self, one: Bank, says: Says | None) -> None:
        self._one, self._says = one, says
        self._outcomes: set[str] = set()

    async def after(self, work: Coroutine[Any, Any, None], turns: int | None = None) -> bool:
        """Cancelled after so many turns of the loop, or by itself. Whether it had ended before."""
        one, before = self._one, self._one.script.runs
        ended = await self._cancelled(work, turns)
        middleware = one.app if isinstance(one.app, Middleware) else Middleware(one.app, one.guard)
        await middleware.drain()
        self._look(one.script.runs - before, one.ledger.all())
        return ended

    @staticmethod
    async def _cancelled(work: Coroutine[Any, Any, None], turns: int | None) -> bool:
        task = asyncio.ensure_future(work)
        for _ in range(turns or 0):
            await asyncio.sleep(0 if turns is None or turns < 100 else 0.001)
        ended = task.done()
        if turns is not None:
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        return ended

    def _look(self, runs: int, left: tuple[int, int, list[str]]) -> None:
        self._outcomes.add(json.dumps([runs, left]))
        assert runs <= 1
        if runs == 0:
            assert left == NOTHING
        elif self._says is None:
            assert left == (0, 0, ["unknown"])
        else:
            assert left == (PAID if self._says.status == 201 else NOTHING)
        if left != NOTHING:
            self._one.ledger.clear()

    def end(self) -> None:
        assert len(self._outcomes) == 2
        self._one.plays(pay())
        assert self._one.send().status in (201, 409)  # no room and no lock is left taken


@pytest.mark.parametrize("colour", ASGI)  # a WSGI handler is not told
def test_a_client_that_leaves_in_the_handler_does_not_stop_it(
    make_bank: MakeBank, runner: asyncio.Runner
) -> None:
    one = make_bank(pay())

    async def leave() -> None:
        wire = Wire(Ask())
        wire.gone.set()
        await one.app(scope_of(wire.ask), wire.receive, wire.send)

    runner.run(leave())
    assert one.ledger.all() == PAID
    assert one.send().replayed
