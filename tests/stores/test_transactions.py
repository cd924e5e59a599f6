"""Transactions of a store's database: what a claim, a handler and its completion commit together.

Most of it is true of every store and colour; what is true of one database alone comes last.
"""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

import psycopg
import pymysql
import pytest

from semel.core.operations.requests import Applied, Claim, Claimed, Found, NoRecord, Read
from semel.core.records import Identity, State
from semel.errors import (
    ConfigurationError,
    SemelError,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from semel.stores.base import AsyncTransaction, Backend, Transaction, Transactional
from semel.stores.mysql import MysqlBackend, protocol
from semel.stores.mysql import transaction as maria_steps
from semel.stores.mysql.handler_connections import AsyncMysqlHandlerConnection
from semel.stores.mysql.settings import parse
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres import transaction as steps
from semel.stores.sqlite import SqliteBackend
from semel.stores.sqlite.transaction import SqliteTransactions
from semel.testing.contract.event_loop_thread import EventLoopThread
from tests.databases import (
    DRIVER_ERRORS,
    WAITING_FOR_A_KEY,
    aexecuted,
    connect,
    end_connections,
    executed,
    numbers,
)
from tests.forms import in_proof
from tests.servers import MariadbServer, PostgresServer, mysql
from tests.servers.child import ROOT
from tests.stores.dialects import DIALECTS, Ask
from tests.stores.harness import TABLES
from tests.stores.together import SOON, claim, complete, forked
from tests.waiting import PATIENCE, until
from tests.web.cable import all_done

KINDS = ("sqlite", "postgresql", "mysql")
SYNC = pytest.mark.parametrize("world", [f"{kind}-sync" for kind in KINDS], indirect=True)
ASYNC = pytest.mark.parametrize("world", [f"{kind}-async" for kind in KINDS], indirect=True)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's statements have a second to notice an interruption; here they have long."""
    monkeypatch.setattr("semel.stores.sqlite.connection.PATIENCE", PATIENCE)


AWAITED = (psycopg.AsyncConnection, AsyncMysqlHandlerConnection)


class Act:
    """One transaction, in whatever colour, driven from a test's thread."""

    def __init__(
        self, inner: Transaction | AsyncTransaction, portal: EventLoopThread | None
    ) -> None:
        self.inner = inner
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        portal = self._portal
        return method if portal is None else lambda *args: portal.call(method(*args))

    @property
    def connection(self) -> Any:
        portal = self._portal
        return self.inner.connection if portal is None else portal.call(self._connection())

    async def _connection(self) -> Any:
        return self.inner.connection

    def execute(self, statement: str) -> list[Any]:
        """As a handler would, on its own connection."""
        return self.execute_on(self.connection, statement)

    def execute_on(self, connection: Any, statement: str) -> list[Any]:
        if isinstance(connection, AWAITED):
            assert self._portal is not None
            return self._portal.call(aexecuted(connection, statement))
        return executed(connection, statement)

    def call(self, name: str) -> Any:
        """A method of the handler's connection."""
        method = getattr(self.connection, name)
        if self._portal is not None and asyncio.iscoroutinefunction(method):
            return self._portal.call(method())
        return method()


BACKENDS: dict[str, Any] = {
    "sqlite": SqliteBackend,
    "postgresql": PostgresBackend,
    "mysql": MysqlBackend,
}


class World:
    """A database with a table of the application's, and backends on it."""

    def __init__(self, url: str, colour: str, outside: Callable[[], Any]) -> None:
        self.url = url
        self.kind = url.partition(":")[0]
        self.is_sqlite = self.kind == "sqlite"
        self.outside = outside
        self.portal = EventLoopThread() if colour == "async" else None
        self._opened: list[Any] = []
        self.backend = self.open()
        # SQLite's first read goes by way of its writer, which a transaction would keep waiting.
        self.backend.blocking().perform(Read(claim().identity))

    def open(self, url: str = "", **options: Any) -> Any:
        """A backend of its own, as in another process."""
        url = url or self.url
        options.setdefault("timeout", PATIENCE)
        made: Backend = BACKENDS[self.kind](url, **options)
        self._opened.append(made)
        return made

    @contextmanager
    def hurry(self, backend: Any = None) -> Iterator[None]:
        """Who begins in the meantime has little time: only somebody who is never let in may."""
        backend = backend or self.backend
        if self.is_sqlite:
            desk = backend._transactions
        else:
            portal, pool = self.portal, backend.transaction_pool
            desk = pool() if portal is None else portal.call(self._awaited_pool(backend))
        patient, desk._timeout = desk._timeout, SOON
        try:
            yield
        finally:
            desk._timeout = patient

    async def _awaited_pool(self, backend: Any) -> Any:
        return backend.async_transaction_pool()

    def begin(
        self, identity: Identity | None, backend: Any = None, limit: float | None = None
    ) -> Act:
        act = self.try_begin(identity, backend, limit)
        assert act is not None
        return act

    def try_begin(
        self, identity: Identity | None, backend: Any = None, limit: float | None = None
    ) -> Act | None:
        backend = backend or self.backend
        if self.portal is None:
            inner = backend.begin(identity, limit)
        else:
            inner = self.portal.call(backend.abegin(identity, limit))
        return None if inner is None else Act(inner, self.portal)

    def begun(self) -> tuple[Act, Claim]:
        """Up to where the handler is called."""
        op = claim()
        act = self.begin(op.identity)
        assert isinstance(act.perform(op), Claimed)
        act.savepoint()
        return act, op

    def ascertain(self, identity: Identity, backend: Any = None) -> Found | NoRecord:
        backend = backend or self.backend
        if self.portal is None:
            return cast("Found | NoRecord", backend.ascertain(identity))
        return cast("Found | NoRecord", self.portal.call(backend.aascertain(identity)))

    def orders(self) -> list[int]:
        with closing(self.outside()) as connection:
            rows = executed(connection, "SELECT id FROM orders ORDER BY id")
        return [row[0] for row in rows]

    def state(self, op: Claim) -> State | None:
        found = self.backend.blocking().perform(Read(op.identity))
        return found.record.state if isinstance(found, Found) else None

    def close(self) -> None:
        for backend in self._opened:
            if self.portal is not None:
                self.portal.call(backend.aclose())
            backend.close()
        if self.portal is not None:
            self.portal.close()


ORDERS = "CREATE TABLE orders (id integer primary key)"
PREPARED: list[bytes] = []


def prepared(folder: Path) -> bytes:
    """A file of SQLite's. To copy one syncs nothing."""
    if PREPARED:
        return PREPARED[0]
    path = folder / "prepared.db"
    SqliteBackend(f"sqlite:///{path}", timeout=PATIENCE).migrate()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(ORDERS)
    PREPARED.append(path.read_bytes())
    path.unlink()
    return PREPARED[0]


def prepare(url: str) -> None:
    PostgresBackend(url, timeout=PATIENCE).migrate()
    with psycopg.connect(url) as connection:
        connection.execute(ORDERS)


def prepare_mysql(url: str) -> None:
    MysqlBackend(url, timeout=PATIENCE).migrate()
    with closing(connect(url)) as connection:
        executed(connection, ORDERS)


@contextmanager
def opened(name: str, folder: Path, server: Callable[[str], Any]) -> Iterator[World]:
    store, colour = name.split("-")
    if store == "sqlite":
        path = folder / "app.db"
        path.write_bytes(prepared(folder))
        world = World(f"sqlite:///{path}", colour, lambda: sqlite3.connect(path))
        try:
            yield world
        finally:
            world.close()
        return
    mysql = store == "mysql"
    made: MariadbServer | PostgresServer = server("mariadb" if mysql else "postgres")
    tables = (*TABLES, "orders")
    with made.prepared(prepare_mysql if mysql else prepare, tables) as url:
        world = World(url, colour, lambda: connect(url))
        try:
            yield world
        finally:
            world.close()


def lazily(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return request.getfixturevalue


WORLDS = [f"{kind}-{colour}" for kind in KINDS for colour in ("sync", "async")]


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


@pytest.fixture(params=["postgresql-sync", "postgresql-async"])
def pg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


@pytest.fixture(params=["mysql-sync", "mysql-async"])
def maria(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


@pytest.fixture(params=WORLDS[2:])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """On a database server."""
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


@pytest.fixture(params=["sqlite-sync", "sqlite-async"])
def lite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


# ── severed: under the hands of whoever uses it ───────────────────────────────────────────────────


def test_severed_nothing_stays_and_the_key_is_free_at_once(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    act.inner.sever("it took too long")
    again = until(lambda: world.try_begin(op.identity))
    assert isinstance(again.perform(op), Claimed)
    again.roll_back()
    with pytest.raises(StoreUnavailable, match="it took too long") as refused:
        act.commit()
    assert refused.value.applied is False
    act.roll_back()
    assert (world.orders(), world.state(op)) == ([], None)


def test_severed_its_connection_is_of_no_use_any_more(world: World) -> None:
    act, _ = world.begun()
    connection = act.connection
    act.inner.sever("it took too long")
    with pytest.raises((*DRIVER_ERRORS, SemelError)):
        act.execute_on(connection, "SELECT 1")
    with pytest.raises(SemelError):
        act.perform(Read(claim().identity))
    act.roll_back()


def test_severed_it_takes_no_place_from_others(server: World) -> None:
    backend = server.open(pool_size=1)
    acts = []
    for _ in range(3):
        acts.append(server.begin(claim().identity, backend))
        acts[-1].inner.sever("it took too long")
    for act in acts:
        act.roll_back()
    one = server.begin(claim().identity, backend)
    with server.hurry(backend), pytest.raises(StoreUnavailable, match="pool_size=1"):
        server.begin(claim().identity, backend)
    one.roll_back()


def test_a_lost_connection_s_number_may_be_another_socket_s(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with opened("postgresql-async", tmp_path, lazily(request)) as world:
        act, _ = world.begun()
        number = cast("Any", act.inner)._conn.fd
        ((pid,),) = act.execute("SELECT pg_backend_pid()")
        with closing(world.outside()) as outside:
            outside.execute("SELECT pg_terminate_backend(%s, 100000)", (pid,))
        with pytest.raises(psycopg.Error):
            act.execute("SELECT 1")  # libpq notices, and closes its socket
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        heard = threading.Event()
        ours, theirs = socket.socketpair()
        ours = socket.socket(fileno=os.dup2(ours.detach(), number))
        assert world.portal is not None
        world.portal.call(_listen(number, heard))
        act.roll_back()
        theirs.send(b"x")
        assert heard.wait(PATIENCE)
        world.portal.call(_hush(number))
        for each in (ours, theirs):
            each.close()


async def _listen(number: int, heard: threading.Event) -> None:
    asyncio.get_running_loop().add_reader(number, heard.set)


async def _hush(number: int) -> None:
    asyncio.get_running_loop().remove_reader(number)


LONG = {
    "sqlite": (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    ),
    "postgresql": "SELECT pg_sleep(3600)",
    "mysql": "SELECT SLEEP(3600)",
}
ASLEEP = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event = 'PgSleep' AND datname = current_database()"
    ),
    "mysql": (
        "SELECT count(*) FROM information_schema.processlist "
        "WHERE state = 'User sleep' AND db = DATABASE()"
    ),
}


def asleep(world: World) -> bool:
    """Whether a statement is in the middle of its sleep."""
    with closing(world.outside()) as outside:
        return executed(outside, ASLEEP[world.kind]) == [(1,)]


def test_severed_in_the_middle_of_a_statement_it_ends(world: World) -> None:
    act, op = world.begun()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(act.execute, LONG[world.kind])
        if world.kind == "postgresql":
            pgconn = cast("Any", act.inner)._conn.pgconn
            until(lambda: pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)
        elif world.kind == "mysql":
            until(lambda: asleep(world))
        act.inner.sever("it took too long")
        with pytest.raises((*DRIVER_ERRORS, SemelError)):
            running.result(PATIENCE)
    act.roll_back()
    until(lambda: world.try_begin(op.identity)).roll_back()


def test_severed_while_the_application_makes_the_rows_it_is_to_write(lite: World) -> None:
    act, op = lite.begun()
    connection = act.connection
    asked, go_on = threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[int]]:
        yield (1,)
        asked.set()
        assert go_on.wait(PATIENCE)
        yield (2,)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(connection.executemany, "INSERT INTO orders VALUES (?)", rows())
        assert asked.wait(PATIENCE)
        assert act.inner.sever("it took too long")
        until(lambda: lite.try_begin(op.identity)).roll_back()
        go_on.set()
        with pytest.raises(sqlite3.ProgrammingError):
            writing.result(PATIENCE)
    act.roll_back()
    assert lite.orders() == []


def test_severed_in_a_statement_within_the_rows_of_another(lite: World) -> None:
    act, op = lite.begun()
    connection = act.connection
    connection.execute("INSERT INTO orders VALUES (1), (2)")
    rows = connection.execute("SELECT id FROM orders")
    assert next(rows) == (1,)
    began = threading.Event()
    connection.create_function("began", 0, began.set)
    step = "SELECT i + 1 FROM n WHERE began() IS NULL"
    long = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL {step}) SELECT max(i) FROM n"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(connection.execute, long)
        assert began.wait(PATIENCE)
        assert act.inner.sever("it took too long")
        with pytest.raises((sqlite3.Error, SemelError)):
            running.result(PATIENCE)
    until(lambda: lite.try_begin(op.identity)).roll_back()
    with pytest.raises(sqlite3.ProgrammingError):
        next(rows)
    act.roll_back()
    assert lite.orders() == []


def test_a_function_that_does_not_return_is_not_severed_and_that_is_said(
    lite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, op = lite.begun()
    connection = act.connection
    called, go_on = threading.Event(), threading.Event()

    def hang() -> int:
        called.set()
        return int(go_on.wait(PATIENCE))

    connection.create_function("hang", 0, hang)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(connection.execute, "SELECT hang()")
        assert called.wait(PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr("semel.stores.sqlite.connection.PATIENCE", SOON)
            assert not act.inner.sever("it took too long")
        go_on.set()
        with suppress(sqlite3.Error):
            hanging.result(PATIENCE)
    assert act.inner.sever("it took too long")
    until(lambda: lite.try_begin(op.identity)).roll_back()
    act.roll_back()


def test_severed_after_its_end_it_harms_nobody(world: World) -> None:
    options: dict[str, Any] = {} if world.is_sqlite else {"pool_size": 1}
    backend = world.open(**options)
    act, other = world.begin(claim().identity, backend), claim()
    act.commit()
    following = world.begin(other.identity, backend)
    act.inner.sever("it took too long")
    assert isinstance(following.perform(other), Claimed)
    following.execute("INSERT INTO orders VALUES (1)")
    following.perform(complete(other))
    following.commit()
    assert world.orders() == [1]


def test_the_server_ends_one_whose_process_is_stopped(server: World) -> None:
    op = claim()
    act = server.begin(op.identity, limit=0.2)
    with suppress(StoreUnavailable):  # we may be so slow that it was ended before
        act.perform(op)
    rival = server.open()
    until(lambda: server.try_begin(op.identity, rival)).roll_back()  # in a process of its own
    act.roll_back()


@pytest.mark.parametrize(("own", "limit", "kept"), [("50s", 300, "50s"), ("1h", 300, "5min")])
def test_a_shorter_limit_of_the_database_s_own_stays(
    pg: World, own: str, limit: int, kept: str
) -> None:
    separator = "&" if "?" in pg.url else "?"
    given = f"{separator}options=-c%20idle_in_transaction_session_timeout%3D{own}"
    backend = pg.open(url=pg.url + given)
    act = pg.begin(claim().identity, backend, limit)
    assert act.execute("SHOW idle_in_transaction_session_timeout") == [(kept,)]
    act.roll_back()


# ── together or not at all ────────────────────────────────────────────────────────────────────────


def test_a_backend_with_transactions_keeps_the_protocol(world: World) -> None:
    assert isinstance(world.backend, Transactional)


def test_record_and_business_row_are_committed_together(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    assert world.orders() == []
    assert isinstance(act.perform(complete(op)), Applied)
    act.flush()
    assert world.state(op) is None
    act.commit()
    act.roll_back()
    assert world.orders() == [1]
    assert world.state(op) is State.COMPLETED


def test_rolled_back_nothing_is_left_and_the_key_is_free(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    act.roll_back()
    act.roll_back()
    assert world.orders() == []
    assert world.state(op) is None
    again = world.begin(op.identity)
    assert isinstance(again.perform(op), Claimed)
    again.roll_back()


def test_what_was_undone_is_gone_and_the_record_stays(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(DRIVER_ERRORS):
        act.execute("INSERT INTO orders VALUES (1)")
    act.undo()
    act.perform(complete(op))
    act.commit()
    assert world.orders() == []
    assert world.state(op) is State.COMPLETED


def test_a_phase_needs_no_identity(world: World) -> None:
    act = world.begin(None)
    act.execute("INSERT INTO orders VALUES (7)")
    act.commit()
    act.commit()
    assert world.orders() == [7]


def test_commit_after_roll_back_is_no_success(world: World) -> None:
    act, _ = world.begun()
    act.roll_back()
    with pytest.raises(StoreUnavailable) as refused:
        act.commit()
    assert refused.value.applied is False


# ── one at a time ─────────────────────────────────────────────────────────────────────────────────


def test_a_taken_key_is_told_at_once_within_the_process(world: World) -> None:
    act, op = world.begun()
    began = monotonic()
    assert all(world.try_begin(op.identity) is None for _ in range(40))
    assert monotonic() - began < PATIENCE  # not one of them waited for the time limit
    act.roll_back()
    world.begin(op.identity).roll_back()


def test_a_taken_key_is_told_to_other_processes(world: World) -> None:
    act, op = world.begun()
    rival = world.open()
    with world.hurry(rival):  # SQLite cannot tell before
        assert world.try_begin(op.identity, rival) is None
    act.perform(complete(op))
    act.commit()
    other = world.begin(op.identity, rival)
    assert isinstance(other.perform(op), Found | Claimed)
    found = other.perform(Read(op.identity))
    assert isinstance(found, Found)
    assert found.record.state is State.COMPLETED
    other.roll_back()


@pytest.mark.parametrize("pg", ["postgresql-async"], indirect=True)  # threads wait for a ROLLBACK
def test_who_did_not_get_the_lock_does_not_hold_the_key_while_it_rolls_back(
    pg: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, op = pg.begun()
    rival = pg.open()

    def late(conn: Any) -> Any:
        if conn.pgconn.transaction_status != steps.IDLE:
            yield from steps.command(conn, b"SELECT pg_advisory_xact_lock(77); ROLLBACK")
        return []

    monkeypatch.setattr(steps, "roll_back", late)
    with psycopg.connect(pg.url) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(77)")
        assert pg.try_begin(op.identity, rival) is None
        act.commit()
        other = pg.begin(op.identity, rival)
    other.roll_back()


def test_forty_rivals_for_one_key_run_it_once_and_spare_the_pool(world: World) -> None:
    backend = world.open() if world.is_sqlite else world.open(pool_size=4)
    rival = world.open() if world.is_sqlite else world.open(pool_size=4)
    op = claim()
    runs: list[int] = []

    def attempt(number: int) -> None:
        mine = claim()
        mine = Claim(op.identity, mine.fence, op.fingerprint, op.fields, op.origin, lease=op.lease)
        act = world.try_begin(op.identity, backend if number % 2 else rival)
        if act is None:
            return
        if isinstance(act.perform(mine), Claimed):
            act.savepoint()
            act.execute(f"INSERT INTO orders VALUES ({number})")
            runs.append(number)
            act.perform(complete(mine))
            act.commit()
        act.roll_back()

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(attempt, range(40)))
    assert len(runs) == 1
    assert world.orders() == runs
    act = world.begin(op.identity, backend)
    assert isinstance(act.perform(op), Found)
    act.roll_back()


# ── what a handler may not do ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["commit", "rollback", "close"])
def test_ending_the_transaction_is_refused_with_what_to_do(world: World, name: str) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(ConfigurationError, match="semel commits this transaction"):
        act.call(name)
    act.perform(complete(op))
    act.commit()
    assert world.orders() == [1]


def test_autocommit_is_refused(world: World) -> None:
    act, _ = world.begun()
    connection = act.connection
    if world.kind == "mysql":
        with pytest.raises(ConfigurationError, match="semel commits"):
            connection.autocommit(True)
    else:
        with pytest.raises(ConfigurationError, match="semel commits"):
            connection.autocommit = True
    if world.is_sqlite:
        with pytest.raises(ConfigurationError, match="semel commits"):
            connection.isolation_level = "DEFERRED"
    act.roll_back()


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("phase", [False, True])
def test_ending_it_by_sql_text_is_noticed(world: World, statement: str, phase: bool) -> None:
    op = claim()
    if phase:
        act = world.begin(None)
    else:
        act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with suppress(ConfigurationError):  # PostgreSQL's connection says so at once
        act.execute(statement)
    for step in (lambda: act.perform(complete(op)), act.commit):
        with pytest.raises(ConfigurationError, match="the handler ended"):
            step()
    act.roll_back()
    world.begin(op.identity).roll_back()


def begin_another(act: Act, world: World, statement: str) -> None:
    """End the transaction by that statement, as a handler, and begin one that semel knows not."""
    if world.kind == "postgresql":
        act.execute(f"{statement}; BEGIN")
    elif world.is_sqlite:
        act.execute(statement)
        act.execute("BEGIN IMMEDIATE")
    else:
        act.execute(f"{statement} AND CHAIN")


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("phase", [False, True])
def test_beginning_another_one_instead_is_noticed(
    world: World, statement: str, phase: bool
) -> None:
    act = world.begin(None) if phase else world.begun()[0]
    begin_another(act, world, statement)
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(ConfigurationError, match="the handler ended"):
        act.commit()
    assert world.orders() == []


@pytest.mark.parametrize("end", ["commit", "undo"])
@pytest.mark.parametrize("phase", [False, True])
def test_a_savepoint_of_the_handler_s_does_not_hide_that_it_ended_the_transaction(
    world: World, phase: bool, end: str
) -> None:
    act = world.begin(None) if phase else world.begun()[0]
    act.execute("INSERT INTO orders VALUES (1)")
    begin_another(act, world, "COMMIT")
    act.execute("SAVEPOINT semel")
    act.execute("INSERT INTO orders VALUES (2)")
    with pytest.raises(ConfigurationError, match="the handler ended"):
        act.commit() if end == "commit" else act.undo()
    act.roll_back()
    assert world.orders() == [1]


@pytest.mark.parametrize("phase", [False, True])
def test_a_savepoint_of_the_handler_s_is_not_what_its_writes_are_undone_to(
    world: World, phase: bool
) -> None:
    act, op = (world.begin(None), claim()) if phase else world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    act.execute("SAVEPOINT semel")
    act.execute("INSERT INTO orders VALUES (2)")
    act.undo()
    if phase:
        act.perform(op)
    act.perform(complete(op))
    act.commit()
    assert (world.orders(), world.state(op)) == ([], State.COMPLETED)


@pytest.mark.parametrize("statement", ["RELEASE SAVEPOINT semel", "ROLLBACK TO SAVEPOINT semel"])
def test_a_handler_cannot_name_semel_s_savepoint(world: World, statement: str) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(DRIVER_ERRORS, match=r"(?i)savepoint"):
        act.execute(statement)
    if world.kind == "postgresql":  # which ends a transaction at its first error
        act.undo()
    act.perform(complete(op))
    act.commit()
    assert world.orders() == ([] if world.kind == "postgresql" else [1])


def test_no_other_process_has_the_same_name_for_its_savepoint() -> None:
    told = "from semel.stores.open_transactions import SAVEPOINT; print(SAVEPOINT)"
    names = {subprocess.check_output([sys.executable, "-c", told], text=True) for _ in range(2)}
    assert len(names) == 2


def test_undoing_what_was_ended_is_noticed(world: World) -> None:
    act, _ = world.begun()
    with suppress(ConfigurationError):
        act.execute("COMMIT")
    with pytest.raises(ConfigurationError, match="the handler ended"):
        act.undo()
    act.roll_back()


def test_the_applications_row_factory_is_its_own(world: World) -> None:
    act, op = world.begun()
    if world.is_sqlite:
        act.connection.row_factory = lambda _cursor, row: {"only": row[0]}
    elif world.kind == "mysql":
        inner = getattr(act.connection, "blocking", act.connection)
        inner.cursorclass = pymysql.cursors.DictCursor
    else:
        act.connection.row_factory = psycopg.rows.dict_row
    assert act.execute("SELECT 5 AS only") == [{"only": 5}]
    assert isinstance(act.perform(Read(op.identity)), Found)
    assert isinstance(act.perform(complete(op)), Applied)
    act.commit()


def test_a_late_use_is_refused(world: World) -> None:
    act, op = world.begun()
    connection = act.connection
    act.perform(complete(op))
    act.commit()
    other, _ = world.begun()

    def late() -> None:
        act.execute_on(connection, "INSERT INTO orders VALUES (9)")

    with pytest.raises((ConfigurationError, sqlite3.ProgrammingError)):
        late()
    with pytest.raises(ConfigurationError, match="over"):
        _ = act.connection
    other.commit()
    assert world.orders() == []


def test_a_thread_gets_a_connection_that_blocks(world: World) -> None:
    act, op = world.begun()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(
            lambda: executed(act.inner.connection, "INSERT INTO orders VALUES (3)")
        ).result()
    act.execute("INSERT INTO orders VALUES (4)")
    act.perform(complete(op))
    act.commit()
    assert world.orders() == [3, 4]


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import os, sys
from semel.core.operations.requests import Claim, Complete
from semel.core.records import Fence, Identity, Origin
from semel.stores import open_backend
url, identity = sys.argv[1:]
backend = open_backend(url, timeout=120)
identity, fence = Identity(bytes.fromhex(identity)), Fence(os.urandom(16))
transaction = backend.begin(identity)
transaction.perform(Claim(identity, fence, "v1:", b"", Origin("", "POST", "/", ""), 60_000_000))
transaction.savepoint()
transaction.connection.cursor().execute("INSERT INTO orders VALUES (1)")
transaction.perform(Complete(identity, fence, b"", 9**15, 9**15))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def child_in_the_middle(world: World, identity: Identity) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, world.url, identity.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    "world",
    ["sqlite-sync", "postgresql-async", "mysql-async", *in_proof(*WORLDS[1:3], "mysql-sync")],
    indirect=True,
)
def test_a_killed_process_leaves_nothing_and_the_key_is_free(world: World) -> None:
    op = claim()
    with child_in_the_middle(world, op.identity) as child:
        with world.hurry() if world.is_sqlite else nullcontext():
            assert world.try_begin(op.identity) is None
        child.send_signal(signal.SIGKILL)
        child.wait()
    act = until(lambda: world.try_begin(op.identity))
    assert isinstance(act.perform(op), Claimed)
    act.roll_back()
    assert world.orders() == []


def test_what_was_committed_is_ascertained(world: World) -> None:
    act, op = world.begun()
    act.perform(complete(op))
    act.commit()
    assert isinstance(world.ascertain(op.identity), Found)
    assert isinstance(world.ascertain(claim().identity), NoRecord)


def refusals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """To which each is added to whom SQLite's write lock was refused."""
    refused: list[Any] = []
    attempt: Any = SqliteTransactions._try_begin

    def noted(*given: Any) -> Any:
        begun = attempt(*given)
        if begun is None:
            refused.append(given)
        return begun

    monkeypatch.setattr(SqliteTransactions, "_try_begin", noted)
    return refused


def somebody_waits(server: World) -> bool:
    """For the lock of an identity."""
    with closing(server.outside()) as connection:
        return bool(executed(connection, WAITING_FOR_A_KEY[server.kind]))


def test_ascertaining_waits_for_whoever_is_at_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, op = world.begun()
    act.perform(complete(op))
    rival = world.open(timeout=SOON)
    with pytest.raises(StoreUnavailable) as doubt:
        world.ascertain(op.identity, rival)
    assert doubt.value.applied is None
    patient = world.open(timeout=PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        refused = refusals(monkeypatch)
        asked = pool.submit(patient.ascertain, op.identity)
        until(lambda: refused if world.is_sqlite else somebody_waits(world))
        assert not asked.done()
        act.commit()
        assert isinstance(asked.result(PATIENCE), Found)


@SYNC  # an event loop does not survive a fork
def test_a_forked_child_has_no_part_in_it(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")

    def child() -> None:
        with pytest.raises((ConfigurationError, StoreError)):
            act.commit()
        act.roll_back()
        own, _ = world.begun()
        own.roll_back()
        world.backend.close()

    assert forked(child) == 0
    if world.is_sqlite:  # whose locks do not survive a fork: undone, and said so
        with pytest.raises(StoreUnavailable, match="forked") as undone:
            act.commit()
        assert undone.value.applied is False
        assert world.orders() == []
    else:
        act.perform(complete(op))
        act.commit()
        assert world.orders() == [1]
    another, _ = world.begun()
    another.commit()


# ── cancellation ──────────────────────────────────────────────────────────────────────────────────


@ASYNC  # threads are not cancelled
def test_a_cancelled_begin_leaks_nothing(world: World) -> None:
    assert world.portal is not None
    backend = world.open() if world.is_sqlite else world.open(pool_size=2)

    async def storm() -> None:
        for delay in range(30):
            task = asyncio.ensure_future(backend.abegin(claim().identity))
            for _ in range(delay % 10):
                await asyncio.sleep(0)
            if delay > 20:
                await asyncio.sleep(0.0005 * (delay - 20))
            if not task.cancel():
                await (await task).roll_back()
                continue
            with suppress(asyncio.CancelledError):
                begun = await task
                await begun.roll_back()
        both = [await backend.abegin(None) for _ in range(1 if world.is_sqlite else 2)]
        for transaction in both:
            await transaction.roll_back()

    world.portal.call(storm())


@ASYNC
def test_a_cancelled_commit_is_carried_through_and_can_be_awaited_again(world: World) -> None:
    assert world.portal is not None
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    act.perform(complete(op))
    inner = cast("AsyncTransaction", act.inner)

    async def cancelled() -> None:
        task = asyncio.ensure_future(inner.commit())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await inner.roll_back()
        await inner.commit()

    world.portal.call(cancelled())
    assert world.orders() == [1]


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────


def test_two_keys_run_side_by_side(server: World) -> None:
    first, one = server.begun()
    second, two = server.begun()
    first.execute("INSERT INTO orders VALUES (1)")
    second.execute("INSERT INTO orders VALUES (2)")
    for act, op in ((second, two), (first, one)):
        act.perform(complete(op))
        act.commit()
    assert server.orders() == [1, 2]


def test_savepoints_of_the_handlers_own_work(pg: World) -> None:
    act, op = pg.begun()
    connection = act.connection

    async def nested() -> None:
        async with connection.transaction():
            await connection.execute("INSERT INTO orders VALUES (1)")
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute("INSERT INTO orders VALUES (2)")
                raise ZeroDivisionError

    if pg.portal is not None:
        pg.portal.call(nested())
    else:
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (1)")
        with suppress(ZeroDivisionError), connection.transaction():
            connection.execute("INSERT INTO orders VALUES (2)")
            raise ZeroDivisionError
    act.perform(complete(op))
    act.commit()
    assert pg.orders() == [1]


def test_more_than_the_pool_holds_is_an_outage_in_time(server: World) -> None:
    backend = server.open(pool_size=1)
    act = server.begin(claim().identity, backend)
    with server.hurry(backend), pytest.raises(StoreUnavailable, match="pool_size=1") as full:
        server.try_begin(claim().identity, backend)
    assert full.value.applied is False
    backend.blocking().perform(claim())  # records have a pool of their own
    act.roll_back()
    server.begin(claim().identity, backend).roll_back()


def test_a_taken_key_holds_no_connection(server: World) -> None:
    act, op = server.begun()
    rival = server.open(pool_size=1)
    for _ in range(5):
        assert server.try_begin(op.identity, rival) is None
    server.begin(claim().identity, rival).roll_back()
    act.roll_back()


DEFAULT_LEVEL = {
    "postgresql": (
        "ALTER DATABASE {} SET default_transaction_isolation = '{}'",
        "ALTER DATABASE {} RESET ALL",
    ),
    "mysql": (
        "SET GLOBAL TRANSACTION ISOLATION LEVEL {1}",
        "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ),
}


def test_what_follows_the_lock_sees_what_its_last_holder_did(server: World) -> None:
    """Whatever the database's default isolation level."""
    choose, undo = DEFAULT_LEVEL[server.kind]
    with closing(server.outside()) as connection:
        named = "SELECT current_database()" if server.kind == "postgresql" else "SELECT DATABASE()"
        ((name,),) = executed(connection, named)
        try:
            for level in ("repeatable read", "serializable"):
                executed(connection, choose.format(name, level))
                backend = server.open()
                op = claim()
                holder = server.begin(op.identity, backend)
                holder.perform(op)
                patient = server.open(timeout=PATIENCE)
                with ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(patient.ascertain, op.identity)
                    until(lambda: somebody_waits(server))
                    holder.perform(complete(op))
                    holder.commit()
                    assert isinstance(asked.result(PATIENCE), Found)
        finally:
            executed(connection, undo.format(name))


@pytest.mark.parametrize("prepare", [None, True, False])
def test_a_nasty_handler_leaves_a_clean_connection(pg: World, prepare: bool | None) -> None:
    backend = pg.open(pool_size=1, prepare=prepare)
    op = claim()
    act = pg.begin(op.identity, backend)
    act.perform(op)
    act.savepoint()
    for statement in (
        "SET search_path = nowhere",
        "SET statement_timeout = 54321",
        "CREATE TEMP TABLE orders (id int)",
        "SELECT pg_advisory_lock(42)",
        "LISTEN news",
        "PREPARE semel_test AS SELECT 1",
    ):
        act.execute(statement.replace("TABLE orders", "TABLE pg_temp.orders"))
    act.execute("SET search_path = public")
    act.perform(complete(op))
    act.execute("SET search_path = nowhere")
    act.commit()
    clean = pg.begin(None, backend)
    assert clean.execute("SHOW statement_timeout") == [("0",)]
    assert clean.execute("SHOW search_path") == [('"$user", public',)]
    assert clean.execute("SELECT count(*) FROM pg_listening_channels()") == [(0,)]
    assert clean.execute("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
    assert clean.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ) == [(0,)]
    clean.execute("INSERT INTO orders VALUES (5)")
    clean.commit()
    assert pg.orders() == [5]


def test_an_aborted_transaction_is_not_committed(pg: World) -> None:
    act, op = pg.begun()
    act.perform(complete(op))
    with pytest.raises(psycopg.errors.UndefinedTable):
        act.execute("SELECT * FROM nowhere")
    with pytest.raises(StoreUnavailable, match="aborted") as refused:
        act.commit()
    assert refused.value.applied is False
    assert pg.state(op) is None


def test_an_error_at_commit_is_surely_not_applied_and_names_its_cause(pg: World) -> None:
    with closing(pg.outside()) as connection:
        connection.execute(
            "CREATE TABLE items (id integer REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        connection.commit()
    act, op = pg.begun()
    act.execute("INSERT INTO items VALUES (1)")
    act.perform(complete(op))
    with pytest.raises(StoreUnavailable, match="foreign key") as refused:
        act.commit()
    assert refused.value.applied is False
    assert isinstance(refused.value.__cause__, psycopg.errors.ForeignKeyViolation)
    assert pg.state(op) is None
    pg.begin(op.identity).roll_back()
    with closing(pg.outside()) as connection:
        connection.execute("DROP TABLE items")
        connection.commit()


@pytest.mark.parametrize("pg", ["postgresql-sync"], indirect=True)  # the exchange is the same
def test_a_commit_that_says_rollback_is_not_applied(pg: World) -> None:
    """Should the status not tell: the command tag does."""
    act, op = pg.begun()
    act.perform(complete(op))
    with pytest.raises(psycopg.Error):
        act.execute("SELECT * FROM nowhere")
    inner = cast("Any", act.inner)
    from semel.stores.postgres.pool_sync import wait

    with pytest.raises(StoreUnavailable, match="rolled the transaction back") as refused:
        wait(inner._conn, steps.commit(inner._conn, marked=False), monotonic() + PATIENCE)
    assert refused.value.applied is False
    act.roll_back()


@pytest.fixture(params=WORLDS[2:])
def corrupt(request: pytest.FixtureRequest) -> Iterator[tuple[World, Claim]]:
    """In a database of its own, whose schema allows for it: a record that cannot be read."""
    kind, colour = request.param.split("-")
    url = request.getfixturevalue("mariadb_url" if kind == "mysql" else "postgres_url")
    (prepare_mysql if kind == "mysql" else prepare)(url)
    world, op = World(url, colour, lambda: connect(url)), claim()
    world.backend.blocking().perform(op)
    with closing(world.outside()) as outside:
        DIALECTS[kind](None, url).corrupt(Ask(outside), op.identity)
    yield world, op
    world.close()


def test_after_a_reply_that_makes_no_sense_nothing_is_committed(
    corrupt: tuple[World, Claim],
) -> None:
    world, unreadable = corrupt
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StoreCorrupt):
        act.perform(Read(unreadable.identity))
    with pytest.raises(StoreUnavailable, match="connection was lost") as refused:
        act.commit()
    assert refused.value.applied is False
    assert (world.orders(), world.state(op)) == ([], None)


def test_a_server_that_ends_the_connection_is_an_outage_and_nothing_happened(server: World) -> None:
    act, op = server.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    end_connections(server.url)
    with pytest.raises(StoreUnavailable) as lost:
        act.perform(complete(op))
    assert lost.value.applied is False
    with pytest.raises(StoreUnavailable):
        act.commit()
    act.roll_back()
    assert server.orders() == []
    server.begin(op.identity).roll_back()


def test_idle_connections_that_were_ended_are_replaced(server: World) -> None:
    server.begin(claim().identity).roll_back()
    act, op = server.begun()
    act.execute("SELECT 1")
    act.perform(complete(op))
    act.commit()
    end_connections(server.url)
    server.begin(claim().identity).roll_back()


def test_a_thread_left_behind_in_a_statement_is_cut_off(server: World) -> None:
    """An endpoint in a thread, whose request was given up."""
    act, op = server.begun()
    running = threading.Event()
    ended: list[Exception] = []

    def straggle() -> None:
        connection = act.inner.connection
        running.set()
        try:
            executed(connection, LONG[server.kind])
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=straggle)
    thread.start()
    running.wait()
    until(lambda: asleep(server))
    with pytest.raises(ConfigurationError, match="in use"):
        act.perform(complete(op))
    act.roll_back()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert ended
    act = until(lambda: server.try_begin(op.identity))
    act.roll_back()


def test_whoever_is_in_the_middle_of_a_statement_is_noticed_at_the_end(server: World) -> None:
    act, op = server.begun()
    turn = cast("Any", act.inner)._turn
    turn.take()
    with pytest.raises(ConfigurationError, match="in use"):
        act.execute("SELECT 1")
    with pytest.raises(ConfigurationError, match="in use"):
        act.commit()
    turn.give()
    with pytest.raises(ConfigurationError, match="over"):
        turn.take()
    assert server.state(op) is None
    until(lambda: server.try_begin(op.identity)).roll_back()


@pytest.mark.parametrize("server", ["postgresql-sync", "mysql-sync"], indirect=True)
def test_a_commit_that_was_interrupted_is_in_doubt(
    server: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop's tasks are not interrupted by signals."""
    act, op = server.begun()
    act.perform(complete(op))

    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        wait = "mysql.pool_sync.drive" if server.kind == "mysql" else "postgres.pool_sync.wait"
        patch.setattr(f"semel.stores.{wait}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            act.commit()
    with pytest.raises(StoreUnavailable) as doubt:
        act.commit()
    assert doubt.value.applied is None
    until(lambda: server.try_begin(op.identity)).roll_back()


class Cutter:
    """Between a backend and its server; cuts a connection before its COMMIT got there, or after."""

    def __init__(self, target: Path, *, mysql: bool) -> None:
        self._target = str(target)
        self._mysql = mysql
        self.cut: str | None = None
        self._asked, self._heard = False, b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.port = self._listener.getsockname()[1]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._ends += [client, server]
                server.connect(self._target)
                for way in ((client, server, "before"), (server, client, "after")):
                    self._threads.append(threading.Thread(target=self._pump, args=way))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._stops(data, way):
                    break
                if not (self._mysql and way == self.cut == "after" and self._asked):
                    sink.sendall(
                        data
                    )  # else nothing of the answer gets through, in however many pieces
        self._end([source, sink])

    def _stops(self, data: bytes, way: str) -> bool:
        """An answer of MariaDB's does not say to what: it is the one that follows."""
        if way == "before":
            self._asked = self._asked or (self.cut is not None and b"COMMIT" in data)
            return self.cut == "before" and self._asked
        self._heard += data if self._asked else b""
        done = all_done(self._heard) if self._mysql else b"COMMIT\0" in data
        return self.cut == "after" and self._asked and done

    def _end(self, sockets: list[socket.socket]) -> None:
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end([self._listener, *self._ends])
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()


def through(server: World, cutter: Cutter) -> str:
    if server.kind == "mysql":
        return f"mysql://root@127.0.0.1:{cutter.port}/{parse(server.url, {}).database}"
    name = psycopg.conninfo.conninfo_to_dict(server.url)["dbname"]
    return f"postgresql://postgres@127.0.0.1:{cutter.port}/{name}?sslmode=disable"


def socket_of(server: World) -> Path:
    if server.kind == "mysql":
        return Path(parse(server.url, {}).socket or "")
    with closing(server.outside()) as outside:
        return Path(outside.info.host) / f".s.PGSQL.{outside.info.port}"


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_that_was_cut_is_in_doubt_until_ascertained(server: World, cut: str) -> None:
    with closing(Cutter(socket_of(server), mysql=server.kind == "mysql")) as cutter:
        backend = server.open(through(server, cutter))
        op = claim()
        act = server.begin(op.identity, backend)
        act.perform(op)
        act.savepoint()
        act.execute("INSERT INTO orders VALUES (1)")
        act.perform(complete(op))
        cutter.cut = cut
        with pytest.raises(StoreUnavailable) as doubt:
            act.commit()
        assert doubt.value.applied is None
        act.roll_back()
        cutter.cut = None
        truth = server.ascertain(op.identity, backend)
        assert isinstance(truth, Found if cut == "after" else NoRecord)
        assert server.orders() == ([1] if cut == "after" else [])
        if server.portal is not None:
            server.portal.call(backend.aclose())
        backend.close()


def test_behind_a_transaction_pooler(request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("pgbouncer_url")
    for colour in ("sync", "async"):
        world = World.__new__(World)
        world.url, world.kind, world.is_sqlite, world._opened = url, "postgresql", False, []
        world.outside = lambda: psycopg.connect(url)
        world.portal = EventLoopThread() if colour == "async" else None
        world.backend = world.open()
        world.backend.migrate()
        for _ in range(3):
            act, op = world.begun()
            assert world.try_begin(op.identity, world.open()) is None
            assert act.execute("SELECT 1") == [(1,)]
            act.perform(complete(op))
            act.commit()
            assert isinstance(world.ascertain(op.identity), Found)
        world.close()


# ── MariaDB ───────────────────────────────────────────────────────────────────────────────────────


def locks(maria: World, op: Claim) -> list[bool]:
    """Whether the identity's lock is held, and that of a handler."""
    name = maria_steps.lock_name(op.identity)
    with closing(maria.outside()) as outside:
        asked = f"SELECT IS_USED_LOCK({name}), IS_USED_LOCK('of the handler')"
        return [number is not None for number in executed(outside, asked)[0]]


def deadlocked(maria: World, act: Act, also: str = "DO 0") -> None:
    """The server chooses the one that wrote less to be undone: the handler. One that has written
    what cannot be undone is chosen only where the other, by ``also``, has done so too."""
    with closing(maria.outside()) as rival, ThreadPoolExecutor(1) as threads:
        executed(rival, "START TRANSACTION")
        executed(rival, also)
        executed(rival, "UPDATE orders SET id = id WHERE id = 1")
        executed(rival, f"INSERT INTO orders SELECT seq + 100 FROM {numbers(500)}")
        act.execute("INSERT INTO orders VALUES (50)")
        act.execute("UPDATE orders SET id = id WHERE id = 2")
        waiting = threads.submit(executed, rival, "UPDATE orders SET id = id WHERE id = 2")
        until(lambda: lock_waits(maria))
        with pytest.raises(pymysql.OperationalError, match="Deadlock"):
            act.execute("UPDATE orders SET id = id WHERE id = 1")
        waiting.result(PATIENCE)
        executed(rival, "ROLLBACK")


def lock_waits(maria: World) -> bool:
    """innodb_trx shows the same for as long as it is read more than ten times a second."""
    with closing(maria.outside()) as outside:
        executed(outside, "DO SLEEP(0.15)")
        found = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        return bool(executed(outside, found))


def with_two_orders(maria: World) -> None:
    with closing(maria.outside()) as outside:
        executed(outside, "INSERT INTO orders VALUES (1), (2)")


def test_after_a_deadlock_nothing_more_is_written_and_nothing_committed(maria: World) -> None:
    with_two_orders(maria)
    act, op = maria.begun()
    deadlocked(maria, act)
    with pytest.raises(pymysql.OperationalError, match="rolled the whole transaction back"):
        act.execute("INSERT INTO orders VALUES (3)")
    with pytest.raises(StoreUnavailable, match="rolled the whole transaction back"):
        act.perform(complete(op))
    with pytest.raises(StoreUnavailable) as refused:
        act.commit()
    assert refused.value.applied is False
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([1, 2], None)
    maria.begin(op.identity).roll_back()


def test_after_a_deadlock_there_is_nothing_to_go_back_to_and_that_is_no_doubt(maria: World) -> None:
    with_two_orders(maria)
    act, op = maria.begun()
    deadlocked(maria, act)
    with pytest.raises(StoreUnavailable, match="rolled the whole transaction back") as undone:
        act.undo()
    assert undone.value.applied is False
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([1, 2], None)


def test_what_a_handler_writes_after_an_unnoticed_rollback_is_not_committed(maria: World) -> None:
    """Should semel not notice: the session does not commit by itself, and the savepoint is gone."""
    act, op = maria.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    conn = cast("Any", act.inner)._conn
    with closing(conn.connection.cursor()) as cursor:
        cursor.execute("ROLLBACK")
        cursor.execute("INSERT INTO orders VALUES (2)")
    with pytest.raises(ConfigurationError, match="the handler ended"):
        act.commit()
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([], None)


def test_severed_while_it_waits_for_a_row_its_key_is_free_at_once(maria: World) -> None:
    """A server that waits for a lock does not notice that its client is gone: it is told."""
    with_two_orders(maria)
    act, op = maria.begun()
    with closing(maria.outside()) as rival, ThreadPoolExecutor(1) as threads:
        executed(rival, "START TRANSACTION")
        executed(rival, "UPDATE orders SET id = id WHERE id = 1")
        waiting = threads.submit(act.execute, "UPDATE orders SET id = id WHERE id = 1")
        until(lambda: lock_waits(maria))
        act.inner.sever("it took too long")
        with pytest.raises((*DRIVER_ERRORS, SemelError)):
            waiting.result(PATIENCE)
        stranger = maria.open()
        until(lambda: maria.try_begin(op.identity, stranger)).roll_back()
        assert not lock_waits(maria)
    act.roll_back()


def test_a_statement_that_waited_too_long_is_undone_alone(maria: World) -> None:
    with_two_orders(maria)
    act, op = maria.begun()
    act.execute("INSERT INTO orders VALUES (3)")
    act.execute("SET innodb_lock_wait_timeout = 1")
    with closing(maria.outside()) as rival:
        executed(rival, "START TRANSACTION")
        executed(rival, "UPDATE orders SET id = id WHERE id = 1")
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            act.execute("UPDATE orders SET id = id WHERE id = 1")
    act.perform(complete(op))
    act.commit()
    assert maria.orders() == [1, 2, 3]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE IF NOT EXISTS orders (id integer)",
        "CREATE TABLE orders (id integer)",  # it fails, and commits all the same
        "ANALYZE TABLE orders",
        "LOCK TABLES orders READ",
        "SET autocommit = 1",
        "BEGIN",
    ],
)
def test_a_statement_that_commits_by_itself_is_noticed_and_is_no_success(
    maria: World, statement: str
) -> None:
    act, op = maria.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with suppress(ConfigurationError, pymysql.Error):
        act.execute(statement)
    with suppress(ConfigurationError, pymysql.Error):
        act.execute("INSERT INTO orders VALUES (2)")
    with pytest.raises(ConfigurationError, match="commits implicitly"):
        act.commit()
    act.roll_back()
    assert maria.orders() == [1]  # what came after it is not committed
    assert maria.state(op) is State.IN_PROGRESS
    until(lambda: maria.try_begin(op.identity)).roll_back()


@pytest.mark.parametrize("phase", [False, True])
def test_locked_tables_are_a_commit_and_not_a_failed_statement(maria: World, phase: bool) -> None:
    """Every statement about semel's tables fails then, as if nothing had happened."""
    act, op = (maria.begin(None), claim()) if phase else maria.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    with suppress(ConfigurationError):
        act.execute("LOCK TABLES orders WRITE")
    with pytest.raises(ConfigurationError, match="the handler ended"):
        act.perform(complete(op))
    act.roll_back()
    assert maria.orders() == [1]


@pytest.fixture(params=["MyISAM", "Aria", "a trigger"])
def notes(request: pytest.FixtureRequest, maria: World) -> Iterator[str]:
    """A statement that also writes what no rollback undoes."""
    engine = "MyISAM" if request.param == "a trigger" else request.param
    if engine == "Aria" and mysql.wanted():
        pytest.skip("MySQL has no such engine")
    insert = "INSERT INTO orders VALUES (7)"
    with closing(maria.outside()) as outside:
        executed(outside, "DROP TABLE IF EXISTS notes")
        executed(outside, f"CREATE TABLE notes (id integer) ENGINE = {engine}")
        if request.param == "a trigger":
            noting = "AFTER INSERT ON orders FOR EACH ROW INSERT INTO notes VALUES (NEW.id)"
            executed(outside, "DROP TRIGGER IF EXISTS noting")
            executed(outside, f"CREATE TRIGGER noting {noting}")
        yield insert if request.param == "a trigger" else insert.replace("orders", "notes")
        executed(outside, "DROP TRIGGER IF EXISTS noting")
        executed(outside, "DROP TABLE notes")


@pytest.mark.parametrize("phase", [False, True])
def test_what_a_rollback_could_not_undo_is_no_rollback(
    maria: World, notes: str, phase: bool
) -> None:
    act, op = (maria.begin(None), claim()) if phase else maria.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    act.execute(notes)
    with pytest.raises(ConfigurationError, match="could not be rolled back"):
        act.undo()
    for step in (lambda: act.perform(complete(op)), act.commit):
        with pytest.raises(SemelError):
            step()
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([], None)


@pytest.mark.parametrize("answers", [False, True])
def test_what_a_deadlock_could_not_undo_is_no_rollback(
    maria: World, notes: str, answers: bool
) -> None:
    with_two_orders(maria)
    act, op = maria.begun()
    act.execute(notes)
    deadlocked(maria, act, also="INSERT INTO notes VALUES (0)")
    with pytest.raises(ConfigurationError, match="could not be rolled back"):
        act.perform(complete(op)) if answers else act.undo()
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([1, 2], None)


def test_a_commit_keeps_what_was_written_without_transactions(maria: World, notes: str) -> None:
    act, op = maria.begun()
    act.execute(notes)
    act.perform(complete(op))
    act.commit()
    with closing(maria.outside()) as outside:
        assert executed(outside, "SELECT id FROM notes") == [(7,)]


def test_temporary_tables_are_no_doubt(maria: World) -> None:
    """A rollback to a savepoint warns of them too."""
    act, op = maria.begun()
    act.execute("CREATE TEMPORARY TABLE draft (id integer)")
    act.execute("INSERT INTO draft VALUES (1)")
    act.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StoreUnavailable, match="temporary tables") as undone:
        act.undo()
    assert undone.value.applied is False
    act.roll_back()
    assert (maria.orders(), maria.state(op)) == ([], None)


@pytest.mark.parametrize("end", ["commit", "roll_back", "undo", "lose"])
def test_however_it_ends_no_connection_keeps_a_lock(maria: World, end: str) -> None:
    op = claim()
    rival = maria.open()
    act = maria.begin(op.identity)
    act.perform(op)
    act.savepoint()
    act.execute("SELECT GET_LOCK('of the handler', 0)")
    assert locks(maria, op) == [True, True]
    if end == "lose":
        assert maria.try_begin(op.identity, rival) is None
    if end == "undo":
        act.undo()
    if end in ("undo", "commit"):
        act.perform(complete(op))
        act.commit()
    act.roll_back()
    assert locks(maria, op) == [False, False]
    maria.begin(op.identity, rival).roll_back()


def test_a_lock_is_that_of_its_database(maria: World, request: pytest.FixtureRequest) -> None:
    """Though the names of locks are the server's."""
    act, op = maria.begun()
    with cast("MariadbServer", request.getfixturevalue("mariadb")).database() as url:
        other = maria.open(url, migrate=True)
        maria.begin(op.identity, other).roll_back()
        if maria.portal is not None:
            maria.portal.call(other.aclose())
        other.close()
    act.roll_back()


def test_a_handler_leaves_a_clean_session(maria: World) -> None:
    backend = maria.open(pool_size=1)
    limit = "max_execution_time" if mysql.wanted() else "max_statement_time"
    op = claim()
    act = maria.begin(op.identity, backend)
    act.perform(op)
    act.savepoint()
    for statement in (
        f"SET SESSION sql_mode = '', autocommit = 0, {limit} = 77",
        "SET @mine = 1",
        "CREATE TEMPORARY TABLE shadow (id int)",
        "PREPARE mine FROM 'SELECT 1'",
        "SELECT GET_LOCK('of the handler', 0)",
    ):
        act.execute(statement)
    act.perform(complete(op))
    act.execute("USE mysql")
    act.commit()
    clean = maria.begin(None, backend)
    assert clean.execute(f"SELECT @@{limit}, @mine, @@autocommit") == [(0, None, 0)]
    assert "STRICT_ALL_TABLES" in clean.execute("SELECT @@sql_mode")[0][0]
    for gone in ("SELECT * FROM shadow", "EXECUTE mine"):
        with pytest.raises(pymysql.Error):
            clean.execute(gone)
    clean.execute("INSERT INTO orders VALUES (5)")
    clean.commit()
    assert maria.orders() == [5]


def test_a_role_that_a_handler_took_is_not_the_next_one_s(maria: World) -> None:
    """The server's reset of a session leaves it."""
    with closing(maria.outside()) as outside:
        executed(outside, "CREATE ROLE IF NOT EXISTS cashier")
        executed(outside, "GRANT cashier TO CURRENT_USER()")
    backend = maria.open(pool_size=1)
    act = maria.begin(None, backend)
    act.execute("SET ROLE cashier")
    assert "cashier" in act.execute("SELECT CURRENT_ROLE()")[0][0]
    act.roll_back()
    for _ in range(2):
        act = maria.begin(None, backend)
        assert act.execute("SELECT CURRENT_ROLE()")[0][0] in (None, "NONE")
        act.roll_back()


@pytest.mark.parametrize(
    "setting", ["timestamp = 1", "sql_select_limit = 0", "time_zone = '+9:00'"]
)
def test_what_a_handler_sets_does_not_change_semel_s_own_statements(
    maria: World, setting: str
) -> None:
    """A record by another clock would be forgotten at once, and its key be free."""
    act, op = maria.begun()
    act.execute(f"SET {setting}")
    written = act.perform(complete(op))
    assert isinstance(written, Applied)
    act.commit()
    found = maria.backend.blocking().perform(Read(op.identity))
    assert isinstance(found, Found)
    assert found.record.expires_at == written.expires_at
    assert not found.record.forgettable(found.now)
    assert (written.expires_at or 0) > found.now


def test_a_server_whose_clock_nobody_may_set_is_not_asked_to(maria: World) -> None:
    asked = protocol.handshake(parse(maria.url, {}), warn=False)
    next(asked)
    seen = ["10.11.1-MariaDB", 0, 1, 0, 1, "ROW", 2**26, None]
    with pytest.raises(StopIteration) as found:
        asked.send([(["name", "value"], [("secure_timestamp", "YES")]), (["seen"], [seen])])
    assert "timestamp" not in found.value.value.clock


def test_a_handler_s_text_is_one_statement(maria: World) -> None:
    act, op = maria.begun()
    with pytest.raises(pymysql.ProgrammingError, match="syntax"):
        act.execute("INSERT INTO orders VALUES (1); COMMIT")
    act.execute("INSERT INTO orders VALUES (2)")
    act.perform(complete(op))
    act.commit()
    assert maria.orders() == [2]


def test_a_procedure_s_results_are_read_before_anybody_else_s_turn(maria: World) -> None:
    with closing(maria.outside()) as outside:
        executed(outside, "DROP PROCEDURE IF EXISTS two")
        executed(outside, "CREATE PROCEDURE two() BEGIN SELECT 1; SELECT 2; END")
    act, op = maria.begun()
    assert act.execute("CALL two()") == [(1,)]
    act.perform(complete(op))
    act.commit()
    assert maria.state(op) is State.COMPLETED


@pytest.mark.parametrize("maria", ["mysql-sync"], indirect=True)
def test_rows_that_would_be_read_later_are_refused(maria: World) -> None:
    act, _ = maria.begun()
    with pytest.raises(pymysql.NotSupportedError, match="SSCursor"):
        act.connection.cursor(pymysql.cursors.SSCursor).execute("SELECT 1")
    with pytest.raises(ConfigurationError, match="closes"):
        act.connection.__enter__()
    act.roll_back()


def test_what_a_connection_can_do_beside_statements(maria: World) -> None:
    act, _ = maria.begun()
    connection: Any = act.connection

    async def awaited() -> None:
        await connection.ping()
        async with connection.cursor() as cursor:
            assert await cursor.executemany("INSERT INTO orders VALUES (%s)", [(1,), (2,)]) == 2
            await cursor.execute("SELECT id FROM orders WHERE id > %s", (0,))
            assert [row async for row in cursor] == [(1,), (2,)]
            assert await cursor.nextset() is None
        await connection.select_db("mysql")
        assert await connection.show_warnings() == ()
        await connection.set_charset("latin1")

    if maria.portal is not None:
        maria.portal.call(awaited())
    else:
        connection.ping()
        with connection.cursor() as cursor:
            assert cursor.executemany("INSERT INTO orders VALUES (%s)", [(1,), (2,)]) == 2
        connection.select_db("mysql")
        assert connection.show_warnings() == ()
        connection.set_character_set("latin1")
    assert connection.open
    act.roll_back()
    assert not connection.open


@pytest.mark.parametrize("maria", ["mysql-sync"], indirect=True)  # the exchange is the same
def test_committed_and_then_lost_is_committed(
    maria: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to COMMIT came; that to the release of its lock did not."""
    act, op = maria.begun()
    act.perform(complete(op))
    inner = cast("Any", act.inner)
    ask = inner._conn.ask
    own = type(inner._conn)

    def cut(conn: Any, packet: Any, deadline: float) -> Any:
        if "COMMIT" in str(packet):
            packet = packet.replace("DO RELEASE_ALL_LOCKS()", "KILL CONNECTION_ID()")
        return ask(packet, deadline)

    with monkeypatch.context() as patch:
        patch.setattr(own, "ask", cut)
        act.commit()
    assert maria.state(op) is State.COMPLETED
    maria.begin(op.identity).roll_back()


def test_ascertaining_waits_for_the_row_where_no_lock_is_known(maria: World) -> None:
    """As after a restart of the server, while it still undoes what was open."""
    act, op = maria.begun()
    act.perform(complete(op))
    with closing(maria.outside()) as outside:
        act.execute("DO RELEASE_ALL_LOCKS()")
        patient = maria.open(timeout=PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(patient.ascertain, op.identity)
            until(lambda: lock_waits(maria))
            assert not asked.done()
            act.commit()
            assert isinstance(asked.result(PATIENCE), Found)
        assert executed(outside, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(("limit", "kept"), [(10**9, 28800), (60, 60), (0.2, 1)])
def test_a_shorter_limit_of_the_server_s_own_stays(maria: World, limit: float, kept: int) -> None:
    act = maria.begin(claim().identity, limit=limit)
    assert act.execute("SELECT @@wait_timeout") == [(kept,)]
    act.roll_back()


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────


def test_scripts_and_with_would_commit_and_are_refused(lite: World) -> None:
    act, _ = lite.begun()
    connection = act.connection
    for attempt in (connection.executescript, connection.cursor().executescript):
        with pytest.raises(ConfigurationError, match="which commits"):
            attempt("SELECT 1")
    with pytest.raises(ConfigurationError, match="which commits"):
        connection.__enter__()
    assert connection.in_transaction
    act.roll_back()


def test_transactions_come_in_turn(lite: World) -> None:
    backend = lite.open()
    lite.begin(None, backend).roll_back()

    def run(number: int) -> None:
        op = claim()
        act = lite.begin(op.identity, backend)
        act.perform(op)
        act.savepoint()
        act.execute(f"INSERT INTO orders VALUES ({number})")
        act.perform(complete(op))
        act.commit()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(run, range(48)))
    assert lite.orders() == list(range(48))


def test_a_write_lock_held_by_others_is_an_outage_for_a_phase(lite: World) -> None:
    with closing(sqlite3.connect(lite.url.removeprefix("sqlite:///"))) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with lite.hurry():
            with pytest.raises(StoreUnavailable, match="another process") as busy:
                lite.begin(None)
            assert busy.value.applied is False
            assert lite.try_begin(claim().identity) is None
        other.execute("ROLLBACK")
    lite.begin(None).roll_back()


def test_another_key_of_this_process_that_takes_too_long_is_an_outage(lite: World) -> None:
    act, _ = lite.begun()
    with lite.hurry(), pytest.raises(StoreUnavailable, match="another transaction") as busy:
        lite.try_begin(claim().identity)
    assert busy.value.applied is False
    act.roll_back()


def test_nothing_is_committed_into_a_file_that_is_gone(lite: World) -> None:
    lite.begin(None).roll_back()
    for file in Path(lite.url.removeprefix("sqlite:///")).parent.iterdir():
        file.unlink()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        lite.begin(None)


@pytest.mark.parametrize("part", ["-wal", "-shm"])
def test_nothing_is_committed_into_a_log_that_is_gone(lite: World, part: str) -> None:
    lite.begin(None).roll_back()
    Path(lite.url.removeprefix("sqlite:///") + part).unlink()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=f"{part} was deleted or replaced"):
            lite.begin(None)


def test_commits_are_synced(lite: World) -> None:
    act = lite.begin(None)
    assert act.execute("PRAGMA synchronous") == [(2,)]
    assert act.execute("PRAGMA journal_mode") == [("wal",)]
    act.roll_back()
