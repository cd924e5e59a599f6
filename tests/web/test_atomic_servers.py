"""Atomic mode under real servers: killed at any instant, and with crowds of duplicates."""

import http.client
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.forms import in_proof
from tests.servers import AppServer, gunicorn, uvicorn
from tests.waiting import PATIENCE, until
from tests.web.bank import ASGI, Ledger, opened
from tests.web.bank_app import COMMITTED, HANDLER, IN_SEMEL
from tests.web.client import Client, Reply, new_key
from tests.web.effects import Effects

FIRST = ("fastapi", "postgres")
PAIRS = (
    FIRST,
    ("fastapi", "mariadb"),
    *in_proof(("wsgi", "sqlite"), ("def", "sqlite"), ("flask", "postgres"), ("def", "mariadb")),
)


@dataclass(frozen=True)
class Served:
    """A running bank."""

    colour: str
    server: AppServer
    client: Client
    ledger: Ledger
    folder: Path

    def gate(self) -> Path:
        return self.folder / f"gate-{uuid4().hex}"

    @property
    def reached(self) -> Effects:
        return Effects(self.folder / "reached")

    @property
    def waiting(self) -> Effects:
        return Effects(self.folder / "waiting")


@contextmanager
def serve(
    colour: str, ledger: Ledger, folder: Path, workers: int = 2, options: str = ""
) -> Iterator[Served]:
    # On SQLite the time limit is what a duplicate in another process waits for.
    env = {
        "SEMEL_TEST_STORE": ledger.url if ledger.sqlite else ledger.store + options,
        "SEMEL_TEST_FRAMEWORK": colour,
        "SEMEL_TEST_FOLDER": str(folder),
    }
    app = "tests.web.bank_app:app"
    runner = (
        uvicorn(app, workers=workers, env=env)
        if colour in ASGI
        else gunicorn(app, workers=workers, threads=32, env=env)
    )
    with runner as server:
        yield Served(colour, server, Client(server.url), ledger, folder)
        logs = server.logs()
    assert "never retrieved" not in logs
    assert "Task was destroyed" not in logs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as threads:
        yield threads


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def bank_(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    colour, store = request.param
    folder = tmp_path_factory.mktemp("bank")
    with (
        opened(store, folder, request.getfixturevalue) as ledger,
        serve(colour, ledger, folder) as served,
    ):
        yield served


def hold(served: Served, pool: ThreadPoolExecutor, at: str) -> tuple[str, Path, Future[Reply], int]:
    """Send a request that is held there; its key, its gate, its answer to come, its process."""
    key, gate, before = new_key(), served.gate(), len(served.reached.all())
    leader = pool.submit(served.client.post, "/pay", key, x_hold=at, x_gate=str(gate))
    until(lambda: len(served.reached.all()) > before or leader.done())
    assert not leader.done(), leader.result()
    return key, gate, leader, served.reached.all()[-1].pid


def kill(pid: int, leader: Future[Reply]) -> None:
    os.kill(pid, signal.SIGKILL)
    with pytest.raises((http.client.HTTPException, OSError)):
        leader.result()


def test_killed_anywhere_before_the_commit_nothing_is_left_and_a_retry_runs_at_once(
    bank_: Served, pool: ThreadPoolExecutor
) -> None:
    """Requests stand at every place, and their processes are killed with all of them."""
    if bank_.ledger.sqlite:
        pytest.skip("SQLite has one writer: one request at a time, see the test below")
    bank_.ledger.clear()
    held = [hold(bank_, pool, at) for at in (*HANDLER, *IN_SEMEL)]
    assert bank_.ledger.all() == (0, 0, [])
    for pid in {pid for *_, pid in held}:
        os.kill(pid, signal.SIGKILL)
    for _, _, leader, _ in held:
        with pytest.raises((http.client.HTTPException, OSError)):
            leader.result()
    assert bank_.ledger.all() == (0, 0, [])
    replies = [bank_.client.insist("/pay", key) for key, *_ in held]
    assert {(reply.status, reply.replayed) for reply in replies} == {(201, False)}
    assert bank_.ledger.all() == (len(held), len(held), ["completed"] * len(held))
    assert bank_.ledger.payments() == sorted(reply.body.decode() for reply in replies)


@pytest.mark.proof
@pytest.mark.parametrize("at", [*HANDLER, *IN_SEMEL])
def test_killed_before_the_commit_nothing_is_left_and_a_retry_runs_at_once(
    bank_: Served, pool: ThreadPoolExecutor, at: str
) -> None:
    """There is no lease to wait for: a retry has run long before one could have lapsed."""
    bank_.ledger.clear()
    key, _, leader, pid = hold(bank_, pool, at)
    assert bank_.ledger.all() == (0, 0, [])
    kill(pid, leader)
    assert bank_.ledger.all() == (0, 0, [])
    reply = bank_.client.insist("/pay", key)
    assert (reply.status, reply.replayed) == (201, False)
    assert bank_.ledger.all() == (1, 1, ["completed"])
    assert bank_.ledger.payments() == [reply.body.decode()]


def test_killed_after_the_commit_and_before_the_answer_a_retry_replays(
    bank_: Served, pool: ThreadPoolExecutor
) -> None:
    bank_.ledger.clear()
    key, _, leader, pid = hold(bank_, pool, COMMITTED)
    assert bank_.ledger.all() == (1, 1, ["completed"])
    kill(pid, leader)
    reply = bank_.client.insist("/pay", key)
    assert (reply.status, reply.replayed) == (201, True)
    assert bank_.ledger.payments() == [reply.body.decode()]
    assert bank_.ledger.all() == (1, 1, ["completed"])


def test_twenty_at_once_are_paid_once(bank_: Served) -> None:
    bank_.ledger.clear()
    keys = [new_key() for _ in range(3)]
    for key in keys:
        replies = bank_.client.at_once(20, "/pay", key)
        answers = [reply for reply in replies if reply.status == 201]
        refusals = [reply for reply in replies if reply.status != 201]
        assert {reply.code for reply in refusals} <= {"in-flight"}
        answers.append(bank_.client.insist("/pay", key))
        assert len({reply.body for reply in answers}) == 1
        assert sum(not reply.replayed for reply in answers) == 1
    assert bank_.ledger.all() == (3, 3, ["completed"] * 3)


# ── crowds ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=[FIRST], ids="-".join)
def two(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Served, Served]]:
    """Two processes over one database, each with a pool of 4."""
    colour, store = request.param
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as stack:
        ledger = stack.enter_context(opened(store, folder, request.getfixturevalue))
        servers = [
            stack.enter_context(serve(colour, ledger, folder, 1, "&pool_size=4")) for _ in range(2)
        ]
        yield servers[0], servers[1]


