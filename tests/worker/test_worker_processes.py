"""`semel worker` as real processes on real stores: stopped, killed, several at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

import semel
from semel.core.delivery import Delivery
from semel.core.operations.outbox import RenewEffects, Shelf
from semel.core.operations.requests import StoreOperation
from semel.core.operations.workers import ListWorkers, WorkerSeen
from semel.stores import open_backend
from semel.stores.base import Backend, BackendWrapper
from semel.worker.deliveries import Deliveries
from tests.forms import in_proof
from tests.proof.crash.zygote import Zygote
from tests.time_travel import into_the_past
from tests.waiting import Ahead, auntil, patient, turns
from tests.worker.worker_processes import LEASE, Works, ended, said

R = TypeVar("R")


@pytest.fixture(params=["postgres", *in_proof("sqlite")])
def works(request: pytest.FixtureRequest, tmp_path: Path, hatchery: Zygote) -> Iterator[Works]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'semel.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with Works(url, tmp_path, hatchery) as made:
        yield made


# ── waking up ─────────────────────────────────────────────────────────────────────────────────────


def test_a_resting_worker_wakes_up_for_an_effect_of_another_process(works: Works) -> None:
    """It would look again by itself only after an hour."""
    works.worker(poll="3600")
    works.write("first")
    works.until(lambda: works.received()["first"])
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["first"])
    # It rests again; what comes now can only be told to it.
    works.write("second")
    works.until(lambda: works.received()["second"])


def test_a_failed_delivery_is_tried_again_without_anybody_waking_the_worker(works: Works) -> None:
    works.write("k", do="poison")
    works.worker(poll="3600")
    works.until(lambda: works.keys(Shelf.DEAD) == ["k"])
    assert [line.tries for line in works.lines("poison")] == [1, 2, 3, 4, 5]
    (dead,) = works.shelf(Shelf.DEAD)
    assert dead.error == "ValueError: no provider takes this"


# ── stopping ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["paid", "blocking"])
def test_stopped_it_finishes_what_is_under_way_and_takes_nothing_more(
    works: Works, number: signal.Signals, name: str
) -> None:
    works.write("first", do="wait", name=name)
    worker = works.worker("--concurrency", "1")
    works.until(lambda: works.lines("begun"))
    works.write("second", do="wait", name=name)
    worker.send(number)
    works.until(lambda: said(worker, "stopping"))
    works.go()
    assert worker.wait() == 0
    assert works.keys(Shelf.DELIVERED) == ["first"]
    assert [(each.key, each.tries) for each in works.shelf(Shelf.WAITING)] == [("second", 0)]
    assert said(worker, "end") == [{"event": "end", "whole": True}]


def test_a_worker_is_seen_while_it_runs_and_not_missed_when_it_ends(works: Works) -> None:
    def seen() -> tuple[WorkerSeen, ...]:
        return works.backend.blocking().perform(ListWorkers(9)).workers

    worker = works.worker()
    works.until(seen)
    (found,) = seen()
    assert (found.worker.role, found.worker.does) == ("worker", "deliver")
    assert found.until > found.seen_at
    assert ended(worker) == 0
    assert seen() == ()


def test_what_does_not_end_in_time_is_given_back_at_once(works: Works) -> None:
    works.write("k", do="wait")
    worker = works.worker("--drain", "0.05")
    works.until(lambda: works.lines("begun"))
    assert ended(worker) == 1
    (waiting,) = works.shelf(Shelf.WAITING)
    assert waiting.error == "the worker was stopped during the delivery"
    works.go()
    works.worker()
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["k"])
    assert {line.key for line in works.lines()} == {"k"}


def test_a_second_signal_ends_it_at_once(works: Works) -> None:
    works.write("k", do="wait")
    worker = works.worker("--drain", "3600")
    works.until(lambda: works.lines("begun"))
    worker.send(signal.SIGTERM)
    works.until(lambda: said(worker, "stopping"))
    assert ended(worker, signal.SIGINT) == 128 + signal.SIGINT
    assert works.received() == {}


# ── dying ─────────────────────────────────────────────────────────────────────────────────────────


def test_killed_in_the_middle_of_a_delivery_it_is_redelivered_with_the_same_key(
    works: Works,
) -> None:
    works.write("k", do="wait")
    first = works.worker()
    works.until(lambda: works.lines("begun"))
    first.kill()
    assert works.keys(Shelf.WAITING) == ["k"]
    works.go()
    works.time_passes()
    works.worker()
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["k"])
    begun = works.lines("begun")
    assert [(line.key, line.tries) for line in begun] == [("k", 1), ("k", 2)]
    assert begun[0].pid != begun[1].pid


def test_a_delivery_that_takes_its_worker_down_each_time_is_a_dead_letter_in_the_end(
    tmp_path: Path, hatchery: Zygote
) -> None:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    with Works(url, tmp_path, hatchery, SEMEL_TEST_TRIES="2") as works:
        works.write("deadly", do="die")
        for _ in range(2):
            assert works.worker().wait() == 128 + signal.SIGKILL
            works.time_passes()
        works.worker()
        works.until(lambda: works.keys(Shelf.DEAD) == ["deadly"])
        assert [line.tries for line in works.lines("begun")] == [1, 2]


async def test_while_a_worker_lives_nobody_takes_what_it_delivers_however_long_it_takes(
    works: Works,
) -> None:
    """The lease is renewed: several of its lengths pass, and a second worker stands by.

    The first lives in this process, where its clock can be put forward; the store's goes with it.
    """
    begun, end = asyncio.Event(), asyncio.Event()

    async def long(delivery: Delivery) -> None:
        begun.set()
        await end.wait()

    part, lease = LEASE / 3, timedelta(seconds=LEASE)
    store = Renewals(open_backend(patient(works.store)))
    with closing(semel.Guard(store, tenant=None)) as guard:
        guard.delivers("paid", timeout=100 * lease)(long)
        works.write("k")
        first = asyncio.create_task(Deliveries(guard, concurrency=1, lease=lease).run_once())
        await begun.wait()
        works.worker(poll="0.05")
        clock = Ahead()
        for number in range(8):
            before = leased_until(works, "k")
            await clock.forward(part)
            await auntil(partial(store.answered, number + 1))
            assert leased_until(works, "k") != before
            await turns()  # it rests again, and will wake when the clock is put forward
            into_the_past(works.store, part)
            works.write(f"other{number}")
            await auntil(partial(heard, works, f"other{number}"))
        end.set()
        assert (await first).note == "delivered 1"
        await guard.aclose()
    assert "k" not in [line.key for line in works.lines()]


def leased_until(works: Works, key: str) -> int | None:
    (lease,) = [each.leased_until for each in works.shelf(Shelf.WAITING) if each.key == key]
    return lease


class Renewals(BackendWrapper):
    """A store that counts the renewals it has answered."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._count = 0

    def answered(self, count: int) -> bool:
        return self._count >= count

    def awaited(self) -> Any:
        return self

    async def perform(self, op: StoreOperation[R], /) -> R:
        reply = await self.inner.awaited().perform(op)
        self._count += isinstance(op, RenewEffects)
        return reply


