"""The campaign: processes are killed at every boundary and at random, then others go on.

Of each route the first process dies at boundary 0, the next one's at 1, and so on until one lives.
Retries and workers die as well. Then nobody dies any more, and all must come to its end.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count, product
from pathlib import Path
from typing import Final
from uuid import UUID

from semel.core.operations.maintenance import Browse, DueRecords
from semel.core.records import Case, Micros, State
from semel.core.stored.snapshot import decode
from semel.stores import open_backend
from tests.proof.crash.audit import audit, finals, left_to_people, receipts
from tests.proof.crash.boundaries import read
from tests.proof.crash.grounds import Ground
from tests.proof.crash.process import Task
from tests.proof.crash.shop import DEFERRED, LEFT_TO_PEOPLE, ROUTES, TRANSACTIONAL
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.ways import COLOURS, peers
from tests.proof.crash.zygote import Child, Zygote
from tests.waiting import PATIENCE, until

WIDTH: Final = 4
"""Processes at once."""
MANY: Final = 100_000


@dataclass(frozen=True)
class Plan:
    """What is done to the keys of one campaign."""

    routes: tuple[str, ...] = ROUTES
    colours: tuple[str, ...] = COLOURS
    where: tuple[int | str, ...] = ()
    """The boundaries at which first processes die; without any, all of them."""
    retries: int = 0
    """For each boundary so many keys, whose retries die at boundaries of their own."""
    reach: int = 0
    """How many of those are gone through. As many as retries: each with each. If not, those of the
    next first boundary go on where the last one's have ended."""
    workers: int = 0
    """How many workers die, each at a later boundary, unless all is quiet before."""
    stray: int = 0
    """How many processes are killed at any moment, by another."""
    without: str = ""
    """The guard that is taken out: a positive control."""
    seed: int = 1