@pytest.fixture
def pair(two: tuple[Served, Served]) -> tuple[Served, Served]:
    """The same two for each test, and nothing of the one before."""
    for served in two:
        # The first request of a process compares the route's settings; SQLite writes for that.
        assert served.client.post("/pay", new_key()).status == 201
    two[0].ledger.clear()
    for log in ("reached", "waiting"):
        (two[0].folder / log).unlink(missing_ok=True)
    return two


def connections(ledger: Ledger) -> int:
    ((count,),) = ledger.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()"
    )
    return int(count)


def in_transaction(ledger: Ledger) -> int:
    ((count,),) = ledger.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
    )
    return int(count)


@pytest.mark.parametrize("two", PAIRS, ids="-".join, indirect=True)
def test_of_two_processes_one_runs_and_the_others_are_refused(
    pair: tuple[Served, Served], pool: ThreadPoolExecutor
) -> None:
    """SQLite has one writer: in another process a duplicate learns it after the time limit."""
    alone, other = pair
    key, gate, leader, _ = hold(alone, pool, "effect put")
    for served in pair:
        replies = served.client.at_once(8, "/pay", key)
        assert {(reply.status, reply.code) for reply in replies} == {(409, "in-flight")}
    assert not leader.done()
    gate.touch()
    first, again = leader.result(), other.client.insist("/pay", key)
    assert (first.status, again.replayed, again.body) == (201, True, first.body)
    assert alone.ledger.all() == (1, 1, ["completed"])


