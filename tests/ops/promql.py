"""A reader of the PromQL that rules and dashboards use: refuses what Prometheus would.

promtool would be the judge, and is not to be had as a wheel. This knows the part of the language
that is used here, and is stricter than Prometheus in nothing that matters: selectors with matchers
and ranges, functions that want a range or none, aggregations, binary operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
    | (?P<sign>=~|!~|==|!=|>=|<=|[-+*/%(){},=<>])
    )""",
    re.VERBOSE,
)


class NotPromql(ValueError):
    """What Prometheus would not take."""


@dataclass(frozen=True)
class Selector:
    """A metric, by labels."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()
    ranged: bool = False


@dataclass
class Query:
    """What a query asks for."""

    selectors: list[Selector] = field(default_factory=list)
    grouped_by: list[tuple[str, ...]] = field(default_factory=list)


def read(text: str) -> Query:
    """What a query asks for; raises NotPromql."""
    reader = _Reader(text)
    ranged = reader.binary(0)
    reader.expect("end", "")
    if ranged:
        raise NotPromql("a range alone is no number")
    return reader.query


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

    def binary(self, level: int) -> bool:
        """Whether it is a range; the loosest operators first."""
        if level == len(OPERATORS):
            return self._operand()
        ranged = self.binary(level + 1)
        while self._tokens[0][1] in OPERATORS[level]:
            operator = self._tokens.pop(0)[1]
            if ranged | self.binary(level + 1):
                raise NotPromql(f"{operator} takes no range")
        return ranged

    def _operand(self) -> bool:
        if self._next("("):
            ranged = self.binary(0)
            self.expect("sign", ")")
            return ranged
        if self._tokens[0][0] == "number":
            self._tokens.pop(0)
            return False
        name = self.expect("name")
        if name in AGGREGATIONS:
            return self._aggregation()
        return self._call(name) if self._next("(") else self._selector(name)

    def _aggregation(self) -> bool:
        if self._next("by", "without"):
            self.expect("sign", "(")
            self.query.grouped_by.append(tuple(self._names()))
        self.expect("sign", "(")
        if self.binary(0):
            raise NotPromql("an aggregation takes no range")
        self.expect("sign", ")")
        return False

    def _names(self) -> Iterator[str]:
        while not self._next(")"):
            yield self.expect("name")
            self._next(",")

    def _call(self, name: str) -> bool:
        if name == "histogram_quantile":
            self.expect("number")
            self.expect("sign", ",")
        elif name not in RANGED | PLAIN:
            raise NotPromql(f"no function {name}")
        if not self._next(")"):
            if self.binary(0) != (name in RANGED):
                raise NotPromql(f"{name} takes {'a range' if name in RANGED else 'no range'}")
            self.expect("sign", ")")
        return False

    def _selector(self, metric: str) -> bool:
        matchers = tuple(self._matchers()) if self._next("{") else ()
        ranged = self._tokens[0][0] == "range"
        if ranged:
            self._tokens.pop(0)
        self.query.selectors.append(Selector(metric, matchers, ranged))
        return ranged

    def _matchers(self) -> Iterator[tuple[str, str, str]]:
        while not self._next("}"):
            label, how = self.expect("name"), self._tokens.pop(0)[1]
            if how not in ("=", "!=", "=~", "!~"):
                raise NotPromql(f"labels are not compared by {how!r}")
            yield label, how, self.expect("text")[1:-1]
            self._next(",")
