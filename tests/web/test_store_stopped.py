"""The store is killed, or hangs, under load, and comes back: nothing runs without a claim.

Executions are counted by the effects log, claims by asking the store behind semel's back.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, Protocol

import psycopg
import pytest

import semel
from semel.core.operations.requests import Claim, StoreOperation
from semel.runtime.breaker import FAILURES, FIRST, LASTING, Breaker
from semel.stores import open_backend
from tests.servers import PostgresServer, ValkeyServer, gunicorn, uvicorn
from tests.waiting import PATIENCE, until
from tests.web import faulty
from tests.web.client import Client, Reply, new_key
from tests.web.colours import COLOURS, Said, once
from tests.web.conftest import MakeGuard, Serve
from tests.web.drive import Ask
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend
from tests.web.faulty import Faults

THREADS = 6


class Outage(Protocol):
    """A store that can be taken away and brought back."""

    url: str

    def begin(self) -> None: ...
    def end(self) -> None: ...
    def claimed(self) -> set[str]:
        """The keys on record, asked behind semel's back."""
        ...


class KilledPostgres:
    def __init__(self, server: PostgresServer, url: str) -> None:
        self._server = server
        self.url = url

    def begin(self) -> None:
        self._server.kill()

    def end(self) -> None:
        self._server.start()

    def claimed(self) -> set[str]:
        with psycopg.connect(self.url) as connection:
            return {key for (key,) in connection.execute("SELECT key FROM semel_records")}


class KilledValkey:
    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        self.url = server.url

    def begin(self) -> None:
        self._server.kill()

    def end(self) -> None:
        self._server.start()

    def claimed(self) -> set[str]:
        with self._server.client as client:
            hashes = [
                name for name in client.scan_iter(count=1_000) if client.type(name) == b"hash"
            ]
            found = [client.hget(name, "key") for name in hashes]
        return {key.decode() for key in found if isinstance(key, bytes)}


class LockedSqlite:
    """Another program keeps the file to itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.url = f"sqlite:///{path}?timeout=0.5"

    def begin(self) -> None:
        until(self._locked)

    def _locked(self) -> bool:
        try:
            self._lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
        return True

    def end(self) -> None:
        self._lock.execute("ROLLBACK")

    def claimed(self) -> set[str]:
        return {key for (key,) in self._lock.execute("SELECT key FROM semel_records")}

    def close(self) -> None:
        self._lock.close()


@contextmanager
def postgres(folder: Path) -> Iterator[Outage]:
    # A server of its own, whose commits outlive its processes.
    with PostgresServer(settings={"synchronous_commit": "on"}) as server, server.database() as url:
        yield KilledPostgres(server, url)


@contextmanager
def valkey(folder: Path) -> Iterator[Outage]:
    with ValkeyServer({"appendfsync": "always"}) as server:
        yield KilledValkey(server)


@contextmanager
def sqlite(folder: Path) -> Iterator[Outage]:
    outage = LockedSqlite(folder / "keys.db")
    yield outage
    outage.close()


@dataclass
class Load:
    """Many threads, each with one new key after the other, until told to stop."""

    client: Client
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)

    def run(self) -> None:
        while not self._stop.is_set():
            key = new_key()
            self.replies[key] = []
            self.replies[key].append(self.client.post("/pay", key))

    def count(self, status: int) -> int:
        return sum(reply.status == status for seen in list(self.replies.values()) for reply in seen)

    def keys(self) -> set[str]:
        return set(self.replies)

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def applying(client: Client) -> Iterator[Load]:
    load = Load(client)
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(load.run) for _ in range(THREADS)]
        try:
            yield load
        finally:
            load.stop()
        for each in running:
            each.result()


STORES = {"postgres": postgres, "valkey": valkey, "sqlite": sqlite}


@pytest.mark.parametrize(
    "case",
    # Valkey is killed under load in tests/proof/test_faults.py as well.
    ["starlette-postgres", pytest.param("bare-valkey", marks=pytest.mark.proof), "flask-sqlite"],
)
def test_a_store_that_is_killed_under_load_runs_nothing_and_comes_back_without_a_restart(
    case: str, tmp_path: Path
) -> None:
    framework, _, store = case.partition("-")
    log = tmp_path / "effects"
    with STORES[store](tmp_path) as outage:
        env = {
            "SEMEL_TEST_STORE": outage.url,
            "SEMEL_TEST_FRAMEWORK": framework,
            "SEMEL_TEST_EFFECTS": str(log),
        }
        server = (
            uvicorn("tests.web.app:app", env=env)
            if framework == "starlette"
            else gunicorn("tests.web.wsgi_app:application", threads=THREADS, env=env)
        )
        with server as app:
            client, effects = Client(app.url), Effects(log)
            with applying(client) as load:
                until(lambda: load.count(201) >= 30)
                pid = app.pid
                outage.begin()
                before, refused = load.keys(), load.count(503)
                until(lambda: load.count(503) >= refused + 100)
                meanwhile = load.keys() - before
                ran = {effect.key for effect in effects.all()}
                assert not ran & meanwhile, "a handler ran although nothing could be claimed"
                outage.end()
                served = load.count(201)
                until(lambda: load.count(201) >= served + 30)
            assert app.pid == pid
            some = sorted(load.keys())[:: 1 + len(load.keys()) // 60]
            finals = {key: client.insist("/pay", key) for key in some}
            assert {reply.status for reply in finals.values()} == {201}
            times = [effect.key for effect in effects.all()]
            assert len(times) == len(set(times)), "a key was executed twice"
            assert set(times) <= outage.claimed(), "a handler ran without a claim"
            assert set(finals) <= set(times)
            refusals = [r for seen in load.replies.values() for r in seen if r.status == 503]
            assert {reply.code for reply in refusals} <= {
                "store-unavailable",
                "completion-not-durable",
            }
            assert all(int(reply.one("retry-after") or 0) >= 1 for reply in refusals)


# ── the breaker's time ────────────────────────────────────────────────────────────────────────────


class Still:
    """A breaker's clock: it stands just before the next trial until it is told to go on."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._at = breaker._try_at - FIRST / 2
        breaker._clock = self

    def __call__(self) -> float:
        return self._at

    def go_on(self) -> None:
        """To the next trial."""
        self._at = self._breaker._try_at


