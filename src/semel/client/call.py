"""The course of one logical call, from its first try to its answer, for every HTTP library.

`complete` is a generator without I/O: it yields operations (`model`) and gets their results.
``_Progress.doubt`` is the heart of it: once a try may have been executed, it stays True. See the
package's docstring.
"""

from __future__ import annotations

from typing import assert_never

from semel.client.errors import (
    AnswerLost,
    BudgetSpent,
    CallError,
    CallOutcomeUnknown,
    CallRefused,
    KeyExpired,
    KeyReused,
    Unanswered,
)
from semel.client.model import (
    AskStatus,
    CallAnswer,
    ExtendHold,
    ForgetCall,
    LogicalCall,
    NoAnswer,
    RecordAnswer,
    RecordStatusUrl,
    ReleaseCall,
    SendRequest,
    Sleep,
    TryResult,
)
from semel.client.responses import (
    AccessDenied,
    AnswerMeaning,
    FinalAnswer,
    InProgress,
    RefusalKind,
    SendInstead,
    ServerRefusal,
    TryAgain,
    meaning_of,
    status_meaning,
)
from semel.client.retry_budget import Budget
from semel.core.flow import Flow, Interrupted, ask

_ERRORS: dict[RefusalKind, tuple[type[CallRefused], str]] = {
    RefusalKind.KEY_REUSED: (KeyReused, "the key was used for another request before"),
    RefusalKind.KEY_EXPIRED: (KeyExpired, "the server no longer knows what became of the key"),
    RefusalKind.ANSWER_LOST: (
        AnswerLost,
        "it was executed once, and its answer cannot be had again",
    ),
    RefusalKind.REFUSED: (CallRefused, "the server refused it"),
}


class _Progress:
    """What a call has spent, and whether one of its tries may have been executed."""

    def __init__(self, call: LogicalCall, budget: Budget, started: float) -> None:
        self.call, self.budget = call, budget
        self.doubt = call.resumed
        self.failures = self.waits = 0
        self.status_url = call.status_url
        self.last: TryResult | None = None
        self._started = started

    @property
    def elapsed(self) -> float:
        """Seconds from the start to the end of the last try."""
        return 0.0 if self.last is None else self.last.now - self._started

    def spent(self, retry_after: float | None) -> BudgetSpent:
        """The error for a call whose budget is spent."""
        result = None if self.last is None else self.last.result
        doubt = "and it may have happened" if self.doubt else "and nothing was executed"
        error = (Unanswered if self.doubt else BudgetSpent)(
            f"the budget is spent, {doubt}",
            self.call,
            result if isinstance(result, CallAnswer) else None,
            tries=self.failures + self.waits,
            elapsed=self.elapsed,
            retry_after=retry_after,
        )
        error.__cause__ = result.error if isinstance(result, NoAnswer) else None
        return error


def complete(call: LogicalCall, budget: Budget, started: float) -> Flow[CallAnswer]:
    """Send, wait, look, send again: until there is an answer, a refusal, or no budget left."""
    progress = _Progress(call, budget, started)
    try:
        return (yield from _until_answered(progress))
    except CallError as error:
        if error.pending:
            yield from ask(ReleaseCall(call))
        raise
    except Interrupted:
        yield from ask(ReleaseCall(call))  # it may have been sent: it stays pending
        raise
    except Exception as error:  # a bug in a function of the caller
        if not progress.doubt:
            yield from ask(ForgetCall(call))  # never sent, and not sent later either
            raise
        yield from ask(ReleaseCall(call))
        said = "a try failed on this side, and it may have been sent"
        raise CallOutcomeUnknown(said, call) from error


def _until_answered(progress: _Progress) -> Flow[CallAnswer]:
    while True:
        answer, meaning = yield from _try(progress)
        match meaning:
            case FinalAnswer():
                yield from ask(RecordAnswer(progress.call, answer))
                return answer
            case ServerRefusal() | AccessDenied():
                return (yield from _refused(progress, answer, meaning))
            case InProgress():
                yield from _wait(progress, meaning)
            case TryAgain():
                yield from _back_off(progress, meaning)
            case _:
                assert_never(meaning)


def _try(progress: _Progress) -> Flow[tuple[CallAnswer, AnswerMeaning]]:
    """Try until there is an answer: ask the status resource if there is one, else send."""
    call = progress.call
    while True:
        url = progress.status_url
        tried = yield from ask(SendRequest(call) if url is None else AskStatus(call, url))
        progress.last = tried
        result = tried.result
        if isinstance(result, NoAnswer):
            progress.doubt = progress.doubt or (result.sent and url is None)
            if result.is_bug:
                raise result.error
            yield from _back_off(progress, TryAgain(None, executed=False))
            continue
        meaning = (meaning_of if url is None else status_meaning)(call, result, tried.wall)
        if not isinstance(meaning, SendInstead):
            return result, meaning
        progress.status_url = None


def _refused(
    progress: _Progress, answer: CallAnswer, meaning: ServerRefusal | AccessDenied
) -> Flow[CallAnswer]:
    """Raise the error for a refusal; a refused access is an answer if nothing was sent before."""
    call = progress.call
    if isinstance(meaning, AccessDenied):
        if progress.doubt:
            said = "an earlier try may have happened; now it is shut out"
            raise CallOutcomeUnknown(said, call, answer)
        yield from ask(RecordAnswer(call, answer))
        return answer
    if meaning.kind is RefusalKind.OUTCOME_UNKNOWN:
        raise CallOutcomeUnknown("the server does not know whether it happened", call, answer)
    yield from ask(RecordAnswer(call, answer))
    error, said = _ERRORS[meaning.kind]
    raise error(f"{said}: {meaning.code}", call, answer, meaning.code)


def _wait(progress: _Progress, meaning: InProgress) -> Flow[None]:
    progress.doubt = True
    if meaning.status_url is not None and meaning.status_url != progress.status_url:
        progress.status_url = meaning.status_url
        yield from ask(RecordStatusUrl(progress.call, meaning.status_url))
    yield from _pause(progress, progress.waits, meaning.after)
    progress.waits += 1


def _back_off(progress: _Progress, meaning: TryAgain) -> Flow[None]:
    progress.doubt = progress.doubt or meaning.executed
    progress.failures += 1
    if progress.failures >= progress.budget.tries:
        raise progress.spent(meaning.after)
    yield from _pause(progress, progress.failures - 1, meaning.after)


def _pause(progress: _Progress, attempt: int, retry_after: float | None) -> Flow[None]:
    pause = progress.budget.pause(attempt, progress.elapsed, retry_after)
    if pause is None:
        raise progress.spent(retry_after)
    yield from ask(ExtendHold(progress.call, pause[1]))
    yield from ask(Sleep(*pause))
