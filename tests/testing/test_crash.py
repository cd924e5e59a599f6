"""A process ends at a named place: what a retry finds is what it finds after ``kill -9``."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core import operations as ops
from semel.core.records import State
from semel.once import Once
from semel.stores.sqlite import SqliteBackend
from semel.testing import PrivateStore, ProcessCrashed, assert_replayed
from tests.testing.shop import FRAMEWORKS, KEY, Send, Shop, flask, sql
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
LATER = timedelta(minutes=5)
"""Past every lease."""


class Stand:
    """A shop on its private store."""

    def __init__(self, shop: Shop, store: PrivateStore, app: Any, send: Send) -> None:
        self.shop, self.store, self.app, self.send = shop, store, app, send

    def later(self) -> None:
        self.store.clock.move(LATER)


@pytest.fixture(params=FRAMEWORKS)
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    shop = Shop()
    app, send = FRAMEWORKS[request.param](shop)
    with PrivateStore(shop.guard) as store:
        sql(store, "CREATE TABLE paid (row TEXT)")
        yield Stand(shop, store, app, send)
        shop.close()


def test_a_leased_handler_that_died_before_its_answer_was_kept_is_unknown(stand: Stand) -> None:
    answers: list[Any] = []
    with stand.store.crash("before completion"):
        answers.append(stand.send("/pay"))
    assert answers == []  # nobody got one
    assert stand.store.state(KEY) == "in_progress"
    assert stand.send("/pay").status_code == 409
    stand.later()
    assert stand.send("/pay").status_code == 409
    assert stand.store.state(KEY) == "unknown"
    assert len(stand.shop.provider.charged) == stand.store.runs(KEY) == 1


def test_the_outcome_of_a_lost_answer_is_found_out_by_the_worker(stand: Stand) -> None:
    with stand.store.crash("before completion"):
        stand.send("/pay")
    stand.later()
    assert stand.store.run_once(stand.app) == {"maintain": 1, "reconcile": 1}
    answer = stand.send("/pay")
    assert (answer.status_code, answer.headers["idempotent-replayed"]) == (201, "true")
    assert len(stand.shop.provider.charged) == 1


def test_an_answer_that_was_kept_and_never_sent_is_replayed(stand: Stand) -> None:
    with stand.store.crash("after completion"):
        stand.send("/pay")
    assert stand.send("/pay").headers["idempotent-replayed"] == "true"
    assert len(stand.shop.provider.charged) == 1


def test_a_process_that_died_before_its_handler_has_done_nothing(stand: Stand) -> None:
    with stand.store.crash("after claim"):
        stand.send("/pay")
    assert stand.shop.provider.charged == []
    assert stand.store.state(KEY) == "in_progress"


@pytest.mark.parametrize("place", ["after claim", "before completion"])
def test_an_atomic_handler_leaves_nothing_behind(stand: Stand, place: str) -> None:
    with stand.store.crash(place):
        stand.send("/atomic")
    assert stand.store.state(KEY) is None
    assert (stand.shop.rows(stand.store), stand.store.effects()) == (0, [])
    assert_replayed(stand.send("/atomic"), stand.send("/atomic"))
    assert (stand.shop.rows(stand.store), len(stand.store.effects("receipt"))) == (1, 1)


def test_an_atomic_handler_that_has_committed_is_replayed(stand: Stand) -> None:
    with stand.store.crash("after completion"):
        stand.send("/atomic")
    assert stand.send("/atomic").headers["idempotent-replayed"] == "true"
    assert stand.shop.rows(stand.store) == 1


@pytest.mark.parametrize(
    ("place", "on_record"),
    [
        ("after claim", ()),
        ("within point written", ()),
        ("after point written", ("written",)),
        ("within point charge", ("written",)),
        ("after point charge", ("written", "charge")),
        ("within point booked", ("written", "charge")),
        ("after point booked", ("written", "charge", "booked")),
        ("before completion", ("written", "charge", "booked")),
    ],
)
@pytest.mark.parametrize("by", ["a retry", "the worker"])
def test_an_operation_goes_on_behind_its_last_point(
    stand: Stand, place: str, on_record: tuple[str, ...], by: str
) -> None:
    with stand.store.crash(place):
        stand.send("/steps")
    assert stand.store.points(KEY) == on_record
    stand.later()
    if by == "the worker":
        assert stand.store.run_once(stand.app)["run"] == 1
    answer = stand.send("/steps")
    assert answer.status_code < 300
    assert stand.store.points(KEY) == ("written", "charge", "booked")
    assert (stand.shop.rows(stand.store), len(stand.shop.provider.charged)) == (1, 1)
    assert len(stand.store.effects("receipt")) == 1
    assert stand.store.runs(KEY) == 2


def test_an_outcome_left_unknown_is_told_and_then_found_out(stand: Stand) -> None:
    with stand.store.leave_unknown():
        stand.send("/pay")
    assert stand.store.state(KEY) == "unknown"
    assert stand.send("/pay").status_code == 409
    stand.later()
    assert stand.store.run_once(stand.app) == {"reconcile": 1}
    assert stand.store.state(KEY) == "completed"


def test_an_atomic_handler_cannot_be_left_unknown(stand: Stand) -> None:
    with (
        pytest.raises(AssertionError, match="an atomic handler leaves nothing unknown"),
        stand.store.leave_unknown(),
    ):
        stand.send("/atomic")


def test_a_place_that_is_not_reached_fails_the_test_and_names_those_that_were(
    stand: Stand,
) -> None:
    with (
        pytest.raises(AssertionError, match=r"'after point chrage' was not reached.*point charge,"),
        stand.store.crash("after point chrage"),
    ):
        stand.send("/steps")
    assert stand.send("/steps").headers["idempotent-replayed"] == "true"


# ── functions, and what does not depend on a framework ────────────────────────────────────────────


@pytest.fixture
def shop() -> Shop:
    return Shop(policy=semel.ietf())


@pytest.fixture
def store(shop: Shop) -> Iterator[PrivateStore]:
    with PrivateStore(shop.guard) as made:
        yield made


def test_a_function_that_runs_once_ends_at_the_place(shop: Shop, store: PrivateStore) -> None:
    with store.crash("before completion"):
        shop.guard.once(KEY, lambda: shop.provider.charge("it"), name="pay")
    with pytest.raises(semel.Refused, match="being processed"):
        shop.guard.once(KEY, lambda: shop.provider.charge("it"), name="pay")
    store.clock.move(LATER)
    with pytest.raises(semel.Refused) as refused:
        shop.guard.once(KEY, lambda: shop.provider.charge("it"), name="pay")
    assert refused.value.code == "outcome-unknown"
    assert shop.provider.charged == ["it"]


async def test_a_coroutine_that_runs_once_ends_at_the_place(
    shop: Shop, store: PrivateStore
) -> None:
    async def charge() -> str:
        return shop.provider.charge("it")

    with store.crash("after completion"):
        await shop.guard.aonce(KEY, charge, name="pay")
    assert_replayed(Once("ch_1", replayed=False), await shop.guard.aonce(KEY, charge, name="pay"))


def test_no_handler_of_errors_catches_the_end(shop: Shop, store: PrivateStore) -> None:
    caught: list[BaseException] = []

    def careful() -> str:
        try:
            return str(shop.guard.once("another-opaque-key", lambda: 1, name="inner").value)
        except Exception as error:
            caught.append(error)
            return "went on"

    with store.crash("before completion"):
        caught.append(AssertionError(careful()))
    assert caught == []


def test_a_process_that_is_over_writes_nothing_any_more(shop: Shop, store: PrivateStore) -> None:
    """A ``finally`` of the application's runs; what it asks of the store is refused."""
    late: list[BaseException] = []
    ended, process = shop.guard.runtime, store._process

    def release() -> None:
        assert process.last is not None
        op: Any = process.last.op
        ended.backend.blocking().perform(ops.Release(op.identity, op.fence, 1, "late"))

    def stubborn() -> None:
        try:
            shop.guard.once(KEY, lambda: 1, name="pay")
        finally:
            try:
                release()
            except BaseException as error:
                late.append(error)

    with store.crash("before completion"):
        stubborn()
    assert [type(error) for error in late] == [RuntimeError]
    with pytest.raises(ProcessCrashed):
        release()
    assert shop.guard.runtime is not ended
    assert store.state(KEY) == "in_progress"


