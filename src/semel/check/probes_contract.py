"""Probes that compare what is declared with what is done: both ways."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from semel.check.json_values import is_object
from semel.check.probes_errors import moment
from semel.check.probes_races import in_flight
from semel.check.run import CheckRun, ProbeResult, broken, holds, not_observable, probe, skipped

SLACK: Final = 60
"""Seconds that a lifetime may seem shorter: clocks differ, and the answer was on its way."""


def _declared(run: CheckRun, *names: str) -> Any | ProbeResult:
    """What the contract says there, or why that cannot be compared."""
    value: Any = run.promises
    if value is None:
        return skipped("the API publishes no contract")
    if not value:
        return skipped("the contract says nothing about this operation")
    for name in names:
        value = value.get(name) if is_object(value) else None
    return skipped(f"the contract says nothing of {'.'.join(names)}") if value is None else value


@probe(
    "contract.keys",
    "Keys are enforced where they are declared, and declared where they are enforced",
    "A client retries where it is told that it may. Declared and not enforced is a double charge.",
)
def keys(run: CheckRun) -> ProbeResult:
    if run.promises is None:
        return skipped("the API publishes no contract")
    key = run.new_key()
    enforced = run.kept(run.send(key), run.send(key))
    if enforced and not run.promises:
        return broken("enforced, not declared: the contract leaves this operation out")
    if enforced is False and run.promises:
        return broken("declared, not enforced: a repeated request is not answered from its record")
    if enforced is None:
        return not_observable("all answers of this operation are equal")
    return holds("declared and enforced" if run.promises else "neither declared nor enforced")


@probe(
    "contract.required",
    "A key is required exactly where the contract says so",
    "A client that leaves the key out must know whether it is protected.",
)
def required(run: CheckRun) -> ProbeResult:
    declared = _declared(run, "key", "required")
    if isinstance(declared, ProbeResult):
        return declared
    taken = run.send(None).succeeded
    if taken == bool(declared):
        found = "taken" if taken else "refused"
        return broken(f"declared {'required' if declared else 'optional'}; without a key: {found}")
    return holds("required" if declared else "optional")


@probe(
    "contract.mismatch",
    "A mismatch is refused with the declared status",
    "Clients tell a mistake of their own from a passing conflict by the status.",
)
def mismatch(run: CheckRun) -> ProbeResult:
    declared = _declared(run, "mismatch", "status")
    if isinstance(declared, ProbeResult):
        return declared
    body = run.other_body
    if body is None or not run.send(run.new_key(), body=body).succeeded:
        return not_observable("no other valid body is known: give one with --other-data")
    key = run.new_key()
    run.send(key)
    got = run.send(key, body=body).status
    return holds(str(got)) if got == declared else broken(f"declared {declared}, and got {got}")


@probe(
    "contract.flight",
    "A duplicate of a running request gets the declared status",
    "A client that was told 409 does not know what to do with a 202.",
)
def flight(run: CheckRun) -> ProbeResult:
    declared = _declared(run, "in_flight", "status")
    if isinstance(declared, ProbeResult):
        return declared
    seen = in_flight(run)
    if isinstance(seen, ProbeResult):
        return seen
    got = seen.duplicate.status
    return holds(str(got)) if got == declared else broken(f"declared {declared}, and got {got}")


@probe(
    "contract.replay",
    "A replay carries the declared marker",
    "Clients look for the header that they were told of.",
)
def replay(run: CheckRun) -> ProbeResult:
    declared = _declared(run, "replay")
    if isinstance(declared, ProbeResult):
        return declared
    name, value = str(declared.get("header")), str(declared.get("value"))
    key = run.new_key()
    first, again = run.send(key), run.send(key)
    if again.value(name) != value:
        return broken(f"declared {name}: {value}; the replay has {again.value(name)}")
    if first.value(name) == value and not run.deferred:
        return broken(f"{name}: {value} is on the first answer too")
    return holds(f"{name}: {value}")


@probe(
    "contract.lifetime",
    "An answer is kept at least as long as declared, where it says how long",
    "A client that resumes after a day relies on it.",
)
def lifetime(run: CheckRun) -> ProbeResult:
    declared = _declared(run, "lifetime")
    if isinstance(declared, ProbeResult):
        return declared
    told = run.send(run.new_key()).value("Idempotency-Expires")
    until = None if told is None else moment(told)
    if until is None:
        return not_observable("answers do not say how long they are kept")
    seconds = (until - datetime.now(UTC)).total_seconds()
    if seconds < declared - SLACK:
        return broken(f"declared {declared} s, and the answer is kept for {seconds:.0f} s")
    return holds(f"{seconds:.0f} s")
