"""One table of all cases, in Markdown: it reads the same on a terminal and in a file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.cases import Sample
from bench.rounds import Result

TITLES = (
    "case",
    "per second",
    "of bare",
    "min–max",
    "p50 ms",
    "p99 ms",
    "CPU µs",
    "× bare",
    "store CPU µs",
    "peak MB",
    "generator",
)


def rows(results: Sequence[Result]) -> list[list[str]]:
    return [_row(result) for result in results]


def _row(result: Result) -> list[str]:
    if result.problem is not None:
        word = "FAILED" if result.failed else "not run"
        return [result.case.name, f"{word}: {result.problem}", *[""] * (len(TITLES) - 2)]
    spread = result.ratios or [sample.rate for sample in result.samples]
    figures = "{:.2f}–{:.2f}" if result.ratios else "{:,.0f}–{:,.0f}"
    return [
        result.case.name,
        f"{statistics.median(sample.rate for sample in result.samples):,.0f}",
        f"{statistics.median(result.ratios):.2f}" if result.ratios else "",
        figures.format(min(spread), max(spread)),
        _median(result, lambda sample: sample.p50, "{:.2f}"),
        _median(result, lambda sample: sample.p99, "{:.2f}"),
        _median(result, lambda sample: sample.cpu, "{:.0f}"),
        f"{statistics.median(result.costs):.2f}" if result.costs else "",
        _median(result, lambda sample: sample.store_cpu, "{:.0f}"),
        _median(result, lambda sample: sample.megabytes, "{:.0f}"),
        _median(result, lambda sample: sample.generator_load, "{:.0%}"),
    ]


def _median(result: Result, figure: Callable[[Sample], float | None], form: str) -> str:
    known = [value for value in map(figure, result.samples) if value is not None]
    return form.format(statistics.median(known)) if known else ""


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns of even width; figures to the right."""
    widths = [max(len(line[at]) for line in (titles, *_short(lines))) for at in range(len(titles))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(line, widths) for line in (titles, rule, *lines))


def _short(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """A reason in place of figures does not widen its column."""
    return [[line[0], *("" if ": " in cell else cell for cell in line[1:])] for line in lines]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    laid = [
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(laid)} |"
