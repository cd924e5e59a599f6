"""People who look at a console while an application is under load, and what that changes.

*Open* are browsers that nobody touches: each reads its page again as often as that page says.
*Clicking* are people who each read another page every second.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx

from bench import plans
from bench.cases import Sample
from bench.cases.served import Served
from bench.filling import FILLED, Amounts
from bench.load import BenchError, Burst, Target
from bench.measure import Cores
from bench.stage import Stage
from semel.console.routes import SCREENS

CLICKED = ("", "records", "in-flight", "records?state=unknown", "unknown")
"""Half of those who look at a console look at what needs a person, and at lists."""
OPEN = ("", "in-flight", "", "unknown", "outbox")
"""Pages that are left open."""
REFRESH = {each.path: each.refresh for each in SCREENS}
MANNERS = ("open", "clicking")


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
def visiting(port: int, people: int, manner: str) -> Iterator[Visits]:
    """So many people look, until it is over."""
    seen, over = Visits(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_all(port, people, manner, seen, over)))
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


async def _all(port: int, people: int, manner: str, seen: Visits, over: threading.Event) -> None:
    address = f"http://127.0.0.1:{port}/ops/"
    async with httpx.AsyncClient(base_url=address, timeout=60.0) as client:
        asking = (_person(client, n, n / people, manner, seen, over) for n in range(people))
        await asyncio.gather(*asking)


async def _person(
    client: httpx.AsyncClient,
    number: int,
    phase: float,
    manner: str,
    seen: Visits,
    over: threading.Event,
) -> None:
    """``phase``: when in its first interval it begins, so that not all ask at once."""
    due, clicks = time.perf_counter() + phase * _interval(number, manner, 0), 0
    while not over.is_set():
        if time.perf_counter() < due:
            await asyncio.sleep(0.05)
            continue
        began, path = time.perf_counter(), _path(number, manner, clicks)
        answer = await client.get(path, headers={"accept": "text/html"})
        seen.times.append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200:
            seen.refused.append(f"{answer.status_code} {answer.text[-200:]}")
        due, clicks = max(began + _interval(number, manner, clicks), due), clicks + 1


def _path(number: int, manner: str, clicks: int) -> str:
    if manner == "open":
        return OPEN[number % len(OPEN)]
    return CLICKED[(number + clicks) % len(CLICKED)]


def _interval(number: int, manner: str, clicks: int) -> float:
    """Seconds from page to page."""
    return float(REFRESH[_path(number, manner, clicks)]) if manner == "open" else 1.0


@dataclass(frozen=True)
class Disturbed:
    """One store: the load alone and beside the people, round by round."""

    store: str
    manner: str
    alone: list[Sample]
    beside: list[Sample]
    visits: Visits

    def row(self) -> str:
        def ratio(name: str) -> float:
            pairs = zip(self.alone, self.beside, strict=True)
            return float(statistics.median(getattr(b, name) / getattr(a, name) for a, b in pairs))

        shares = " | ".join(f"{ratio(name):.2f}" for name in ("rate", "p99", "cpu"))
        rate = statistics.median(each.rate for each in self.alone)
        page = statistics.median(self.visits.times or [0.0])
        pages, late = len(self.visits.times), len(self.visits.refused)
        beside = f"{self.store} | {self.manner} | {rate:.0f} | {shares}"
        return f"| {beside} | {pages} | {page:.0f} | {late} |"


HEAD = (
    "| store | beside | requests/s alone | throughput | p99 | CPU per request | pages | ms each"
    " | refused |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Load:
    """How long and how often, how many people; ``apart``: their console is another process."""

    rounds: int
    seconds: float
    people: int
    apart: bool


def disturbed(store: str, amounts: Amounts, load: Load) -> list[Disturbed]:
    """Fresh keys for one worker: alone, and beside people of each manner, in turns."""
    case = Beside(store, "semel", "bench.served.with_console", plans.FRESH, store)
    alone: list[Sample] = []
    beside: dict[str, list[Sample]] = {manner: [] for manner in MANNERS}
    visits = {manner: Visits() for manner in MANNERS}
    with Stage(load.seconds, 32, Cores.divided()) as stage:
        stage.kept(store, stage.cores.store, lambda it: it.start(FILLED[store](amounts)))
        case.measure(stage)  # opens and warms everything
        place = stage.place(store, stage.cores.store)
        viewed = replace(case, env={"BENCH_CONSOLE_SHARE": "all"}) if load.apart else case
        port = stage.server(viewed.served_as(), lambda: viewed.serving(stage, place)).port
        for _ in range(load.rounds):
            alone.append(case.measure(stage))
            for manner in MANNERS:
                with visiting(port, load.people, manner) as seen:
                    beside[manner].append(case.measure(stage))
                visits[manner].times += seen.times
                visits[manner].refused += seen.refused
    return [Disturbed(store, each, alone, beside[each], visits[each]) for each in MANNERS]