def opened(guard: semel.Guard) -> tuple[Breaker, Still]:
    """As after an outage that has just begun."""
    breaker = broken(guard)
    for _ in range(FAILURES):
        breaker.failed(time.monotonic() - 2 * LASTING)
    assert breaker.circuit == "open"
    return breaker, Still(breaker)


def broken(guard: semel.Guard) -> Breaker:
    return guard.runtime.breaker


# ── a store that hangs ────────────────────────────────────────────────────────────────────────────

HUNG = 0.1
"""Seconds that whoever asks a server that hangs waits for it. Nothing that must succeed depends on
it: it is tried again."""


@pytest.fixture(scope="module")
def hanging() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def guarded(make_guard: MakeGuard, runner: asyncio.Runner) -> Iterator[Callable[..., semel.Guard]]:
    """Guards whose connections are closed in the loop they were opened in."""
    made: list[semel.Guard] = []

    def make(*given: Any, **options: Any) -> semel.Guard:
        made.append(make_guard(*given, **options))
        return made[-1]

    yield make
    for guard in made:
        runner.run(guard.aclose())


def test_while_a_store_hangs_requests_are_refused_at_once_and_then_served_again(
    serve: Serve, colour: str, hanging: ValkeyServer, guarded: MakeGuard, effects: Effects
) -> None:
    store = FaultyBackend(open_backend(f"{hanging.url}?timeout={HUNG}&prefix={colour}"))
    guard = guarded(store)
    breaker, send = broken(guard), serve(guard=guard)
    until(lambda: send().status == 200)
    ran = len(effects.all())
    with hanging.frozen():
        until(lambda: send(Ask(key=new_key())).status == 503 and breaker.circuit == "open")
        clock, tried = Still(breaker), store.count(Claim)
        seen = [send(Ask(key=new_key())) for _ in range(30)]
        assert {(reply.status, reply.code) for reply in seen} == {(503, "store-unavailable")}
        assert store.count(Claim) == tried, "the store was asked, and waited for"
        assert len(effects.all()) == ran

    def served() -> bool:
        clock.go_on()
        return send(Ask(key=new_key())).status == 200

    until(served)
    assert breaker.circuit == "closed"


# ── what the breaker must not touch ───────────────────────────────────────────────────────────────


def test_an_open_breaker_keeps_no_outcome_from_being_recorded(
    serve: Serve, colour: str, hanging: ValkeyServer, guarded: MakeGuard, effects: Effects
) -> None:
    """The handler opens it by itself; its own completion goes through, and closes it."""
    guard = guarded(f"{hanging.url}?timeout={PATIENCE}&prefix=complete-{colour}")
    circuits: list[str] = []

    def handle() -> Said:
        breaker, _ = opened(guard)
        circuits.append(breaker.circuit)
        return once(effects)()

    breaker, send = broken(guard), serve(handle, guard=guard)
    first = send()
    assert (first.status, circuits, breaker.circuit) == (200, ["open"], "closed")
    assert send().body == first.body
    assert len(effects.all()) == 1


