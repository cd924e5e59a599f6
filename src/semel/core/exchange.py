"""One request's way: in (`core/entry.py`), run, keep. Nowhere else are these decisions made.

`exchange` is a flow (see `core/flow.py`). Each ``yield`` is a place where the process may die or
another request may run; what must always hold is argued at those places.
"""

from __future__ import annotations

from typing import assert_never

from semel.core import journal, replay, snapshot
from semel.core.admission import Call
from semel.core.answers import Answer, Outcome, closed
from semel.core.atomic import atomically
from semel.core.conclusions import (
    SAID,
    as_zombie,
    completion,
    concession,
    conclude,
    first,
    not_durable,
    own_answer,
)
from semel.core.contract import (
    Applied,
    Claimed,
    Lost,
    NoRecord,
    Open,
    Recall,
    Renew,
    StoreOperation,
    Suspend,
    Written,
)
from semel.core.course import Course
from semel.core.entry import enter, hand_in, under_which_identity
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import replace
from semel.core.model import Response
from semel.core.problems import refuse
from semel.core.runner import Discard, Drain, Invoke, Pause, Pursue, Returned, Streaming
from semel.core.snapshot import Snapshot
from semel.core.turned_away import TurnedAway
from semel.core.verdict import Verdict
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError


def exchange(call: Call, before: Flow[None] | None = None) -> Flow[Answer]:
    """The whole way of one keyed request; what fails ``before`` fails closed as well."""
    try:
        if before is not None:
            yield from before
        call = yield from under_which_identity(call)
        if call.policy.mode == "atomic":
            return (yield from atomically(call))
        if call.policy.mode == "deferred":
            return (yield from hand_in(call))
        entry = yield from enter(call, call.policy.patience_micros)
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except TurnedAway as error:
        return error.answer
    except (StoreError, SchemaError) as error:  # in an upgrade, another node may well answer
        return closed(call, error)
    except ConfigurationError as error:
        return Answer(refuse("misconfigured"), Outcome.MISCONFIGURED, error)
    if isinstance(entry, Answer):
        return entry
    return (yield from execute(call, entry))


# ── running the handler ───────────────────────────────────────────────────────────────────────────


def execute(call: Call, entry: Claimed) -> Flow[Answer]:
    """The lease is held: run the handler, then settle the record before a byte is sent."""
    try:
        return (yield from _run(call, entry))
    except Interrupted:
        # Only where nothing is to be written any more, or where the lapse of the lease does it.
        return Answer(None, Outcome.INTERRUPTED)


def _run(call: Call, entry: Claimed) -> Flow[Answer]:
    try:
        course = yield from _course(call, entry)
    except StoreError as error:
        yield from _give_up(_unread(call, error))
        return closed(call, error)
    invoked = yield from ask(Invoke(call.identity, call.fence, course, entry.created_at))
    outcome, verdict = conclude(call, invoked, course)
    if isinstance(invoked, Streaming) and not isinstance(outcome, Streaming):
        yield from ask(Discard())
    if isinstance(outcome, Streaming):
        return (yield from _stream(call, outcome, verdict, course))
    answer = own_answer(call, outcome, verdict, course)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        return (yield from _keep(call, response, answer, course))
    by_router = isinstance(outcome, Returned) and outcome.by_router
    op = concession(call, verdict, answer.error, course, by_router=by_router)
    written = yield from _give_up(op)
    if isinstance(written, Lost):
        return (yield from as_zombie(call, written, answer))
    if isinstance(outcome, Returned) and response is not None:
        response = first(call, response, None)
    return replace(answer, response=response)


def _course(call: Call, entry: Claimed) -> Flow[Course]:
    """Where the run begins: an operation that somebody held before goes on from its journal."""
    if not call.resumable or not entry.again:
        return Course()
    reply = yield from ask(Recall(call.identity))
    return Course(None if isinstance(reply, NoRecord) else journal.decode(reply.case.journal))


def _unread(call: Call, error: StoreError) -> Renew | Suspend:
    """Not freed, since it may have acted: it lapses and is resumed, unless nobody can read it."""
    if isinstance(error, StoreCorrupt):
        return Suspend(call.identity, call.fence, "its journal is damaged", None)
    return Renew(call.identity, call.fence, call.policy.retry_micros)


def _keep(call: Call, response: Response, answer: Answer, course: Course) -> Flow[Answer]:
    """A success is sent only after its record is durable."""
    written = yield from _insist(call, completion(call, replay.kept(response, call.policy), course))
    match written:
        case None:
            return not_durable(call, answer)
        case Applied(expires_at=expires_at):
            sent = first(call, response, expires_at)
            return Answer(sent, answer.outcome, answer.error, answer.reraise)
        case Lost():
            return (yield from as_zombie(call, written, answer))
        case _:
            assert_never(written)


def _insist(call: Call, op: StoreOperation[Written]) -> Flow[Written | None]:
    """Ask again until the lease ends; after that the write is pursued without the caller."""
    attempt = 0
    while True:
        try:
            return (yield from ask(op))
        except (StoreError, ConfigurationError):
            attempt += 1
        if not (yield from ask(Pause(call.identity, call.fence, attempt))):
            yield from ask(Pursue(op))
            return None


def _give_up(op: StoreOperation[Written]) -> Flow[Written | None]:
    """Nobody needs to wait for this write; unwritten, the lapse of the lease does the same."""
    try:
        return (yield from ask(op))
    except (StoreError, ConfigurationError):
        yield from ask(Pursue(op))
        return None


# ── streamed answers ──────────────────────────────────────────────────────────────────────────────


def _stream(call: Call, head: Streaming, verdict: Verdict, course: Course) -> Flow[Answer]:
    """A body that is not kept: an open receipt before its first byte, closed at its end."""
    receipt = Snapshot(
        status=head.status,
        headers=replay.kept_headers(head.headers),
        body=None,
        whole=False,
        open=True,
        schema_version=call.policy.schema_version,
    )
    if verdict is Verdict.KEEP:
        op = Open(call.identity, call.fence, snapshot.encode(receipt))
        opened = yield from _insist(call, op)
        if not isinstance(opened, Applied):
            return (yield from _withhold(call, head, opened))
    headers = replay.first_headers(head.headers, call.policy, None, cross_origin=call.cross_origin)
    drained = yield from ask(Drain(headers))
    answer = Answer(None, Outcome.EXECUTED, drained.error or head.error, drained.error is not None)
    if verdict is not Verdict.KEEP:
        yield from _give_up(concession(call, verdict, answer.error, course))
        return replace(answer, outcome=SAID[verdict])
    ended = replace(
        receipt, open=False, whole=drained.whole, size=drained.size, digest=drained.digest
    )
    written = yield from _insist(call, completion(call, ended, course))
    return answer if isinstance(written, Applied) else replace(answer, outcome=Outcome.NOT_DURABLE)


def _withhold(call: Call, head: Streaming, lost: Lost | None) -> Flow[Answer]:
    yield from ask(Discard())
    answer = Answer(None, Outcome.EXECUTED, head.error)
    if lost is None:
        return not_durable(call, answer)
    return (yield from as_zombie(call, lost, answer))
