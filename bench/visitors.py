"""People who look at a console while an application is under load, and what that changes.

Each of them reads a page every second, half of them the overview and half the records: more often
than a browser that is left open, which asks every fifteen seconds.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from bench import plans
from bench.cases import Sample
from bench.cases.served import Served
from bench.filling import FILLED, Amounts
from bench.load import BenchError, Burst, Target
from bench.measure import Cores
from bench.stage import Stage

PATHS = ("/ops/", "/ops/records", "/ops/", "/ops/records?state=unknown", "/ops/in-flight")
EVERY = 1.0
"""Seconds from page to page, of each person."""


class Beside(Served):
    """Every answer is a success, and every success was run."""

    def check(self, burst: Burst, executed: int, target: Target) -> None:
        if burst.broken or burst.refused or executed < burst.requests:
            said = f"{burst.refused} refused, {burst.broken} broken, {executed} executed"
            raise BenchError(f"{self.name}: of {burst.requests} requests {said}")


@dataclass
class Visits:
    """What the people saw: how long pages took, in milliseconds, and what went wrong."""

    times: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@contextmanager
def visiting(port: int, people: int) -> Iterator[Visits]:
    """So many people look, until it is over."""
    seen, over = Visits(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_all(port, people, seen, over)))
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


async def _all(port: int, people: int, seen: Visits, over: threading.Event) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
        await asyncio.gather(*(_person(client, n, people, seen, over) for n in range(people)))


async def _person(
    client: httpx.AsyncClient, number: int, people: int, seen: Visits, over: threading.Event
) -> None:
    await asyncio.sleep(EVERY * number / people)
    while not over.is_set():
        began = time.perf_counter()
        answer = await client.get(PATHS[number % len(PATHS)], headers={"accept": "text/html"})
        took = time.perf_counter() - began
        seen.times.append(1000 * took)
        if answer.status_code != 200:
            seen.refused.append(f"{answer.status_code} {answer.text[-200:]}")
        await asyncio.sleep(max(0.0, EVERY - took))


@dataclass(frozen=True)
class Disturbed:
    """One store: the load alone and beside the people, round by round."""

    store: str
    alone: list[Sample]
    beside: list[Sample]
    visits: Visits

    def row(self) -> str:
        def ratio(name: str) -> float:
            pairs = zip(self.alone, self.beside, strict=True)
            return float(statistics.median(getattr(b, name) / getattr(a, name) for a, b in pairs))

        shares = " | ".join(f"{ratio(name):.2f}" for name in ("rate", "p99", "cpu"))
        rate = statistics.median(each.rate for each in self.alone)
        page = statistics.median(self.visits.times)
        return f"| {self.store} | {rate:.0f} | {shares} | {len(self.visits.times)} | {page:.0f} |"


HEAD = (
    "| store | requests/s alone | throughput | p99 | CPU per request | pages | ms each |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Load:
    """How long and how often, how many people; ``apart``: their console is another process."""

    rounds: int
    seconds: float
    people: int
    apart: bool


def disturbed(store: str, amounts: Amounts, load: Load) -> Disturbed:
    """Fresh keys for one worker, alone and beside people; ratios are beside to alone."""
    case = Beside(store, "semel", "bench.served.with_console", plans.FRESH, store)
    alone: list[Sample] = []
    beside: list[Sample] = []
    every = Visits()
    with Stage(load.seconds, 32, Cores.divided()) as stage:
        stage.kept(store, stage.cores.store, lambda it: it.start(FILLED[store](amounts)))
        case.measure(stage)  # opens and warms everything
        place = stage.place(store, stage.cores.store)
        name = "console" if load.apart else case.served_as()
        port = stage.server(name, lambda: case.serving(stage, place)).port
        for _ in range(load.rounds):
            alone.append(case.measure(stage))
            with visiting(port, load.people) as seen:
                beside.append(case.measure(stage))
            every.times += seen.times
            every.refused += seen.refused
    if every.refused:
        raise BenchError(f"{len(every.refused)} pages were refused: {every.refused[0]}")
    return Disturbed(store, alone, beside, every)
