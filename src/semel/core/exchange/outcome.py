"""The verdict on a handler's outcome: keep it, release the key, or leave it unknown.

`judge` is the one place that decides it, by the route's policy.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

from semel.core.exchange import replay
from semel.core.exchange.answers import Answer, Outcome, doubt, from_record, unknown
from semel.core.exchange.claim import release
from semel.core.exchange.exchange import Exchange, Progress
from semel.core.flow import Flow
from semel.core.frozen import replace
from semel.core.operations.handler import Abandoned, HandlerOutcome, Raised, Returned, Streaming
from semel.core.operations.requests import Complete, Lost, Release, Renew, Suspend
from semel.core.policy import Policy
from semel.core.records import Micros, Response, State
from semel.core.recovery.was_sent import says_not_executed as says_not_executed
from semel.core.recovery.was_sent import unanswered
from semel.errors import ConfigurationError, NotExecuted, OperationChanged, OutcomeUnknown

DID_NOT_EXECUTE: Final = frozenset({401, 403, 407, 408, 425, 429})
"""Answers that say the request was turned away before it did anything."""


class Verdict(Enum):
    """What becomes of the record."""

    KEEP = "keep"
    RELEASE = "release"
    SUSPEND = "suspend"


_FATE: Final = {
    "keep": Verdict.KEEP,
    "release": Verdict.RELEASE,
    "unknown": Verdict.SUSPEND,
}


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
    if policy.keep is not None:
        keeps = policy.keep(response) if callable(policy.keep) else response.status in policy.keep
        if keeps:
            return Verdict.KEEP
        if response.status < 500:
            return _released(policy, error)
    if response.status >= 500:
        return _judge_error(policy, error)
    return _released(policy, error) if response.status in DID_NOT_EXECUTE else Verdict.KEEP


def _released(policy: Policy, error: BaseException | None) -> Verdict:
    """An answer that says "not executed" does not outweigh the handler's own doubt."""
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


# --- what a handler's outcome comes to: the answer of its first caller, and the write that settles
#
# Shared by the exchange under a lease and the one in a transaction.

UNAUTHORISED: Final = frozenset({401, 403})


class KeepFailed(OutcomeUnknown):
    """``keep=`` raised. The handler has run, and nobody can say what its answer is worth."""

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


class UnmadeAnswer(OutcomeUnknown):
    """The endpoint returned, and the framework could not make an answer of what it returned."""


class HiddenDoubt(OutcomeUnknown):
    """The endpoint raised a doubt, was cut off, or still runs, and was answered for further out."""


SAID: Final = {
    Verdict.KEEP: Outcome.EXECUTED,
    Verdict.RELEASE: Outcome.RELEASED,
    Verdict.SUSPEND: Outcome.SUSPENDED,
}


def conclude(
    ex: Exchange, outcome: HandlerOutcome, progress: Progress
) -> tuple[HandlerOutcome, Verdict]:
    """The verdict, and the outcome it is about: a check that fails takes the outcome's place."""
    if isinstance(outcome, Returned):
        if ex.worker is not None and outcome.response.status in UNAUTHORISED:
            outcome = Raised(NotAllowed(f"the worker was answered {outcome.response.status}"))
        elif ex.worker is not None and ex.worker.tells and not progress.entered:
            status = outcome.response.status
            outcome = Raised(NotReached(f"the worker was answered {status} before its endpoint"))
        elif (name := progress.unfinished()) is not None:
            outcome = Raised(NeverAwaited(name))
        elif ex.policy.resumable:
            outcome = _finished(outcome, progress)
    try:
        verdict = judge(ex.policy, outcome)
    except Exception as error:  # keep= is the operator's code
        outcome = Raised(KeepFailed(error))
        verdict = judge(ex.policy, outcome)
    if progress.returned and verdict is Verdict.RELEASE and _failed_to_answer(ex, outcome):
        verdict = judge(ex.policy, Abandoned(UnmadeAnswer()))
    if verdict is Verdict.RELEASE and _hides_a_doubt(ex, outcome, progress):
        verdict = judge(ex.policy, Abandoned(HiddenDoubt()))
    if ex.policy.resumable and verdict is not Verdict.KEEP:
        # All that an operation does outside is in its points, so its journal knows better.
        doubtful = progress.in_doubt or _is_about_the_worker(outcome)
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


def _failed_to_answer(ex: Exchange, outcome: HandlerOutcome) -> bool:
    """Whether the endpoint returned, and no answer could be made of that.

    It has acted, so a failure does not mean that nothing happened. In a transaction it does.
    """
    if _leaves_nothing(ex):
        return False
    match outcome:
        case Returned(error=error, raised=raised) if raised or error is not None:
            return not says_not_executed(error)
        case Raised(error):
            return not says_not_executed(error)
        case _:
            return False  # an answer that was begun has been made


