"""Probes about requests at the same time, clients that leave, and servers that start again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from semel.check.run import (
    LONGEST_PAUSE,
    CheckRun,
    ProbeResult,
    broken,
    holds,
    not_observable,
    probe,
    retry_after,
    skipped,
)
from semel.check.wire import WireAnswer

AT_ONCE = 20


@probe(
    "race.twenty",
    "Of twenty equal requests at once, one is executed",
    "Clients, proxies and queues retry while the first try is still under way.",
)
def twenty(run: CheckRun) -> ProbeResult:
    if not run.operation.request.body:
        return skipped("the request has no body, so that no last byte can be held back")
    before = run.effects()
    request = run.request(run.new_key())
    answers = run.caller.at_once([request] * AT_ONCE)
    final = run.final(request)
    since = run.effects_since(before)
    told = [answer for answer in answers if answer is not None]
    bodies = {(answer.status, answer.body) for answer in told if answer.succeeded}
    if final is not None and final.succeeded:
        bodies.add((final.status, final.body))
    bodies = {each for each in bodies if each[0] != 202} or bodies
    failed = sorted({answer.status for answer in told if answer.status in (500, 502, 504)})
    refused = sorted({answer.status for answer in told if not answer.succeeded})
    if refused:
        run.facts["in flight"] = ", ".join(map(str, refused))
    if since is not None and since > 1:
        return broken(f"{AT_ONCE} at once: {since} effects")
    if len(bodies) > 1:
        return broken(f"{AT_ONCE} at once: {len(bodies)} different answers that succeeded")
    if failed:
        return broken(f"{AT_ONCE} at once: some were answered with {failed[0]}")
    if not bodies:
        return broken(f"{AT_ONCE} at once, and none ever succeeded: {refused or 'no answers'}")
    if since is None and not run.noise.paths:
        return not_observable("all answers of this operation are equal, and no oracle counts")
    if since is None:
        return not_observable("one answer for all, but without --effects nobody counted")
    return holds(f"{len(told)} answers, one effect")


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a duplicate got while the first request was held up at the provider."""

    duplicate: WireAnswer
    first: WireAnswer | None
    again: WireAnswer | None
    waited: float
    effects: int


def in_flight(run: CheckRun, body: bytes | None = None) -> InFlight | ProbeResult:
    """Hold one request up at the recording provider, and send its duplicate meanwhile."""
    provider = run.provider
    if provider is None:
        return not_observable(
            "nothing holds a request up: let the API call --provider in place of its provider"
        )
    key = run.new_key()
    request = run.request(key)
    arrived = provider.count()
    duplicates: list[WireAnswer] = []
    provider.hold()
    try:

        def meanwhile() -> None:
            if provider.wait_for(arrived + 1, run.patience):
                changes = {} if body is None else {"body": body}
                duplicates.append(run.caller.send(run.request(key, **changes)))
            provider.release()

        (first,) = run.caller.at_once([request], meanwhile)
    finally:
        provider.release()
    if not duplicates:
        return not_observable(f"the request did not reach {provider.words}")
    pause = min(LONGEST_PAUSE, retry_after(duplicates[0]) or 0.0)
    time.sleep(pause)
    again = run.final(request)
    return InFlight(duplicates[0], first, again, pause, provider.count() - arrived)


@probe(
    "flight.same",
    "A duplicate of a running request is not executed, and learns that it is running",
    "A retry that overtakes its first try is the commonest way to a double charge.",
)
def same(run: CheckRun) -> ProbeResult:
    seen = in_flight(run)
    if isinstance(seen, ProbeResult):
        return seen
    run.facts["in flight"] = str(seen.duplicate.status)
    if seen.effects > 1:
        return broken(f"executed while the first was running: {seen.effects} effects")
    if seen.duplicate.status >= 500:
        return broken(f"made the API fail: {seen.duplicate.status}")
    expected = run.profile.in_flight
    if expected and seen.duplicate.status not in expected:
        words = " or ".join(map(str, expected))
        return broken(f"got {seen.duplicate.status}; the profile expects {words}")
    return holds(f"got {seen.duplicate.status}; one effect")


