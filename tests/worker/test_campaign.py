"""The outbox's campaign: many effects, some of them poison, and workers killed again and again.

Every good effect reaches the provider at least once, always with its one key; the poison ends as
dead letters; nothing is lost, nothing is left over, and effects of one order come in order.

With the other tests some effects kill their worker in the midst of others, at a place that is
known; the campaign, with ``make proof``, kills at random.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from semel.core.operations.outbox import Shelf
from tests.proof.crash.zygote import Zygote
from tests.servers.child import Child
from tests.waiting import PATIENCE
from tests.worker.forked_workers import Forked
from tests.worker.worker_processes import Works

STORES = ["sqlite", "postgres"]
TRIES = 12


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    effects: int
    kills: int
    workers: int = 3
    poisoned: float = 0.01
    ordered: float = 0.2
    orders: int = 10


SMALL = Size(effects=60, kills=3, poisoned=0.05)
FULL = Size(effects=10_000, kills=60)
WIDTH = 8
"""Deliveries that a worker has under way at once."""


@dataclass(frozen=True)
class Planned:
    """One effect to be written."""

    key: str
    poison: bool
    order: str | None


def planned(size: Size, dice: random.Random) -> list[Planned]:
    poison = set(dice.sample(range(size.effects), max(1, round(size.effects * size.poisoned))))
    return [
        Planned(
            key=f"key-{number:06}",
            poison=number in poison,
            order=f"o{dice.randrange(size.orders)}" if dice.random() < size.ordered else None,
        )
        for number in range(size.effects)
    ]


class Progress:
    """How many lines the provider's log has."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = 0
        self._lines = 0
        self.last = b'{"pid": 0}'

    def lines(self) -> int:
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._at)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._at += len(whole)
            self._lines += whole.count(b"\n")
            self.last = whole.splitlines()[-1] if whole else self.last
        return self._lines


class Campaign:
    """Writes, kills and waits, as the dice say."""

    def __init__(self, works: Works, size: Size, dice: random.Random) -> None:
        self.works = works
        self.size = size
        self.plan = planned(size, dice)
        self.killed = 0
        self._dice = dice
        self._progress = Progress(works.folder / "received")
        self._crew: list[Child | Forked] = [self._begin() for _ in range(size.workers)]

    def _begin(self) -> Child | Forked:
        return self.works.begin("--lease", "3", "--concurrency", str(WIDTH), poll="0.3")

    def run(self) -> None:
        writing = threading.Thread(target=self._write)
        writing.start()
        try:
            for goal in self._goals():
                self._kill_at(goal)
        finally:
            writing.join()
        self.works.until(lambda: not self.works.shelf(Shelf.WAITING), seconds=10 * PATIENCE)

    def _goals(self) -> list[int]:
        """When to kill: at so many lines in the provider's log, of two for each good effect."""
        good = sum(not effect.poison for effect in self.plan)
        return sorted(self._dice.sample(range(10, int(good * 1.9)), self.size.kills))

    def _write(self) -> None:
        for effect in self.plan:
            do = "poison" if effect.poison else "slow"
            self.works.write(effect.key, do, order=effect.order)

    def _kill_at(self, goal: int) -> None:
        """In the middle of things: the worker that the provider heard from last."""
        self.works.until(lambda: self._progress.lines() >= goal and self._victim() is not None)
        victim = self._victim()
        assert victim is not None
        self._crew[victim].kill()
        self.killed += 1
        self._crew[victim] = self._begin()

    def _victim(self) -> int | None:
        pid = json.loads(self._progress.last)["pid"]
        return next((at for at, child in enumerate(self._crew) if child.pid == pid), None)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'semel.db'}"
    return str(request.getfixturevalue("postgres_url"))


def test_workers_are_killed_and_every_good_effect_is_delivered(
    url: str, tmp_path: Path, hatchery: Zygote
) -> None:
    """By effects that take their worker down at the first try, each in the midst of others: they
    are of one order, so that one comes after the other."""
    plan = planned(SMALL, random.Random(7))
    deadly = [Planned(f"deadly-{number}", False, "deadly") for number in range(SMALL.kills)]
    with Works(url, tmp_path, hatchery, SEMEL_TEST_TRIES=str(TRIES)) as works:
        for effect in plan:
            works.write(effect.key, "poison" if effect.poison else "take", order=effect.order)
        for effect in deadly:
            works.write(effect.key, "die once", order=effect.order)
        for _ in deadly:
            worker = works.worker("--concurrency", str(WIDTH))
            assert worker.wait() == 128 + signal.SIGKILL
            works.time_passes()
        works.worker("--concurrency", str(WIDTH))
        works.until(lambda: not works.shelf(Shelf.WAITING))
        assert_all_is_well(works, plan + deadly, SMALL.kills)


@pytest.mark.proof
def test_workers_are_killed_at_random(url: str, tmp_path: Path) -> None:
    with Works(url, tmp_path, SEMEL_TEST_TRIES=str(TRIES)) as works:
        started = time.monotonic()
        campaign = Campaign(works, FULL, random.Random(7))
        campaign.run()
        seconds = time.monotonic() - started
        assert campaign.killed == FULL.kills
        again = assert_all_is_well(works, campaign.plan, campaign.killed)
        report(works, campaign, again, seconds)


def assert_all_is_well(works: Works, plan: list[Planned], killed: int) -> int:
    """How many came again."""
    good = {effect.key for effect in plan if not effect.poison}
    poison = {effect.key for effect in plan if effect.poison}
    received = works.received()

    # None lost, none left over, and nothing else delivered.
    assert set(received) == good
    assert set(works.keys(Shelf.DELIVERED)) == good
    assert set(works.keys(Shelf.DEAD)) == poison

    # One key for one effect, on every try; the provider's id is on record.
    assert all(line.key == line.payload["key"] for line in works.lines())
    assert all(each.provider_id == f"id of {each.key}" for each in works.shelf(Shelf.DELIVERED))

    # Bounded tries; a kill costs a redelivery of what was under way, and nothing else does.
    assert max(line.tries for line in works.lines()) <= TRIES
    again = received.total() - len(good)
    assert again <= killed * WIDTH

    assert_in_order(works, plan)
    return again


def assert_in_order(works: Works, plan: list[Planned]) -> None:
    """Of one order, nothing is heard of an effect before the one before is over and done with."""
    lines = works.lines()
    for order in {effect.order for effect in plan} - {None}:
        heard = groupby(line.key for line in lines if line.order == order)
        assert [key for key, _ in heard] == [each.key for each in plan if each.order == order]


def report(works: Works, campaign: Campaign, again: int, seconds: float) -> None:
    """For whoever reads with ``-s``."""
    begun = len(works.lines("begun"))
    print(
        f"\n{works.backend.url.partition(':')[0]}: {campaign.size.effects} effects, "
        f"{campaign.killed} kills, {seconds:.0f} s: {len(works.shelf(Shelf.DELIVERED))} delivered, "
        f"{len(works.shelf(Shelf.DEAD))} dead letters, 0 lost, {begun} sent, {again} received again"
    )
