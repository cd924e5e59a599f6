"""PostgreSQL tells workers that there is something new, once it is committed and never before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise

import psycopg
import pytest

from semel.core.frozen import replace
from semel.core.operations.outbox import Enqueue
from semel.core.operations.requests import Accept, Accepted, Found
from semel.core.records import Fence, Identity, Origin
from semel.stores.postgres.backend import PostgresBackend
from tests.waiting import PATIENCE, until

IDENTITY, FENCE = Identity(b"i" * 32), Fence(b"f" * 16)
ACCEPT = Accept(IDENTITY, FENCE, "v1", b"", Origin("t", "POST", "/", "k"), b"request", 60_000_000)

MADE = "SELECT created_at FROM semel_record WHERE identity = ANY(%s)"


@pytest.fixture
def backend(postgres_url: str) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(postgres_url, migrate=True, timeout=PATIENCE)
    backend.migrate()
    yield backend
    backend.close()


@pytest.fixture
def listener(postgres_url: str, backend: PostgresBackend) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("LISTEN semel_effect")
        session.execute("LISTEN semel_work")
        yield session


def heard(listener: psycopg.Connection) -> list[str]:
    """What has come by now: notifications come before the answer to a later statement."""
    listener.execute("SELECT 1")
    return [each.channel for each in listener.notifies(timeout=0)]


def test_an_effect_is_told_when_its_transaction_commits(
    backend: PostgresBackend, postgres_url: str, listener: psycopg.Connection
) -> None:
    with psycopg.connect(postgres_url) as ours:
        assert backend.on(ours).perform(Enqueue("k1", None, "paid", b"1")).applied
        assert heard(listener) == []
        ours.commit()
        assert heard(listener) == ["semel_effect"]
        backend.on(ours).perform(Enqueue("k2", None, "paid", b"1"))
        ours.rollback()
        assert heard(listener) == []


def test_an_effect_that_is_there_already_is_not_told_again(
    backend: PostgresBackend, listener: psycopg.Connection
) -> None:
    store = backend.blocking()
    assert store.perform(Enqueue("k1", None, "paid", b"1")).applied
    assert not store.perform(Enqueue("k1", None, "paid", b"1")).applied
    assert heard(listener) == ["semel_effect"]


def test_an_accepted_request_is_told_once(
    backend: PostgresBackend, listener: psycopg.Connection
) -> None:
    store = backend.blocking()
    assert isinstance(store.perform(ACCEPT), Accepted)
    assert heard(listener) == ["semel_work"]
    other = Accept(
        IDENTITY, Fence(b"g" * 16), "v1", b"", ACCEPT.origin, b"request", ACCEPT.patience
    )
    assert isinstance(store.perform(other), Found)
    assert heard(listener) == []


def test_effects_in_quick_succession_do_not_all_queue_up_to_notify(
    backend: PostgresBackend, listener: psycopg.Connection
) -> None:
    """One in a tenth of a second does; each would wait for the commit of the one before."""
    perform = backend.blocking().perform
    tenths: list[int] = []

    def together() -> int:
        """How many were written in the tenth of the one before."""
        return sum(one == other for one, other in pairwise(tenths))

    def written() -> bool:
        for _ in range(100):
            made = perform(Enqueue(f"k{len(tenths)}", None, "paid", b"1"))
            tenths.append(made.now // 100_000)
        return together() >= 50

    until(written)
    assert len(heard(listener)) == len(tenths) - together()


def test_of_requests_accepted_at_once_one_is_told(
    backend: PostgresBackend, postgres_url: str, listener: psycopg.Connection
) -> None:
    """The second, under way in the same tenth of a second as the first, does not queue up."""
    numbers = count()

    def told() -> list[str] | None:
        """None: they were not in one tenth. It is looked at between the two times of each."""
        one, other = accept(next(numbers)), accept(next(numbers))
        with psycopg.connect(postgres_url) as ours:
            first = backend.on(ours).perform(one)
            second = backend.blocking().perform(other)
            ours.commit()
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        made = listener.execute(MADE, [[bytes(each.identity) for each in (one, other)]])
        times = (first.now, second.now, *(time for (time,) in made))
        channels = heard(listener)
        return channels if len({time // 100_000 for time in times}) == 1 else None

    assert until(told) == ["semel_work"]
    assert isinstance(backend.blocking().perform(accept(next(numbers))), Accepted)
    assert heard(listener) == ["semel_work"]


def accept(number: int) -> Accept:
    return replace(ACCEPT, identity=Identity(number.to_bytes(32, "big")))
