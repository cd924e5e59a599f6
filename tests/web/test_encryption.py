"""A guard with encryption: everything works as without, and nothing of it lies about in clear."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import semel
from semel.core.operations.maintenance import Browse
from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.core.operations.requests import Recall, Recalled
from semel.core.records import State
from semel.stores.encryption import Encryption
from semel.worker.deliveries import Deliveries
from semel.worker.stored_runs import StoredRuns
from tests.web.colours import COLOURS, Said, asgi
from tests.web.conftest import Drive, MakeGuard, Serve
from tests.web.drive import Ask, WsgiDriver

OLD, NEW = os.urandom(32), os.urandom(32)
KEYS = {"new": NEW, "old": OLD}
SECRET = "bobs-card-4242"
KEY = "0123456789abcdef"
ATOMIC = semel.ietf(mode="atomic")


def encryption(**options: Any) -> Encryption:
    return Encryption(KEYS, "new", **options)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/semel.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


@pytest.fixture
def guard(url: str, make_guard: MakeGuard) -> semel.Guard:
    made = make_guard(url, encryption=encryption(), migrate=True)
    made.migrate()
    return made


def everything(url: str) -> Iterator[bytes]:
    """Every value of every row of every table of semel's."""
    tables = ("semel_record", "semel_effect", "semel_audit", "semel_recipe", "semel_event")
    for table in tables:
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
                rows: list[Any] = file.execute(f"SELECT * FROM {table}").fetchall()
        else:
            with psycopg.connect(url) as connection:
                rows = connection.execute(f"SELECT * FROM {table}".encode()).fetchall()
        for cell in (cell for row in rows for cell in row):
            yield cell if isinstance(cell, bytes) else str(cell).encode()


def test_in_a_transaction_answer_and_effect_are_encrypted_too(guard: semel.Guard, url: str) -> None:
    def pay() -> dict[str, str]:
        semel.operation().enqueue("mail", {"to": SECRET})
        return {"paid": SECRET}

    ran = [guard.once(KEY, pay, name="pay", policy=ATOMIC) for _ in range(2)]
    assert [each.value for each in ran] == [{"paid": SECRET}] * 2
    assert [each.replayed for each in ran] == [False, True]
    assert not any(SECRET.encode() in cell for cell in everything(url))
    (effect,) = guard.backend.blocking().perform(BrowseEffects(Shelf.WAITING, 9)).effects
    assert SECRET.encode() in effect.payload


def test_the_same_awaited_and_with_an_effect_in_the_applications_own_transaction(
    guard: semel.Guard, url: str
) -> None:
    async def pay() -> dict[str, str]:
        await semel.async_operation().enqueue("mail", {"to": SECRET})
        return {"paid": SECRET}

    async def twice() -> list[Any]:
        ran = [await guard.aonce(KEY, pay, name="pay", policy=ATOMIC) for _ in range(2)]
        await guard.aclose()
        return [(each.value, each.replayed) for each in ran]

    assert asyncio.run(twice()) == [({"paid": SECRET}, False), ({"paid": SECRET}, True)]
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            guard.enqueue(file, "mail", {"to": SECRET}, key="own")
            file.commit()
    else:
        with psycopg.connect(url) as connection:
            guard.enqueue(connection, "mail", {"to": SECRET}, key="own")
    assert not any(SECRET.encode() in cell for cell in everything(url))
    effects = guard.backend.blocking().perform(BrowseEffects(Shelf.WAITING, 9)).effects
    assert [SECRET.encode() in effect.payload for effect in effects] == [True, True]


@pytest.mark.parametrize("colour", COLOURS)
def test_an_operation_resumes_from_an_encrypted_journal(
    colour: str, sqlite_url: str, make_guard: MakeGuard, drive: Drive
) -> None:
    policy = semel.ietf(mode="resumable", required=True)
    guard = make_guard(sqlite_url, encryption=encryption(), policy=policy)
    calls: list[str] = []
    broken = [True]

    def charge(key: str) -> str:
        calls.append(key)
        return SECRET

    def after() -> None:
        if broken.pop() if broken else False:
            raise semel.NotExecuted("not yet")

    async def awaited(scope: Any, receive: Any, send: Any) -> None:
        said = await semel.async_operation().call("charged", charge)
        after()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": said.encode()})

    def blocking(environ: Any, start_response: Any) -> list[bytes]:
        said = semel.operation().call("charged", charge)
        after()
        start_response("200 OK", [("content-type", "text/plain")])
        return [said.encode()]

    send: Any
    if colour == "asgi":
        send = drive(guard.asgi(awaited))
    else:
        send = WsgiDriver(guard.wsgi(blocking), strict=False)
    ask = Ask(body=SECRET.encode())
    assert send(ask).status >= 400
    assert not any(SECRET.encode() in cell for cell in everything(sqlite_url))
    _expire_lease(sqlite_url)
    assert send(ask).body == SECRET.encode()
    assert len(calls) == 1


