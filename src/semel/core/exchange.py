"""One request's way through: claim, run, keep. The only place where these decisions are made.

`exchange` is a flow (see `core/flow.py`). Each ``yield`` is a place where the process may die or
another request may run; what must always hold is argued at those places.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias, assert_never

from semel.core import replay, snapshot
from semel.core.admission import Call
from semel.core.contract import (
    Abandoned,
    Applied,
    Await,
    Claim,
    Claimed,
    Complete,
    Discard,
    Drain,
    Forget,
    Found,
    HandlerOutcome,
    Invoke,
    Lapse,
    Lost,
    Open,
    Pause,
    Pursue,
    Raised,
    Read,
    Release,
    Render,
    Retake,
    Returned,
    Stale,
    StoreOperation,
    Streaming,
    Suspend,
    Unwoken,
    Woken,
    Written,
)
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen, replace
from semel.core.model import Micros, OnLapse, Record, Response, State
from semel.core.policy import Verdict, is_ambiguous, judge, says_not_executed
from semel.core.problems import refuse
from semel.core.snapshot import Snapshot
from semel.errors import ConfigurationError, OutcomeUnknown, StoreError, StoreUnavailable

_ROUNDS: Final = 8
"""How often a claim may meet a record that changes under its eyes before it gives way."""


class Outcome(StrEnum):
    """What an exchange came to: one word for logs and metrics."""

    EXECUTED = "executed"
    RELEASED = "released"
    SUSPENDED = "suspended"
    REPLAYED = "replayed"
    RECEIPT = "receipt"
    IN_FLIGHT = "in_flight"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    STORE_ERROR = "store_error"
    NOT_DURABLE = "not_durable"
    MISCONFIGURED = "misconfigured"
    INTERRUPTED = "interrupted"


@frozen
class Answer:
    """What the adapter has to do last.

    ``response`` is None when there is nothing (more) to send. ``error`` is the handler's or the
    store's exception: the handler's is raised again after sending (``reraise``), the store's is
    only logged. ``zombie``: the holder came too late and answers from the record.
    """

    response: Response | None
    outcome: Outcome
    error: BaseException | None = None
    reraise: bool = False
    zombie: bool = False


class KeepFailed(OutcomeUnknown):
    """``keep=`` raised. The handler has run, and nobody can say what its answer is worth."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"keep= failed: {type(cause).__name__}")
        self.__cause__ = cause


@frozen
class _Busy:
    """Somebody else holds the record."""

    record: Record


_Step: TypeAlias = Claimed | Found | Stale | _Busy | Answer
"""Where a request stands on its way in."""


def exchange(call: Call, before: Flow[None] | None = None) -> Flow[Answer]:
    """The whole way of one keyed request; what fails ``before`` fails closed as well."""
    try:
        if before is not None:
            yield from before
        call = yield from _under_which_identity(call)
        entry = yield from _enter(call)
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except StoreError as error:
        return _closed(call, error)
    except ConfigurationError as error:
        return Answer(refuse("misconfigured"), Outcome.MISCONFIGURED, error)
    if isinstance(entry, Answer):
        return entry
    return (yield from _execute(call))


def _closed(call: Call, error: StoreError) -> Answer:
    """Fail closed: without a record nothing is executed."""
    response = refuse("store-unavailable", retry_after=call.policy.retry_micros)
    return Answer(response, Outcome.STORE_ERROR, error)


# ── getting in ────────────────────────────────────────────────────────────────────────────────────


def _under_which_identity(call: Call) -> Flow[Call]:
    """A key that is alive under the previous settings keeps its old identity to its end."""
    if call.predecessor is None:
        return call
    older = call.predecessor
    reply = yield from ask(Read(older.identity))
    if not isinstance(reply, Found) or reply.record.forgettable(reply.now):
        return call
    if older.identity == call.identity and call.prints.match(reply.record):
        return call  # only the fingerprint has changed, and this record has the new one
    return replace(call, identity=older.identity, prints=older.prints, predecessor=None)


