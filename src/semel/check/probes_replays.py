"""Probes about the same request, sent again, and about requests that only look the same."""

from __future__ import annotations

import json
from typing import Any

from semel.check.json_values import NO_JSON, is_array, is_object, json_of
from semel.check.noise import OF_ONE_MOMENT, OF_THE_RESOURCE, moved_paths, text_at
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

LEAST_LEAK = 6
"""Characters of a value that another caller cannot have by chance."""


@probe(
    "replay.equal",
    "The same request gets the same answer",
    "A client that retries must learn what became of its first try: the same status and body.",
)
def equal(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first, before = run.send(key), run.counter.now()
    again = run.send(key)
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    kept = run.kept(first, again)
    run.facts["answers kept"] = {True: "yes", False: "no", None: "cannot be seen"}[kept]
    if kept:
        same = first.body == again.body
        return holds(f"{again.status}, {'byte for byte' if same else 'in another layout'}")
    if kept is None:
        moved = ", ".join(moved_paths(first, again))
        if moved and run.counter.since(before, requests=0) == 0:
            return holds(f"{again.status}, kept but for {moved}, and no effect")
        return not_observable(run.untold(first, again))
    said = ", though it is marked as a replay" if run.marked(again) else ""
    return broken(f"the answer changed{said}; {run.difference(first, again)}")


@probe(
    "effect.once",
    "The same request takes effect once",
    "An answer can be kept while the charge is made again. Only a count shows it.",
)
def once(run: CheckRun) -> ProbeResult:
    before = run.counter.now()
    if before is None:
        return not_observable(run.counter.doubt)
    key = run.new_key()
    first = run.send(key)
    made = run.counter.since(before)
    run.send(key)
    run.send(key)
    since = run.counter.since(before)
    run.facts["effects"] = f"{since} for three sends of one request"
    if not first.succeeded:
        return skipped(f"the request itself got {first.status}")
    if made != run.counter.of_one:
        return not_observable(f"a request counted {made}, the first ones {run.counter.of_one} each")
    if since != made:
        return broken_by_count(f"three sends of one request: {since} effects, one has {made}")
    return holds(f"three sends, effects of one: {made}")


@probe(
    "replay.marker",
    "A replay says that it is one, and a first answer does not",
    "Clients and support staff need to tell an answer from its repetition.",
)
def marker(run: CheckRun) -> ProbeResult:
    first, again = run.twice()
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
    first, again = run.twice()
    kept = run.kept(first, again)
    if kept is False:
        return skipped("nothing was replayed")
    if kept is None and not run.marked(again):
        return not_observable(run.untold(first, again))
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
    first, again = run.twice()
    if not first.values("Set-Cookie"):
        return skipped("the first answer sets no cookie")
    if run.kept(first, again) is False:
        return skipped("nothing was replayed")
    same = set(first.values("Set-Cookie")) & set(again.values("Set-Cookie")) - run.noise.cookies
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
    document = json_of(run.operation.request.body)
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
        return not_observable(run.untold(first, again))
    run.facts["body compared"] = "by its bytes"
    if not run.profile.canonical:
        return skipped(f"compared by its bytes: {again.status}")
    return broken(f"taken for another request: {run.difference(first, again)}")


def _reversed(value: Any) -> Any:
    if is_object(value):
        return {name: _reversed(value[name]) for name in reversed(value)}
    return [_reversed(each) for each in value] if is_array(value) else value


# ── other requests under the same key ─────────────────────────────────────────────────────────────


def _mismatched(run: CheckRun, first: WireAnswer, again: WireAnswer, what: str) -> ProbeResult:
    """What another request under the same key may get: a refusal."""
    same = run.same_answer(first, again)
    if same:
        return broken(f"the same key with another {what} got the first one's answer")
    if same is None:
        return not_observable(run.untold(first, again))
    if again.succeeded:
        return broken(f"the same key with another {what} was executed: {again.status}")
    if again.status >= 500:
        return broken(f"the same key with another {what} made the API fail: {again.status}")
    if run.profile.mismatch and again.status not in run.profile.mismatch:
        expected = either(run.profile.mismatch)
        return broken(f"refused with {again.status}; the profile expects {expected}")
    return holds(f"refused with {again.status}")


@probe(
    "mismatch.body",
    "The same key with another body is refused",
    "A key that is reused by mistake would answer a new order with an old one, or run it unseen.",
)
def body(run: CheckRun) -> ProbeResult:
    other = run.other_body()
    if other is None:
        return not_observable("no other body that is taken is known: give one with --other-data")
    key = run.new_key()
    first, before = run.send(key), run.counter.now()
    again = run.send(key, body=other)
    run.facts["mismatch"] = str(again.status)
    if run.counter.since(before, requests=0):
        return broken_by_count("the same key with another body took effect")
    return _mismatched(run, first, again, "body")


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
    return _mismatched(run, run.send(key), run.send(key, target=other), "query")


def _elsewhere(run: CheckRun, what: str, **changes: Any) -> ProbeResult:
    """A key may count for each path and method by itself; then both run. Where nothing is at the
    other place, a refusal says nothing about the key: another key gets the same one."""
    control = run.send(run.new_key(), **changes)
    key = run.new_key()
    first, again = run.send(key), run.send(key, **changes)
    same = run.same_answer(first, again)
    if same:
        return broken(f"the same key with another {what} got the first one's answer")
    if again.status >= 500 and control.status < 500:
        return broken(f"the same key with another {what} made the API fail: {again.status}")
    if again.status == control.status and not control.succeeded:
        return not_observable(f"another {what} gets {control.status} with any key")
    if same is None:
        return not_observable(run.untold(first, again))
    if again.succeeded:
        return holds(f"another {what} is another request: it has an answer of its own")
    return holds(f"refused with {again.status}")


@probe(
    "mismatch.path",
    "The same key on another path is not answered with the first answer",
    "A key that counts everywhere answers a refund with a payment.",
)
def path(run: CheckRun) -> ProbeResult:
    at, question, rest = run.operation.request.target.partition("?")
    made = f"{at.rstrip('/')}/semel-check{question}{rest}"
    return _elsewhere(run, "path", target=run.operation.other_target or made)


@probe(
    "mismatch.method",
    "The same key with another method is not answered with the first answer",
    "A change of a thing is not its creation.",
)
def method(run: CheckRun) -> ProbeResult:
    other = "PATCH" if run.operation.request.method != "PATCH" else "POST"
    return _elsewhere(run, "method", method=other)


@probe(
    "safe.get",
    "A key on a GET replays nothing",
    "A read must show what is there now, and must never be answered with a stored write.",
)
def get(run: CheckRun) -> ProbeResult:
    key = run.new_key()
    first = run.send(key)
    read = run.send(key, method="GET", body=b"")
    same = run.same_answer(first, read)
    if same and (first.status, first.body) == (read.status, read.body):
        return broken("a GET with the key got the stored answer")
    if run.marked(read):
        return broken("a GET with the key got an answer that is marked as a replay")
    if same is None:
        return not_observable(run.untold(first, read))
    if not read.succeeded:
        return not_observable(f"nothing can be read there: {read.status}")
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
    control = run.send(run.new_key(), credentials=run.other_credentials)
    if not control.succeeded:
        return not_observable(f"the other caller is refused with any key: {control.status}")
    key = run.new_key()
    first = run.send(key)
    other = run.send(key, credentials=run.other_credentials)
    run.facts["scope"] = "caller" if other.succeeded else f"shared ({other.status})"
    if leaked := _leaked(run, first, other):
        run.facts["scope"] = "shared: answers another caller"
        return broken(f"another caller's answer has the first one's {', '.join(leaked)}")
    kept = run.kept(first, other)
    if kept:
        return broken("another caller with the same key got the first one's answer")
    if not other.succeeded:
        return broken(f"another caller with the same key is refused: {other.status}")
    if kept is None:
        return not_observable(run.untold(first, other))
    return holds("each caller has an answer of its own")


def _leaked(run: CheckRun, first: WireAnswer, other: WireAnswer) -> list[str]:
    """Where the first answer has values that are somewhere in the other one too."""
    shown = other.body.decode("utf-8", "replace")
    document = other.document
    if document is not NO_JSON:
        shown += json.dumps(document, ensure_ascii=False)  # without escapes
    shown += "\n".join(text for _, text in other.headers)
    told = {path: text_at(first, path) for path in run.noise.telling}
    found = [p for p, text in told.items() if text and len(text) >= LEAST_LEAK and text in shown]
    headers = run.noise.telling_headers.intersection(OF_THE_RESOURCE)
    return [*sorted(found), *(n for n in headers if first.values(n) == other.values(n))]