class Campaign:
    """One plan, on one empty store."""

    def __init__(self, plan: Plan, ground: Ground, folder: Path, zygote: Zygote) -> None:
        self.plan = plan
        self.folder = folder
        self._ground = ground
        self._zygote = zygote
        self._dice = random.Random(f"{plan}")
        self._backend = open_backend(ground.url, timeout=PATIENCE)
        transactional = self._backend.capabilities.transactions
        self.routes = [each for each in plan.routes if transactional or each not in TRANSACTIONAL]
        self._ways = peers(plan.colours)
        """How a key may come in again: by another adapter it is the same key."""
        self._keys: dict[str, str] = {}
        self._firsts: dict[str, tuple[str, str, int | str]] = {}
        """The route and the adapter of a key whose first process died, and where it did."""
        self._pairs: set[tuple[tuple[str, str, int | str], int]] = set()
        self._killed = self._strayed = 0
        self._moment = 0.05
        """Seconds in which a process that is killed at any moment has mostly not ended."""

    def close(self) -> None:
        self._backend.close()

    # ── kills ─────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Verdict:
        """Deaths, recovery, and a last look at what everybody got."""
        with ThreadPoolExecutor(WIDTH) as threads:
            for done in threads.map(self._first_tries, product(self.routes, self.plan.colours)):
                self._killed += done
            if self.plan.retries:
                self._second_tries(threads)
            self._workers_die(threads)
            self._strayed = sum(threads.map(self._stray, range(self.plan.stray)))
            self._killed += self._strayed
        return self.verdict(self.recover())

    def _first_tries(self, kind: tuple[str, str]) -> int:
        """Each at a later boundary, until one lives to its end; how many died."""
        route, colour = kind
        died = 0
        for at in self.plan.where or count():
            keys = [self._new(route) for _ in range(max(1, self.plan.retries))]
            these = {key: self._request([key], at, colour=colour) for key in keys}
            dead = [key for key, child in these.items() if child.settle().killed]
            self._firsts |= dict.fromkeys(dead, (route, colour, at))
            deaths = len(dead)
            died += deaths
            if not (deaths or self.plan.where):
                break
        return died

    def _second_tries(self, threads: ThreadPoolExecutor) -> None:
        """Through any adapter."""
        self.await_due()
        tries = list(self._turns())

        def retry(turn: tuple[str, int]) -> bool:
            key, at = turn
            return self._request([key], at, colour=self._dice.choice(self._ways)).settle().killed

        for (key, at), killed in zip(tries, threads.map(retry, tries), strict=True):
            self._killed += killed
            if killed and key in self._firsts:
                self._pairs.add((self._firsts[key], at))

    def _turns(self) -> Iterator[tuple[str, int]]:
        """Each key, and where its retry dies."""
        reach = self.plan.reach or self.plan.retries
        begins = count(0, self.plan.retries)
        turns = defaultdict[object, Iterator[int]](lambda: count(next(begins)))
        for key in self._unsettled():
            yield key, next(turns[self._firsts.get(key)]) % reach

    def _workers_die(self, threads: ThreadPoolExecutor) -> None:
        self.await_due()
        number = 0
        while number < self.plan.workers and self.restless():
            deaths = range(number, min(number + WIDTH, self.plan.workers))
            self._killed += sum(threads.map(self._worker_dies, deaths))
            number += WIDTH

    def _worker_dies(self, at: int) -> bool:
        return self._work(at).settle().killed

    def _stray(self, number: int) -> bool:
        """A process with several requests is killed by another, at a moment that dice choose."""
        if number % 4 == 3:
            child = self._work(None)
        else:
            keys = [self._new(self._dice.choice(self.routes)) for _ in range(4)]
            child = self._request(keys, None, colour=self._dice.choice(self._ways))
        if child.lives(self._dice.uniform(0, self._moment)):
            child.send(signal.SIGKILL)
        killed = child.settle().killed
        # Now and then one should end by itself: then the moments reach to its very end.
        self._moment *= 1.05 if killed else 0.9
        return killed

    # ── zombies ───────────────────────────────────────────────────────────────────────────────────

    def overtake(self, places: Sequence[tuple[str, str]]) -> Verdict:
        """At each place of a route a process is stopped, and goes on when others are done."""
        stopped = [self._stopped(*place, number) for number, place in enumerate(places)]
        zombies = [child for child in stopped if child.settle(stopped_too=True).stopped]
        self.await_due()
        wedged = self.recover()
        for child in zombies:
            child.resume()
        for child in stopped:
            child.settle()
        verdict = self.verdict(wedged or self.recover())
        self._count_zombies(verdict, {child.pid for child in zombies})
        return verdict

    def _stopped(self, route: str, place: str, number: int) -> Child:
        key, colour = self._new(route), self._ways[number % len(self._ways)]
        if route not in DEFERRED:
            return self._request([key], place, signal.SIGSTOP, colour)
        self._request([key], None).settle()
        # The next worker must not find the same request.
        return self._work(place, signal.SIGSTOP, colour).settle(stopped_too=True)

    def _count_zombies(self, verdict: Verdict, zombies: set[int]) -> None:
        refusals = [line for line in read(self.folder / "refused.jsonl") if line["op"] != "Renew"]
        verdict.refused = len({line["pid"] for line in refusals} & zombies)
        answered = [line for line in read(self.folder / "answers.jsonl") if line["status"] == 201]
        late = {line["pid"] for line in answered if self._keys[line["key"]] in LEFT_TO_PEOPLE}
        verdict.late = len(late & zombies)

    # ── recovery ──────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> list[str]:
        """Nobody dies any more: until all is quiet, or for too long. Returns what is not."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.await_due()
            self._work(None, colour=self._dice.choice(self._ways)).settle()
            self._post(self._unsettled())
            unsettled, restless = self._unsettled(), self.restless()
            if not (unsettled or restless) or time.monotonic() > deadline:
                return [*unsettled, *restless]

    def verdict(self, wedged: list[str]) -> Verdict:
        """Everybody asks once more, and the books are compared."""
        self._post([*self._keys], "final")
        found = audit(self.folder, self._keys, self._ground.booked(), wedged)
        if self._strayed:
            found.kills["anybody: at any moment"] += self._strayed
        found.lost += self._without_receipt()
        found.pairs = len(self._pairs)
        found.second_places = Counter(f"{first[0]} {at}" for first, at in self._pairs)
        assert found.kills.total() == self._killed, "deaths that nobody ordered"
        return found

    def _without_receipt(self) -> list[str]:
        """Streams of which clients have seen something, and nobody that looks at the record."""
        begun = {line["key"] for line in read(self.folder / "begun.jsonl")}
        cases = [case for case in self._unrest().cases if case.origin.key in begun]
        return [
            f"{case.origin.path} {case.origin.key}: begun, and no receipt of it"
            for case in cases
            if case.record.snapshot is None or not decode(case.record.snapshot).open
        ]

    def await_due(self) -> None:
        """Until no lease is held and nothing is put off, by the store's own clock."""

        def due() -> bool:
            listed = self._unrest()
            return all(_next_look(case) <= listed.now for case in listed.cases)

        until(due)

    def restless(self) -> list[str]:
        """Records that somebody has to look after."""
        listed = self._unrest()
        return [
            _described(case, listed.now)
            for case in listed.cases
            if case.due_at is not None or case.origin.path[1:] not in LEFT_TO_PEOPLE
        ]

    def _unrest(self) -> DueRecords:
        states = (State.IN_PROGRESS, State.PENDING, State.UNKNOWN)
        return self._backend.blocking().perform(Browse(states, MANY))

    def _unsettled(self) -> list[str]:
        """Whose clients have no answer yet that they need not ask for again."""
        log = self.folder / "answers.jsonl"
        settled = set(finals(log)) | left_to_people(log) | receipts(log)
        return [key for key in self._keys if key not in settled]

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def _request(
        self,
        keys: list[str],
        at: int | str | None,
        sign: signal.Signals = signal.SIGKILL,
        colour: str | None = None,
        answers: str = "answers",
    ) -> Child:
        orders = [(self._keys[key], key) for key in keys]
        colour = colour or self._ways[0]
        return self._start(Task("request", *self._where, colour, orders, at, sign, answers=answers))

    def _work(
        self,
        at: int | str | None,
        sign: signal.Signals = signal.SIGKILL,
        colour: str | None = None,
    ) -> Child:
        colour = colour or self._dice.choice(self._ways)
        return self._start(Task("work", *self._where, colour, [], at, sign))

    @property
    def _where(self) -> tuple[str, str]:
        return self._ground.url, str(self.folder)

    def _start(self, task: Task) -> Child:
        return self._zygote.start({**asdict(task), "without": self.plan.without})

    def _post(self, keys: list[str], answers: str = "answers") -> None:
        if keys:
            colour = self._dice.choice(self._ways)
            self._request(keys, None, colour=colour, answers=answers).settle()

    def _new(self, route: str) -> str:
        key = str(UUID(int=self._dice.getrandbits(128), version=4))
        self._keys[key] = route
        return key


def _next_look(case: Case) -> Micros:
    """When somebody can do something about it; what is pending is there to be taken."""
    match case.record.state:
        case State.UNKNOWN:
            return case.due_at or 0
        case State.IN_PROGRESS:
            return case.record.leased_until or 0
        case _:
            return 0


def _described(case: Case, now: Micros) -> str:
    due = "never" if case.due_at is None else f"in {(case.due_at - now) / 1_000_000:.1f} s"
    about = f"{case.record.state} {case.origin.path} {case.origin.key}"
    return f"{about}: due {due}, asked {case.tries} times, {case.record.reason}"