@probe(
    "flight.other",
    "Another body under the key of a running request is not executed",
    "Two orders that race under one key must not both go through.",
)
def other(run: CheckRun) -> ProbeResult:
    body = run.other_body
    if body is None:
        return skipped("no other body is known: give one with --other-data")
    seen = in_flight(run, body)
    if isinstance(seen, ProbeResult):
        return seen
    if seen.effects > 1:
        return broken(f"executed while the first was running: {seen.effects} effects")
    if seen.duplicate.succeeded and seen.duplicate.status != 202:
        return broken(f"answered with {seen.duplicate.status}, as if it had been done")
    return holds(f"refused with {seen.duplicate.status}")


@probe(
    "flight.pause",
    "Retry-After is there, and after it the answer is there",
    "Without a pause clients hammer; with one that is not honest they give up too early.",
)
def pause(run: CheckRun) -> ProbeResult:
    seen = in_flight(run)
    if isinstance(seen, ProbeResult):
        return seen
    if seen.duplicate.succeeded and seen.duplicate.status != 202:
        return skipped("the duplicate waited for the answer")
    if seen.again is None or not seen.again.succeeded:
        got = "no answer" if seen.again is None else seen.again.status
        return broken(f"after the first had ended, its retry never got the answer: {got}")
    if retry_after(seen.duplicate) is None:
        if run.profile.retry_after:
            return broken(f"no Retry-After with {seen.duplicate.status}")
        return skipped("the profile asks for no Retry-After")
    return holds(f"Retry-After: {seen.waited:.0f}, then {seen.again.status}")


# ── clients that leave ────────────────────────────────────────────────────────────────────────────


@probe(
    "hangup.after",
    "A client that hangs up after its last byte gets its answer when it retries",
    "It is the very case that keys are for: the answer got lost on its way.",
)
def after(run: CheckRun) -> ProbeResult:
    before = run.effects()
    request = run.request(run.new_key())
    run.caller.hang_up(request)
    run.effects_since(before)  # until the first try, which nobody waits for, has got so far
    return _retried(run, request, before)


@probe(
    "hangup.middle",
    "A body that stops in the middle is not executed, and its key is still good",
    "Half a request is no request; taken for one, it answers the whole one wrongly.",
)
def middle(run: CheckRun) -> ProbeResult:
    body = run.operation.request.body
    if len(body) < 2:
        return skipped("the request has no body to stop in")
    before = run.effects()
    request = run.request(run.new_key())
    run.caller.hang_up(request, keep_back=len(body) // 2)
    return _retried(run, request, before)


def _retried(run: CheckRun, request: object, before: int | None) -> ProbeResult:
    answer = run.final(request)  # type: ignore[arg-type]
    since = run.effects_since(before)
    if answer is None:
        return broken("its retry never got an answer")
    if not answer.succeeded:
        return broken(f"its retry got {answer.status}")
    if since is None:
        return not_observable(
            f"its retry got {answer.status}, but without --effects nobody counted"
        )
    if since != 1:
        return broken(f"its retry got {answer.status}; effects: {since}")
    return holds(f"its retry got {answer.status}; one effect")


@probe(
    "durable.restart",
    "An answer is kept over a restart of the API",
    "Deployments happen while clients retry.",
)
def restart(run: CheckRun) -> ProbeResult:
    if run.restart is None:
        return skipped("say with --restart how the API is restarted")
    before = run.effects()
    key = run.new_key()
    first = run.send(key)
    run.restart()
    again = run.final(run.request(key))
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    if again is None:
        return broken("no answer after the restart")
    since = run.effects_since(before)
    if since is not None and since != 1:
        return broken(f"effects after the restart: {since}")
    kept = run.kept(first, again)
    if kept:
        return holds("the kept answer")
    if kept is None:
        return not_observable("all answers of this operation are equal")
    return broken(f"forgotten: {run.difference(first, again)}")
