"""A reader of the PromQL that rules and dashboards use: refuses what Prometheus would.

promtool would be the judge, and is not to be had as a wheel. This knows the part of the language
that is used here, and is stricter than Prometheus in nothing that matters: selectors with matchers,
ranges and offsets, functions that want a range or none, aggregations, binary operators.
`tests.telemetry.scraped` evaluates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

RANGED = frozenset({"rate", "increase", "irate", "delta", "max_over_time", "min_over_time"})
PLAIN = frozenset({"abs", "ceil", "clamp_min", "floor", "scalar", "time", "vector"})
AGGREGATIONS = frozenset({"avg", "count", "max", "min", "sum"})
SETS = frozenset({"and", "or", "unless"})
OPERATORS = (SETS, frozenset({"==", "!=", ">", "<", ">=", "<="}), frozenset("+-"), frozenset("*/%"))

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?) (?![\w])
    | (?P<name>[A-Za-z_:][\w:]*)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])
    | (?P<duration>\d+[smhd]) (?![\w])
    | (?P<sign>=~|!~|==|!=|>=|<=|[-+*/%(){},=<>])
    )""",
    re.VERBOSE,
)


class NotPromql(ValueError):
    """What Prometheus would not take."""


@dataclass(frozen=True)
class Selector:
    """A metric, by labels. Seconds; of Grafana's own variable a range is nobody's to know."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()
    seconds: float | None = None
    offset: float = 0

    @property
    def ranged(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Call:
    function: str
    parameter: float | None
    argument: Part | None


@dataclass(frozen=True)
class Aggregation:
    """Over all, unless by labels."""

    how: str
    by: tuple[str, ...]
    part: Part


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Part
    right: Part


Part: TypeAlias = Selector | Number | Call | Aggregation | Binary


@dataclass
class Query:
    """What a query asks for."""

    part: Part = Number(0)
    selectors: list[Selector] = field(default_factory=list)
    grouped_by: list[tuple[str, ...]] = field(default_factory=list)


def read(text: str) -> Query:
    """What a query asks for; raises NotPromql."""
    reader = _Reader(text)
    reader.query.part = reader.binary(0)
    reader.expect("end", "")
    if _is_range(reader.query.part):
        raise NotPromql("a range alone is no number")
    return reader.query


def _is_range(part: Part) -> bool:
    return isinstance(part, Selector) and part.ranged


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise NotPromql(f"cannot read: {text[at : at + 20]!r}")
        at = found.end()
        kind = str(found.lastgroup)
        yield kind, found[kind]
    yield "end", ""


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds(duration: str) -> float:
    """Of 90s, 5m and the like."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self.query = Query()

    def expect(self, kind: str, text: str | None = None) -> str:
        found_kind, found = self._tokens[0]
        if found_kind != kind or text not in (None, found):
            raise NotPromql(f"expected {text or kind}, found {found or found_kind!r}")
        self._tokens.pop(0)
        return found

    def _next(self, *texts: str) -> bool:
        if self._tokens[0][1] in texts and self._tokens[0][0] in ("sign", "name"):
            self._tokens.pop(0)
            return True
        return False

    def binary(self, level: int) -> Part:
        """The loosest operators first."""
        if level == len(OPERATORS):
            return self._operand()
        left = self.binary(level + 1)
        while self._tokens[0][1] in OPERATORS[level]:
            operator = self._tokens.pop(0)[1]
            right = self.binary(level + 1)
            if _is_range(left) or _is_range(right):
                raise NotPromql(f"{operator} takes no range")
            left = Binary(operator, left, right)
        return left

    def _operand(self) -> Part:
        if self._next("("):
            part = self.binary(0)
            self.expect("sign", ")")
            return part
        if self._tokens[0][0] == "number":
            return Number(float(self._tokens.pop(0)[1]))
        name = self.expect("name")
        if name in AGGREGATIONS:
            return self._aggregation(name)
        return self._call(name) if self._next("(") else self._selector(name)

    def _aggregation(self, how: str) -> Part:
        labels: tuple[str, ...] = ()
        if self._next("by", "without"):
            self.expect("sign", "(")
            labels = tuple(self._names())
            self.query.grouped_by.append(labels)
        self.expect("sign", "(")
        part = self.binary(0)
        if _is_range(part):
            raise NotPromql("an aggregation takes no range")
        self.expect("sign", ")")
        return Aggregation(how, labels, part)

    def _names(self) -> Iterator[str]:
        while not self._next(")"):
            yield self.expect("name")
            self._next(",")

    def _call(self, name: str) -> Part:
        parameter = None
        if name == "histogram_quantile":
            parameter = float(self.expect("number"))
            self.expect("sign", ",")
        elif name not in RANGED | PLAIN:
            raise NotPromql(f"no function {name}")
        if self._next(")"):
            return Call(name, parameter, None)
        part = self.binary(0)
        if _is_range(part) != (name in RANGED):
            raise NotPromql(f"{name} takes {'a range' if name in RANGED else 'no range'}")
        self.expect("sign", ")")
        return Call(name, parameter, part)

    def _selector(self, metric: str) -> Part:
        matchers = tuple(self._matchers()) if self._next("{") else ()
        over: float | None = None
        if self._tokens[0][0] == "range":
            said = self._tokens.pop(0)[1][1:-1]
            over = 0 if said.startswith("$") else seconds(said)
        offset = seconds(self.expect("duration")) if self._next("offset") else 0
        selector = Selector(metric, matchers, over, offset)
        self.query.selectors.append(selector)
        return selector

    def _matchers(self) -> Iterator[tuple[str, str, str]]:
        while not self._next("}"):
            label, how = self.expect("name"), self._tokens.pop(0)[1]
            if how not in ("=", "!=", "=~", "!~"):
                raise NotPromql(f"labels are not compared by {how!r}")
            yield label, how, self.expect("text")[1:-1]
            self._next(",")
