"""The second half of an exchange: what the handler came to is put on record, then it is answered.

`conclude` decides by the route's policy what becomes of the record: keep the answer, release the
key, or leave it unknown. It and what follows from it are shared with `atomic`, the exchange in a
transaction of the application.

The order of writes is the promise. A success is sent only after its record is durable; a streamed
answer, whose body is not kept, has an open receipt on record before its first byte, which is closed
at its end. A flow (see `core/flow.py`): each ``yield`` is a place where the process may die.

A write that fails is retried in two stages. The first is `_insist` here: the caller waits, until
the lease ends. The second is `runtime/write_retries.py`: the caller has gone with an error.
Unknown records are settled by evidence elsewhere, in `core/unknown/settle_unknown.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from semel.core import operations as ops
from semel.core.exchange import replay
from semel.core.exchange.answers import Answer, Outcome, doubt, from_record, unknown
from semel.core.exchange.claim import release
from semel.core.exchange.exchange import Exchange, Progress
from semel.core.flow import Flow, Interrupted
from semel.core.frozen import replace, value
from semel.core.operations.handler import Abandoned, HandlerOutcome, Raised, Returned, Streaming
from semel.core.policy import Policy
from semel.core.records import Headers, Micros, Response, State
from semel.core.recovery.was_sent import says_not_executed, unanswered
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.errors import ConfigurationError, NotExecuted, OutcomeUnknown, StoreError

_EXECUTED: Final = Outcome.EXECUTED
"""A member of an enumeration takes four times as long to find as a constant."""
DID_NOT_EXECUTE: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Answers that say the request was turned away before it did anything."""


class Verdict(Enum):
    """What becomes of the record."""

    KEEP = "keep"
    RELEASE = "release"
    SUSPEND = "suspend"


_FATE: Final = {"keep": Verdict.KEEP, "release": Verdict.RELEASE, "unknown": Verdict.SUSPEND}
_SAID: Final = {
    Verdict.KEEP: Outcome.EXECUTED,
    Verdict.RELEASE: Outcome.RELEASED,
    Verdict.SUSPEND: Outcome.SUSPENDED,
}


def outcome_for(verdict: Verdict) -> Outcome:
    """The word for a run of which this became."""
    return _SAID[verdict]


Whole: TypeAlias = Returned | Raised | Abandoned
"""What a handler may come to that has not begun to stream."""


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
        if ex.policy.settles_apart:
            return (yield from _settle_apart(ex, outcome, progress))
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
            written: ops.Written | None = yield op
        except (StoreError, ConfigurationError):
            written = yield from _insist(ex, op, 1)
        if type(written) is ops.Applied:  # a success is sent only after its record is durable
            sent = first(ex, response, written.expires_at)
            return Answer(sent, _EXECUTED, kept.error, raised)
        own = Answer(response, _EXECUTED, kept.error, raised)
        return (yield from _not_kept(ex, own, written))
    except Interrupted:
        # Only where nothing is to be written any more, or where the lapse of the lease does it.
        return Answer(None, Outcome.INTERRUPTED)


def _settle_apart(
    ex: Exchange, outcome: HandlerOutcome, progress: Progress
) -> Flow[Answer | Flowing]:
    """In a transaction, or in shadow; neither is loaded for those who have no such routes."""
    if ex.policy.shadow:
        from semel.core.exchange import shadow

        return (yield from shadow.settle(ex, outcome, progress))
    from semel.core.exchange import atomic

    return (yield from atomic.settle(ex, outcome, progress))


def _not_kept(ex: Exchange, own: Answer, written: ops.Written | None) -> Flow[Answer]:
    """The completing write was not acknowledged, or came too late."""
    if isinstance(written, ops.Lost):
        return (yield from as_zombie(ex, written, own))
    return not_durable(ex, own)


def _concede(ex: Exchange, outcome: Whole, verdict: Verdict, progress: Progress) -> Flow[Answer]:
    """An answer that is not kept: the key is released, or what became of it is unknown."""
    answer = own_answer(ex, outcome, verdict, progress)
    by_router = isinstance(outcome, Returned) and outcome.by_router
    op = concession(ex, verdict, answer.error, progress, by_router=by_router)
    written = yield from _give_up(op)
    if isinstance(written, ops.Lost):
        return (yield from as_zombie(ex, written, answer))
    if isinstance(outcome, Returned):
        return replace(answer, response=first(ex, outcome.response, None))
    return answer


