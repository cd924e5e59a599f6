"""The campaign: rides whose processes are killed or stopped at every boundary, then looked after.

The first ride's process dies at boundary 0, the second's at 1, and so on until they live. Then
clients try again and workers go round, and some of these die as well. In the end the provider's own
log tells what was charged and mailed.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from examples.rides.tables import create_tables
from semel.core.operations.maintenance import Browse
from semel.core.operations.outbox import BrowseEffects, Shelf
from semel.core.records import State
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.examples.rides.audit import audit
from tests.examples.rides.passing import LEASE, Time
from tests.examples.rides.process import Task
from tests.examples.rides.provider import Provider
from tests.proof.crash.boundaries import read
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.zygote import Child, Zygote
from tests.waiting import PATIENCE

T = TypeVar("T")

PROCESS: Final = "tests.examples.rides.process"
HURRY: Final = 0.3
"""Seconds the application waits for its provider where that may be slow."""
WIDTH: Final = 4
"""Processes at once."""
FINAL: Final = (201, 402)

CONDUCT: Final[Mapping[str, dict[str, Any]]] = {
    "good": {},
    "drops the answer": {"drop": True},
    "declines": {"decline": True},
    "slow": {"slow": 2 * HURRY},
    "dies": {"die": True},
}
"""How the provider behaves until the deaths are over."""

SECONDS_ARE_STOPPED: Final = (
    "after Resume 1",
    "before begin 1",
    "after Advance 1",
    "after Advance 2",
    "before charges 1",
    "after charges 1",
    "before Complete 1",
)
"""Where a process is stopped that has taken over."""


@dataclass(frozen=True)
class Plan:
    """What is done to the rides of one campaign."""

    conduct: str = "good"
    honours_keys: bool = False
    without: str = ""
    """The guard that is taken out: a positive control."""
    where: tuple[int | str, ...] = ()
    """The boundaries at which first processes die; without any, all of them."""
    retries: int = 1
    """How often each client tries again in a process that may die, too."""
    workers: tuple[int | str, ...] = ()
    """Where workers die, one after the other, unless all is quiet before."""
    rounds: int | None = None
    """Of recovery at the most. Without a guard some are never settled."""
    crossing: bool = False
    """First processes are stopped instead, and go on in the way of a second."""
    then: tuple[str, ...] = SECONDS_ARE_STOPPED
    """Where those are stopped, in turn."""
    awaited: bool = False
    """Whether the handler is a coroutine function."""
    seed: int = 1


@dataclass(frozen=True)
class Ground:
    """What campaigns are run on, one after the other: a store, a provider, ready processes."""

    store: str
    provider: Provider
    zygote: Zygote
    time: Time


class Campaign:
    """One plan, in an empty folder."""

    def __init__(self, plan: Plan, ground: Ground, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._ground = ground
        self._random = random.Random(f"{plan}")
        self._backend = open_backend(ground.store)
        self._keys: list[str] = []
        self._longest = 0

    # ── what is done ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> Verdict:
        """Deaths, recovery, and a last look at what everybody got."""
        self._ground.provider.switch(**CONDUCT[self.plan.conduct])
        self._first_tries()
        for _ in range(self.plan.retries):
            self._retries_die()
        self._workers_die()
        self._ground.provider.switch()
        wedged = self._recover()
        self._post(self._keys)
        return audit(self.folder, self._ground.provider, self._ground.store, self._keys, wedged)

    def _first_tries(self) -> None:
        """Several at a time, until all of them live to their ends."""
        befall = self._crossed if self.plan.crossing else self._killed
        for places in _groups(self.plan.where or count()):
            doomed = befall(places)
            self._longest += doomed
            if not (doomed or self.plan.where):
                break

    def _killed(self, places: list[int | str]) -> int:
        firsts = [self._request([self._new()], at) for at in places]
        return sum(first.settle().killed for first in firsts)

    def _crossed(self, places: list[int | str]) -> int:
        """Firsts are stopped; seconds take over and are stopped; each first goes on before its
        second."""
        keys = [self._new() for _ in places]
        firsts = self._stopped(keys, places)
        stopped = sum(first.stopped for first in firsts)
        self._ground.time.passes()
        then = self.plan.then
        there = [then[self._keys.index(key) % len(then)] for key in keys]
        seconds = self._stopped(keys, there)
        for pair in zip(firsts, seconds, strict=True):
            for child in pair:
                child.resume()
                child.settle()
        return stopped

    def _stopped(self, keys: list[str], places: Sequence[int | str]) -> list[Child]:
        pairs = zip(keys, places, strict=True)
        children = [self._request([key], at, signal.SIGSTOP) for key, at in pairs]
        return [child.settle(stopped_too=True) for child in children]

    def _retries_die(self) -> None:
        self._ground.time.passes()
        for some in _groups(self._unsettled()):
            for child in [self._request([key], self._anywhere()) for key in some]:
                child.settle()

    def _workers_die(self) -> None:
        deadline = time.monotonic() + PATIENCE
        for at in self.plan.workers:
            killed = False
            while not killed and time.monotonic() < deadline and self._restless():
                self._ground.time.passes()
                killed = self._work(at).settle().killed

    def _recover(self) -> list[str]:
        """Nobody dies any more: until all is quiet, or for too long. Returns what is not."""
        deadline = time.monotonic() + PATIENCE
        for number in count(1):
            self._ground.time.passes()
            self._work(None).settle()
            unsettled, restless = self._unsettled(), self._restless()
            over = number == self.plan.rounds or time.monotonic() > deadline
            if over or not (unsettled or restless):
                return [*unsettled, *restless]
            if self.plan.retries or not restless:
                self._post(unsettled)
        raise AssertionError("count() never ends")

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def _request(
        self, keys: list[str], at: int | str | None, sign: signal.Signals = signal.SIGKILL
    ) -> Child:
        return self._start("request", keys, at, sign)

    def _work(self, at: int | str | None) -> Child:
        return self._start("work", [], at, signal.SIGKILL)

    def _start(
        self, role: str, keys: list[str], at: int | str | None, sign: signal.Signals
    ) -> Child:
        plan = (self.plan.without, self.plan.awaited)
        task = Task(role, str(self.folder), keys, at, int(sign), *plan)
        return self._ground.zygote.start(asdict(task))

    def _post(self, keys: list[str]) -> None:
        if keys:
            self._request(keys, None).settle()

    def _new(self) -> str:
        key = str(UUID(int=self._random.getrandbits(128), version=4))
        self._keys.append(key)
        return key

    def _anywhere(self) -> int:
        return self._random.randrange(self._longest + WIDTH)

    # ── what is seen ──────────────────────────────────────────────────────────────────────────────

    def _unsettled(self) -> list[str]:
        """Whose clients have no answer yet."""
        answers = read(self.folder / "answers.jsonl")
        settled = {answer["key"] for answer in answers if answer["status"] in FINAL}
        return [key for key in self._keys if key not in settled]

    def _restless(self) -> list[str]:
        return restless(self._backend, self._keys)

    def close(self) -> None:
        self._backend.close()


def restless(backend: Backend, keys: Sequence[str] | None = None) -> list[str]:
    """Records, of ``keys`` or all, and effects that somebody has to look after."""
    store = backend.blocking()
    states = (State.IN_PROGRESS, State.UNKNOWN, State.PENDING)
    found = store.perform(Browse(states, 1000)).cases
    cases = [case for case in found if keys is None or case.origin.key in keys]
    records = [f"{case.record.state} {case.record.identity.hex()[:16]}" for case in cases]
    shelves = (store.perform(BrowseEffects(shelf, 1000)) for shelf in (Shelf.WAITING, Shelf.DEAD))
    return records + [f"effect {effect.key}" for shelf in shelves for effect in shelf.effects]


def _groups(places: Iterable[T]) -> Iterator[list[T]]:
    ahead = iter(places)
    while group := [*islice(ahead, WIDTH)]:
        yield group


def settings(store: str, provider: Provider, *, patience: float = PATIENCE) -> dict[str, str]:
    """The example's, as environment variables. ``patience``: how long it waits for its provider."""
    return {
        "RIDES_STORE": store,
        "RIDES_PROVIDER": provider.url,
        "RIDES_PATIENCE": str(patience),
        "RIDES_LEASE": str(LEASE),
        "RIDES_RECONCILE_AFTER": str(LEASE),
        "RIDES_HONOURS_KEYS": "1" if provider.honours_keys else "0",
    }


@contextmanager
def database(name: str, folder: Path, server: Callable[[str], Any]) -> Iterator[str]:
    """The URL of an empty one. ``server``: the one of that name."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'rides.db'}"
        return
    with server("postgres" if name == "postgresql" else name).database() as url:
        yield url


@contextmanager
def ground(
    store: str, folder: Path, *, honours_keys: bool = False, patience: float = PATIENCE
) -> Iterator[Ground]:
    """A provider and a zygote, on a store that has its tables."""
    with closing(open_backend(store)) as backend:
        backend.migrate()
    create_tables(store)
    time = Time(store, folder)
    with Provider(honours_keys=honours_keys) as provider:
        given = {**settings(store, provider, patience=patience), **time.settings}
        with Zygote(PROCESS, given, folder / "zygote.log") as zygote:
            yield Ground(store, provider, zygote, time)


def verdict_on(plan: Plan, ground: Ground, folder: Path) -> Verdict:
    with closing(Campaign(plan, ground, folder)) as campaign:
        return campaign.run()
