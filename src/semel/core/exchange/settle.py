"""The second half of an exchange: what the handler came to is put on record, then it is answered.

The order of writes is the promise. A success is sent only after its record is durable; a streamed
answer, whose body is not kept, has an open receipt on record before its first byte, which is closed
at its end. A flow (see `core/flow.py`): each ``yield`` is a place where the process may die.
"""

from __future__ import annotations

from typing import Final

from semel.core.exchange import replay
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.exchange import Exchange, Progress
from semel.core.exchange.outcome import (
    SAID,
    Verdict,
    Whole,
    as_zombie,
    completion,
    concession,
    conclude,
    first,
    is_usual,
    not_durable,
    own_answer,
    problem_for,
)
from semel.core.flow import Flow, Interrupted
from semel.core.frozen import replace, value
from semel.core.operations.handler import (
    Drained,
    HandlerOutcome,
    Pause,
    Pursue,
    Returned,
    Streaming,
)
from semel.core.operations.requests import Applied, Lost, Open, StoreOperation, Written
from semel.core.records import Headers
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.errors import ConfigurationError, StoreError

_EXECUTED: Final = Outcome.EXECUTED
"""A member of an enumeration takes four times as long to find as a constant."""


@value
class Flowing:
    """A streamed answer may begin: send its head with these headers, let its body flow, then
    `end_stream`."""

    headers: Headers
    head: Streaming
    receipt: Snapshot
    verdict: Verdict


def settle(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> Flow[Answer | Flowing]:
    """Put on record what the handler came to; the result is its first caller's answer.

    Where the outcome has begun to stream and there is an answer all the same, that is sent
    instead: nothing of the stream may be.
    """
    try:
        if ex.policy.mode == "atomic":
            from semel.core.exchange import atomic  # not loaded for those who have no such routes

            return (yield from atomic.settle(ex, outcome, progress))
        if type(outcome) is Returned and is_usual(ex, outcome, progress):
            kept: Whole = outcome
        else:
            concluded, verdict = conclude(ex, outcome, progress)
            if isinstance(concluded, Streaming):
                return (yield from _open_stream(ex, concluded, verdict))
            if verdict is not Verdict.KEEP:
                return (yield from _concede(ex, concluded, verdict, progress))
            kept = concluded
        if isinstance(kept, Returned):
            response, raised = kept.response, False
        else:
            response, raised = problem_for(ex, kept.error, Verdict.KEEP, progress), True
        op = completion(ex, replay.secured(response, ex.policy), progress)
        try:
            written: Written | None = yield op
        except (StoreError, ConfigurationError):
            written = yield from _insist(ex, op, 1)
        if type(written) is Applied:  # a success is sent only after its record is durable
            sent = first(ex, response, written.expires_at)
            return Answer(sent, _EXECUTED, kept.error, raised)
        own = Answer(response, _EXECUTED, kept.error, raised)
        return (yield from _not_kept(ex, own, written))
    except Interrupted:
        # Only where nothing is to be written any more, or where the lapse of the lease does it.
        return Answer(None, Outcome.INTERRUPTED)


def _not_kept(ex: Exchange, own: Answer, written: Written | None) -> Flow[Answer]:
    """The completing write was not acknowledged, or came too late."""
    if isinstance(written, Lost):
        return (yield from as_zombie(ex, written, own))
    return not_durable(ex, own)


def _concede(ex: Exchange, outcome: Whole, verdict: Verdict, progress: Progress) -> Flow[Answer]:
    """An answer that is not kept: the key is released, or what became of it is unknown."""
    answer = own_answer(ex, outcome, verdict, progress)
    response = answer.response
    by_router = isinstance(outcome, Returned) and outcome.by_router
    op = concession(ex, verdict, answer.error, progress, by_router=by_router)
    written = yield from _give_up(op)
    if isinstance(written, Lost):
        return (yield from as_zombie(ex, written, answer))
    if isinstance(outcome, Returned) and response is not None:
        response = first(ex, response, None)
    return replace(answer, response=response)


def _insist(ex: Exchange, op: StoreOperation[Written], attempt: int = 0) -> Flow[Written | None]:
    """Ask again until the lease ends; after that the write is pursued without the caller."""
    while True:
        if attempt and not (yield Pause(ex.identity, ex.fence, attempt)):
            yield Pursue(op)
            return None
        try:
            written: Written = yield op
        except (StoreError, ConfigurationError):
            attempt += 1
        else:
            return written


def _give_up(op: StoreOperation[Written]) -> Flow[Written | None]:
    """Nobody needs to wait for this write; unwritten, the lapse of the lease does the same."""
    try:
        written: Written = yield op
    except (StoreError, ConfigurationError):
        yield Pursue(op)
        return None
    return written


# ── streamed answers ──────────────────────────────────────────────────────────────────────────────


def _open_stream(ex: Exchange, head: Streaming, verdict: Verdict) -> Flow[Answer | Flowing]:
    """A body that is not kept: an open receipt before its first byte."""
    receipt = Snapshot(
        status=head.status,
        headers=replay.kept_headers(head.headers),
        body=None,
        whole=False,
        open=True,
        schema_version=ex.policy.schema_version,
    )
    if verdict is Verdict.KEEP:
        opened = yield from _insist(ex, Open(ex.identity, ex.fence, snapshot.encode(receipt)))
        if not isinstance(opened, Applied):
            answer = Answer(None, Outcome.EXECUTED, head.error)
            if opened is None:
                return not_durable(ex, answer)
            return (yield from as_zombie(ex, opened, answer))
    headers = replay.first_headers(head.headers, ex.policy, None, cross_origin=ex.cross_origin)
    return Flowing(headers, head, receipt, verdict)


def end_stream(ex: Exchange, stream: Flowing, drained: Drained, progress: Progress) -> Flow[Answer]:
    """The body has flowed: its receipt is closed, with what came of it."""
    error = drained.error or stream.head.error
    answer = Answer(None, Outcome.EXECUTED, error, drained.error is not None)
    if stream.verdict is not Verdict.KEEP:
        yield from _give_up(concession(ex, stream.verdict, error, progress))
        return replace(answer, outcome=SAID[stream.verdict])
    ended = replace(
        stream.receipt, open=False, whole=drained.whole, size=drained.size, digest=drained.digest
    )
    written = yield from _insist(ex, completion(ex, snapshot.encode(ended), progress))
    return answer if isinstance(written, Applied) else replace(answer, outcome=Outcome.NOT_DURABLE)
