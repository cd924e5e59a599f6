"""Shadow: a request is watched, and run whatever its key says.

For an API that is in use already: ``enforce="shadow"`` shows what keys would do before they do it.
Records are claimed and completed as ever. A request that would be answered without a run, or
refused, runs all the same, and its caller gets the handler's own answer.

So one key may run more than once, and enforcement must not begin with a promise that one of these
runs has broken. The order of the writes sees to that:

1. The first run holds the record, under a fence that tells (`shadow_fence`), and completes it with
   its own answer, marked as made in shadow.
2. Another run never writes to that record. It compares its answer with the one that is on record
   when it has ended. The same status, body and headers: nothing is to be said. Another answer, or
   nothing to compare with yet: the second run is put on record by itself, under an identity that
   follows from the first one's, before its answer is sent. Where the first run has no answer when
   the second begins, the second is on record from its beginning: the first may fail and free its
   key, and the second die before it could say that it had acted.
3. Under enforcement a marked record is replayed, or its failed key run again, only if there is no
   such second record. Else the request is refused: nobody can say which of the answers is true.

What the store does not answer is doubt as well. An unanswered claim may have been taken, so the
run's outcome is written under its fence all the same. A write that fails is pursued in the
background, and the caller gets the handler's answer without waiting for it.
"""

from __future__ import annotations

from typing import Final

from semel.core import operations as ops
from semel.core.exchange import replay
from semel.core.exchange.answers import Answer, Outcome, identity_of_second_run, shadow_fence
from semel.core.exchange.claim import claim as first_half
from semel.core.exchange.claim import claim_of, differs
from semel.core.exchange.exchange import Exchange, Progress
from semel.core.exchange.settle import (
    Flowing,
    Verdict,
    closed_receipt,
    completion,
    concession,
    conclude,
    open_receipt,
    outcome_for,
    problem_for,
)
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import replace
from semel.core.operations.handler import HandlerOutcome, Returned, Streaming
from semel.core.records import Headers, OnLapse, Response, State
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.errors import ConfigurationError, SchemaError, StoreError

_OUT: Final = (StoreError, SchemaError, ConfigurationError)
"""What keeps the store from being asked."""
_OF_ONE_REQUEST: Final = frozenset(
    {
        *(b"x-request-id", b"request-id", b"x-correlation-id", b"x-trace-id", b"x-amzn-trace-id"),
        *(b"traceparent", b"tracestate", b"traceresponse", b"server-timing", b"x-runtime"),
        *(b"x-process-time", b"x-response-time"),
    }
)
"""Headers that name or time one request: two answers that differ in these say the same."""


# ── the first half ────────────────────────────────────────────────────────────────────────────────


def claim(ex: Exchange, before: Flow[None] | None = None) -> Flow[ops.Claimed | Answer]:
    """The right to run the handler, always; what it would have come to is in ``ex.shadow``.

    An answer only where the caller has left.
    """
    run = ex.shadow
    if run.would is None:
        ex.fence = shadow_fence(ex.fence)
        entry = yield from first_half(ex, before)
        if isinstance(entry, ops.Claimed) or entry.outcome is Outcome.INTERRUPTED:
            return entry
        run.would = entry
        if entry.outcome in (Outcome.STORE_ERROR, Outcome.MISCONFIGURED):
            run.unrecorded = entry.error
    begun_beside = run.would.outcome in (Outcome.IN_FLIGHT, Outcome.UNKNOWN)
    try:
        if begun_beside:
            yield from _mark(ex)
        return ops.Claimed(0, 0, (yield from _created_at(ex)))
    except Interrupted:
        if begun_beside:
            yield ops.Pursue(_withdrawal(ex))
        return Answer(None, Outcome.INTERRUPTED)


def _mark(ex: Exchange) -> Flow[None]:
    """Put on record that a run begins beside another one, whose answer is not known."""
    try:
        ex.shadow.marked = yield from _claim_second_run(ex)
    except _OUT as error:
        ex.shadow.unrecorded = error


