"""Probes about answers that are no success, and about how long answers are kept."""

from __future__ import annotations

from datetime import UTC, datetime

from semel.check.noise import LAYOUT, moved_paths
from semel.check.run import (
    CheckRun,
    ProbeResult,
    broken,
    holds,
    moment,
    not_observable,
    probe,
    skipped,
)


@probe(
    "error.client",
    "A refusal of the handler's (4xx) is kept, or not, as the contract says",
    "A declined card that is tried again with the same key must stay declined.",
)
def client_error(run: CheckRun) -> ProbeResult:
    body = run.operation.refused_body
    if body is None:
        return skipped("no refused request is known: give one with --refused-data")
    key = run.new_key()
    first, again = run.send(key, body=body), run.send(key, body=body)
    if not 400 <= first.status < 500:
        return skipped(f"the refused request got {first.status}")
    if run.tells_first and not run.tells(first):
        return skipped("refused before its key was looked at: no marker, not even a false one")
    if first.status != again.status:
        return broken(f"status {first.status}, then {again.status}")
    marked, expected = run.marked(again), run.profile.keeps_client_errors
    run.facts["4xx"] = "kept" if marked else "not marked as kept"
    if expected is None:
        return skipped("the profile leaves it open")
    if expected and set(moved_paths(first, again)) - run.noise.paths - {LAYOUT}:
        return broken(f"not kept; {run.difference(first, again)}")
    if not run.profile.marks:
        return not_observable("replays of this API carry no marker")
    if marked == expected:
        return holds("kept" if marked else "not kept")
    return broken("kept, though it should not be" if marked else "not kept: run again")


@probe(
    "error.server",
    "A failure (5xx) is kept, or tried again, as the contract says",
    "Kept, a passing failure is final for its key; not kept, the retry must really run.",
)
def server_error(run: CheckRun) -> ProbeResult:
    if not run.operation.failing:
        return skipped("the API offers no way to fail: give one with --failing-header")
    key = run.new_key()
    first = run.ask(run.request(key).plus(*run.operation.failing))
    if first.status < 500:
        return skipped(f"the failing request got {first.status}")
    again = run.send(key)
    run.facts["5xx"] = "kept" if again.status == first.status else "tried again"
    if run.profile.keeps_server_errors is None:
        return skipped(f"the profile leaves it open: then {again.status}")
    if run.profile.keeps_server_errors:
        kept = again.status == first.status and again.body == first.body
        return holds("kept") if kept else broken(f"{first.status}, then {again.status}")
    if again.succeeded:
        return holds(f"{first.status}, then tried again: {again.status}")
    return broken(f"{first.status}, and its retry {again.status}: the failure is kept")


@probe(
    "expiry.told",
    "Where an answer says how long it is kept, it says so plausibly, and a replay says the same",
    "A client may retry for as long as it was told, and no longer.",
)
def expiry(run: CheckRun) -> ProbeResult:
    first, again = run.twice()
    told = first.value("Idempotency-Expires")
    run.facts["lifetime"] = told or "not told"
    if told is None:
        return skipped("no Idempotency-Expires")
    until = moment(told)
    if until is None:
        return broken(f"Idempotency-Expires is no date: {told}")
    if until <= datetime.now(UTC):
        return broken(f"Idempotency-Expires is past: {told}")
    if run.kept(first, again) is not False and again.value("Idempotency-Expires") != told:
        return broken(f"told {told}, in the replay {again.value('Idempotency-Expires')}")
    return holds(told)
