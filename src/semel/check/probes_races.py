"""Probes about requests at the same time, clients that leave, and servers that start again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from semel.check.oracles import RecordingProvider
from semel.check.run import (
    LONGEST_PAUSE,
    WAITS,
    CheckRun,
    ProbeResult,
    broken,
    broken_by_count,
    either,
    holds,
    not_observable,
    probe,
    retry_after,
    skipped,
)
from semel.check.wire import NoReply, PendingAnswer, WireAnswer, WireRequest

AT_ONCE: Final = 20
MOST_LIMITED: Final = 3
"""Times that a request is sent again because of a limit of the rate."""
WAITING: Final = 2.0
"""Seconds after which a duplicate in flight seems to wait for the first one's answer."""


@probe(
    "race.twenty",
    "Of twenty equal requests at once, one is executed",
    "Clients, proxies and queues retry while the first try is still under way.",
)
def twenty(run: CheckRun) -> ProbeResult:
    before = run.counter.now()
    request = run.request(run.new_key())
    answers = run.caller.at_once([request] * AT_ONCE)
    final = run.final(request)
    since = run.counter.since(before)
    told = [answer for answer in answers if answer is not None]
    done = [answer for answer in (*told, final) if answer is not None and answer.succeeded]
    done = [answer for answer in done if answer.status != 202] or done
    refused = sorted({answer.status for answer in told if not answer.succeeded})
    if refused:
        run.facts["in flight"] = ", ".join(map(str, refused))
    if since is not None and since > run.counter.of_one:
        return broken_by_count(f"{AT_ONCE} at once, and a retry: {_effects(run, since)}")
    if any(run.kept(done[0], each) is False for each in done):
        return broken(f"{AT_ONCE} at once: different answers that succeeded")
    if failed := [status for status in refused if status in (500, 502, 504)]:
        return broken(f"{AT_ONCE} at once: some were answered with {failed[0]}")
    if sum(answer.status == 429 for answer in told) > AT_ONCE // 2:
        return not_observable(f"{AT_ONCE} at once: most were refused by a limit of the rate, 429")
    if not done:
        return broken(f"{AT_ONCE} at once, and none ever succeeded: {refused or 'no answers'}")
    if since is None:
        return not_observable(f"no two different answers, but {run.counter.doubt}")
    if since < run.counter.of_one:
        return broken_by_count(f"{done[0].status}, but {_effects(run, since)}")
    return holds(f"{len(told)} answers, one effect")


def _effects(run: CheckRun, since: int) -> str:
    """A count that is wrong, in words."""
    one = run.counter.of_one
    return f"{since} effects" + ("" if one == 1 else f", where one request has {one}")


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a duplicate got while the first request was held up at the provider."""

    duplicate: WireAnswer
    waited: bool
    """Whether it was answered only after the first one was let go."""
    executed: bool
    """Whether the provider was called for both."""
    after_pause: WireAnswer
    """What the request got when the duplicate's ``Retry-After`` was over."""
    in_the_end: WireAnswer | None


def in_flight(run: CheckRun, body: bytes | None = None) -> InFlight | ProbeResult:
    """Hold one request up at the recording provider, and send its duplicate meanwhile."""
    provider = run.provider
    if provider is None:
        return not_observable(
            "nothing holds a request up: let the API call --provider in place of its provider"
        )
    request = run.request(key := run.new_key())
    copy = request if body is None else run.request(key, body=body)
    arrived = provider.count()
    provider.hold()
    try:
        first = _held_up(run, request, provider)
        if first is None:
            return not_observable(f"the request did not reach {provider.words}")
        pending = _begun(run, copy)
        waited = pending.wait(0) is None
    finally:
        provider.release()
    first.wait()
    duplicate = pending.wait()
    if duplicate is None:
        raise NoReply("the duplicate of a running request")
    time.sleep(min(LONGEST_PAUSE, retry_after(duplicate) or 0.0))
    after_pause = run.ask(request)
    in_the_end = run.final(request)
    executed = provider.count() - arrived > run.calls_of_one
    return InFlight(duplicate, waited, executed, after_pause, in_the_end)


def _held_up(
    run: CheckRun, request: WireRequest, provider: RecordingProvider
) -> PendingAnswer | None:
    """The request, when it is at the provider; None when it does not come there."""
    arrived, deadline = provider.count(), time.monotonic() + run.patience
    pending = run.caller.begin(request)
    while not provider.wait_for(arrived + 1, 0.2):
        answer = pending.wait(0)
        if time.monotonic() > deadline:
            return None
        if answer is not None and answer.status == 429:
            pending = _begun(run, request)
        elif answer is not None and not run.deferred and not provider.wait_for(arrived + 1, 1.0):
            return None
    return pending


