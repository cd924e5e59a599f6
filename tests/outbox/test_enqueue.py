"""An effect in the application's own transaction: there if it commits, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.core.operations.outbox import BrowseEffects, Shelf, TakeEffects
from semel.core.records import Effect
from semel.errors import ConfigurationError
from semel.guard import Guard
from semel.runtime.leases import new_fence
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.databases import connect, executed
from tests.waiting import PATIENCE


class Shop:
    """An application's own database, which the store lives in as well."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.backend: Backend = open_backend(url, timeout=PATIENCE)
        self.backend.migrate()
        self.guard = Guard(self.backend, tenant=None)
        self.connection = connection = connect()
        self._outside = connect()
        executed(connection, "CREATE TABLE orders (number integer)")
        connection.commit()

    def seen_by_others(self) -> int:
        ((found,),) = executed(self._outside, "SELECT count(*) FROM semel_effect")
        self._outside.rollback()
        return int(found)

    def close(self) -> None:
        self.connection.close()
        self._outside.close()
        self.backend.close()

    def waiting(self) -> list[Effect]:
        return list(self.backend.blocking().perform(BrowseEffects(Shelf.WAITING, 100)).effects)

    def order(self, number: int, **options: Any) -> str:
        executed(self.connection, f"INSERT INTO orders VALUES ({number})")
        return self.guard.enqueue(self.connection, "paid", {"order": number}, **options)


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    made = Shop(url, partial(connect, url, autocommit=False))
    yield made
    made.close()


def test_it_is_there_when_the_transaction_commits_and_not_before(shop: Shop) -> None:
    key = shop.order(1)
    assert shop.seen_by_others() == 0
    shop.connection.commit()
    assert shop.seen_by_others() == 1
    (effect,) = shop.waiting()
    assert (effect.key, effect.name, effect.payload) == (key, "paid", b'{"order":1}')
    assert effect.identity is None


def test_it_is_not_there_when_the_transaction_is_rolled_back(shop: Shop) -> None:
    shop.order(1)
    shop.connection.rollback()
    assert shop.waiting() == []


def test_each_has_a_key_of_its_own_unless_one_is_given(shop: Shop) -> None:
    keys = {shop.order(number) for number in range(5)}
    assert len(keys) == 5
    for _ in range(2):
        assert shop.order(9, key="order-9-paid") == "order-9-paid"
    shop.connection.commit()
    assert sorted(each.key for each in shop.waiting()) == sorted({*keys, "order-9-paid"})


def test_it_may_wait_and_be_put_in_order(shop: Shop) -> None:
    shop.order(1, order="account-7", delay=timedelta(hours=1))
    shop.connection.commit()
    take = TakeEffects(new_fence(), ("paid",), 10, 1_000_000)
    taken = shop.backend.blocking().perform(take)
    assert taken.effects == ()
    assert taken.next_due is not None
    assert 3_500_000_000 < taken.next_due - taken.now <= 3_600_000_000
    assert [effect.order for effect in shop.waiting()] == ["account-7"]


async def test_it_joins_an_awaited_transaction(postgres_url: str) -> None:
    backend = open_backend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    guard = Guard(backend, tenant=None)
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await guard.aenqueue(connection, "paid", 1, key="k1")
        await connection.rollback()
        await guard.aenqueue(connection, "paid", 2, key="k2")
        await connection.commit()
    waiting = backend.blocking().perform(BrowseEffects(Shelf.WAITING, 9)).effects
    assert [effect.key for effect in waiting] == ["k2"]
    backend.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ""}, ValueError),
        ({"payload": object()}, TypeError),
        ({"payload": float("nan")}, ValueError),
        ({"key": ""}, ValueError),
        ({"key": "x" * 256}, ValueError),
        ({"key": "line\r\nbreak"}, ValueError),
        ({"key": "schlüssel"}, ValueError),
        ({"delay": timedelta(-1)}, ValueError),
    ],
)
def test_what_cannot_be_delivered_is_not_written(
    tmp_path: Path, change: dict[str, Any], error: type[Exception]
) -> None:
    guard = Guard(f"sqlite:///{tmp_path / 'x.db'}", tenant=None)
    with pytest.raises(error):
        guard.enqueue(None, **{"name": "paid", "payload": 1, **change})


def test_a_store_without_transactions_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no transactions"):
        Guard("memory://", tenant=None).enqueue(None, "paid", 1)