def _insist(
    ex: Exchange, op: ops.StoreOperation[ops.Written], attempt: int = 0
) -> Flow[ops.Written | None]:
    """Ask again until the lease ends; after that the write is pursued without the caller."""
    while True:
        if attempt and not (yield ops.Pause(ex.identity, ex.fence, attempt)):
            yield ops.Pursue(op)
            return None
        try:
            written: ops.Written = yield op
        except (StoreError, ConfigurationError):
            attempt += 1
        else:
            return written


def _give_up(op: ops.StoreOperation[ops.Written]) -> Flow[ops.Written | None]:
    """Nobody needs to wait for this write; unwritten, the lapse of the lease does the same."""
    try:
        written: ops.Written = yield op
    except (StoreError, ConfigurationError):
        yield ops.Pursue(op)
        return None
    return written


# ── streamed answers ──────────────────────────────────────────────────────────────────────────────


def _open_stream(ex: Exchange, head: Streaming, verdict: Verdict) -> Flow[Answer | Flowing]:
    """A body that is not kept: an open receipt before its first byte."""
    receipt = open_receipt(ex, head)
    if verdict is Verdict.KEEP:
        opened = yield from _insist(ex, ops.Open(ex.identity, ex.fence, snapshot.encode(receipt)))
        if not isinstance(opened, ops.Applied):
            return (yield from _not_kept(ex, Answer(None, _EXECUTED, head.error), opened))
    headers = replay.first_headers(head.headers, ex.policy, None, cross_origin=ex.cross_origin)
    return Flowing(headers, head, receipt, verdict)


def open_receipt(ex: Exchange, head: Streaming) -> Snapshot:
    """What is kept of an answer whose body has not flowed yet."""
    return Snapshot(
        status=head.status,
        headers=replay.kept_headers(head.headers),
        body=None,
        whole=False,
        open=True,
        schema_version=ex.policy.schema_version,
    )


def closed_receipt(receipt: Snapshot, drained: ops.Drained) -> Snapshot:
    """The same when it has flowed, or has broken off."""
    return replace(
        receipt, open=False, whole=drained.whole, size=drained.size, digest=drained.digest
    )


def end_stream(
    ex: Exchange, stream: Flowing, drained: ops.Drained, progress: Progress
) -> Flow[Answer]:
    """The body has flowed: its receipt is closed, with what came of it."""
    error = drained.error or stream.head.error
    answer = Answer(None, _EXECUTED, error, drained.error is not None)
    if ex.policy.shadow:
        from semel.core.exchange import shadow

        yield from shadow.end_stream(ex, stream, drained, progress)
        return answer
    if stream.verdict is not Verdict.KEEP:
        yield from _give_up(concession(ex, stream.verdict, error, progress))
        return replace(answer, outcome=_SAID[stream.verdict])
    ended = closed_receipt(stream.receipt, drained)
    written = yield from _insist(ex, completion(ex, snapshot.encode(ended), progress))
    if isinstance(written, ops.Applied):
        return answer
    return replace(answer, outcome=Outcome.NOT_DURABLE)


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────


def judge(policy: Policy, outcome: HandlerOutcome) -> Verdict:
    """Decide by the route's policy what to do with what the handler did."""
    match outcome:
        case Returned(by_router=True):
            return Verdict.RELEASE  # nothing was executed; put right, the same key may run
        case Returned(response, error):
            return _judge_answer(policy, response, error)
        case Streaming(status, headers, error):
            return _judge_answer(policy, Response(status, headers, b""), error)
        case Raised(error):
            return _judge_error(policy, error)
        case Abandoned():
            return _FATE[policy.after_doubt]


def _judge_answer(policy: Policy, response: Response, error: BaseException | None) -> Verdict:
    keep, status = policy.keep, response.status
    keeps: object = status < 500 and status not in DID_NOT_EXECUTE
    if keep is not None:
        keeps = keep(response) if callable(keep) else status in keep
    if not isinstance(keeps, bool):  # None is a return that was forgotten, and not the word "free"
        raise TypeError(f"keep= must return True or False, not {type(keeps).__name__}")
    if keeps:
        return Verdict.KEEP
    if status >= 500:
        return _judge_error(policy, error)
    # An answer that says "not executed" does not outweigh the handler's own doubt.
    return _FATE[policy.after_doubt] if isinstance(error, OutcomeUnknown) else Verdict.RELEASE


