"""Probes about the key itself: which texts are taken for a key, and which of them are the same."""

from __future__ import annotations

from semel.check.run import (
    CheckRun,
    ProbeResult,
    broken,
    broken_by_count,
    either,
    holds,
    not_observable,
    probe,
    skipped,
)
from semel.check.wire import WireAnswer

LONG = 256
NOT_ABOUT_KEYS = frozenset({401, 403, 404, 405, 407})
"""Refusals that a request gets whatever its key."""


def _refused(answer: WireAnswer, what: str, expected: tuple[int, ...]) -> ProbeResult:
    if answer.succeeded:
        return broken(f"{what} was taken: {answer.status}")
    if answer.status >= 500:
        return broken(f"{what} made the API fail: {answer.status}")
    if answer.status in NOT_ABOUT_KEYS:
        return not_observable(f"{what} got {answer.status}, which is not about the key")
    if expected and answer.status not in expected:
        return broken(f"{what} got {answer.status}; the profile expects {either(expected)}")
    return holds(f"{what} is refused with {answer.status}")


@probe(
    "key.missing",
    "A request without a key is refused where keys are required",
    "Where a client forgets the key, nothing protects its retries; it should learn of it at once.",
)
def missing(run: CheckRun) -> ProbeResult:
    before = run.counter.now()
    answer = run.send(None)
    run.facts["key required"] = "no" if answer.succeeded else f"yes ({answer.status})"
    if run.profile.required is None:
        return skipped("the profile leaves open whether a key is required: say --required")
    if not run.profile.required:
        taken = answer.succeeded
        return holds("taken, as keys are optional") if taken else broken(f"got {answer.status}")
    if run.counter.since(before, requests=0):
        return broken_by_count("a request without a key took effect")
    return _refused(answer, "a request without a key", run.profile.missing)


@probe(
    "key.empty",
    "An empty key is refused",
    "Clients whose key got lost all send the same empty one, and get each other's answers.",
)
def empty(run: CheckRun) -> ProbeResult:
    return _refused(run.send(""), "an empty key", run.profile.malformed)


@probe(
    "key.malformed",
    "A key that cannot be read is refused",
    "A key that is cut or misread is another key: the retry is executed again.",
)
def malformed(run: CheckRun) -> ProbeResult:
    if run.profile.quoted is not True:
        return skipped("the profile takes any text for a key")
    return _refused(run.send(f'"{run.new_key()}'), "an unbalanced quote", run.profile.malformed)


@probe(
    "key.long",
    "A key of 256 characters is refused, or counts to its last character",
    "A key that is cut off to fit a column is shared by all that begin alike.",
)
def long(run: CheckRun) -> ProbeResult:
    stem = (run.new_key() * 8)[: LONG - 1]
    first = run.send(stem + "a")
    if not first.succeeded:
        return _refused(first, f"a key of {LONG} characters", run.profile.malformed)
    other = run.send(stem + "b")
    same = run.same_answer(first, other)
    if same:
        return broken("two long keys that differ in their last character are one key")
    if not other.succeeded:
        return broken(f"one long key is taken, another gets {other.status}")
    if same is None:
        return not_observable(run.untold(first, other))
    if run.profile.longest is not None and run.profile.longest < LONG:
        return broken(f"taken, though keys may have {run.profile.longest} characters")
    return holds("taken, and not merged with one that begins alike")


@probe(
    "key.repeated",
    "Two key headers in one request are refused",
    "A proxy that adds a second key makes it a matter of luck which one counts.",
)
def repeated(run: CheckRun) -> ProbeResult:
    request = run.request(run.new_key()).plus((run.profile.header, run.new_key()))
    return _refused(run.ask(request), "a repeated key", run.profile.malformed)


@probe(
    "key.case",
    "Keys that differ in case are different keys",
    "A column that compares without case gives one client the answer of another.",
)
def case(run: CheckRun) -> ProbeResult:
    key = "check-case-" + run.new_key().replace("-", "")
    first, other = run.send(key), run.send(key.upper())
    if not (first.succeeded and other.succeeded):
        return skipped(f"such keys are not taken: {first.status}, {other.status}")
    same = run.same_answer(first, other)
    if same:
        return broken("the same key in capitals got the first one's answer")
    if same is None:
        return not_observable(run.untold(first, other))
    return holds("each has its own answer")


@probe(
    "key.quoted",
    'The quoted form "k" and the bare form k are one key',
    "Clients of two makes, or two versions of one, quote differently: their retries must meet.",
)
def quoted(run: CheckRun) -> ProbeResult:
    if not run.profile.quoted:
        return skipped("the profile does not say that both forms are one")
    key = run.new_key()
    first, again = run.send(key), run.send(f'"{key}"')
    if not first.succeeded:
        return skipped(f"the bare form is not taken: {first.status}")
    kept = run.kept(first, again)
    if kept:
        run.facts["quoted = bare"] = "yes"
        return holds("the quoted form got the bare one's answer")
    if kept is None:
        return not_observable(run.untold(first, again))
    run.facts["quoted = bare"] = "no"
    return broken(f"the quoted form got another answer: {run.difference(first, again)}")