def _leaves_nothing(ex: Exchange) -> bool:
    """Whether a handler that failed has done nothing, wherever it failed."""
    return ex.policy.mode == "atomic" or ex.policy.effects == "none"


def _hides_a_doubt(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> bool:
    """Whether an answer, or a later exception, stands where the endpoint's own doubt was.

    It was raised and answered further out, or the endpoint was cut off, or still runs. Only the
    word that nothing was executed outweighs that, and the router's own answer: it called nobody.
    """
    if isinstance(outcome, Returned) and outcome.by_router:
        return False
    last = outcome.error if isinstance(outcome, Raised | Returned | Streaming) else None
    if says_not_executed(last):
        return False
    return progress.doubt is not None or (progress.inside > 0 and not _leaves_nothing(ex))


def _finished(outcome: Returned, progress: Progress) -> HandlerOutcome:
    try:
        progress.finish()
    except OperationChanged as error:
        return Raised(error)
    return outcome


def _is_about_the_worker(outcome: HandlerOutcome) -> bool:
    return isinstance(outcome, Raised) and isinstance(outcome.error, NotAllowed)


def has_begun(ex: Exchange, progress: Progress) -> bool:
    """An operation that has done something which must be finished: freeing its key would not do.

    Of a deferred one that is any point, since nobody but a worker ever comes back to it.
    """
    if not ex.policy.resumable:
        return False
    journal, deferred = progress.journal, ex.policy.mode == "deferred"
    # An intent: a repeatable call may have been made, and must be made again with its key.
    return journal.acted or journal.intent is not None or (deferred and bool(journal.points))


def own_answer(
    ex: Exchange, outcome: HandlerOutcome, verdict: Verdict, progress: Progress
) -> Answer:
    """What the first caller gets if nothing stands in the way."""
    said = SAID[verdict]
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
) -> Release | Suspend | Renew:
    """The write for a run whose answer is not kept.

    ``by_router``: there was no handler. The key was used for nothing, and may be forgotten at once.
    """
    worker = ex.worker
    reason = type(error).__name__ if error is not None else "answered an error"
    if verdict is Verdict.RELEASE and has_begun(ex, progress):
        # The lease is left to lapse: the next request or the completer goes on, and nobody forgets.
        requeue = None if worker is None else worker.requeue
        if worker is None or not worker.overdue:
            pause = ex.policy.retry_micros if requeue is None else requeue
            return Renew(ex.identity, ex.fence, pause)
        return Suspend(ex.identity, ex.fence, f"begun, never finished: {reason}", None)
    if isinstance(error, NotReached) and worker is not None and (worker.overdue or worker.last):
        return Suspend(ex.identity, ex.fence, str(error), None)
    if verdict is Verdict.RELEASE:
        released = release(ex, str(error) if isinstance(error, NotReached) else reason)
        return replace(released, retention=0) if by_router else released
    asks = ex.can_ask and not isinstance(error, NotAllowed)
    after = ex.policy.reconcile_micros if asks else None
    return Suspend(ex.identity, ex.fence, reason, after)


def completion(ex: Exchange, kept: bytes, progress: Progress) -> Complete:
    """``kept``: the snapshot of the answer, encoded."""
    policy = ex.policy
    return Complete(
        ex.identity,
        ex.fence,
        kept,
        max(policy.retention_micros, progress.retention),
        policy.tombstone_micros,
        progress.resource,
    )


Whole: TypeAlias = Returned | Raised | Abandoned
"""What a handler may come to that has not begun to stream."""


def first(ex: Exchange, response: Response, expires_at: Micros | None) -> Response:
    """The handler's answer as it leaves the first time."""
    crossed = b"origin" in ex.request.headers.first
    headers = replay.first_headers(response.headers, ex.policy, expires_at, cross_origin=crossed)
    return Response(response.status, headers, response.body)


def not_durable(ex: Exchange, answer: Answer) -> Answer:
    response = ex.refusal("completion-not-durable", retry_after=ex.policy.retry_micros)
    return replace(answer, response=response, outcome=Outcome.NOT_DURABLE)


def as_zombie(ex: Exchange, lost: Lost, own: Answer) -> Flow[Answer]:
    """The lease was lost meanwhile: what the record says is what happened."""
    answer = yield from from_record(ex, lost.record, lost.now)
    if lost.record is None or lost.record.state is State.FAILED_RETRYABLE:
        answer = unknown(
            ex, ex.can_ask
        )  # it ran, yet its record was freed: nobody may be told to retry
    return replace(answer, error=own.error, reraise=own.reraise, zombie=True)