def _expire_lease(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE semel_record SET leased_until = 1, due_at = 1 WHERE state = 2")
        file.commit()


# ── what does not open is neither repeated nor run again ──────────────────────────────────────────


@pytest.mark.parametrize("policy", [semel.ietf(), ATOMIC], ids=["leased", "atomic"])
def test_an_answer_put_there_by_somebody_else_is_not_sent_and_nothing_runs_again(
    serve: Serve, policy: semel.Policy, sqlite_url: str
) -> None:
    ran: list[int] = []

    def handle() -> Said:
        ran.append(1)
        return Said(b"answer %d" % len(ran))

    send = serve(handle, store=sqlite_url, encryption=encryption(), policy=policy)
    one, two = Ask(key=KEY + "1"), Ask(key=KEY + "2")
    assert (send(one).body, send(two).body) == (b"answer 1", b"answer 2")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute(
            "UPDATE semel_record SET snapshot = (SELECT snapshot FROM semel_record WHERE key = ?) "
            "WHERE key = ?",
            (f"{KEY}1".encode(), f"{KEY}2".encode()),
        )
        file.commit()
    assert send(one).body == b"answer 1"
    refused = send(two)
    assert refused.status == 503
    assert b"answer" not in refused.body
    assert len(ran) == 2


@pytest.mark.parametrize("given", [None, Encryption({"old": OLD}, "old")], ids=["none", "another"])
def test_without_its_key_an_answer_is_not_sent_and_nothing_runs_again(
    given: Encryption | None, sqlite_url: str, make_guard: MakeGuard
) -> None:
    make_guard(sqlite_url, encryption=encryption()).once(KEY, lambda: SECRET, name="pay")
    without = make_guard(sqlite_url, encryption=given)
    with pytest.raises(semel.Refused, match="store-unavailable"):
        without.once(KEY, lambda: pytest.fail("it ran again"), name="pay")


async def test_a_worker_without_the_key_gives_no_effect_up(
    sqlite_url: str, make_guard: MakeGuard
) -> None:
    make_guard(sqlite_url, encryption=encryption()).backend.blocking().perform(
        Enqueue("key", None, "mail", b'"bob"')
    )
    sent: list[Any] = []

    def deliver(delivery: semel.Delivery) -> None:
        sent.append(delivery.payload)

    for given in (Encryption({"old": OLD}, "old"), None):
        without = make_guard(sqlite_url, encryption=given)
        without.delivers("mail")(deliver)
        await Deliveries(without).run_once()
        assert list(without.operator().list_dead()) == []
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
            file.execute("UPDATE semel_effect SET due_at = 1, leased_until = NULL")
            file.commit()
    assert sent == []
    knowing = make_guard(sqlite_url, encryption=encryption())
    knowing.delivers("mail")(deliver)
    await Deliveries(knowing).run_once()
    assert sent == ["bob"]


async def test_a_worker_without_the_key_gives_no_request_up(
    sqlite_url: str, make_guard: MakeGuard
) -> None:
    policy = semel.accepted(mode="deferred", required=True)

    def knowing(given: Encryption | None) -> tuple[semel.Guard, Any]:
        guard = make_guard(sqlite_url, encryption=given, policy=policy)
        return guard, guard.asgi(asgi(lambda: Said(b"done")))

    guard, app = knowing(encryption())
    ignorant, other = knowing(Encryption({"old": OLD}, "old"))
    assert (await _ask(app)) == 202
    assert not any(SECRET.encode() in cell for cell in everything(sqlite_url))
    without = StoredRuns(ignorant, other)
    await without.run_once()
    await without.aclose()
    (case,) = guard.backend.blocking().perform(Browse(tuple(State), 9)).cases
    assert case.record.state is State.PENDING
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
        file.execute("UPDATE semel_record SET due_at = 1")
        file.commit()
    runs = StoredRuns(guard, app)
    await runs.run_once()
    await runs.aclose()
    found = guard.backend.blocking().perform(Recall(case.record.identity))
    assert isinstance(found, Recalled)
    assert found.case.record.state is State.COMPLETED
    await guard.aclose()


async def _ask(app: Any) -> int:
    from tests.web.drive import scope_of

    sent: list[Any] = []
    body = {"type": "http.request", "body": SECRET.encode(), "more_body": False}

    async def receive() -> Any:
        return body

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope_of(Ask(body=SECRET.encode())), receive, send)
    return int(sent[0]["status"])


def test_what_was_stored_before_is_read_while_that_is_accepted(
    sqlite_url: str, make_guard: MakeGuard
) -> None:
    make_guard(sqlite_url).once(KEY, lambda: SECRET, name="pay")
    lenient = make_guard(sqlite_url, encryption=encryption(accept_plain=True))
    assert lenient.once(KEY, lambda: "again", name="pay").value == SECRET
    with pytest.raises(semel.Refused, match="store-unavailable"):
        make_guard(sqlite_url, encryption=encryption()).once(KEY, lambda: "again", name="pay")
