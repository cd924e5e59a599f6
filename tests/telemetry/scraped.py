"""A Prometheus in miniature: what an application told over time, and what a query makes of it.

Rules are tried on real metrics here, with the ways of Prometheus that decide whether one fires: a
counter that is not there yet, one that is born above zero, extrapolation, resets, labels that must
match, comparisons that leave nothing over.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry

from tests.telemetry.promql import Aggregation, Binary, Call, Number, Part, Selector, read, seconds

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Samples: TypeAlias = list[tuple[float, float]]

STALE = 300.0
"""Seconds for which a sample stands for its series."""
EVERY = 15.0
"""Seconds between two scrapes."""

_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else math.nan,
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "count": len,
    "avg": lambda values: sum(values) / len(values),
}


class Scraped:
    """What one registry told, scrape by scrape, on a clock of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._series: dict[tuple[str, Labels], Samples] = defaultdict(list)
        self.now = 0.0

    def scrape(self, during: float = 0) -> None:
        """Once, or again and again for so many seconds in which nothing changes."""
        told = [
            ((sample.name, frozenset(sample.labels.items())), sample.value)
            for family in self._registry.collect()
            for sample in family.samples
        ]
        end = self.now + during
        while True:
            for name, value in told:
                self._series[name].append((self.now, value))
            self.now += EVERY
            if self.now > end:
                return

    def fires(self, rule: Mapping[str, Any]) -> bool:
        """Whether it does now: its condition has held for as long as the rule wants."""
        last = self.now - EVERY
        held = seconds(rule.get("for", "0s"))
        moments = [last - at * EVERY for at in range(int(held // EVERY) + 1)]
        query = read(rule["expr"]).part
        return all(self.value(query, at) for at in moments)

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def value(self, part: Part, at: float) -> Vector | float:
        match part:
            case Number(value):
                return value
            case Selector():
                return {labels: found[-1][1] for labels, found in self._samples(part, at, STALE)}
            case Call():
                return self._call(part, at)
            case Aggregation(how, by, inner):
                return _aggregated(how, by, _vector(self.value(inner, at)))
            case Binary(sign, left, right):
                return _combined(sign, self.value(left, at), self.value(right, at))

    def _samples(
        self, selector: Selector, at: float, over: float
    ) -> Iterable[tuple[Labels, Samples]]:
        at -= selector.offset
        for (name, labels), samples in self._series.items():
            if name == selector.metric and _matches(dict(labels), selector.matchers):
                found = [sample for sample in samples if at - over < sample[0] <= at]
                if found:
                    yield labels, found

    def _call(self, call: Call, at: float) -> Vector | float:
        argument = call.argument
        if call.function in ("rate", "increase"):
            assert isinstance(argument, Selector)
            over = argument.seconds or 0
            grown = {
                labels: _increase(found, at - argument.offset, over)
                for labels, found in self._samples(argument, at, over)
                if len(found) > 1
            }
            per = over if call.function == "rate" else 1
            return {labels: value / per for labels, value in grown.items()}
        assert argument is not None
        value = self.value(argument, at)
        if call.function == "vector":
            assert isinstance(value, float)
            return {frozenset(): value}
        if call.function == "histogram_quantile":
            return _quantiles(call.parameter or 0, _vector(value))
        raise NotImplementedError(call.function)


def _vector(value: Vector | float) -> Vector:
    assert not isinstance(value, float)
    return value


def _matches(labels: Mapping[str, str], matchers: tuple[tuple[str, str, str], ...]) -> bool:
    ways: dict[str, Callable[[str, str], bool]] = {
        "=": operator.eq,
        "!=": operator.ne,
        "=~": lambda text, pattern: re.fullmatch(pattern, text) is not None,
        "!~": lambda text, pattern: re.fullmatch(pattern, text) is None,
    }
    return all(ways[how](labels.get(label, ""), said) for label, how, said in matchers)


def _increase(samples: Samples, at: float, over: float) -> float:
    """As Prometheus extrapolates: to the ends of the range, but not below zero."""
    (began, first), (ended, _) = samples[0], samples[-1]
    values = [value for _, value in samples]
    grown = sum(after - before if after >= before else after for before, after in pairwise(values))
    sampled, between = ended - began, (ended - began) / (len(samples) - 1)
    before, behind = began - (at - over), at - ended
    before = before if before < between * 1.1 else between / 2
    behind = behind if behind < between * 1.1 else between / 2
    if grown > 0:
        before = min(before, sampled * first / grown)
    return grown * (sampled + before + behind) / sampled


def _aggregated(how: str, by: tuple[str, ...], vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in vector.items():
        groups[frozenset(pair for pair in labels if pair[0] in by)].append(value)
    return {labels: _AGGREGATIONS[how](values) for labels, values in groups.items()}


def _combined(sign: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if sign in ("or", "and", "unless"):
        return _of_sets(sign, _vector(left), _vector(right))
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[sign](left, right)
    many = _vector(right) if isinstance(left, float) else left
    came: Vector = {}
    for labels in many:
        one = left if isinstance(left, float) else left.get(labels)
        other = right if isinstance(right, float) else right.get(labels)
        if one is None or other is None:
            continue
        if sign in _ARITHMETIC:
            came[labels] = _ARITHMETIC[sign](one, other)
        elif _COMPARISONS[sign](one, other):
            came[labels] = many[labels]
    return came


def _of_sets(sign: str, left: Vector, right: Vector) -> Vector:
    if sign == "or":
        return {**right, **left}
    wanted = sign == "and"
    return {labels: value for labels, value in left.items() if (labels in right) == wanted}


def _quantiles(quantile: float, vector: Vector) -> Vector:
    """Within a bucket as if evenly spread; in the last one, where that begins."""
    groups: dict[Labels, Samples] = defaultdict(list)
    for labels, value in vector.items():
        bound = float(dict(labels)["le"])
        groups[frozenset(pair for pair in labels if pair[0] != "le")].append((bound, value))
    return {labels: _quantile(quantile, sorted(buckets)) for labels, buckets in groups.items()}


def _quantile(quantile: float, buckets: Samples) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    start = below = 0.0
    for bound, count in buckets:
        if count >= quantile * total:
            if bound == math.inf:
                return start
            return start + (bound - start) * (quantile * total - below) / (count - below)
        start, below = bound, count
    return math.nan
