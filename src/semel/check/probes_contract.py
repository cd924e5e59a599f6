"""Probes that compare what is declared with what is done: both ways."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final, TypeAlias

from semel.check.json_values import is_object
from semel.check.probes_races import in_flight
from semel.check.run import (
    CheckRun,
    ProbeResult,
    broken,
    broken_by_count,
    holds,
    moment,
    not_observable,
    probe,
    skipped,
)

Comparison: TypeAlias = Callable[[CheckRun, Any], ProbeResult]

SLACK: Final = 60
"""Seconds that a lifetime may seem shorter: clocks differ, and the answer was on its way."""


NOT_ENFORCED: Final = "declared, not enforced: "
NOT_DECLARED: Final = "enforced, not declared: "
"""How a gap between contract and API begins: reports begin with these."""


def declared(*names: str) -> Callable[[Comparison], Callable[[CheckRun], ProbeResult]]:
    """A probe that compares what the contract says there; without that it is skipped."""

    def given(compare: Comparison) -> Callable[[CheckRun], ProbeResult]:
        @wraps(compare)
        def probed(run: CheckRun) -> ProbeResult:
            value: Any = run.promises
            if value is None:
                return skipped("the API publishes no contract")
            if not value:
                return skipped("the contract says nothing about this operation")
            for name in names:
                value = value.get(name) if is_object(value) else None
            if value is None:
                return skipped(f"the contract says nothing of {'.'.join(names)}")
            return compare(run, value)

        return probed

    return given


def _compared(said: Any, got: int) -> ProbeResult:
    if got == said:
        return holds(f"{got}, as declared")
    return broken(f"{NOT_ENFORCED}declared {said}, and got {got}")


@probe(
    "contract.keys",
    "Keys are enforced where they are declared, and declared where they are enforced",
    "A client retries where it is told that it may. Declared and not enforced is a double charge.",
)
def keys(run: CheckRun) -> ProbeResult:
    if run.promises is None:
        return skipped("the API publishes no contract")
    key = run.new_key()
    first, before = run.send(key), run.counter.now()
    again = run.send(key)
    kept, effects = run.kept(first, again), run.counter.since(before, requests=0)
    if run.promises and effects:
        return broken_by_count(f"{NOT_ENFORCED}a repeated request took effect again")
    if run.promises and kept is False:
        return broken(f"{NOT_ENFORCED}a repeated request is not answered from its record")
    if not run.promises and kept and not effects:
        return broken(f"{NOT_DECLARED}the contract leaves this operation out")
    if not run.promises and kept is False:
        return holds("neither declared nor enforced")
    if kept is None:
        return not_observable(run.untold(first, again))
    if effects is None:
        return not_observable(f"declared, and its answer is kept, but {run.counter.doubt}")
    return holds("declared and enforced: the kept answer, and no effect")


@probe(
    "contract.required",
    "A key is required exactly where the contract says so",
    "A client that leaves the key out must know whether it is protected.",
)
@declared("key", "required")
def required(run: CheckRun, said: Any) -> ProbeResult:
    answer = run.send(None)
    if said and answer.succeeded:
        return broken(f"{NOT_ENFORCED}a key is required, and without one it got {answer.status}")
    if not said and not answer.succeeded:
        return broken(f"{NOT_DECLARED}a key is optional, and without one it got {answer.status}")
    return holds("required" if said else "optional")


@probe(
    "contract.mismatch",
    "A mismatch is refused with the declared status",
    "Clients tell a mistake of their own from a passing conflict by the status.",
)
@declared("mismatch", "status")
def mismatch(run: CheckRun, said: Any) -> ProbeResult:
    body = run.other_body()
    if body is None:
        return not_observable("no other body that is taken is known: give one with --other-data")
    key = run.new_key()
    run.send(key)
    return _compared(said, run.send(key, body=body).status)


@probe(
    "contract.flight",
    "A duplicate of a running request gets the declared status",
    "A client that was told 409 does not know what to do with a 202.",
)
@declared("in_flight", "status")
def flight(run: CheckRun, said: Any) -> ProbeResult:
    seen = in_flight(run)
    if isinstance(seen, ProbeResult):
        return seen
    if seen.waited and seen.duplicate.succeeded:
        rule = (run.promises or {}).get("in_flight")
        if is_object(rule) and rule.get("waits"):
            return holds("waited for the answer, as declared")
    return _compared(said, seen.duplicate.status)


@probe(
    "contract.replay",
    "A replay carries the declared marker",
    "Clients look for the header that they were told of.",
)
@declared("replay")
def replay(run: CheckRun, said: Any) -> ProbeResult:
    name = said.get("header") if is_object(said) else None
    value = said.get("value") if is_object(said) else None
    if not isinstance(name, str) or not isinstance(value, str):
        return broken(f"{NOT_ENFORCED}the contract's replay names no header and value")
    first, again = run.twice()
    if again.value(name) != value:
        got = again.value(name) or "nothing"
        return broken(f"{NOT_ENFORCED}declared {name}: {value}; the replay has {got}")
    if first.value(name) == value and not run.deferred:
        return broken(f"{NOT_ENFORCED}{name}: {value} is on the first answer too")
    return holds(f"{name}: {value}")


@probe(
    "contract.lifetime",
    "An answer is kept at least as long as declared, where it says how long",
    "A client that resumes after a day relies on it.",
)
@declared("lifetime")
def lifetime(run: CheckRun, said: Any) -> ProbeResult:
    if not isinstance(said, int | float):
        return broken(f"{NOT_ENFORCED}the contract's lifetime is no number")
    told = run.send(run.new_key()).value("Idempotency-Expires")
    until = None if told is None else moment(told)
    if until is None:
        return not_observable("answers do not say how long they are kept")
    seconds = (until - datetime.now(UTC)).total_seconds()
    if seconds < said - SLACK:
        return broken(f"{NOT_ENFORCED}declared {said} s, and the answer is kept {seconds:.0f} s")
    return holds(f"{seconds:.0f} s")
