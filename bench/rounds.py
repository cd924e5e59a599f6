"""Every round measures each case for a moment, one after the other, all of them being up.

So a noisy machine disturbs them alike. A figure is the median of its ratios to the bare
application's last moment.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

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


BARE_EVERY: Final = 6
"""Slices after which the bare application is measured again: a neighbour may come or go."""


def _round(results: list[Result], stage: Stage) -> None:
    bare, since = None, 0
    first = results[0]
    for result in results:
        if first.problem is None and since >= BARE_EVERY:
            bare, since = _sample(first, stage) or bare, 0
        sample = None if result.problem is not None else _sample(result, stage)
        since += 1
        if sample is None:
            continue
        result.samples.append(sample)
        if result.case.family == "bare":
            bare, since = sample, 0
        if bare is not None and result.case.family != "raw":
            result.ratios.append(sample.rate / bare.rate)
            if sample.cpu and bare.cpu:
                result.costs.append(sample.cpu / bare.cpu)


def _sample(result: Result, stage: Stage) -> Sample | None:
    try:
        sample = result.case.measure(stage)
    except BenchError as error:
        result.problem = error
        verdict = "FAILED" if result.failed else "not run"
        print(f"  {result.case.name}: {verdict}: {error}", file=sys.stderr, flush=True)
        return None
    print(f"  {result.case.name}: {sample.rate:,.0f}/s", file=sys.stderr, flush=True)
    return sample
