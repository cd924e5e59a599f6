"""One logical call from its first try to its answer: decided here once, for every HTTP library."""

from __future__ import annotations

from typing import assert_never

from semel.client.errors import (
    AnswerLost,
    BudgetSpent,
    CallError,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Refused,
    Unanswered,
)
from semel.client.model import (
    Answer,
    Ask,
    Call,
    Conclude,
    Failed,
    Hold,
    LetGo,
    Point,
    Rest,
    Send,
    Tried,
    Withdraw,
)
from semel.client.responses import (
    Again,
    End,
    Reading,
    Refusal,
    SendInstead,
    ShutOut,
    UnderWay,
    Why,
    read,
    read_status,
)
from semel.client.retry_budget import Budget
from semel.core.flow import Flow, Interrupted, ask

_ERRORS: dict[Why, type[Refused]] = {
    Why.KEY_REUSED: KeyReused,
    Why.KEY_EXPIRED: KeyExpired,
    Why.ANSWER_LOST: AnswerLost,
    Why.REFUSED: Refused,
}
_SAID: dict[Why, str] = {
    Why.KEY_REUSED: "the key was used for another request before",
    Why.KEY_EXPIRED: "the server no longer knows what became of the key",
    Why.ANSWER_LOST: "it was executed once, and its answer cannot be had again",
    Why.REFUSED: "the server refused it",
}


class _Progress:
    """What a call has spent, and whether any of its tries may have been executed."""

    def __init__(self, call: Call, budget: Budget, started: float) -> None:
        self.call, self.budget = call, budget
        self.doubt = call.resumed
        self.failures = self.waits = 0
        self.status_url = call.status_url
        self.last: Tried | None = None
        self._started = started

    def elapsed(self, now: float) -> float:
        return now - self._started

    def spent(self, after: float | None) -> BudgetSpent:
        result = None if self.last is None else self.last.result
        error = (Unanswered if self.doubt else BudgetSpent)(
            "the budget is spent, and it may have happened"
            if self.doubt
            else "the budget is spent, and nothing was executed",
            self.call,
            result if isinstance(result, Answer) else None,
            tries=self.failures + self.waits,
            elapsed=0.0 if self.last is None else self.elapsed(self.last.now),
            retry_after=after,
        )
        error.__cause__ = result.error if isinstance(result, Failed) else None
        return error


def complete(call: Call, budget: Budget, started: float) -> Flow[Answer]:
    """Send, wait, look, send again: until there is an answer, a refusal, or no budget left."""
    progress = _Progress(call, budget, started)
    try:
        return (yield from _to_the_end(progress))
    except CallError as error:
        if error.pending:
            yield from ask(LetGo(call))
        raise
    except Interrupted:
        yield from ask(LetGo(call))  # it may have been sent: it stays pending
        raise
    except Exception as error:
        yield from _not_ours(progress, error)
        raise


def _not_ours(progress: _Progress, error: Exception) -> Flow[None]:
    """A bug, in a function of the caller's. What was never sent is not sent later either."""
    call = progress.call
    if not progress.doubt:
        yield from ask(Withdraw(call))
        return
    yield from ask(LetGo(call))
    raise OutcomeUnknown("a try failed on this side, and it may have been sent", call) from error


def _to_the_end(progress: _Progress) -> Flow[Answer]:
    while True:
        answer, reading = yield from _try(progress)
        match reading:
            case End():
                return (yield from _concluded(progress.call, answer))
            case Refusal() | ShutOut():
                return (yield from _refused(progress, answer, reading))
            case UnderWay():
                yield from _wait(progress, reading)
            case Again():
                yield from _back_off(progress, reading)
            case _:
                assert_never(reading)


def _try(progress: _Progress) -> Flow[tuple[Answer, Reading]]:
    """One try that came to anything: at the status resource where there is one, else by sending."""
    call = progress.call
    while True:
        url = progress.status_url
        tried = yield from ask(Send(call) if url is None else Ask(call, url))
        progress.last = tried
        result = tried.result
        if isinstance(result, Failed):
            progress.doubt = progress.doubt or (result.sent and url is None)
            if result.is_bug:
                raise result.error
            yield from _back_off(progress, Again(None, executed=False))
            continue
        reading = (read if url is None else read_status)(call, result, tried.wall)
        if not isinstance(reading, SendInstead):
            return result, reading
        progress.status_url = None


def _concluded(call: Call, answer: Answer) -> Flow[Answer]:
    yield from ask(Conclude(call, answer))
    return answer


def _refused(progress: _Progress, answer: Answer, reading: Refusal | ShutOut) -> Flow[Answer]:
    call = progress.call
    if isinstance(reading, ShutOut):
        if not progress.doubt:
            return (yield from _concluded(call, answer))
        raise OutcomeUnknown("an earlier try may have happened; now it is shut out", call, answer)
    if reading.why is Why.OUTCOME_UNKNOWN:
        raise OutcomeUnknown("the server does not know whether it happened", call, answer)
    yield from ask(Conclude(call, answer))
    said = f"{_SAID[reading.why]}: {reading.code}"
    raise _ERRORS[reading.why](said, call, answer, reading.code)


def _wait(progress: _Progress, reading: UnderWay) -> Flow[None]:
    progress.doubt = True
    if reading.status_url is not None and reading.status_url != progress.status_url:
        progress.status_url = reading.status_url
        yield from ask(Point(progress.call, reading.status_url))
    yield from _rest(progress, progress.waits, reading.after)
    progress.waits += 1


def _back_off(progress: _Progress, reading: Again) -> Flow[None]:
    progress.doubt = progress.doubt or reading.executed
    progress.failures += 1
    if progress.failures >= progress.budget.tries:
        raise progress.spent(reading.after)
    yield from _rest(progress, progress.failures - 1, reading.after)


def _rest(progress: _Progress, attempt: int, after: float | None) -> Flow[None]:
    now = 0.0 if progress.last is None else progress.last.now
    pause = progress.budget.pause(attempt, progress.elapsed(now), after)
    if pause is None:
        raise progress.spent(after)
    yield from ask(Hold(progress.call, pause[1]))
    yield from ask(Rest(*pause))
