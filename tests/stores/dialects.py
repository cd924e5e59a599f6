"""A database in each SQL dialect, and what tests do to it behind the store's back."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar

import psycopg
import pymysql
import pytest

from semel.core.operations import Claim
from semel.core.records import Fence, Identity
from semel.stores.mysql import MysqlBackend
from semel.stores.mysql import backend as mysql_backend
from semel.stores.postgres import PostgresBackend
from semel.stores.postgres import backend as postgres_backend
from tests.servers import MariadbServer, PostgresServer, mysql
from tests.servers.databases import Databases
from tests.stores.harness import database_of
from tests.waiting import PATIENCE, until

SqlBackend = PostgresBackend | MysqlBackend


class Ask:
    """A connection of the test's own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self, statement: str, *params: object) -> Any:
        """The first column of the first row."""
        rows = self.rows(statement, *params)
        return rows[0][0] if rows else None

    def rows(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall()) if cursor.description else []

    def row(self, statement: str) -> dict[str, Any]:
        """The first row, by the names of its columns."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description]
            return dict(zip(names, cursor.fetchone(), strict=True))

    def plan(self, statement: str) -> list[tuple[Any, ...]]:
        """Table, type and key of each row of a plan. MySQL has a column more, and a row for where
        it inserts."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {statement}")
            names = [column[0] for column in cursor.description]
            places = [names.index(name) for name in ("table", "type", "key")]
            return [
                tuple(row[place] for place in places)
                for row in cursor.fetchall()
                if row[1] != "INSERT"
            ]


class Database(ABC):
    """What is said of connections is said of the store's, to this database."""

    SERVER: ClassVar[str]
    """The fixture that starts it."""
    BACKEND: ClassVar[type[PostgresBackend] | type[MysqlBackend]]
    SCHEME: ClassVar[str]
    WRONG_IDENTITY: ClassVar[Identity]
    WRONG_FENCE: ClassVar[Fence]
    """Which the schema refuses."""
    BODY: ClassVar[int]
    """Bytes that are more than a socket to the server buffers."""

    def __init__(self, server: Any, url: str) -> None:
        self.server = server
        self.url = url

    @staticmethod
    @abstractmethod
    def own_server() -> Databases:
        """Where nobody else writes, not even the server itself."""

    def backend(self, **options: Any) -> SqlBackend:
        """With time enough."""
        return self.BACKEND(self.url, **{"timeout": PATIENCE} | options)

    @abstractmethod
    def connect(self) -> Any:
        """As the administrator, committing every statement."""

    @abstractmethod
    def literal(self, value: bytes) -> str: ...

    @contextmanager
    def opened(self, **options: Any) -> Iterator[SqlBackend]:
        """With its schema."""
        backend = self.backend(**options)
        backend.migrate()
        try:
            yield backend
        finally:
            backend.close()

    @asynccontextmanager
    async def aopened(self, **options: Any) -> AsyncIterator[SqlBackend]:
        backend = self.backend(**options)
        await asyncio.to_thread(backend.migrate)
        try:
            yield backend
        finally:
            await backend.aclose()

    @contextmanager
    def admin(self) -> Iterator[Ask]:
        with self.connect() as connection:
            yield Ask(connection)

    @contextmanager
    def transaction(self) -> Iterator[Ask]:
        """Of somebody else, who takes his time and then rolls back."""
        with self.admin() as ask:
            ask("BEGIN")
            yield ask
            ask("ROLLBACK")

    def where(self, identity: Identity) -> str:
        return f"FROM semel_record WHERE identity = {self.literal(identity)}"

    @contextmanager
    def row_locked(self, identity: Identity) -> Iterator[None]:
        with self.transaction() as ask:
            assert ask(f"SELECT 1 {self.where(identity)} FOR UPDATE") == 1
            yield

    @contextmanager
    def uncommitted(self, seed: Claim, op: Claim) -> Iterator[Ask]:
        """Somebody makes the record of ``seed`` that of ``op``, in a transaction of his own."""
        new, old = self.literal(op.identity), self.literal(seed.identity)
        with self.transaction() as ask:
            ask(f"UPDATE semel_record SET identity = {new} WHERE identity = {old}")
            assert ask(f"SELECT 1 {self.where(op.identity)}") == 1
            yield ask

    @abstractmethod
    def connections(self, ask: Ask) -> list[int]: ...

    @abstractmethod
    def connected(self, ask: Ask) -> int | None:
        """How often anybody has connected to the server; None: it does not count at once."""

    @abstractmethod
    def waiting(self, ask: Ask) -> list[int]:
        """Connections that wait for a lock."""

    @abstractmethod
    def kill(self, ask: Ask, connection: int) -> None:
        """It may have ended by itself."""

    def kill_all(self, ask: Ask) -> int:
        found = self.connections(ask)
        for connection in found:
            self.kill(ask, connection)
        return len(found)

    @abstractmethod
    def steps(self, ask: Ask) -> int:
        """How often the server has written: a statement with many rows counts once."""

    @abstractmethod
    def written(self, ask: Ask) -> object:
        """Another value as soon as anything is written."""

    @abstractmethod
    def deadlocks(self, ask: Ask) -> int: ...

    @abstractmethod
    def stick(self, ask: Ask, identity: Identity) -> None:
        """The first change of the record never ends by itself; it waits for no lock of a row."""

    @abstractmethod
    def kill_the_stuck_one(self, ask: Ask) -> None:
        """Its second try ends."""

    @abstractmethod
    def corrupt(self, ask: Ask, identity: Identity) -> None:
        """The record has a state that there is not."""

    @abstractmethod
    def migration_locked(self) -> AbstractContextManager[object]: ...

    @abstractmethod
    def waiting_to_migrate(self, ask: Ask) -> int: ...