def _created_at(ex: Exchange) -> Flow[int]:
    """When the key was first used, so that downstream keys are those of the first run."""
    would = ex.shadow.would
    if would is not None and would.outcome in (Outcome.STORE_ERROR, Outcome.MISCONFIGURED):
        return 0
    try:
        reply = yield from ask(ops.Read(ex.identity))
    except _OUT:
        return 0
    return reply.record.created_at if isinstance(reply, ops.Found) else 0


# ── the second half ───────────────────────────────────────────────────────────────────────────────


def settle(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> Flow[Answer | Flowing]:
    """Put on record what the handler came to; the caller gets that as it is."""
    concluded, verdict = conclude(ex, outcome, progress)
    if isinstance(outcome, Streaming):
        receipt = open_receipt(ex, outcome)
        if verdict is Verdict.KEEP and _may_be_held(ex):
            yield from _write(ex, ops.Open(ex.identity, ex.fence, snapshot.encode(receipt)))
        return Flowing(outcome.headers, outcome, receipt, verdict)
    error = None if isinstance(concluded, Streaming) else concluded.error
    if isinstance(outcome, Returned):
        answer = Answer(outcome.response, outcome_for(verdict), error)
        response: Response | None = outcome.response
    else:
        answer = Answer(None, outcome_for(verdict), outcome.error, reraise=True)
        response = None
    if verdict is not Verdict.KEEP:
        by_router = isinstance(outcome, Returned) and outcome.by_router
        given_up = concession(ex, verdict, error, progress, by_router=by_router)
        yield from _put_on_record(ex, given_up, verdict, response)
        return answer
    if response is None:
        response = problem_for(ex, answer.error or RuntimeError(), verdict, progress)
    kept = snapshot.encode(replace(replay.kept(response, ex.policy), shadow=True))
    yield from _put_on_record(ex, completion(ex, kept, progress), verdict, response)
    return answer


def end_stream(
    ex: Exchange, stream: Flowing, drained: ops.Drained, progress: Progress
) -> Flow[None]:
    """The body has flowed, and is kept by nobody: no answer of this run will be repeated."""
    error = drained.error or stream.head.error
    ended = replace(closed_receipt(stream.receipt, drained), shadow=True)
    op: ops.StoreOperation[ops.Written] = completion(ex, snapshot.encode(ended), progress)
    if stream.verdict is not Verdict.KEEP:
        op = concession(ex, stream.verdict, error, progress)
    yield from _put_on_record(ex, op, stream.verdict, None)


def _may_be_held(ex: Exchange) -> bool:
    return ex.shadow.would is None or ex.shadow.may_hold


def _put_on_record(
    ex: Exchange, op: ops.StoreOperation[ops.Written], verdict: Verdict, response: Response | None
) -> Flow[None]:
    """The first run settles its record. Any other is compared with it, unless it did nothing."""
    would = ex.shadow.would
    if would is not None and would.outcome is Outcome.MISCONFIGURED:
        return  # what the request means, or whose record it would be, is not known
    if _may_be_held(ex) and (yield from _write(ex, op)):
        return
    if verdict is not Verdict.RELEASE:
        yield from _compare(ex, op, response)
    elif ex.shadow.marked:
        yield from _write(ex, _withdrawal(ex))


def _write(ex: Exchange, op: ops.StoreOperation[ops.Written]) -> Flow[bool]:
    """Write what the holder of the record came to; False: the record is another's.

    Tried once, then pursued: nobody waits for it.
    """
    run = ex.shadow
    try:
        written: ops.Written = yield op
    except _OUT as error:
        run.unrecorded = error
        yield ops.Pursue(op)
        return True
    if isinstance(written, ops.Applied):
        run.unrecorded = None
        return True
    return False


# ── a run that does not hold the record ───────────────────────────────────────────────────────────


def _compare(
    ex: Exchange, op: ops.StoreOperation[ops.Written], response: Response | None
) -> Flow[None]:
    """Put a second run on record, unless the first one's answer stands for it."""
    run, complete = ex.shadow, _completion_of_second_run(ex, response)
    try:
        # Where there is no record after all, this run is the first: it is put there by itself.
        found: ops.Claimed | ops.Found | ops.Stale = yield replace(claim_of(ex), fresh_until=None)
        if isinstance(found, ops.Claimed):
            yield from ask(op)
        if _stands_apart(ex, found) or (yield from _stands_for(found, response)):
            if run.marked:
                yield from ask(_withdrawal(ex))
        else:
            run.differs = True
            if run.marked or (yield from _claim_second_run(ex)):
                yield from ask(complete)
        run.unrecorded = None
    except _OUT as error:
        run.unrecorded = error
        yield ops.Pursue(complete, claim=_claim_of_second_run(ex))
        if isinstance(op, ops.Complete) and not _may_be_held(ex):
            # No record could be looked for: this run may yet turn out to be the only one.
            yield ops.Pursue(op, claim=claim_of(ex))


def _claim_second_run(ex: Exchange) -> Flow[bool]:
    """False where another second run is on record already."""
    claim = _claim_of_second_run(ex)
    taken: ops.Claimed | ops.Found | ops.Stale = yield claim
    if isinstance(taken, ops.Found) and taken.record.forgettable(taken.now):
        yield from ask(ops.Forget(claim.identity, taken.record.fence))
        taken = yield claim
    return isinstance(taken, ops.Claimed)


def _claim_of_second_run(ex: Exchange) -> ops.Claim:
    identity = identity_of_second_run(ex.identity)
    lease = round(ex.policy.max_run_seconds * 1_000_000)  # nobody renews it
    unknown = OnLapse.UNKNOWN  # begun and never ended, it has an outcome that nobody knows
    claim = replace(claim_of(ex), identity=identity, fresh_until=None)
    return replace(claim, lease=lease, on_lapse=unknown)


def _withdrawal(ex: Exchange) -> ops.Release:
    """It left nothing behind, or said what the first one said: it is forgotten at once."""
    return ops.Release(identity_of_second_run(ex.identity), ex.fence, 0, "said the same")


def _stands_apart(ex: Exchange, found: ops.Claimed | ops.Found | ops.Stale) -> bool:
    """No other record promises anything to this request, whatever its run came to."""
    if not isinstance(found, ops.Found):
        return True
    record = found.record
    return record.forgettable(found.now) or record.past_retention(found.now) or differs(ex, record)


def _completion_of_second_run(ex: Exchange, response: Response | None) -> ops.Complete:
    """It stays as long as the first record can, which may be completed later than it."""
    policy = ex.policy
    if response is None:
        kept = Snapshot(status=500, headers=(), body=None, whole=False, shadow=True)
    else:
        kept = replace(replay.kept(response, policy), shadow=True)
    stays = policy.retention_micros + round(policy.max_run_seconds * 1_000_000)
    identity = identity_of_second_run(ex.identity)
    return ops.Complete(identity, ex.fence, snapshot.encode(kept), stays, policy.tombstone_micros)


def _stands_for(
    found: ops.Claimed | ops.Found | ops.Stale, response: Response | None
) -> Flow[bool]:
    """Whether a record promises no other answer than ``response``."""
    if not isinstance(found, ops.Found) or found.record.state is not State.COMPLETED:
        return False
    record = found.record
    blob = record.snapshot or b""
    if snapshot.is_head(blob):
        reply = yield from ask(ops.Fetch(record.identity, record.fence, blob))
        if isinstance(reply, ops.NoRecord):
            return False  # it is another by now
        blob = reply.snapshot
    first = snapshot.decode(blob).response()
    if first is None:
        return True  # a receipt is never repeated
    if response is None or (first.status, first.body) != (response.status, response.body):
        return False
    return _steady(first.headers) == _steady(replay.kept_headers(response.headers))


def _steady(headers: Headers) -> Headers:
    return tuple([(n.lower(), v) for n, v in headers if n.lower() not in _OF_ONE_REQUEST])