def _judge_error(policy: Policy, error: BaseException | None) -> Verdict:
    if is_ambiguous(error):
        return _FATE[policy.after_doubt]
    if says_not_executed(error):
        return Verdict.RELEASE
    return _FATE[policy.after_error]


def is_ambiguous(error: BaseException | None) -> bool:
    """Whether something may have been sent whose answer never came. In doubt, it may have.

    The other way round nothing is proved here: that the last call was not sent says nothing about
    the calls that the handler made before it.
    """
    return error is not None and unanswered(error)


class KeepFailed(OutcomeUnknown):
    """``keep=`` raised, or did not say. The handler has run, and what its answer is worth is not
    known."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"keep= failed: {type(cause).__name__}")
        self.__cause__ = cause


class NotAllowed(OutcomeUnknown):
    """A worker's run was turned away as unauthorised. That is no answer to anybody."""


class NotReached(NotExecuted):
    """A worker's run was answered before it came to its endpoint. That is no answer to anybody."""


class NeverAwaited(ConfigurationError):
    """The handler answered, and something it was to await has not happened, or not ended."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} was made by the handler and not awaited to its end: await what op.phase(), "
            "op.call() and op.enqueue() return"
        )


def conclude(
    ex: Exchange, outcome: HandlerOutcome, progress: Progress
) -> tuple[HandlerOutcome, Verdict]:
    """The verdict, and the outcome it is about: a check that fails takes the outcome's place."""
    policy, worker = ex.policy, ex.worker
    if isinstance(outcome, Returned):
        status = outcome.response.status
        if worker is not None and status in (401, 403):
            outcome = Raised(NotAllowed(f"the worker was answered {status}"))
        elif worker is not None and worker.tells and not progress.entered:
            outcome = Raised(NotReached(f"the worker was answered {status} before its endpoint"))
        elif (name := progress.unfinished()) is not None:
            outcome = Raised(NeverAwaited(name))
        elif policy.resumable and (missed := progress.missed()) is not None:
            outcome = Raised(missed)
    try:
        verdict = judge(policy, outcome)
    except Exception as error:  # keep= is the operator's code
        outcome = Raised(KeepFailed(error))
        verdict = judge(policy, outcome)
    if verdict is Verdict.RELEASE and _may_have_acted(ex, outcome, progress):
        verdict = _FATE[policy.after_doubt]
    if policy.resumable and verdict is not Verdict.KEEP:
        # All that an operation does outside is in its points, so its journal knows better.
        turned_away = isinstance(outcome, Raised) and isinstance(outcome.error, NotAllowed)
        doubtful = progress.in_doubt or turned_away
        verdict = Verdict.SUSPEND if doubtful else Verdict.RELEASE
    return outcome, verdict


def is_usual(ex: Exchange, outcome: Returned, progress: Progress) -> bool:
    """A success that nothing stands behind: `conclude` would keep it, whatever the policy."""
    return (
        outcome.response.status < 400
        and outcome.error is None
        and not (outcome.raised or outcome.by_router or progress.made)
        and ex.policy.keep is None
        and ex.worker is None
        and not ex.policy.resumable
    )


