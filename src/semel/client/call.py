"""The course of one logical call, from its first try to its answer, for every HTTP library.

`complete` is a generator without I/O: it yields operations (`model`) and gets their results.
``_Progress.doubt`` is the heart of it: once a try may have been executed, it stays True. See the
package's docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, assert_never

from semel.client import errors, model, responses
from semel.client.model import CallAnswer, LogicalCall, NoAnswer
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen
from semel.errors import ConfigurationError

_REFUSALS: Final[Mapping[type[errors.CallRefused], str]] = {
    errors.KeyReused: "the key was used for another request before",
    errors.KeyExpired: "the server no longer knows what became of the key",
    errors.AnswerLost: "it was executed once, and its answer cannot be had again",
    errors.CallRefused: "the server refused it",
}


@frozen
class Budget:
    """What one logical call may spend.

    ``tries`` counts tries that failed; waiting for a request that is under way costs time only.
    ``within`` is looked at between tries: the last one may take as long as its time-out allows.
    """

    tries: int = 8
    within: timedelta = timedelta(minutes=2)
    first_pause: timedelta = timedelta(milliseconds=200)
    longest_pause: timedelta = timedelta(seconds=20)

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigurationError("a budget has one try at least")
        if not timedelta(0) < self.first_pause <= self.longest_pause <= self.within:
            raise ConfigurationError("a budget needs 0 < first_pause <= longest_pause <= within")

    def ceiling(self, attempt: int) -> float:
        """The longest pause after so many tries, in seconds."""
        grown = self.first_pause.total_seconds() * 2.0 ** min(attempt, 64)
        return min(self.longest_pause.total_seconds(), grown)

    def pause(
        self, attempt: int, elapsed: float, retry_after: float | None
    ) -> tuple[float, float] | None:
        """The shortest and longest next pause; None if the budget does not allow another.

        Full jitter: from nothing to the ceiling; after a Retry-After, from that to twice as long.
        If less time than a first pause is left there is no other try: else the rest of a budget
        would be spent in ever smaller pauses.
        """
        first = self.first_pause.total_seconds()
        left = self.within.total_seconds() - elapsed
        least, spread = 0.0, self.ceiling(attempt)
        if retry_after is not None:
            least, spread = retry_after, min(spread, max(first, retry_after))
        return None if least + first > left else (least, min(left, least + spread))


class _Progress:
    """What a call has spent, and whether one of its tries may have been executed."""

    def __init__(self, call: LogicalCall, budget: Budget, started: float) -> None:
        self.call, self.budget = call, budget
        self.doubt = call.resumed
        self.failures = self.waits = 0
        self.status_url = call.status_url
        self.last: model.TryResult | None = None
        self._started = started

    def pause(self, attempt: int, retry_after: float | None) -> Flow[None]:
        """Wait before the next try; an error if the budget does not allow one."""
        elapsed = 0.0 if self.last is None else self.last.now - self._started
        pause = self.budget.pause(attempt, elapsed, retry_after)
        if pause is None or self.failures >= self.budget.tries:
            result = None if self.last is None else self.last.result
            doubt = "and it may have happened" if self.doubt else "and nothing was executed"
            raise (errors.Unanswered if self.doubt else errors.BudgetSpent)(
                f"the budget is spent, {doubt}",
                self.call,
                result if isinstance(result, CallAnswer) else None,
                tries=self.failures + self.waits,
                elapsed=elapsed,
                retry_after=retry_after,
            ) from (result.error if isinstance(result, NoAnswer) else None)
        yield from ask(model.ExtendHold(self.call, pause[1]))
        yield from ask(model.Sleep(*pause))

    def back_off(self, retry_after: float | None) -> Flow[None]:
        """Count a try that failed, and wait."""
        self.failures += 1
        yield from self.pause(self.failures - 1, retry_after)


def complete(call: LogicalCall, budget: Budget, started: float) -> Flow[CallAnswer]:
    """Send, wait, look, send again: until there is an answer, a refusal, or no budget left."""
    progress = _Progress(call, budget, started)
    try:
        return (yield from _until_answered(progress))
    except errors.CallError as error:
        if error.pending:
            yield from ask(model.ReleaseCall(call))
        raise
    except Interrupted:
        yield from ask(model.ReleaseCall(call))  # it may have been sent: it stays pending
        raise
    except Exception as error:  # a bug in a function of the caller
        if not progress.doubt:
            yield from ask(model.ForgetCall(call))  # never sent, and not sent later either
            raise
        yield from ask(model.ReleaseCall(call))
        said = "a try failed on this side, and it may have been sent"
        raise errors.CallOutcomeUnknown(said, call) from error


def _until_answered(progress: _Progress) -> Flow[CallAnswer]:
    """Try until there is an answer: ask the status resource if there is one, else send."""
    call = progress.call
    while True:
        url = progress.status_url
        tried = yield from ask(
            model.SendRequest(call) if url is None else model.AskStatus(call, url)
        )
        progress.last, result = tried, tried.result
        if isinstance(result, NoAnswer):
            progress.doubt = progress.doubt or (result.sent and url is None)
            if result.is_bug:
                raise result.error
            yield from progress.back_off(None)
            continue
        read = responses.meaning_of if url is None else responses.status_meaning
        match read(call, result, tried.wall):
            case responses.SendInstead():
                progress.status_url = None
            case responses.TryAgain(after, executed):
                progress.doubt = progress.doubt or executed
                yield from progress.back_off(after)
            case responses.InProgress(found, after):
                progress.doubt = True
                if found is not None and found != url:
                    progress.status_url = found
                    yield from ask(model.RecordStatusUrl(call, found))
                yield from progress.pause(progress.waits, after)
                progress.waits += 1
            case responses.AccessDenied() if progress.doubt:
                said = "an earlier try may have happened; now it is shut out"
                raise errors.CallOutcomeUnknown(said, call, result)
            case responses.FinalAnswer() | responses.AccessDenied():
                yield from ask(model.RecordAnswer(call, result))
                return result
            case responses.ServerRefusal(error, code):
                if error is None:
                    said = "the server does not know whether it happened"
                    raise errors.CallOutcomeUnknown(said, call, result)
                yield from ask(model.RecordAnswer(call, result))
                raise error(f"{_REFUSALS[error]}: {code}", call, result, code)
            case unknown:
                assert_never(unknown)
