"""One request's way: in (`core/entry.py`), run, keep. Nowhere else are these decisions made.

`exchange` is a flow (see `core/flow.py`). Each ``yield`` is a place where the process may die or
another request may run; what must always hold is argued at those places.
"""

from __future__ import annotations

from typing import Final, assert_never

from semel.core import replay, snapshot
from semel.core.admission import Call
from semel.core.answers import Answer, Outcome, closed, doubt, from_record, unknown
from semel.core.contract import (
    Applied,
    Complete,
    Lost,
    Open,
    Release,
    StoreOperation,
    Suspend,
    Written,
)
from semel.core.entry import enter, release, under_which_identity
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import replace
from semel.core.model import Micros, Response, State
from semel.core.problems import refuse
from semel.core.runner import (
    Abandoned,
    Discard,
    Drain,
    HandlerOutcome,
    Invoke,
    Pause,
    Pursue,
    Raised,
    Returned,
    Streaming,
)
from semel.core.snapshot import Snapshot
from semel.core.verdict import Verdict, judge, says_not_executed
from semel.errors import ConfigurationError, OutcomeUnknown, StoreError


class KeepFailed(OutcomeUnknown):
    """``keep=`` raised. The handler has run, and nobody can say what its answer is worth."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"keep= failed: {type(cause).__name__}")
        self.__cause__ = cause


def exchange(call: Call, before: Flow[None] | None = None) -> Flow[Answer]:
    """The whole way of one keyed request; what fails ``before`` fails closed as well."""
    try:
        if before is not None:
            yield from before
        call = yield from under_which_identity(call)
        entry = yield from enter(call)
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except StoreError as error:
        return closed(call, error)
    except ConfigurationError as error:
        return Answer(refuse("misconfigured"), Outcome.MISCONFIGURED, error)
    if isinstance(entry, Answer):
        return entry
    return (yield from _execute(call))


# ── running the handler ───────────────────────────────────────────────────────────────────────────


def _execute(call: Call) -> Flow[Answer]:
    """The lease is held: run the handler, then settle the record before a byte is sent."""
    outcome = yield from ask(Invoke(call.identity, call.fence))
    try:
        verdict = judge(call.policy, outcome)
    except Exception as error:  # keep= is the operator's code
        if isinstance(outcome, Streaming):
            yield from ask(Discard())
        outcome = Raised(KeepFailed(error))
        verdict = judge(call.policy, outcome)
    if isinstance(outcome, Streaming):
        return (yield from _stream(call, outcome, verdict))
    answer = _own_answer(call, outcome, verdict)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        return (yield from _keep(call, response, answer))
    written = yield from _give_up(_concession(call, verdict, answer.error))
    if isinstance(written, Lost):
        return (yield from _as_zombie(call, written, answer))
    if isinstance(outcome, Returned) and response is not None:
        response = _first(call, response, None)
    return replace(answer, response=response)


_SAID: Final = {
    Verdict.KEEP: Outcome.EXECUTED,
    Verdict.RELEASE: Outcome.RELEASED,
    Verdict.SUSPEND: Outcome.SUSPENDED,
}


def _own_answer(call: Call, outcome: HandlerOutcome, verdict: Verdict) -> Answer:
    """What the first caller gets if nothing stands in the way."""
    said = _SAID[verdict]
    match outcome:
        case Returned(response, error):
            return Answer(response, said, error)
        case Raised(error) | Abandoned(error):
            response = _problem_for(call, error, verdict)
            return Answer(response, said, error, reraise=True)
        case _:
            raise AssertionError("a streamed outcome has its own way")


def _problem_for(call: Call, error: BaseException, verdict: Verdict) -> Response:
    if verdict is Verdict.SUSPEND:
        return doubt(call, status=500)
    if verdict is Verdict.KEEP:
        detail = "The operation failed; its answer is kept and it is not run again."
        return refuse("handler-failed", retryable=False, detail=detail)
    if says_not_executed(error):
        return refuse("not-executed", retry_after=call.policy.retry_micros)
    return refuse("handler-failed")


def _concession(call: Call, verdict: Verdict, error: BaseException | None) -> Release | Suspend:
    reason = type(error).__name__ if error is not None else "answered an error"
    if verdict is Verdict.RELEASE:
        return release(call, reason)
    return Suspend(call.identity, call.fence, reason)


def _keep(call: Call, response: Response, answer: Answer) -> Flow[Answer]:
    """A success is sent only after its record is durable."""
    kept = Snapshot(
        status=response.status,
        headers=replay.kept_headers(response.headers),
        body=response.body if len(response.body) <= call.policy.max_response_body else None,
        size=len(response.body),
        schema_version=call.policy.schema_version,
    )
    written = yield from _insist(call, _completion(call, kept))
    match written:
        case None:
            return _not_durable(call, answer)
        case Applied(expires_at=expires_at):
            return replace(answer, response=_first(call, response, expires_at))
        case Lost():
            return (yield from _as_zombie(call, written, answer))
        case _:
            assert_never(written)


def _not_durable(call: Call, answer: Answer) -> Answer:
    response = refuse("completion-not-durable", retry_after=call.policy.retry_micros)
    return replace(answer, response=response, outcome=Outcome.NOT_DURABLE)


def _first(call: Call, response: Response, expires_at: Micros | None) -> Response:
    return replay.first(response, call.policy, expires_at, cross_origin=call.cross_origin)


def _completion(call: Call, kept: Snapshot) -> Complete:
    policy = call.policy
    return Complete(
        call.identity,
        call.fence,
        snapshot.encode(kept),
        policy.retention_micros,
        policy.tombstone_micros,
    )


def _as_zombie(call: Call, lost: Lost, own: Answer) -> Flow[Answer]:
    """The lease was lost meanwhile: what the record says is what happened."""
    answer = yield from from_record(call, lost.record, lost.now)
    if lost.record is None or lost.record.state is State.FAILED_RETRYABLE:
        answer = unknown(call)  # it ran, yet its record was freed: nobody may be told to retry
    return replace(answer, error=own.error, reraise=own.reraise, zombie=True)


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


def _give_up(op: Release | Suspend) -> Flow[Written | None]:
    """Nobody needs to wait for this write; unwritten, the lapse of the lease does the same."""
    try:
        return (yield from ask(op))
    except (StoreError, ConfigurationError):
        yield from ask(Pursue(op))
        return None


# ── streamed answers ──────────────────────────────────────────────────────────────────────────────


def _stream(call: Call, head: Streaming, verdict: Verdict) -> Flow[Answer]:
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
        yield from _give_up(_concession(call, verdict, answer.error))
        return replace(answer, outcome=_SAID[verdict])
    ended = replace(
        receipt, open=False, whole=drained.whole, size=drained.size, digest=drained.digest
    )
    written = yield from _insist(call, _completion(call, ended))
    return answer if isinstance(written, Applied) else replace(answer, outcome=Outcome.NOT_DURABLE)


def _withhold(call: Call, head: Streaming, lost: Lost | None) -> Flow[Answer]:
    yield from ask(Discard())
    answer = Answer(None, Outcome.EXECUTED, head.error)
    if lost is None:
        return _not_durable(call, answer)
    return (yield from _as_zombie(call, lost, answer))
