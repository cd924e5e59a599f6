"""Claim, run and complete in one transaction of the application's own database.

kill -9 at any instant leaves nothing behind. Nobody else sees the record before it is completed, so
others learn of a run under way from the identity's lock: they find it taken and hold nothing.
"""

from __future__ import annotations

from semel.core.admission import Call
from semel.core.answers import Answer, Outcome, doubt, from_record, in_flight
from semel.core.conclusions import (
    as_zombie,
    completion,
    concession,
    conclude,
    first,
    kept,
    not_durable,
    own_answer,
)
from semel.core.contract import (
    Claimed,
    Found,
    Lost,
    NoRecord,
    Read,
    StoreOperation,
    Written,
)
from semel.core.course import Course
from semel.core.entry import enter, meet
from semel.core.flow import Flow, ask
from semel.core.frozen import replace
from semel.core.model import Micros, State
from semel.core.problems import refuse
from semel.core.runner import (
    Ascertain,
    Await,
    Begin,
    Commit,
    Discard,
    Flush,
    HandlerOutcome,
    Invoke,
    Occupied,
    Pause,
    Raised,
    Returned,
    RollBack,
    Save,
    Streaming,
    Undo,
    Unwoken,
)
from semel.core.verdict import Verdict
from semel.errors import ConfigurationError, StoreError


def atomically(call: Call) -> Flow[Answer]:
    """The whole way of one keyed request in a transaction."""
    entry = yield from _enter(call)
    if isinstance(entry, Occupied) and call.policy.patience_micros:
        # Holding nothing: neither the lock nor a connection.
        woken = yield from ask(Await(call.identity, None, call.policy.patience_micros))
        entry = Occupied() if isinstance(woken, Unwoken) else (yield from _enter(call))
    if isinstance(entry, Occupied):
        return in_flight(call)
    return entry if isinstance(entry, Answer) else (yield from _execute(call))


def _enter(call: Call) -> Flow[Claimed | Occupied | Answer]:
    if call.familiar:
        answer = yield from _replayed(call)
        if answer is not None:
            return answer
    if isinstance((yield from ask(Begin(call.identity))), Occupied):
        return Occupied()
    try:
        entry = yield from enter(call, 0)
        if isinstance(entry, Claimed):
            yield from ask(Save())
            return entry
    except Exception:
        yield from ask(RollBack())
        raise
    yield from ask(RollBack())
    waits = entry.outcome is Outcome.IN_FLIGHT and call.policy.patience_micros
    return Occupied() if waits else entry


def _replayed(call: Call) -> Flow[Answer | None]:
    """A key met before is probably a replay, which needs no transaction."""
    found = yield from ask(Read(call.identity))
    if not isinstance(found, Found) or found.record.state is not State.COMPLETED:
        return None
    if found.record.forgettable(found.now):
        return None
    answer = yield from meet(call, found)
    return answer if isinstance(answer, Answer) else None


def _execute(call: Call) -> Flow[Answer]:
    course = Course()
    outcome = yield from ask(Invoke(call.identity, call.fence, course))
    outcome, verdict = yield from _concluded(call, outcome, course)
    answer = own_answer(call, outcome, verdict)
    if verdict is Verdict.RELEASE:
        yield from ask(RollBack())
        response = answer.response
        if isinstance(outcome, Returned) and response is not None:
            response = first(call, response, None)
        return replace(answer, response=response)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        op: StoreOperation[Written] = completion(call, kept(call, response), course)
    else:
        op = concession(call, verdict, answer.error)
    return (yield from _commit(call, op, answer))


def _concluded(
    call: Call, outcome: HandlerOutcome, course: Course
) -> Flow[tuple[HandlerOutcome, Verdict]]:
    """The verdict; what is not to be kept of the handler's writes is undone."""
    if isinstance(outcome, Streaming):
        # It broke off before its end, and nothing of it has been sent.
        yield from ask(Discard())
        outcome = Raised(outcome.error or RuntimeError("the answer broke off"))
    outcome, verdict = conclude(call, outcome, course)
    succeeded = isinstance(outcome, Returned) and outcome.response.status < 500
    if verdict is Verdict.KEEP and succeeded:
        try:
            yield from ask(Flush())
            return outcome, verdict
        except Exception as error:
            outcome, verdict = conclude(call, Raised(error), course)
    if verdict is not Verdict.RELEASE:
        yield from ask(Undo())
    return outcome, verdict


def _commit(call: Call, op: StoreOperation[Written], answer: Answer) -> Flow[Answer]:
    """A success is sent only after the transaction is durable."""
    try:
        written = yield from ask(op)
        if isinstance(written, Lost):
            yield from ask(RollBack())
            return (yield from as_zombie(call, written, answer))
        yield from ask(Commit())
    except ConfigurationError as error:
        # The handler ended the transaction itself: its writes may be there, its record is not.
        yield from ask(RollBack())
        return Answer(doubt(call, status=500), Outcome.SUSPENDED, error, reraise=True)
    except StoreError as error:
        yield from ask(RollBack())
        if getattr(error, "applied", None) is False:
            return _nothing_happened(call, answer, error)
        return (yield from _ascertained(call, answer, error))
    return _committed(call, answer, written.expires_at)


def _committed(call: Call, answer: Answer, expires_at: Micros | None) -> Answer:
    if answer.response is None or answer.outcome is not Outcome.EXECUTED:
        return answer
    return replace(answer, response=first(call, answer.response, expires_at))


def _nothing_happened(call: Call, answer: Answer, error: Exception) -> Answer:
    response = refuse("not-executed", retry_after=call.policy.retry_micros)
    return replace(
        answer, response=response, outcome=Outcome.STORE_ERROR, error=error, reraise=False
    )


def _ascertained(call: Call, answer: Answer, error: StoreError) -> Flow[Answer]:
    """A commit nobody answered for: what is there, under the lock, is what happened."""
    found = yield from _look_again(call)
    if found is None:
        return not_durable(call, answer)
    if isinstance(found, NoRecord):
        return _nothing_happened(call, answer, error)
    record = found.record
    if record.fence == call.fence and record.state in (State.COMPLETED, State.UNKNOWN):
        return _committed(call, answer, record.expires_at)
    if record.state is State.FAILED_RETRYABLE:
        return _nothing_happened(call, answer, error)
    return (yield from from_record(call, record, found.now))


def _look_again(call: Call) -> Flow[Found | NoRecord | None]:
    """What the record says once nobody can change it any more; None when no answer came in time."""
    attempt = 0
    while True:
        try:
            return (yield from ask(Ascertain(call.identity)))
        except StoreError:
            attempt += 1
        if not (yield from ask(Pause(call.identity, call.fence, attempt))):
            return None