def _begun(run: CheckRun, request: WireRequest) -> PendingAnswer:
    """The request under way; or answered, if it was not by a limit of the rate."""
    pending = run.caller.begin(request)
    for _ in range(MOST_LIMITED):
        answer = pending.wait(WAITING)
        if answer is None or answer.status != 429:
            break
        time.sleep(min(LONGEST_PAUSE, retry_after(answer) or 0.5))
        pending = run.caller.begin(request)
    return pending


@probe(
    "flight.same",
    "A duplicate of a running request is not executed, and learns that it is running",
    "A retry that overtakes its first try is the commonest way to a double charge.",
)
def same(run: CheckRun) -> ProbeResult:
    seen = in_flight(run)
    if isinstance(seen, ProbeResult):
        return seen
    status = seen.duplicate.status
    run.facts["in flight"] = f"waits, then {status}" if seen.waited else str(status)
    if seen.executed:
        return broken("executed while the first was running: the provider was called for both")
    if status >= 500:
        return broken(f"made the API fail: {status}")
    if seen.waited and seen.duplicate.succeeded:
        return holds(f"waited, and got {status}; one effect")
    expected = run.profile.in_flight
    if expected and status not in expected:
        return broken(f"got {status}; the profile expects {either(expected)}")
    if seen.duplicate.succeeded and status != 202:
        return broken(f"got {status} while the first was still running, as if it had been done")
    return holds(f"got {status}; one effect")


@probe(
    "flight.other",
    "Another body under the key of a running request is not executed",
    "Two orders that race under one key must not both go through.",
)
def other(run: CheckRun) -> ProbeResult:
    body = None if run.provider is None else run.other_body()
    if run.provider is not None and body is None:
        return skipped("no other body that is taken is known: give one with --other-data")
    seen = in_flight(run, body)
    if isinstance(seen, ProbeResult):
        return seen
    if seen.executed:
        return broken("executed while the first was running: the provider was called for both")
    if seen.duplicate.succeeded and seen.duplicate.status != 202:
        return broken(f"answered with {seen.duplicate.status}, as if it had been done")
    if seen.duplicate.status >= 500:
        return broken(f"made the API fail: {seen.duplicate.status}")
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
        return skipped("the duplicate was not told to come back")
    if seen.in_the_end is None or not seen.in_the_end.succeeded:
        got = "no answer" if seen.in_the_end is None else seen.in_the_end.status
        return broken(f"after the first had ended, its retry never got the answer: {got}")
    said = retry_after(seen.duplicate)
    if said is None:
        if run.profile.retry_after:
            return broken(f"no Retry-After with {seen.duplicate.status}")
        return skipped("the profile asks for no Retry-After")
    later = seen.after_pause
    # What is run later may still be running: only a first request that was answered is over.
    if later.status in WAITS and said <= LONGEST_PAUSE and not (run.deferred or run.accepts):
        return broken(f"Retry-After: {said:.0f}, and after it still {later.status}")
    return holds(f"Retry-After: {said:.0f}, then {seen.in_the_end.status}")


# ── clients that leave ────────────────────────────────────────────────────────────────────────────


@probe(
    "hangup.after",
    "A client that hangs up after its last byte gets its answer when it retries",
    "It is the very case that keys are for: the answer got lost on its way.",
)
def after(run: CheckRun) -> ProbeResult:
    before = run.counter.now()
    request = run.request(run.new_key())
    run.caller.hang_up(request)
    run.counter.since(before)  # until the first try, which nobody waits for, has got so far
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
    before = run.counter.now()
    request = run.request(run.new_key())
    run.caller.hang_up(request, keep_back=len(body) // 2)
    return _retried(run, request, before)


def _retried(run: CheckRun, request: WireRequest, before: int | None) -> ProbeResult:
    answer = run.final(request)
    since = run.counter.since(before)
    if answer is None:
        return broken("its retry never got an answer")
    if not answer.succeeded:
        return broken(f"its retry got {answer.status}")
    if since is None:
        return not_observable(f"its retry got {answer.status}, but {run.counter.doubt}")
    if since != run.counter.of_one:
        return broken_by_count(f"its retry got {answer.status}; {_effects(run, since)}")
    return holds(f"its retry got {answer.status}; one effect")


@probe(
    "durable.restart",
    "An answer is kept over a restart of the API",
    "Deployments happen while clients retry.",
)
def restart(run: CheckRun) -> ProbeResult:
    if run.restart is None:
        return skipped("say with --restart how the API is restarted")
    key = run.new_key()
    first = run.send(key)
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    before = run.counter.now()
    run.restart()
    again = run.final(run.request(key))
    if again is None:
        return broken("no answer after the restart")
    if (run.counter.since(before, requests=0) or 0) > 0:  # a count may begin anew
        return broken_by_count("it took effect again after the restart")
    kept = run.kept(first, again)
    if kept:
        return holds("the kept answer")
    if kept is None:
        return not_observable(run.untold(first, again))
    return broken(f"forgotten: {run.difference(first, again)}")
