"""Probes about the same request, sent again, and about requests that only look the same."""

from __future__ import annotations

import json
from typing import Any

from semel.check.json_values import is_array, is_object
from semel.check.noise import OF_ONE_MOMENT, values_at
from semel.check.run import (
    CheckRun,
    ProbeResult,
    broken,
    holds,
    not_observable,
    probe,
    skipped,
)
from semel.check.wire import WireAnswer

_EQUAL = "all answers of this operation are equal, so a kept one cannot be told from a new one"


@probe(
    "replay.equal",
    "The same request gets the same answer",
    "A client that retries must learn what became of its first try: the same status and body.",
)
def equal(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first, again = run.send(key), run.send(key)
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    kept = run.kept(first, again)
    run.facts["keys enforced"] = {True: "yes", False: "no", None: "cannot be seen"}[kept]
    if kept:
        return holds(f"{again.status}, byte for byte")
    if kept is None:
        return not_observable(_EQUAL)
    said = ", though it is marked as a replay" if run.marked(again) else ""
    return broken(f"the answer changed{said}; {run.difference(first, again)}")


@probe(
    "effect.once",
    "The same request takes effect once",
    "An answer can be kept while the charge is made again. Only a count shows it.",
)
def once(run: CheckRun) -> ProbeResult:
    before = run.effects()
    if before is None:
        return not_observable("no oracle: say with --effects or --provider what counts effects")
    key = run.new_key()
    first = run.send(key)
    made = run.effects_since(before)
    run.send(key)
    run.send(key)
    since = run.effects_since(before)
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    if made == 0:
        return not_observable(f"{_oracle(run)} did not count the first request")
    if since != made:
        return broken(f"three sends of one request: {since} effects, one request has {made}")
    return holds(f"three sends, effects of one: {made}")


def _oracle(run: CheckRun) -> str:
    return "no oracle" if run.oracle is None else run.oracle.words


@probe(
    "replay.marker",
    "A replay says that it is one, and a first answer does not",
    "Clients and support staff need to tell an answer from its repetition.",
)
def marker(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first, again = run.send(key), run.send(key)
    if run.deferred:
        return skipped(
            "requests are run later: an answer that was asked for is always a repeated one"
        )
    if run.marked(first):
        return broken("the first answer is marked as a replay")
    if run.kept(first, again) is False:
        if run.marked(again):
            return broken("marked as a replay, but it is another answer")
        return skipped("nothing was replayed")
    known = {name.lower() for name, _ in first.headers}
    new = [name for name, _ in again.headers if name.lower() not in known | OF_ONE_MOMENT]
    run.facts["replay marker"] = ", ".join([*_markers(run, again), *new]) or "none"
    if run.marked(again):
        return holds(f"by {', '.join(_markers(run, again))}")
    if run.profile.marks:
        return broken(f"no {run.profile.markers[0]} on the replay")
    return skipped("the profile asks for no marker")


def _markers(run: CheckRun, answer: WireAnswer) -> list[str]:
    return [name for name in run.profile.markers if answer.values(name)]


@probe(
    "replay.headers",
    "A replay keeps the headers, repeated ones too",
    "A client that lost the first answer needs its Location and all its links, not just the body.",
)
def headers(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first, again = run.send(key), run.send(key)
    if run.kept(first, again) is False:
        return skipped("nothing was replayed")
    ignored = OF_ONE_MOMENT | {name.lower() for name in run.profile.markers}
    for name in dict.fromkeys(name.lower() for name, _ in first.headers):
        if name not in ignored and first.values(name) != again.values(name):
            if name in run.noise.headers and len(first.values(name)) == len(again.values(name)):
                continue  # of each request anew, such as a request id
            return broken(f"{name}: {first.values(name)}, in the replay {again.values(name)}")
    return holds("all headers that are not of one moment")


@probe(
    "replay.cookies",
    "A replay sets no cookies",
    "A stored session cookie that is sent to whoever repeats a request signs them in.",
)
def cookies(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first, again = run.send(key), run.send(key)
    if not first.values("Set-Cookie"):
        return skipped("the first answer sets no cookie")
    if run.kept(first, again) is False:
        return skipped("nothing was replayed")
    same = set(first.values("Set-Cookie")) & set(again.values("Set-Cookie"))
    return (
        broken("the replay repeats the first answer's cookie") if same else holds("none repeated")
    )


@probe(
    "replay.reordered",
    "The same JSON in another order is the same request",
    "A client that builds its JSON anew for each try, in another order, must not be refused.",
)
def reordered(run: CheckRun) -> ProbeResult:
    if run.profile.canonical is None:
        return skipped("the profile leaves open how bodies are compared")
    document = run.json_body
    if not is_object(document) or len(document) < 2:
        return skipped("the body is no JSON object with two members")
    other = json.dumps(_reversed(document), indent=1).encode()
    key = run.new_key()
    first, again = run.send(key), run.send(key, body=other)
    kept = run.kept(first, again)
    if kept:
        run.facts["body compared"] = "by its meaning"
        return holds("the kept answer")
    if kept is None:
        return not_observable(_EQUAL)
    run.facts["body compared"] = "by its bytes"
    if not run.profile.canonical:
        return skipped(f"compared by its bytes: {again.status}")
    return broken(f"taken for another request: {run.difference(first, again)}")


def _reversed(value: Any) -> Any:
    if is_object(value):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(each) for each in value] if is_array(value) else value


# ── other requests under the same key ─────────────────────────────────────────────────────────────


def _mismatched(
    run: CheckRun, first: WireAnswer, again: WireAnswer, what: str, may_run: bool
) -> ProbeResult:
    """``may_run``: a key may count for each of them by itself, so that both run."""
    kept = run.kept(first, again)
    if kept:
        return broken(f"the same key with another {what} got the first one's answer")
    if kept is None:
        return not_observable(_EQUAL)
    if again.succeeded and not may_run:
        return broken(f"the same key with another {what} was executed: {again.status}")
    if again.status >= 500:
        return broken(f"the same key with another {what} made the API fail: {again.status}")
    if again.succeeded:
        return holds(f"another {what} is another request: it has an answer of its own")
    if not may_run and run.profile.mismatch and again.status not in run.profile.mismatch:
        expected = " or ".join(map(str, run.profile.mismatch))
        return broken(f"refused with {again.status}; the profile expects {expected}")
    return holds(f"refused with {again.status}")


@probe(
    "mismatch.body",
    "The same key with another body is refused",
    "A key that is reused by mistake would answer a new order with an old one, or run it unseen.",
)
def body(run: CheckRun) -> ProbeResult:
    other = run.other_body
    if other is None:
        return skipped("no other body is known: give one with --other-data")
    control = run.send(run.new_key(), body=other)
    if not control.succeeded:
        return not_observable(
            f"the other body is refused with a key of its own ({control.status}): "
            "give a valid one with --other-data"
        )
    key = run.new_key()
    first, before = run.send(key), run.effects()
    again = run.send(key, body=other)
    run.facts["mismatch"] = str(again.status)
    if run.effects_since(before, expected=0):
        return broken("the same key with another body took effect")
    return _mismatched(run, first, again, "body", may_run=False)


@probe(
    "mismatch.query",
    "The same key with another query is not answered with the first answer",
    "What the query says (a currency, a dry run) is part of what is asked.",
)
def query(run: CheckRun) -> ProbeResult:
    target = run.operation.request.target
    other = f"{target}{'&' if '?' in target else '?'}semel-check=1"
    control = run.send(run.new_key(), target=other)
    if not control.succeeded:
        return not_observable(f"another query is refused with a key of its own: {control.status}")
    key = run.new_key()
    return _mismatched(run, run.send(key), run.send(key, target=other), "query", may_run=False)


@probe(
    "mismatch.path",
    "The same key on another path is not answered with the first answer",
    "A key that counts everywhere answers a refund with a payment.",
)
def path(run: CheckRun) -> ProbeResult:
    at, question, rest = run.operation.request.target.partition("?")
    key = run.new_key()
    first = run.send(key)
    again = run.send(key, target=f"{at.rstrip('/')}/semel-check{question}{rest}")
    return _mismatched(run, first, again, "path", may_run=True)


@probe(
    "mismatch.method",
    "The same key with another method is not answered with the first answer",
    "A change of a thing is not its creation.",
)
def method(run: CheckRun) -> ProbeResult:
    other = "PATCH" if run.operation.request.method != "PATCH" else "POST"
    key = run.new_key()
    first, again = run.send(key), run.send(key, method=other)
    return _mismatched(run, first, again, "method", may_run=True)


@probe(
    "safe.get",
    "A key on a GET replays nothing",
    "A read must show what is there now, and must never be answered with a stored write.",
)
def get(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first = run.send(key)
    read = run.send(key, method="GET", body=b"")
    kept = run.kept(first, read)
    if kept:
        return broken("a GET with the key got the stored answer of the POST")
    if kept is None:
        return not_observable(_EQUAL)
    return holds(f"a GET with the key got {read.status}")


# ── other callers ─────────────────────────────────────────────────────────────────────────────────


@probe(
    "tenant.own",
    "The same key of another caller is another key",
    "One customer who guesses, or shares, a key must never see another one's answer.",
)
def tenant(run: CheckRun) -> ProbeResult:
    if not run.other_credentials:
        return skipped("there is one caller only: give another's token with --other")
    key = run.new_key()
    first = run.send(key)
    other = run.send(key, credentials=run.other_credentials)
    run.facts["scope"] = "caller" if other.succeeded else f"shared ({other.status})"
    leaked = [
        path
        for path, value in values_at(first, run.noise.paths).items()
        if value.encode() in other.body
    ]
    if leaked:
        return broken(f"another caller's answer has the first one's {', '.join(leaked)}")
    kept = run.kept(first, other)
    if kept:
        return broken("another caller with the same key got the first one's answer")
    if kept is None:
        return not_observable(_EQUAL)
    if not other.succeeded:
        return broken(f"another caller with the same key is refused: {other.status}")
    return holds("each caller has an answer of its own")
