"""`semel worker` as real processes on real stores: stopped, killed, several at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from semel.core.contract import Read
from semel.core.model import Identity
from semel.core.outbox import Shelf
from tests.effects.workers import Works, ended, said
from tests.forms import in_proof


@pytest.fixture(params=["postgres", *in_proof("sqlite")])
def works(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Works]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'semel.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    with Works(url, tmp_path) as made:
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
    first = works.worker("--lease", "1")
    works.until(lambda: works.lines("begun"))
    first.kill()
    assert works.keys(Shelf.WAITING) == ["k"]
    works.go()
    works.worker(poll="0.2")
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["k"])
    begun = works.lines("begun")
    assert [(line.key, line.tries) for line in begun] == [("k", 1), ("k", 2)]
    assert begun[0].pid != begun[1].pid


def test_a_delivery_that_takes_its_worker_down_each_time_is_a_dead_letter_in_the_end(
    tmp_path: Path,
) -> None:
    with Works(f"sqlite:///{tmp_path / 'semel.db'}", tmp_path, SEMEL_TEST_TRIES="2") as works:
        works.write("deadly", do="die")
        for _ in range(2):
            worker = works.worker("--lease", "0.2", poll="0.1")
            assert worker.wait() == 128 + signal.SIGKILL
        works.worker("--lease", "0.2", poll="0.1")
        works.until(lambda: works.keys(Shelf.DEAD) == ["deadly"])
        assert [line.tries for line in works.lines("begun")] == [1, 2]


def test_while_a_worker_lives_nobody_takes_what_it_delivers_however_long_it_takes(
    works: Works,
) -> None:
    """The lease is renewed: several of its lengths pass, and a second worker stands by."""
    works.write("k", do="wait")
    works.worker("--lease", "0.3")
    works.until(lambda: works.lines("begun"))
    works.worker(poll="0.05")
    begun_at = now(works)
    for number in range(8):
        works.write(f"other{number}")
        works.until(partial(heard, works, f"other{number}"))
        works.until(partial(passed, works, begun_at + (number + 1) * 150_000))
    works.go()
    works.until(lambda: works.received()["k"])
    assert [line.tries for line in works.lines("begun") if line.key == "k"] == [1]


def test_a_worker_that_slept_past_its_lease_records_nothing(works: Works) -> None:
    """What it sent was long delivered by another, with the same key."""
    works.write("k", do="wait")
    sleeper = works.worker("--lease", "0.5")
    works.until(lambda: works.lines("begun"))
    sleeper.send(signal.SIGSTOP)
    works.worker(poll="0.1")
    works.until(lambda: len(works.lines("begun")) == 2)
    works.go()
    works.until(lambda: works.keys(Shelf.DELIVERED) == ["k"])
    (before,) = works.shelf(Shelf.DELIVERED)
    sleeper.send(signal.SIGCONT)
    works.until(lambda: said(sleeper, "round"))
    assert [round_["note"] for round_ in said(sleeper, "round")] == ["overtaken 1"]
    assert works.shelf(Shelf.DELIVERED) == [before]
    assert works.received() == {"k": 2}


def now(works: Works) -> int:
    """By the store's clock."""
    return works.backend.blocking().perform(Read(Identity(bytes(32)))).now


def passed(works: Works, moment: int) -> bool:
    return now(works) > moment


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
        victim = works.worker("--lease", "0.4", "--concurrency", "4", poll="0.1")
        works.until(partial(heard_of, works, received))
        victim.kill()
    for _ in range(2):
        works.worker("--lease", "0.4", poll="0.1")
    works.until(lambda: len(works.keys(Shelf.DELIVERED)) == 36)
    for order in orders:
        firsts = list(dict.fromkeys(line.key for line in works.lines() if line.order == order))
        assert firsts == [f"{order}/{number:02}" for number in range(12)]
        lines = [line for line in works.lines() if line.order == order]
        for line, following in pairwise(lines):
            assert following.key == line.key or line.what == "received"


# ── once ──────────────────────────────────────────────────────────────────────────────────────────


def test_once_it_does_what_is_due_and_ends(works: Works) -> None:
    for number in range(20):
        works.write(f"k{number}")
    worker = works.worker("--once")
    assert worker.wait() == 0
    assert len(works.keys(Shelf.DELIVERED)) == 20
    (round_,) = said(worker, "round")
    assert (round_["loop"], round_["done"], round_["note"]) == ("deliver", 20, "delivered 20")