def test_without_a_breaker_every_request_tries(serve: Serve, guarded: MakeGuard) -> None:
    guard = guarded(breaker=None)
    for _ in range(2 * FAILURES):
        guard.runtime.breaker.failed(time.monotonic() - 2 * LASTING)
    assert guard.runtime.breaker.circuit == "closed"
    assert serve(guard=guard)().status == 200


def test_trials_that_are_refused_by_a_limit_are_not_spent(
    serve: Serve, make_guard: MakeGuard
) -> None:
    guard = make_guard(limits=semel.Limits(new_keys=semel.Rate(1, timedelta(hours=1))))
    send = serve(guard=guard)
    assert send().status == 200
    breaker, clock = opened(guard)
    clock.go_on()
    assert send(Ask(key=new_key())).code == "too-fast"
    assert send().replayed, "the trial was another's to spend"
    assert breaker.circuit == "closed"


# ── health ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("colour", COLOURS)
def test_health_says_whether_the_store_answers_and_an_answer_closes_the_breaker(
    colour: str, hanging: ValkeyServer, guarded: MakeGuard, runner: asyncio.Runner
) -> None:
    events: list[semel.Event] = []
    url = f"{hanging.url}?timeout={HUNG}&prefix=health-{colour}"
    guard = guarded(url, on_event=inline(events))

    def look() -> semel.Health:
        return guard.health() if colour == "wsgi" else runner.run(guard.ahealth())

    def well() -> semel.Health:
        found = until(lambda: health if (health := look()).up else None)
        assert found is not None
        return found

    assert (well().circuit, well().error) == ("closed", None)
    events.clear()
    with hanging.frozen():
        ill = until(lambda: health if (health := look()).circuit == "open" else None)
        assert ill is not None
        assert not ill.up
        assert ill.error
        assert ill.seconds >= HUNG
    assert well().circuit == "closed"
    assert [event["circuit"] for event in events if event.name == "breaker"] == ["open", "closed"]
    assert {event["up"] for event in events if event.name == "store.health"} == {True, False}


def inline(events: list[semel.Event]) -> Callable[[semel.Event], None]:
    def note(event: semel.Event) -> None:
        events.append(event)

    note.inline = True  # type: ignore[attr-defined]
    return note


def test_health_tells_of_a_schema_that_is_missing_and_does_not_raise(
    make_guard: MakeGuard, postgres_url: str
) -> None:
    health = make_guard(postgres_url).health()
    assert (health.up, health.circuit) == (False, "closed")
    assert "semel migrate" in (health.error or "")


def test_questions_for_the_status_are_refused_at_once_and_may_be_the_trial(
    serve: Serve, make_guard: MakeGuard
) -> None:
    store = FaultyBackend()
    guard = make_guard(store)
    breaker, send = broken(guard), serve(guard=guard)
    ask = Ask("GET", b"/semel/status/" + b"0" * 64, key=None, body=b"")
    store.fail(StoreOperation)
    until(lambda: send(ask).status == 503 and breaker.circuit == "open")
    clock, asked = Still(breaker), len(store.seen)
    assert send(ask).code == "store-unavailable"
    assert len(store.seen) == asked
    store.mend()
    clock.go_on()
    assert send(ask).status == 404
    assert breaker.circuit == "closed"


def test_what_an_outage_refuses_is_charged_to_nobody(serve: Serve, make_guard: MakeGuard) -> None:
    guard = make_guard(limits=semel.Limits(new_keys=semel.Rate(2, timedelta(hours=1))))
    send = serve(guard=guard)
    breaker, _ = opened(guard)
    assert [send(Ask(key=new_key())).status for _ in range(5)] == [503] * 5
    breaker.succeeded()
    assert [send(Ask(key=new_key())).status for _ in range(3)] == [200, 200, 429]


def test_a_transaction_that_cannot_begin_opens_the_breaker_and_one_that_can_closes_it(
    serve: Serve, tmp_path: Path, guarded: MakeGuard, effects: Effects
) -> None:
    faults = Faults()
    store = faulty.FaultyBackend(open_backend(f"sqlite:///{tmp_path / 'keys.db'}"), faults)
    guard = guarded(store, policy=semel.ietf(mode="atomic"))
    breaker, send = broken(guard), serve(guard=guard)
    assert send().status == 200
    faults.at, faults.lasting = 1, True
    until(lambda: send(Ask(key=new_key())).status == 503 and breaker.circuit == "open")
    assert "begin" in faults.hit
    assert len(effects.all()) == 1
    clock = Still(breaker)
    faults.heal()
    clock.go_on()
    assert send(Ask(key=new_key())).status == 200
    assert breaker.circuit == "closed"
