"""Every round measures each case once, so that a noisy machine disturbs them alike."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.cases import Case, Sample
from bench.load import BenchError, NotThere
from bench.stage import Stage


@dataclass
class Result:
    """What the rounds said of one case."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Throughput, to the bare application's in the same round."""
    costs: list[float] = field(default_factory=list)
    """CPU per request, to the bare application's in the same round."""
    problem: BenchError | None = None
    """Why it is not in the table with figures; a case that failed once is not tried again."""

    @property
    def failed(self) -> bool:
        """Whether it was tried and went wrong."""
        return self.problem is not None and not isinstance(self.problem, NotThere)


def measure(cases: Sequence[Case], stage: Stage, rounds: int) -> list[Result]:
    results = [Result(case) for case in cases]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        _round(results, stage)
    return results


def _round(results: list[Result], stage: Stage) -> None:
    bare: Sample | None = None
    for result, sample in _samples(results, stage):
        result.samples.append(sample)
        if result.case.family == "bare":
            bare = sample
        if bare is not None and result.case.family != "raw":
            result.ratios.append(sample.rate / bare.rate)
            if sample.cpu and bare.cpu:
                result.costs.append(sample.cpu / bare.cpu)


def _samples(results: list[Result], stage: Stage) -> Iterator[tuple[Result, Sample]]:
    for result in results:
        if result.problem is not None:
            continue
        try:
            sample = result.case.measure(stage)
        except BenchError as error:
            result.problem = error
            verdict = "FAILED" if result.failed else "not run"
            print(f"  {result.case.name}: {verdict}: {error}", file=sys.stderr, flush=True)
            continue
        print(f"  {result.case.name}: {sample.rate:,.0f}/s", file=sys.stderr, flush=True)
        yield result, sample