def _enter(call: Call) -> Flow[Claimed | Answer]:
    """Claim, or find out why not."""
    reply: _Step = yield from (_look(call) if call.familiar else _seize(call, _claim(call)))
    patience = call.policy.patience_micros
    for _ in range(_ROUNDS):
        match reply:
            case Claimed() | Answer():
                return reply
            case Stale():
                return Answer(refuse("key-expired"), Outcome.EXPIRED)
            case Found():
                reply = yield from _meet(call, reply)
            case _Busy(record):
                reply = yield from _wait(call, record, patience)
                patience = 0
            case _:
                assert_never(reply)
    return _in_flight(call)


def _look(call: Call) -> Flow[Claimed | Found | Stale]:
    """A key met before is probably a replay: reading is cheaper, and asks for less of the body."""
    reply = yield from ask(Read(call.identity))
    return reply if isinstance(reply, Found) else (yield from _seize(call, _claim(call)))


def _claim(call: Call) -> Claim:
    return Claim(
        identity=call.identity,
        fence=call.fence,
        fingerprint=call.prints.fingerprint.text,
        fields=call.prints.evidence(call.fence),
        origin=call.origin,
        lease=call.policy.lease_micros,
        on_lapse=call.policy.lapse,
        fresh_until=call.fresh_until,
    )


def _seize(call: Call, claim: Claim) -> Flow[Claimed | Found | Stale]:
    """A claim whose answer never came does not run the handler; it is taken back."""
    try:
        return (yield from ask(claim))
    except (StoreError, Interrupted) as error:
        yield from _retract(call, error)
        raise


def _retract(call: Call, error: Exception) -> Flow[None]:
    surely_not_applied = isinstance(error, StoreUnavailable) and error.applied is False
    if not surely_not_applied:
        yield from ask(Pursue(_release(call, "claim unanswered")))


def _release(call: Call, reason: str) -> Release:
    return Release(call.identity, call.fence, call.policy.retention_micros, reason)


def _meet(call: Call, found: Found) -> Flow[_Step]:
    """There is a record: what it means for this request."""
    record, now = found.record, found.now
    if record.forgettable(now):
        yield from ask(Forget(call.identity, record.fence))
        return (yield from _seize(call, _claim(call)))
    if not call.prints.match(record):
        return _mismatch(call, record)
    if record.lapsed(now):
        yield from ask(Lapse(call.identity, record.fence, call.policy.retention_micros))
        return (yield from _seize(call, _claim(call)))
    if record.state is State.FAILED_RETRYABLE:
        return (yield from _retake(call, record))
    if record.state in (State.IN_PROGRESS, State.PENDING):
        return _Busy(record)
    return (yield from _from_record(call, record, now))


def _retake(call: Call, record: Record) -> Flow[Claimed | Found | Stale]:
    policy = call.policy
    op = Retake(call.identity, record.fence, call.fence, policy.lease_micros, policy.lapse)
    try:
        reply = yield from ask(op)
    except (StoreError, Interrupted) as error:
        yield from _retract(call, error)
        raise
    if isinstance(reply, Applied):
        return Claimed(reply.leased_until or reply.now, reply.now)
    if reply.record is not None:
        return Found(reply.record, reply.now)
    return (yield from _seize(call, _claim(call)))


def _wait(call: Call, record: Record, patience: Micros) -> Flow[Found | Answer]:
    """Wait once, then act on what the record has become.

    Of all who waited in this process one is elected to act; for the others the attempt they
    waited for is the answer, or a herd would run one failing handler after the other.
    """
    if patience == 0:
        return _in_flight(call)
    reply = yield from ask(Await(call.identity, record.fence, patience))
    match reply:
        case Unwoken():
            return _in_flight(call)
        case Woken(found, now, elected):
            if elected or not (found.state is State.FAILED_RETRYABLE or found.lapsed(now)):
                return Found(found, now)
            if found.state is State.FAILED_RETRYABLE or found.on_lapse is OnLapse.RELEASE:
                response = refuse("attempt-failed", retry_after=call.policy.retry_micros)
                return Answer(response, Outcome.IN_FLIGHT)
            return _unknown(call)
        case _:
            assert_never(reply)


# ── answers from a record ─────────────────────────────────────────────────────────────────────────