def test_a_worker_that_slept_past_its_lease_records_nothing(works: Works) -> None:
    """What it sent was long delivered by another, with the same key."""
    works.write("k", do="wait")
    sleeper = works.worker()
    works.until(lambda: works.lines("begun"))
    sleeper.send(signal.SIGSTOP)
    works.time_passes()
    works.worker()
    works.until(lambda: len(works.lines("begun")) == 2)
    works.go()
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["k"])
    (before,) = works.shelf(Shelf.DELIVERED)
    sleeper.send(signal.SIGCONT)
    works.until(lambda: said(sleeper, "round"))
    assert [round_["note"] for round_ in said(sleeper, "round")] == ["overtaken 1"]
    assert works.shelf(Shelf.DELIVERED) == [before]
    assert works.received() == {"k": 2}


def heard(works: Works, key: str) -> bool:
    return bool(works.received()[key])


def heard_of(works: Works, number: int) -> bool:
    return len(works.received()) >= number


# ── several at once ───────────────────────────────────────────────────────────────────────────────


def test_two_workers_share_the_work_and_nothing_is_delivered_twice(works: Works) -> None:
    workers = [works.worker("--concurrency", "2") for _ in range(2)]
    keys = [f"k{number:03}" for number in range(80)]
    for key in keys[:4]:
        works.write(key, do="wait")
    works.until(lambda: len(works.lines()) == 4)  # one alone could have begun two
    works.go()
    for key in keys[4:]:
        works.write(key, do="pause")
    works.until(lambda: len(works.keys(Shelf.DELIVERED)) == 80)
    assert works.received() == dict.fromkeys(keys, 1)
    assert {line.pid for line in works.lines()} == {worker.pid for worker in workers}


def test_the_order_of_an_order_is_kept_while_workers_are_killed(works: Works) -> None:
    """Of one order nothing is begun before everything written earlier was received."""
    orders = [f"account-{letter}" for letter in "abc"]
    for number in range(12):
        for order in orders:
            works.write(f"{order}/{number:02}", do="pause", order=order)
    for received in (4, 12, 20):
        victim = works.worker("--concurrency", "4")
        works.until(partial(heard_of, works, received))
        victim.kill()
        works.time_passes()
    for _ in range(2):
        works.worker()
    works.until(lambda: len(works.keys(Shelf.DELIVERED)) == 36)
    for order in orders:
        firsts = list(dict.fromkeys(line.key for line in works.lines() if line.order == order))
        assert firsts == [f"{order}/{number:02}" for number in range(12)]
        lines = [line for line in works.lines() if line.order == order]
        for line, following in pairwise(lines):
            assert following.key == line.key or line.what == "received"


# ── once ──────────────────────────────────────────────────────────────────────────────────────────


def test_once_it_does_what_is_due_and_ends(tmp_path: Path) -> None:
    """From scratch, as it is started in real life."""
    with Works(f"sqlite:///{tmp_path / 'semel.db'}", tmp_path) as works:
        for number in range(20):
            works.write(f"k{number}")
        worker = works.worker("--once")
        assert worker.wait() == 0
        assert len(works.keys(Shelf.DELIVERED)) == 20
        (round_,) = said(worker, "round")
    assert (round_["loop"], round_["done"], round_["note"]) == ("deliver", 20, "delivered 20")