class Postgres(Database):
    SERVER = "postgres"
    BACKEND = PostgresBackend
    SCHEME = "postgresql"
    WRONG_IDENTITY = Identity(b"short")
    WRONG_FENCE = Fence(b"short")
    BODY = 30_000_000
    OURS = "FROM pg_stat_activity WHERE application_name = 'semel' AND datname = current_database()"
    UNCONFIRMED = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    @staticmethod
    def own_server() -> PostgresServer:
        return PostgresServer(settings={"autovacuum": "off"})

    def connect(self) -> Any:
        return psycopg.connect(self.url, autocommit=True)

    def literal(self, value: bytes) -> str:
        return f"'\\x{value.hex()}'"

    @property
    def name(self) -> str:
        return self.url.partition("@/")[2].partition("?")[0]

    def connections(self, ask: Ask) -> list[int]:
        return [pid for (pid,) in ask.rows(f"SELECT pid {self.OURS} ORDER BY pid")]

    def connected(self, ask: Ask) -> None:
        return None

    def waiting(self, ask: Ask) -> list[int]:
        return [pid for (pid,) in ask.rows(f"SELECT pid {self.OURS} AND wait_event_type = 'Lock'")]

    def kill(self, ask: Ask, connection: int) -> None:
        ask(f"SELECT pg_terminate_backend({connection})")

    def steps(self, ask: Ask) -> int:
        number: int = ask("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        return number

    def written(self, ask: Ask) -> object:
        """Whoever writes, or locks a row, takes the next number."""
        rows = ask("SELECT array_agg((identity, xmin, xmax)::text) FROM semel_record")
        return self.steps(ask), rows

    def deadlocks(self, ask: Ask) -> int:
        found = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        number: int = ask(found)
        return number

    def stick(self, ask: Ask, identity: Identity) -> None:
        ask("CREATE SEQUENCE times")
        ask(
            "CREATE FUNCTION stick() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.identity = {self.literal(identity)} AND nextval('times') = 1 "
            "THEN PERFORM pg_sleep(3600); END IF; RETURN NEW; END $$"
        )
        ask(
            "CREATE TRIGGER sticky BEFORE INSERT OR UPDATE ON semel_record "
            "FOR EACH ROW EXECUTE FUNCTION stick()"
        )

    def kill_the_stuck_one(self, ask: Ask) -> None:
        stuck = f"{self.OURS} AND wait_event = 'PgSleep'"
        until(lambda: ask(f"SELECT count(pg_terminate_backend(pid)) {stuck}"))

    def corrupt(self, ask: Ask, identity: Identity) -> None:
        ask("ALTER TABLE semel_record DROP CONSTRAINT semel_record_state_check")
        found = f"WHERE identity = {self.literal(identity)}"
        ask(f"UPDATE semel_record SET state = 9 {found}")

    @contextmanager
    def migration_locked(self) -> Iterator[None]:
        with self.transaction() as ask:
            ask(f"SELECT pg_advisory_xact_lock({postgres_backend.LOCK})")
            yield

    def waiting_to_migrate(self, ask: Ask) -> int:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        number: int = ask(waiting)
        return number

    @contextmanager
    def waiting_for_standbys(self) -> Iterator[Ask]:
        """On a server of one's own: a commit is one when a standby has confirmed it, and there is
        none."""
        with self.admin() as ask:
            try:
                ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                ask("SELECT pg_reload_conf()")
                self._see_one_wait(ask)
                yield ask
            finally:
                ask("ALTER SYSTEM RESET synchronous_standby_names")
                ask("SELECT pg_reload_conf()")
                until(lambda: ask("SHOW synchronous_standby_names") == "")

    def _see_one_wait(self, ask: Ask) -> None:
        """Not every process of a server hears of a setting at once."""
        seen = threading.Event()

        def commit() -> None:
            with self.admin() as write:
                while not seen.is_set():
                    write("SELECT pg_logical_emit_message(true, 'a', 'write')")

        with ThreadPoolExecutor(1) as threads:
            committing = threads.submit(commit)
            until(lambda: bool(ask(f"SELECT count(*) {self.UNCONFIRMED}")))
            seen.set()
            ask(f"SELECT count(pg_cancel_backend(pid)) {self.UNCONFIRMED}")
            committing.result()


class Mysql(Database):
    SERVER = "mariadb"
    BACKEND = MysqlBackend
    SCHEME = "mysql"
    WRONG_IDENTITY = Identity(bytes(33))
    WRONG_FENCE = Fence(bytes(17))
    BODY = 4_000_000
    OURS = (
        "SELECT id FROM information_schema.processlist "
        "WHERE id <> CONNECTION_ID() AND db = DATABASE() AND command <> 'Killed'"
    )
    STUCK = f"{OURS} AND state = 'User lock'"

    @staticmethod
    def own_server() -> MariadbServer:
        return mysql.chosen()()

    def connect(self) -> Any:
        return self.server.connect(database_of(self.url))

    def literal(self, value: bytes) -> str:
        return f"x'{value.hex()}'"

    def connections(self, ask: Ask) -> list[int]:
        return [number for (number,) in ask.rows(f"{self.OURS} ORDER BY id")]

    def connected(self, ask: Ask) -> int:
        return int(ask.rows("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1])

    def waiting(self, ask: Ask) -> list[int]:
        self._let_it_look_again(ask)
        waiting = "FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        return [number for (number,) in ask.rows(f"SELECT trx_mysql_thread_id {waiting}")]

    def open_transactions(self, ask: Ask) -> int:
        self._let_it_look_again(ask)
        number: int = ask("SELECT count(*) FROM information_schema.innodb_trx")
        return number

    def _let_it_look_again(self, ask: Ask) -> None:
        """innodb_trx shows the same for as long as it is read more than ten times a second."""
        ask("DO SLEEP(0.15)")

    def kill(self, ask: Ask, connection: int) -> None:
        with suppress(pymysql.Error):
            ask(f"KILL {connection}")

    def steps(self, ask: Ask) -> int:
        counted = "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_insert_select', 'Com_update')"
        return sum(int(value) for _, value in ask.rows(counted))

    def written(self, ask: Ask) -> object:
        names = "'Handler_write', 'Handler_update', 'Handler_delete', 'Created_tmp_disk_tables'"
        return sorted(
            ask.rows(
                f"SHOW GLOBAL STATUS WHERE variable_name IN ({names}) OR variable_name "
                "LIKE 'Innodb_rows_%ed' AND variable_name <> 'Innodb_rows_read'"
            )
        )

    def deadlocks(self, ask: Ask) -> int:
        text = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        return int(ask(text))

    def stick(self, ask: Ask, identity: Identity) -> None:
        """At a gate; whoever passes it leaves it open."""
        assert ask("SELECT GET_LOCK('gate', 0)") == 1
        ask(
            "CREATE TRIGGER gate BEFORE UPDATE ON semel_record FOR EACH ROW "
            f"IF NEW.identity = {self.literal(identity)} THEN "
            "SET @passed = GET_LOCK('gate', 3600) AND RELEASE_LOCK('gate'); END IF"
        )

    def kill_the_stuck_one(self, ask: Ask) -> None:
        victim = until(lambda: ask(self.STUCK))
        ask(f"KILL {victim}")
        until(lambda: ask(self.STUCK) not in (None, victim))
        ask("SELECT RELEASE_LOCK('gate')")

    def corrupt(self, ask: Ask, identity: Identity) -> None:
        self._without_checks(ask)
        found = f"WHERE identity = {self.literal(identity)}"
        ask(f"UPDATE semel_record SET state = 9 {found}")

    def _without_checks(self, ask: Ask) -> None:
        if not mysql.wanted():
            ask("SET SESSION check_constraint_checks = OFF")
            return
        named = "constraint_type = 'CHECK' AND table_name = 'semel_record'"
        for (name,) in ask.rows(
            "SELECT constraint_name FROM information_schema.table_constraints "
            f"WHERE table_schema = DATABASE() AND {named}"
        ):
            ask(f"ALTER TABLE semel_record ALTER CHECK `{name}` NOT ENFORCED")

    @contextmanager
    def migration_locked(self) -> Iterator[None]:
        with self.admin() as ask:
            assert ask(f"SELECT GET_LOCK({mysql_backend.LOCK}, 0)") == 1
            yield
            ask(f"SELECT RELEASE_LOCK({mysql_backend.LOCK})")

    def waiting_to_migrate(self, ask: Ask) -> int:
        number: int = ask(f"SELECT count(*) FROM ({self.STUCK}) AS stuck")
        return number


DIALECTS: dict[str, type[Database]] = {"postgresql": Postgres, "mysql": Mysql}

ON_POSTGRES = pytest.mark.parametrize("lone_server", ["postgresql"], indirect=True)
"""For tests that use `own_database`."""