def _from_record(call: Call, record: Record | None, now: Micros) -> Flow[Answer]:
    """The answer a record gives to somebody who may not run the handler."""
    if record is None or record.state is State.FAILED_RETRYABLE:
        return _in_flight(call)
    match record.state:
        case State.IN_PROGRESS | State.PENDING:
            return _in_flight(call)
        case State.UNKNOWN:
            return _unknown(call)
        case State.COMPLETED if not record.past_retention(now):
            return (yield from _replay(call, record))
        case State.COMPLETED | State.EXPIRED:
            return Answer(refuse("key-expired"), Outcome.EXPIRED)
        case _:
            assert_never(record.state)


def _replay(call: Call, record: Record) -> Flow[Answer]:
    try:
        kept = snapshot.decode(record.snapshot or b"")
    except StoreError as error:
        return _closed(call, error)
    response = kept.response()
    if response is None:
        extra = {"original_status": kept.status}
        return Answer(refuse("body-not-kept", extra=extra), Outcome.RECEIPT)
    answer = replay.replayed(
        response,
        call.policy,
        record.expires_at,
        call.accept_encoding,
        cross_origin=call.cross_origin,
    )
    if call.policy.on_replay is None:
        return Answer(answer, Outcome.REPLAYED)
    try:
        current = replay.measured((yield from ask(Render(answer))))
    except Exception as error:
        return Answer(refuse("replay-failed"), Outcome.REPLAYED, error)
    return Answer(current, Outcome.REPLAYED)


def _mismatch(call: Call, record: Record) -> Answer:
    differing = call.prints.differing(record.fields)
    extra = {"differing_fields": list(differing)} if differing else None
    response = refuse("key-reused", status=call.policy.mismatch_status, extra=extra)
    return Answer(response, Outcome.MISMATCH)


def _in_flight(call: Call) -> Answer:
    response = refuse("in-flight", retry_after=call.policy.retry_micros)
    return Answer(response, Outcome.IN_FLIGHT)


def _unknown(call: Call, status: int | None = None) -> Answer:
    """With somebody to ask, waiting helps; with nobody, only an operator does."""
    if call.policy.probe is None:
        response = refuse("outcome-unknown", status=status, retryable=False)
    else:
        response = refuse(
            "outcome-unknown",
            status=status,
            retryable=True,
            retry_after=call.policy.retry_micros,
        )
    return Answer(response, Outcome.UNKNOWN)


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
        response = _unknown(call, status=500).response
        assert response is not None  # noqa: S101 - _unknown always has one
        return response
    if verdict is Verdict.RELEASE and says_not_executed(error):
        return refuse("not-executed", retry_after=call.policy.retry_micros)
    doubtful = is_ambiguous(error) or verdict is Verdict.KEEP
    detail = "The operation failed; its answer is kept and it is not run again."
    return (
        refuse("handler-failed", retryable=False, detail=detail)
        if doubtful
        else refuse("handler-failed")
    )


def _concession(call: Call, verdict: Verdict, error: BaseException | None) -> Release | Suspend:
    reason = type(error).__name__ if error is not None else "answered an error"
    if verdict is Verdict.RELEASE:
        return _release(call, reason)
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
            late = refuse("completion-not-durable", retry_after=call.policy.retry_micros)
            return replace(answer, response=late, outcome=Outcome.NOT_DURABLE)
        case Applied(expires_at=expires_at):
            return replace(answer, response=_first(call, response, expires_at))
        case Lost():
            return (yield from _as_zombie(call, written, answer))
        case _:
            assert_never(written)


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
    answer = yield from _from_record(call, lost.record, lost.now)
    if lost.record is None or lost.record.state is State.FAILED_RETRYABLE:
        answer = _unknown(call)  # it ran, yet its record was freed: nobody may be told to retry
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
    closed = replace(
        receipt, open=False, whole=drained.whole, size=drained.size, digest=drained.digest
    )
    written = yield from _insist(call, _completion(call, closed))
    return answer if isinstance(written, Applied) else replace(answer, outcome=Outcome.NOT_DURABLE)


def _withhold(call: Call, head: Streaming, lost: Lost | None) -> Flow[Answer]:
    yield from ask(Discard())
    if lost is None:
        response = refuse("completion-not-durable", retry_after=call.policy.retry_micros)
        return Answer(response, Outcome.NOT_DURABLE, head.error)
    return (yield from _as_zombie(call, lost, Answer(None, Outcome.EXECUTED, head.error)))
