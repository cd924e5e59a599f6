"""The transaction of an operation is a dependency: real in the endpoint, a stand-in before."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import semel
from semel.frameworks.fastapi import session, transaction
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, call

ATOMIC = semel.ietf(mode="atomic")
INSERT = "INSERT INTO orders VALUES ({amount})"


class Orders:
    """What people put between an endpoint and its database."""

    def __init__(self, connection: Annotated[sqlite3.Connection, Depends(transaction)]) -> None:
        self._connection = connection

    def add(self, amount: int) -> None:
        self._connection.execute(INSERT.format(amount=amount))


def a_connection(amount: int, db: Annotated[sqlite3.Connection, Depends(transaction)]) -> str:
    db.execute(INSERT.format(amount=amount))
    return _after(amount, "Connection" if isinstance(db, sqlite3.Connection) else "?")


async def an_awaited_connection(amount: int, db: Annotated[Any, Depends(transaction)]) -> str:
    db.execute(INSERT.format(amount=amount))
    return _after(amount, "Connection" if isinstance(db, sqlite3.Connection) else "?")


def a_session(amount: int, db: Annotated[Session, Depends(session)]) -> str:
    db.execute(text(INSERT.format(amount=amount)))
    return _after(amount, "Session" if isinstance(db, Session) else "?")


async def an_awaited_session(amount: int, db: Annotated[AsyncSession, Depends(session)]) -> str:
    await db.execute(text(INSERT.format(amount=amount)))
    return _after(amount, type(db).__name__)


def a_repository(amount: int, orders: Annotated[Orders, Depends()]) -> str:
    orders.add(amount)
    return _after(amount, "Connection")


def _after(amount: int, kind: str) -> str:
    if amount == 500:
        raise RuntimeError("not to be")
    return kind


ENDPOINTS = (a_connection, an_awaited_connection, a_session, an_awaited_session, a_repository)


class Shop:
    def __init__(self, guard: semel.Guard, path: Path, endpoint: Callable[..., Any]) -> None:
        self._path = path
        self.app = FastAPI()
        self.app.post("/x/{amount}")(guard.route(ATOMIC)(endpoint))
        guard.fastapi(self.app)
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE orders (amount INTEGER)")
        connection.close()

    async def order(self, amount: int, **options: Any) -> Any:
        return (await call(self.app, Ask(path=b"/x/%d" % amount, **options)))[0]

    def rows(self) -> int:
        connection = sqlite3.connect(self._path)
        counted: int = connection.execute("SELECT count(*) FROM orders").fetchone()[0]
        connection.close()
        return counted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "semel.db"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_rows_and_key_commit_together(
    endpoint: Callable[..., Any], path: Path, make_guard: MakeGuard
) -> None:
    shop = Shop(make_guard(f"sqlite:///{path}"), path, endpoint)
    first, again = await shop.order(3), await shop.order(3)
    assert (first.status, again.status, again.replayed) == (200, 200, True)
    assert (first.body, shop.rows()) == (again.body, 1)
    assert first.body.strip(b'"').decode() in ("Connection", "Session", "AsyncSession")
    assert (await shop.order(500)).status == 500
    assert shop.rows() == 1


async def test_without_a_key_there_is_no_transaction_to_give(
    path: Path, make_guard: MakeGuard
) -> None:
    shop = Shop(make_guard(f"sqlite:///{path}"), path, a_connection)
    reply, error = await call(shop.app, Ask(path=b"/x/3", key=None))
    assert isinstance(error, semel.ConfigurationError)
    assert (reply.status, shop.rows()) == (500, 0)
    assert "required=True" in str(error)


async def test_a_dependency_cannot_write_before_the_claim(
    path: Path, make_guard: MakeGuard
) -> None:
    def too_early(db: Annotated[sqlite3.Connection, Depends(transaction)]) -> None:
        db.execute(INSERT.format(amount=1))

    def endpoint(amount: int, early: Annotated[None, Depends(too_early)]) -> None: ...

    shop = Shop(make_guard(f"sqlite:///{path}"), path, endpoint)
    _, error = await call(shop.app, Ask(path=b"/x/3"))
    assert isinstance(error, semel.ConfigurationError)
    assert shop.rows() == 0
