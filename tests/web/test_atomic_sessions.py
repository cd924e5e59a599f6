"""Atomic mode with SQLAlchemy: sessions over semel's transaction, in every colour."""

import asyncio
import inspect
import itertools
import logging
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import semel
from tests.forms import in_proof
from tests.web.bank import (
    COLOURS,
    NOTHING,
    PAID,
    STORES,
    Bank,
    Put,
    Says,
    Script,
    Step,
    Use,
    bank,
    opened,
)
from tests.web.conftest import MakeGuard

MakeBank = Callable[..., Bank]


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payment"

    name: Mapped[str] = mapped_column(primary_key=True)


TRIED = (
    *(("asgi", "postgres"), ("asgi", "sqlite"), ("def", "postgres")),
    *(("wsgi", "postgres"), ("wsgi", "sqlite")),
    *(("asgi", "mariadb"), ("def", "mariadb"), ("wsgi", "mariadb")),
)
"""A session that is awaited, one in the loop's thread, and one of a server's; on every database."""
PAIRS = (
    *TRIED,
    *in_proof(*(pair for pair in itertools.product(COLOURS, STORES) if pair not in TRIED)),
)


@pytest.fixture(params=PAIRS, ids="-".join)
def make_bank(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_guard: MakeGuard,
    runner: asyncio.Runner,
) -> Iterator[MakeBank]:
    colour, store = request.param
    with opened(store, tmp_path, request.getfixturevalue) as ledger:

        def make(script: Script, factory: Any = semel.ietf) -> Bank:
            guard = make_guard(ledger.store, policy=factory(mode="atomic"), maintenance=None)
            return bank(colour, guard, ledger, runner, script)

        yield make


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, logger="semel"):
        yield


def add(*names: str) -> Use:
    """Put payments into the session, and leave the writing to it."""
    return Use(lambda operation: operation.session.add_all([Payment(name=name) for name in names]))


def adding(*names: str, says: Says | None = None, then: tuple[Step, ...] = ()) -> Script:
    def script() -> Generator[Step, Any, Says]:
        yield Put("receipt")
        yield add(*names)
        for step in then:  # noqa: UP028 - a tuple cannot be sent to
            yield step
        return says or Says()

    return script


def test_what_a_session_still_holds_is_written_before_the_commit(make_bank: MakeBank) -> None:
    one = make_bank(adding("a"))
    assert (one.send().status, one.send().replayed) == (201, True)
    assert (one.ledger.all(), one.script.runs) == (PAID, 1)


def test_a_flush_that_fails_is_a_handlers_failure(make_bank: MakeBank) -> None:
    one = make_bank(adding("a", "b"))
    one.ledger.ask("INSERT INTO payment VALUES ('b')")
    reply = one.send()
    assert (reply.status, reply.code) == (500, "handler-failed")
    assert one.ledger.all() == (1, 0, [])
    one.plays(adding("a"))
    assert (one.send().status, one.ledger.all()) == (201, (2, 1, ["completed"]))


def test_a_flush_that_fails_is_kept_where_errors_are(make_bank: MakeBank) -> None:
    one = make_bank(adding("a", "b"), semel.stripe)
    one.ledger.ask("INSERT INTO payment VALUES ('b')")
    assert (one.send().status, one.send().replayed) == (500, True)
    assert (one.ledger.all(), one.script.runs) == ((1, 0, ["completed"]), 1)


@pytest.mark.parametrize("factory", [semel.ietf, semel.stripe])
def test_an_error_keeps_nothing_of_the_session(make_bank: MakeBank, factory: Any) -> None:
    flush = Use(lambda operation: operation.session.flush())
    one = make_bank(adding("a", says=Says(500), then=(flush,)), factory)
    assert one.send().status == 500
    assert one.ledger.all()[:2] == (0, 0)


def test_a_sessions_commit_is_semels_to_make(make_bank: MakeBank) -> None:
    """It only ends the session's own savepoint: an error after it still undoes everything."""
    commit = Use(lambda operation: operation.session.commit())
    one = make_bank(adding("a", says=Says(500), then=(commit, add("b"))))
    assert (one.send().status, one.ledger.all()) == (500, NOTHING)
    one.plays(adding("a", then=(commit, add("b"))))
    assert (one.send().status, one.ledger.all()) == (201, (2, 1, ["completed"]))


def test_a_sessions_rollback_undoes_the_sessions_writes_alone(make_bank: MakeBank) -> None:
    roll_back = Use(lambda operation: operation.session.rollback())
    flush = Use(lambda operation: operation.session.flush())
    one = make_bank(adding("a", then=(flush, roll_back, add("b"))))
    assert one.send().status == 201
    assert one.ledger.payments() == ["b"]
    assert one.ledger.all() == PAID


def test_an_integrity_error_that_the_handler_answers_is_kept_as_its_answer(
    make_bank: MakeBank,
) -> None:
    """The usual way: a savepoint around what may fail, and a 409 of the application's own."""

    def script() -> Generator[Step, Any, Says]:
        try:
            yield Use(try_to_pay)
        except IntegrityError:
            return Says(409, (b"paid already",))
        return Says()

    one = make_bank(script)
    one.ledger.ask("INSERT INTO payment VALUES ('a')")
    first, again = one.send(), one.send()
    assert (first.status, first.body) == (409, b"paid already")
    assert (again.replayed, again.body) == (True, first.body)
    assert (one.ledger.all(), one.script.runs) == ((1, 0, ["completed"]), 1)


def try_to_pay(operation: Any) -> Any:
    session = operation.session
    if isinstance(session, AsyncSession):
        return _atry(session)
    assert isinstance(session, Session)
    with session.begin_nested():
        session.execute(sqlalchemy.insert(Payment).values(name="a"))
    return None


async def _atry(session: AsyncSession) -> None:
    async with session.begin_nested():
        await session.execute(sqlalchemy.insert(Payment).values(name="a"))


def test_a_session_reads_what_it_wrote(make_bank: MakeBank) -> None:
    seen: list[int] = []

    def script() -> Generator[Step, Any, Says]:
        yield add("a", "b")
        found = yield Use(lambda operation: operation.session.scalars(sqlalchemy.select(Payment)))
        assert not inspect.isawaitable(found)
        seen.append(len(found.all()))
        return Says()

    one = make_bank(script)
    assert one.send().status == 201
    assert (seen, len(one.ledger.payments())) == ([2], 2)
