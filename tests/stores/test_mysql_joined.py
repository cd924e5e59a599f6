"""`on(connection)` of MariaDB: the store inside the caller's own transaction, in any driver."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import asyncmy
import pymysql
import pytest

from semel.core import operations as ops
from semel.core.operations.outbox import Enqueue, TakeEffects
from semel.core.records import State
from semel.errors import ConfigurationError, SchemaError, StoreUnavailable
from semel.stores.mysql import MysqlBackend
from semel.stores.mysql.settings import parse
from semel.testing.contract.records import new_fence
from tests.stores.together import claim, complete
from tests.waiting import PATIENCE


@pytest.fixture
def backend(mariadb_url: str) -> Iterator[MysqlBackend]:
    made = MysqlBackend(mariadb_url, timeout=PATIENCE)
    made.migrate()
    yield made
    made.close()


def place(url: str) -> dict[str, Any]:
    at = parse(url, {})
    return {"unix_socket": at.socket, "user": at.user, "database": at.database}


def connected(url: str, **options: Any) -> "pymysql.Connection[Any]":
    return pymysql.connect(**place(url), **options)


def execute(connection: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


@pytest.fixture
async def awaited(mariadb_url: str, backend: MysqlBackend) -> AsyncIterator[Any]:
    connection = await asyncmy.connect(**place(mariadb_url))
    yield connection
    connection.close()
    await backend.aclose()


def read(backend: MysqlBackend, op: ops.Claim) -> Any:
    return backend.blocking().perform(ops.Read(op.identity))


@pytest.mark.parametrize("autocommit", [False, True])
def test_joined_operations_live_and_die_with_the_callers_transaction(
    mariadb_url: str, backend: MysqlBackend, autocommit: bool
) -> None:
    kept, lost = claim(), claim()
    rows = pymysql.cursors.DictCursor
    with closing(connected(mariadb_url, autocommit=autocommit, cursorclass=rows)) as connection:
        connection.begin()
        assert isinstance(backend.on(connection).perform(kept), ops.Claimed)
        assert isinstance(backend.on(connection).perform(complete(kept)), ops.Applied)
        assert isinstance(read(backend, kept), ops.NoRecord)
        connection.commit()
        connection.begin()
        assert isinstance(backend.on(connection).perform(lost), ops.Claimed)
        connection.rollback()
    assert isinstance(read(backend, kept), ops.Found)
    assert isinstance(read(backend, lost), ops.NoRecord)


@pytest.mark.parametrize("collation", ["general_ci", "unicode_ci", "bin"])
def test_the_collation_of_the_caller_s_session_does_not_matter(
    mariadb_url: str, backend: MysqlBackend, collation: str
) -> None:
    op = claim()
    effect = Enqueue("of an order", op.identity, "mail", b"")
    with closing(connected(mariadb_url)) as connection:
        execute(connection, f"SET NAMES utf8mb4 COLLATE utf8mb4_{collation}")
        store = backend.on(connection)
        assert isinstance(store.perform(op), ops.Claimed)
        store.perform(effect)
        assert isinstance(store.perform(complete(op)), ops.Applied)
        connection.commit()
    found = read(backend, op)
    assert isinstance(found, ops.Found)


def test_a_savepoint_of_the_caller_s_own_stays(mariadb_url: str, backend: MysqlBackend) -> None:
    op = claim()
    with closing(connected(mariadb_url)) as connection:
        connection.begin()
        execute(connection, "SAVEPOINT semel_on")
        backend.on(connection).perform(op)
        execute(connection, "ROLLBACK TO SAVEPOINT semel_on")
        connection.commit()
    assert isinstance(read(backend, op), ops.NoRecord)


async def test_the_same_on_an_awaited_connection(backend: MysqlBackend, awaited: Any) -> None:
    kept, lost = claim(), claim()
    assert isinstance(await backend.on(awaited).perform(kept), ops.Claimed)
    assert isinstance(await backend.on(awaited).perform(complete(kept)), ops.Applied)
    await awaited.commit()
    assert isinstance(await backend.on(awaited).perform(lost), ops.Claimed)
    await awaited.rollback()
    assert isinstance(read(backend, kept), ops.Found)
    assert isinstance(read(backend, lost), ops.NoRecord)


def test_a_connection_that_commits_every_statement_is_refused_before_anything_is_written(
    mariadb_url: str, backend: MysqlBackend
) -> None:
    op = claim()
    with (
        closing(connected(mariadb_url, autocommit=True)) as connection,
        pytest.raises(ConfigurationError, match="begin one before on"),
    ):
        backend.on(connection).perform(op)
    assert isinstance(read(backend, op), ops.NoRecord)


async def test_and_so_is_an_awaited_one(backend: MysqlBackend, awaited: Any) -> None:
    await awaited.autocommit(True)
    op = claim()
    with pytest.raises(ConfigurationError, match="begin one before on"):
        await backend.on(awaited).perform(op)
    assert isinstance(read(backend, op), ops.NoRecord)


def test_a_snapshot_that_is_older_than_the_record_hides_nothing(
    mariadb_url: str, backend: MysqlBackend
) -> None:
    """REPEATABLE READ, the server's default, would go on reading what was there before."""
    op = claim()
    with closing(connected(mariadb_url)) as connection:
        execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        execute(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        backend.blocking().perform(op)
        backend.blocking().perform(complete(op))
        found = backend.on(connection).perform(ops.Read(op.identity))
        assert isinstance(found, ops.Found)
        assert found.record.state is State.COMPLETED
        assert isinstance(backend.on(connection).perform(op), ops.Found)


def test_an_effect_exists_if_and_only_if_its_transaction_committed(
    mariadb_url: str, backend: MysqlBackend
) -> None:
    op = TakeEffects(new_fence(), ("mail",), 100, 60_000_000)
    with closing(connected(mariadb_url)) as connection:
        assert backend.on(connection).perform(Enqueue("undone", None, "mail", b"")).applied
        assert backend.blocking().perform(op).effects == ()
        connection.rollback()
        assert backend.blocking().perform(op).effects == ()
        assert backend.on(connection).perform(Enqueue("done", None, "mail", b"")).applied
        assert not backend.on(connection).perform(Enqueue("done", None, "mail", b"")).applied
        connection.commit()
    assert [effect.key for effect in backend.blocking().perform(op).effects] == ["done"]


async def test_an_effect_is_written_with_the_callers_awaited_connection(
    backend: MysqlBackend, awaited: Any
) -> None:
    kept = await backend.on(awaited).perform(Enqueue("key", None, "mail", b""))
    assert kept.applied
    taken = await backend.on(awaited).perform(TakeEffects(new_fence(), ("mail",), 100, 60_000_000))
    assert [effect.key for effect in taken.effects] == ["key"]


def test_joined_errors_are_the_stores_own(mariadb_url: str) -> None:
    backend = MysqlBackend(mariadb_url, timeout=PATIENCE)
    with (
        closing(connected(mariadb_url)) as connection,
        pytest.raises(SchemaError, match="run `semel migrate`"),
    ):
        backend.on(connection).perform(claim())
    with pytest.raises(StoreUnavailable):
        backend.on(connection).perform(claim())


def test_what_is_no_connection_is_refused_by_name(mariadb_url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"PyMySQL or mysqlclient.*not str"):
        MysqlBackend(mariadb_url).on("connection")
