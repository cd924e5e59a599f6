"""What the project wants to reach, beside what was reached in this run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.cases import Sample, raw, scale, stores
from bench.rounds import Result
from bench.stage import STORES

TITLES = ("aim", "wanted", "reached", "met")


class Figures:
    """The results of a run by the names of their cases."""

    def __init__(self, results: Sequence[Result]) -> None:
        measured = [result for result in results if result.samples and result.problem is None]
        self._results = {result.case.name: result for result in measured}

    def of_bare(self, name: str) -> float | None:
        found = self._results.get(name)
        return statistics.median(found.ratios) if found and found.ratios else None

    def times(self, name: str, others: Sequence[str]) -> float | None:
        """How many times the fastest of the others, round by round."""
        mine, best = self._rates(name), [self._rates(other) for other in others]
        fastest = [max(rates) for rates in zip(*[one for one in best if one], strict=True)]
        if not mine or not fastest:
            return None
        ratios: list[float] = [a / b for a, b in zip(mine, fastest, strict=True)]
        return statistics.median(ratios)

    def slower(self, name: str, than: str) -> float | None:
        """How many times the p50 of another case, round by round."""
        pairs = zip(self._samples(name), self._samples(than), strict=False)
        ratios = [mine.p50 / other.p50 for mine, other in pairs if mine.p50 and other.p50]
        return statistics.median(ratios) if ratios else None

    def _rates(self, name: str) -> list[float]:
        return [sample.rate for sample in self._samples(name)]

    def _samples(self, name: str) -> list[Sample]:
        found = self._results.get(name)
        return found.samples if found else []


@dataclass(frozen=True)
class Aim:
    title: str
    wanted: float
    reached: Callable[[Figures], float | None]
    at_most: bool = False

    def row(self, figures: Figures) -> list[str]:
        value, wanted = self.reached(figures), f"{'≤' if self.at_most else '≥'} {self.wanted}"
        if value is None:
            return [self.title, wanted, "", "not measured"]
        met = value <= self.wanted if self.at_most else value >= self.wanted
        return [self.title, wanted, f"{value:.2f}", "yes" if met else "no"]


FRESH_AIMS = {
    "memory": 0.55,
    "SQLite": 0.45,
    "PostgreSQL": 0.5,
    "Redis": 0.52,
    "MariaDB": 0.38,
}
REPLAY_AIMS = {
    "memory": 1.2,
    "SQLite": 0.88,
    "PostgreSQL": 1.0,
    "Redis": 1.0,
    "MariaDB": 0.85,
}
PEER_AIMS = {
    "PostgreSQL": (3.0, ["idemkit, PostgreSQL"]),
    "Redis": (
        2.4,
        ["idemkit, Redis", "asgi-idempotency-header, Redis", "aws-lambda-powertools, Redis"],
    ),
}


SLOWER = 1.2
"""How much slower than in an empty table a step may be in a full one."""


def aims(results: Sequence[Result]) -> Iterator[Aim]:
    for store, wanted in FRESH_AIMS.items():
        yield _of_bare(f"semel, {store}, fresh keys", wanted)
    for store, wanted in REPLAY_AIMS.items():
        yield _of_bare(f"semel, {store}, replays", wanted)
    for store in STORES:
        if store != "memory":
            yield _of_bare(stores.windowed(store), 0.85)
    for store, (wanted, peers) in PEER_AIMS.items():
        for plan in ("fresh keys", "replays"):
            yield _times(f"semel, {store}, {plan}", wanted, [f"{peer}, {plan}" for peer in peers])
    yield _times(raw.through("PostgreSQL"), 1.5, [raw.PGBENCH])
    for case in (result.case for result in results):
        if isinstance(case, scale.Table) and case.records:
            yield _slower(case)


def _of_bare(name: str, wanted: float) -> Aim:
    return Aim(f"{name}: of the bare application", wanted, lambda figures: figures.of_bare(name))


def _times(name: str, wanted: float, others: list[str]) -> Aim:
    best = others[0] if len(others) == 1 else "the fastest peer"
    return Aim(f"{name}: times {best}", wanted, lambda figures: figures.times(name, others))


def _slower(case: scale.Table) -> Aim:
    empty = scale.title(case.comparison, 0)
    return Aim(
        f"{case.name}: p50, times that of an empty table",
        SLOWER,
        lambda figures: figures.slower(case.name, empty),
        at_most=True,
    )


def rows(results: Sequence[Result]) -> list[list[str]]:
    figures = Figures(results)
    return [aim.row(figures) for aim in aims(results)]