def _may_have_acted(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> bool:
    """Whether the endpoint may have acted, though its outcome looks as if nothing had happened.

    It returned, and no answer could be made of that. Or it raised a doubt that was answered further
    out, or was cut off, or still runs. Only the word that nothing was executed outweighs that, and
    of a doubt the router's own answer: it called nobody.
    """
    last = None if isinstance(outcome, Abandoned) else outcome.error
    if says_not_executed(last):
        return False
    # Of these, a handler that failed has done nothing, wherever it failed.
    leaves_nothing = ex.policy.mode == "atomic" or ex.policy.effects == "none"
    failed, by_router = isinstance(outcome, Raised), False
    if isinstance(outcome, Returned):
        failed, by_router = outcome.raised or last is not None, outcome.by_router
    if progress.returned and failed and not leaves_nothing:
        return True
    if by_router:
        return False
    return progress.doubt is not None or (progress.inside > 0 and not leaves_nothing)


# ── what follows from it: the answer of the first caller, and the write that settles ──────────────


def own_answer(
    ex: Exchange, outcome: HandlerOutcome, verdict: Verdict, progress: Progress
) -> Answer:
    """What the first caller gets if nothing stands in the way."""
    said = _SAID[verdict]
    match outcome:
        case Returned(response, error):
            return Answer(response, said, error)
        case Raised(error) | Abandoned(error):
            response = problem_for(ex, error, verdict, progress)
            return Answer(response, said, error, reraise=True)
        case Streaming():
            raise AssertionError("a streamed outcome has its own way")


def problem_for(
    ex: Exchange, error: BaseException, verdict: Verdict, progress: Progress
) -> Response:
    if verdict is Verdict.SUSPEND:
        return doubt(ex, ex.can_ask, status=500)
    if verdict is Verdict.RELEASE and has_begun(ex, progress):
        detail = "The operation has begun and is not finished. Send the request again unchanged."
        return ex.refusal("handler-failed", detail=detail, retry_after=ex.policy.retry_micros)
    if verdict is Verdict.KEEP:
        detail = "The operation failed; its answer is kept and it is not run again."
        return ex.refusal("handler-failed", retryable=False, detail=detail)
    if says_not_executed(error):
        return ex.refusal("not-executed", retry_after=ex.policy.retry_micros)
    return ex.refusal("handler-failed")


def concession(
    ex: Exchange,
    verdict: Verdict,
    error: BaseException | None,
    progress: Progress,
    *,
    by_router: bool = False,
) -> ops.Release | ops.Suspend | ops.Renew:
    """The write for a run whose answer is not kept.

    ``by_router``: there was no handler. The key was used for nothing, and may be forgotten at once.
    """
    worker = ex.worker
    reason = type(error).__name__ if error is not None else "answered an error"
    if verdict is Verdict.RELEASE and has_begun(ex, progress):
        if worker is not None and worker.overdue:
            return ops.Suspend(ex.identity, ex.fence, f"begun, never finished: {reason}", None)
        # The lease is left to lapse: the next request or the completer goes on, and nobody forgets.
        requeue = None if worker is None else worker.requeue
        pause = ex.policy.retry_micros if requeue is None else requeue
        return ops.Renew(ex.identity, ex.fence, pause)
    if isinstance(error, NotReached) and worker is not None and (worker.overdue or worker.last):
        return ops.Suspend(ex.identity, ex.fence, str(error), None)
    if verdict is Verdict.RELEASE:
        released = release(ex, str(error) if isinstance(error, NotReached) else reason)
        return replace(released, retention=0) if by_router else released
    asks = ex.can_ask and not isinstance(error, NotAllowed)
    after = ex.policy.reconcile_micros if asks else None
    return ops.Suspend(ex.identity, ex.fence, reason, after)


def has_begun(ex: Exchange, progress: Progress) -> bool:
    """An operation that has done something which must be finished: freeing its key would not do.

    Of a deferred one that is any point, since nobody but a worker ever comes back to it.
    """
    if not ex.policy.resumable:
        return False
    journal, deferred = progress.journal, ex.policy.mode == "deferred"
    # An intent: a repeatable call may have been made, and must be made again with its key.
    return journal.acted or journal.intent is not None or (deferred and bool(journal.points))


def completion(ex: Exchange, kept: bytes, progress: Progress) -> ops.Complete:
    """``kept``: the snapshot of the answer, encoded."""
    policy = ex.policy
    return ops.Complete(
        ex.identity,
        ex.fence,
        kept,
        max(policy.retention_micros, progress.retention),
        policy.tombstone_micros,
        progress.resource,
    )


def first(ex: Exchange, response: Response, expires_at: Micros | None) -> Response:
    """The handler's answer as it leaves the first time."""
    crossed = b"origin" in ex.request.headers.first
    headers = replay.first_headers(response.headers, ex.policy, expires_at, cross_origin=crossed)
    return Response(response.status, headers, response.body)


def not_durable(ex: Exchange, answer: Answer) -> Answer:
    response = ex.refusal("completion-not-durable", retry_after=ex.policy.retry_micros)
    return replace(answer, response=response, outcome=Outcome.NOT_DURABLE)


def as_zombie(ex: Exchange, lost: ops.Lost, own: Answer) -> Flow[Answer]:
    """The lease was lost meanwhile: what the record says is what happened."""
    answer = yield from from_record(ex, lost.record, lost.now)
    if lost.record is None or lost.record.state is State.FAILED_RETRYABLE:
        # It ran, yet its record was freed: nobody may be told to retry.
        answer = unknown(ex, ex.can_ask)
    return replace(answer, error=own.error, reraise=own.reraise, zombie=True)
