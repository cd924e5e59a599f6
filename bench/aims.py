"""What the project wants to reach, beside what was reached in this run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.cases import Sample, raw
from bench.rounds import Result

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

    def row(self, figures: Figures) -> list[str]:
        value = self.reached(figures)
        if value is None:
            return [self.title, f"≥ {self.wanted}", "", "not measured"]
        met = "yes" if value >= self.wanted else "no"
        return [self.title, f"≥ {self.wanted}", f"{value:.2f}", met]


FRESH_AIMS = {"SQLite": 0.6, "PostgreSQL": 0.5, "Redis": 0.5}
REPLAY_AIMS = {"SQLite": 0.85, "PostgreSQL": 0.7, "Redis": 0.7}
PEER_AIMS = {
    "PostgreSQL": (3.0, ["idemkit, PostgreSQL"]),
    "Redis": (
        2.0,
        ["idemkit, Redis", "asgi-idempotency-header, Redis", "aws-lambda-powertools, Redis"],
    ),
}


def aims() -> Iterator[Aim]:
    for store, wanted in FRESH_AIMS.items():
        yield _of_bare(f"semel, {store}, fresh keys", wanted)
    for store, wanted in REPLAY_AIMS.items():
        yield _of_bare(f"semel, {store}, replays", wanted)
    for store, (wanted, peers) in PEER_AIMS.items():
        for plan in ("fresh keys", "replays"):
            yield _times(f"semel, {store}, {plan}", wanted, [f"{peer}, {plan}" for peer in peers])
    yield _times(raw.through("PostgreSQL"), 1.5, [raw.PGBENCH])


def _of_bare(name: str, wanted: float) -> Aim:
    return Aim(f"{name}: of the bare application", wanted, lambda figures: figures.of_bare(name))


def _times(name: str, wanted: float, others: list[str]) -> Aim:
    best = others[0] if len(others) == 1 else "the fastest peer"
    return Aim(f"{name}: times {best}", wanted, lambda figures: figures.times(name, others))


def rows(results: Sequence[Result]) -> list[list[str]]:
    figures = Figures(results)
    return [aim.row(figures) for aim in aims()]
