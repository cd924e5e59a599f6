"""The campaign: rides whose processes are killed or stopped at every boundary, then looked after.

The first ride's process dies at boundary 0, the second's at 1, and so on until they live. Then
clients try again and workers go round, and some of these die as well. In the end the provider's own
log tells what was charged and mailed.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from examples.rides.tables import create_tables
from semel.core.model import State
from semel.core.outbox import BrowseEffects, Shelf
from semel.core.upkeep import Browse
from semel.stores import open_backend
from semel.stores.base import Backend
from tests.examples.rides.audit import audit
from tests.examples.rides.process import Task
from tests.examples.rides.provider import Provider
from tests.proof.crash.boundaries import read
from tests.proof.crash.verdict import Verdict
from tests.proof.crash.zygote import Child, Zygote

T = TypeVar("T")

PROCESS: Final = "tests.examples.rides.process"
LEASE: Final = 0.6
PATIENCE: Final = 0.3
"""Seconds the application waits for its provider."""
WIDTH: Final = 4
"""Processes at once."""
SECONDS: Final = 40.0
"""In which everything must have come to its end once nobody dies any more."""
FINAL: Final = (201, 402)

CONDUCT: Final[Mapping[str, dict[str, Any]]] = {
    "good": {},
    "drops the answer": {"drop": True},
    "declines": {"decline": True},
    "slow": {"slow": 2 * PATIENCE},
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
    workers: int = 0
    """How many workers die, each at a later boundary, unless all is quiet before."""
    crossing: bool = False
    """First processes are stopped instead, and go on in the way of a second."""
    awaited: bool = False
    """Whether the handler is a coroutine function."""
    patience: float = PATIENCE
    lease: float = LEASE
    seed: int = 1


class Campaign:
    """One plan, on one empty store."""

    def __init__(
        self, plan: Plan, store: str, folder: Path, provider: Provider, zygote: Zygote
    ) -> None:
        self.plan = plan
        self.store = store
        self.folder = folder
        self.provider = provider
        self._zygote = zygote
        self._random = random.Random(f"{plan}")
        self._backend = open_backend(store)
        self._keys: list[str] = []
        self._longest = 0

    # ── what is done ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> Verdict:
        """Deaths, recovery, and a last look at what everybody got."""
        self.provider.switch(**CONDUCT[self.plan.conduct])
        self._first_tries(self._crossed if self.plan.crossing else self._killed)
        for _ in range(self.plan.retries):
            self._retries_die()
        self._workers_die()
        self.provider.switch()
        wedged = self._recover()
        self._post(self._keys)
        return audit(self.folder, self.provider, self.store, self._keys, wedged)

    def _first_tries(self, doom: Callable[[int | str], bool]) -> None:
        """Several at a time, until all of them live to their ends."""
        with ThreadPoolExecutor(WIDTH) as threads:
            for places in _groups(self.plan.where or count()):
                doomed = [*threads.map(doom, places)]
                self._longest += sum(doomed)
                if not (any(doomed) or self.plan.where):
                    break

    def _killed(self, at: int | str) -> bool:
        return self._request([self._new()], at).settle().killed

    def _crossed(self, at: int | str) -> bool:
        """A first is stopped; a second takes over and is stopped; the first goes on before it."""
        key = self._new()
        first = self._request([key], at, signal.SIGSTOP)
        stopped = first.settle(stopped_too=True).stopped
        there = SECONDS_ARE_STOPPED[len(self._keys) % len(SECONDS_ARE_STOPPED)]
        second = self._request([key], there, signal.SIGSTOP).settle(stopped_too=True)
        for child in (first, second):
            child.resume()
            child.settle()
        return stopped

    def _retries_die(self) -> None:
        for some in _groups(self._unsettled()):
            for child in [self._request([key], self._anywhere()) for key in some]:
                child.settle()

    def _workers_die(self) -> None:
        number, deadline = 0, time.monotonic() + SECONDS
        while number < self.plan.workers and time.monotonic() < deadline and self._restless():
            number += self._work(number).settle().killed

    def _recover(self) -> list[str]:
        """Nobody dies any more: until all is quiet, or for too long. Returns what is not."""
        deadline = time.monotonic() + SECONDS
        while True:
            self._work(None).settle()
            unsettled, restless = self._unsettled(), self._restless()
            if not (unsettled or restless) or time.monotonic() > deadline:
                return [*unsettled, *restless]
            if self.plan.retries or not restless:
                self._post(unsettled)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────

    def _request(
        self, keys: list[str], at: int | str | None, sign: signal.Signals = signal.SIGKILL
    ) -> Child:
        return self._start("request", keys, at, sign)

    def _work(self, at: int | None) -> Child:
        return self._start("work", [], at, signal.SIGKILL)

    def _start(
        self, role: str, keys: list[str], at: int | str | None, sign: signal.Signals
    ) -> Child:
        plan = (self.plan.without, self.plan.awaited)
        return self._zygote.start(asdict(Task(role, str(self.folder), keys, at, int(sign), *plan)))

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
        return restless(self._backend)

    def close(self) -> None:
        self._backend.close()


def restless(backend: Backend) -> list[str]:
    """Records and effects that somebody has to look after."""
    store = backend.blocking()
    states = (State.IN_PROGRESS, State.UNKNOWN, State.PENDING)
    cases = store.perform(Browse(states, 1000)).cases
    records = [f"{case.record.state} {case.record.identity.hex()[:16]}" for case in cases]
    shelves = (store.perform(BrowseEffects(shelf, 1000)) for shelf in (Shelf.WAITING, Shelf.DEAD))
    return records + [f"effect {effect.key}" for shelf in shelves for effect in shelf.effects]


def _groups(places: Iterable[T]) -> Iterator[list[T]]:
    ahead = iter(places)
    while group := [*islice(ahead, WIDTH)]:
        yield group


def settings(plan: Plan, store: str, provider: Provider) -> dict[str, str]:
    """The example's, as environment variables."""
    return {
        "RIDES_STORE": store,
        "RIDES_PROVIDER": provider.url,
        "RIDES_PATIENCE": str(plan.patience),
        "RIDES_LEASE": str(plan.lease),
        "RIDES_RECONCILE_AFTER": "0.2",
        "RIDES_HONOURS_KEYS": "1" if plan.honours_keys else "0",
    }


@contextmanager
def campaign(plan: Plan, store: str, folder: Path) -> Iterator[Campaign]:
    """A campaign's provider and processes, on a store that has its tables."""
    open_backend(store).migrate()
    create_tables(store)
    with (
        Provider(honours_keys=plan.honours_keys) as provider,
        Zygote(PROCESS, settings(plan, store, provider), folder / "zygote.log") as zygote,
    ):
        given = Campaign(plan, store, folder, provider, zygote)
        yield given
        given.close()