@pytest.mark.parametrize("path", ["/wait", "/pay"])
def test_forty_duplicates_of_a_slow_request_do_not_delay_an_unrelated_one(
    pair: tuple[Served, Served], pool: ThreadPoolExecutor, path: str
) -> None:
    """By the order of events: the slow handler is let go only after the unrelated have answered."""
    here, there = pair
    key, gate = new_key(), here.gate()
    how = {"x_hold": "effect put", "x_gate": str(gate)}
    leader = pool.submit(lambda: here.client.post(path, key, **how))
    until(here.reached.all)
    crowd = [
        pool.submit(served.client.post, path, key) for _ in range(20) for served in (here, there)
    ]
    if path == "/wait":
        until(lambda: len(here.waiting.all()) == 40)
    else:
        assert {future.result().code for future in crowd} == {"in-flight"}
    until(lambda: in_transaction(here.ledger) == 1)  # nobody waits for the answer to a ROLLBACK
    unrelated = [served.client.post(path, new_key()) for served in (here, there) for _ in range(3)]
    assert {reply.status for reply in unrelated} == {201}
    assert not leader.done()
    if path == "/wait":
        assert not any(future.done() for future in crowd)
    used = connections(here.ledger)
    print(f"\n{path}: 40 duplicates in 2 processes, pool of 4: {used} connections in all")
    assert used <= 2 * (4 + 4 + 1)
    gate.touch()
    first = leader.result()
    assert (first.status, first.replayed) == (201, False)
    answers = [future.result() for future in crowd]
    if path == "/wait":
        assert {(reply.status, reply.body, reply.replayed) for reply in answers} == {
            (201, first.body, True)
        }
    assert here.ledger.all() == (7, 7, ["completed"] * 7)


def test_those_who_wait_for_a_transaction_that_dies_are_told_and_a_retry_runs(
    pair: tuple[Served, Served], pool: ThreadPoolExecutor
) -> None:
    here, there = pair
    key, gate = new_key(), here.gate()
    how = {"x_hold": "before Commit", "x_gate": str(gate)}
    leader = pool.submit(lambda: here.client.post("/wait", key, **how))
    until(here.reached.all)
    waiter = pool.submit(there.client.post, "/wait", key)
    until(there.waiting.all)
    os.kill(here.reached.all()[0].pid, signal.SIGKILL)
    with pytest.raises((http.client.HTTPException, OSError)):
        leader.result()
    here.server.kill()
    here.server.start()
    until(lambda: in_transaction(there.ledger) == 0)  # PostgreSQL has noticed
    reply = there.client.post("/wait", key)
    assert (reply.status, reply.replayed) == (201, False)
    told = waiter.result()
    assert (told.status, told.replayed, told.body) == (201, True, reply.body)
    assert here.ledger.all() == (1, 1, ["completed"])


def test_one_who_may_ask_later_is_told_where(
    pair: tuple[Served, Served], pool: ThreadPoolExecutor
) -> None:
    here, there = pair
    key, gate = new_key(), here.gate()
    how = {"x_hold": "effect put", "x_gate": str(gate)}
    leader = pool.submit(lambda: here.client.post("/accept", key, **how))
    until(here.reached.all)
    replies = [served.client.post("/accept", key) for served in pair]
    location = replies[0].one("location")
    for reply in replies:
        assert (reply.status, reply.one("location")) == (202, location)
        assert json.loads(reply.body) == {"status": "in_progress", "location": location}
    for served in pair:
        # Nobody sees the record before its transaction has committed; its lock is seen.
        with urllib.request.urlopen(f"{served.server.url}{location}", timeout=PATIENCE) as answer:
            assert (answer.status, json.loads(answer.read())["status"]) == (202, "in_progress")
    gate.touch()
    first = leader.result()
    with urllib.request.urlopen(f"{there.server.url}{location}", timeout=PATIENCE) as answer:
        assert (answer.status, answer.read()) == (201, first.body)