def test_what_the_block_itself_raises_is_raised(shop: Shop, store: PrivateStore) -> None:
    with pytest.raises(ZeroDivisionError), store.crash("before completion"):
        _ = 1 / 0
    shop.guard.once(KEY, lambda: 1, name="pay")
    assert store.state(KEY) == "completed"


@pytest.mark.parametrize("place", ["before complete", "after point ", "charge", ""])
def test_a_place_that_cannot_be_is_refused(store: PrivateStore, place: str) -> None:
    refused = pytest.raises(semel.ConfigurationError, match=r"no such place.*after point NAME")
    with refused, store.crash(place):
        raise AssertionError("the block is not begun")


# ── the same place, by a signal ───────────────────────────────────────────────────────────────────

KILLED = """
import os, signal, sys
from pathlib import Path

from semel.testing import PrivateStore
from semel.testing.process import SimulatedProcess
from tests.testing.shop import Shop, flask, sql

SimulatedProcess._end = lambda process: os.kill(os.getpid(), signal.SIGKILL)
folder, path, place = sys.argv[1:]
shop = Shop()
_, send = flask(shop)
with PrivateStore(shop.guard, folder=Path(folder)) as store:
    sql(store, "CREATE TABLE paid (row TEXT)")
    with store.crash(place):
        send(path)
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/pay", "before completion"),
        ("/atomic", "before completion"),
        ("/steps", "within point charge"),
        *[
            pytest.param(*pair, marks=pytest.mark.proof)
            for pair in (
                *[("/pay", place) for place in ("after claim", "after completion")],
                *[("/atomic", place) for place in ("after claim", "after completion")],
                *[("/steps", f"after point {name}") for name in ("written", "charge", "booked")],
                *[("/steps", f"within point {name}") for name in ("written", "booked")],
            )
        ],
    ],
)
def test_it_leaves_what_kill_9_leaves(tmp_path: Path, path: str, place: str) -> None:
    killed, raised = tmp_path / "killed", tmp_path / "raised"
    killed.mkdir()
    raised.mkdir()
    command = [sys.executable, "-c", KILLED, str(killed), path, place]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE).returncode == -signal.SIGKILL
    shop = Shop()
    _, send = flask(shop)
    with PrivateStore(shop.guard, folder=raised) as store:
        sql(store, "CREATE TABLE paid (row TEXT)")
        with store.crash(place):
            send(path)
    assert left(raised) == left(killed)


def left(folder: Path) -> tuple[object, ...]:
    """What is stored, but for what differs from run to run."""
    (file,) = folder.rglob("semel.db")
    with closing(SqliteBackend(f"sqlite:///{file}")) as backend:
        cases = backend.perform(ops.Browse(tuple(State), 9)).cases
        effects = backend.perform(ops.BrowseEffects(ops.Shelf.WAITING, 9)).effects
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT * FROM paid").fetchall()
    kept = [
        (each.record.identity, each.record.state, each.record.reason, each.journal, each.origin)
        for each in cases
    ]
    unanswered = [each.record.snapshot is None for each in cases]
    return kept, unanswered, [(each.name, each.payload) for each in effects], rows
