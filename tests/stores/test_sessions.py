"""SQLAlchemy sessions on semel's transaction: theirs is a savepoint, the commit is semel's."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from semel.core.operations.requests import Found
from semel.core.records import State
from semel.errors import ConfigurationError
from tests.stores.test_transactions import WORLDS, Act, World, lazily, opened
from tests.stores.together import complete


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with opened(request.param, tmp_path, lazily(request)) as made:
        yield made


def handle(world: World, act: Act, handler: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    """Run one handler in the colour of the world: ``await step(session.flush)`` works in both."""

    async def called(method: Callable[..., Any], *args: Any) -> Any:
        answer = method(*args)
        return await answer if asyncio.iscoroutine(answer) else answer

    if world.portal is not None:

        async def run() -> Any:
            return await handler(act.inner.session, called)

        return world.portal.call(run())
    # Without a loop: the only awaitables are those of `called`, which never waits.
    coroutine: Any = handler(act.inner.session, called)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a blocking session was awaited")


def finish(world: World, act: Act, op: Any) -> None:
    act.flush()
    act.perform(complete(op))
    act.commit()
    assert world.state(op) is State.COMPLETED


def ordered(world: World, act: Act, *steps: int | str) -> None:
    """A handler that adds orders, by their numbers, and does with its session what is named."""

    async def handler(session: Any, step: Any) -> None:
        for each in steps:
            if isinstance(each, int):
                session.add(Order(id=each))
            else:
                await step(getattr(session, each))

    handle(world, act, handler)


def test_the_session_has_the_colour_of_whoever_asks(world: World) -> None:
    act, _ = world.begun()

    async def look(session: Any, _step: Any) -> None:
        assert isinstance(session, AsyncSession if world.portal else Session)

    handle(world, act, look)
    assert isinstance(act.inner.session, Session)  # this thread runs no loop
    act.roll_back()


def test_what_a_session_still_holds_is_flushed_and_committed_by_semel(world: World) -> None:
    act, op = world.begun()
    ordered(world, act, 1)
    finish(world, act, op)
    assert world.orders() == [1]


def test_a_commit_is_a_savepoint_and_a_rollback_goes_back_to_it(world: World) -> None:
    act, op = world.begun()
    ordered(world, act, 1, "commit", 2, "flush", "rollback", 3, "commit")
    assert world.orders() == []
    finish(world, act, op)
    assert world.orders() == [1, 3]


def test_committed_by_the_session_and_rolled_back_by_semel_is_gone(world: World) -> None:
    act, op = world.begun()
    ordered(world, act, 1, "commit")
    act.roll_back()
    assert world.orders() == []
    assert world.state(op) is None


def test_undone_behind_the_sessions_back(world: World) -> None:
    act, op = world.begun()
    ordered(world, act, 1, "flush")
    act.undo()
    finish(world, act, op)
    assert world.orders() == []


def test_flushing_raises_what_the_database_says(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")
    ordered(world, act, 1)
    with pytest.raises(IntegrityError):
        act.flush()
    act.undo()
    finish(world, act, op)
    assert world.orders() == []


def test_errors_of_mysql_are_known_beside_django_with_pymysql() -> None:
    """Django's backend imports MySQLdb.err: under that name PyMySQL's errors are there twice."""
    script = (
        "import pymysql; pymysql.install_as_MySQLdb(); import MySQLdb.err\n"
        "from semel.stores.sqlalchemy_sessions import AsyncMysqlGuest\n"
        "adapter = AsyncMysqlGuest.import_dbapi()\n"
        "names = [name for name in vars(adapter) if name.endswith('Error') or name == 'Warning']\n"
        "print(len(names), all(getattr(adapter, n) is getattr(pymysql, n) for n in names))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["10", "True"], done.stderr


def test_connection_and_session_are_in_one_transaction(world: World) -> None:
    act, op = world.begun()
    act.execute("INSERT INTO orders VALUES (1)")

    async def handler(session: Any, step: Any) -> list[int]:
        session.add(Order(id=2))
        return list(await step(session.scalars, select(Order.id).order_by(Order.id)))

    assert handle(world, act, handler) == [1, 2]
    assert len(act.execute("SELECT id FROM orders")) == 2
    finish(world, act, op)
    assert world.orders() == [1, 2]


def test_objects_keep_their_values_after_the_end_and_the_session_is_of_no_use(
    world: World,
) -> None:
    act, op = world.begun()
    kept: list[Any] = []

    async def handler(session: Any, step: Any) -> None:
        order = Order(id=4)
        session.add(order)
        await step(session.commit)
        kept.extend([order, session])

    handle(world, act, handler)
    finish(world, act, op)
    order, session = kept
    assert order.id == 4

    async def late(_session: Any, step: Any) -> None:
        await step(session.scalars, select(Order.id))

    other, _ = world.begun()
    with pytest.raises(ConfigurationError, match="over"):
        handle(world, other, late)
    other.roll_back()
    with pytest.raises(ConfigurationError, match="over"):
        _ = act.inner.session


def test_a_session_in_a_thread_below_an_event_loop(world: World) -> None:
    act, op = world.begun()

    def endpoint() -> None:
        session = act.inner.session
        assert isinstance(session, Session)
        session.add(Order(id=8))

    thread = threading.Thread(target=endpoint)
    thread.start()
    thread.join()
    finish(world, act, op)
    assert world.orders() == [8]


def test_many_in_a_row_leave_neither_threads_nor_connections(world: World) -> None:
    for number in range(10):
        act, op = world.begun()
        ordered(world, act, number, "commit")
        finish(world, act, op)
        assert isinstance(world.ascertain(op.identity), Found)
    assert world.orders() == list(range(10))
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "connection_worker" in name]


def test_a_handler_whose_session_is_closed_by_itself(world: World) -> None:
    """As SQLAlchemy has it: what was not committed is undone."""
    act, op = world.begun()
    ordered(world, act, 1, "commit", 2, "flush", "close")
    finish(world, act, op)
    assert world.orders() == [1]


def test_without_sqlalchemy_the_extra_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, _ = world.begun()
    monkeypatch.setitem(sys.modules, "semel.stores.sqlalchemy_sessions", None)
    with pytest.raises(ConfigurationError, match=r"semel\[sqlalchemy\]"):
        _ = act.inner.session
    with suppress(Exception):
        act.roll_back()
