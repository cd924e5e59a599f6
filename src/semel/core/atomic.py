"""Claim, run and complete in one transaction of the application's own database.

kill -9 at any instant leaves nothing behind. Nobody else sees the record before it is completed, so
others learn of a run under way from the identity's lock: they find it taken and hold nothing.

A record that says "it may have happened" must stand even where the transaction cannot: it is then
written apart, in one of its own.
"""

from __future__ import annotations

from typing import Final

from semel.core import replay
from semel.core.admission import Call
from semel.core.answers import Answer, Outcome, doubt, from_record, in_flight
from semel.core.conclusions import (
    as_zombie,
    completion,
    concession,
    conclude,
    first,
    not_durable,
    own_answer,
)
from semel.core.contract import (
    Applied,
    Claimed,
    Found,
    Lost,
    NoRecord,
    Read,
    StoreOperation,
    Written,
)
from semel.core.course import Course
from semel.core.entry import claim_of, enter, meet
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen, replace
from semel.core.model import Fence, Micros, State
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
    Pursue,
    Raised,
    Returned,
    RollBack,
    Save,
    Streaming,
    Undo,
    Unwoken,
)
from semel.core.verdict import Verdict, is_ambiguous
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreError

_TRIES: Final = 8
"""How often a doubt is written apart while its caller waits; after that without the caller."""


def atomically(call: Call) -> Flow[Answer]:
    """The whole way of one keyed request in a transaction."""
    entry = yield from _enter(call)
    if isinstance(entry, Occupied) and call.policy.patience_micros:
        # Holding nothing: neither the lock nor a connection.
        woken = yield from ask(Await(call.identity, None, call.policy.patience_micros))
        entry = Occupied() if isinstance(woken, Unwoken) else (yield from _enter(call))
    if isinstance(entry, Occupied):
        return in_flight(call)
    return entry if isinstance(entry, Answer) else (yield from _execute(call, entry))


# ── getting in ────────────────────────────────────────────────────────────────────────────────────


def _enter(call: Call) -> Flow[Claimed | Occupied | Answer]:
    if call.familiar:
        answer = yield from _replayed(call)
        if answer is not None:
            return answer
    if isinstance((yield from ask(Begin(call.identity))), Occupied):
        # Whoever is in there may only be asking for the answer, as this one does.
        answer = None if call.familiar else (yield from _replayed(call))
        return Occupied() if answer is None else answer
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


# ── running the handler ───────────────────────────────────────────────────────────────────────────


@frozen
class _Result:
    """What a run came to."""

    answer: Answer
    op: StoreOperation[Written] | None
    """The record's write; None: there is to be no record."""
    writes: bool
    """The handler's own writes are kept."""
    seen: Fence | None = None
    """The fence that the record had before the transaction, if there was one."""

    @property
    def doubtful(self) -> bool:
        """Something may have happened outside: without a record nobody would know."""
        return self.op is not None and (not self.writes or is_ambiguous(self.answer.error))


def _execute(call: Call, entry: Claimed) -> Flow[Answer]:
    course = Course()
    outcome = yield from ask(Invoke(call.identity, call.fence, course, entry.created_at))
    if isinstance(outcome, Streaming):
        # It broke off before its end, and nothing of it has been sent.
        yield from ask(Discard())
        outcome = Raised(outcome.error or RuntimeError("the answer broke off"))
    result = _result(call, outcome, course)
    if result.writes:
        try:
            yield from ask(Flush())
        except SemelError as error:
            return (yield from _failed(call, replace(result, seen=entry.seen), error))
        except Exception as error:  # what the database says to the handler's own writes
            result = _result(call, Raised(error), course)
    return (yield from _settle(call, replace(result, seen=entry.seen)))


def _result(call: Call, outcome: HandlerOutcome, course: Course) -> _Result:
    outcome, verdict = conclude(call, outcome, course)
    answer = own_answer(call, outcome, verdict, course)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        keep = completion(call, replay.kept(response, call.policy), course)
        returned = isinstance(outcome, Returned) and not outcome.raised  # to raise is to undo
        return _Result(answer, keep, writes=returned and response.status < 500)
    if isinstance(outcome, Returned) and response is not None:
        answer = replace(answer, response=first(call, response, None))
    op = concession(call, verdict, answer.error, course) if verdict is Verdict.SUSPEND else None
    return _Result(answer, op, writes=False)


def _settle(call: Call, result: _Result) -> Flow[Answer]:
    """A success is sent only after the transaction is durable."""
    try:
        if not result.writes:
            # Also where all is rolled back: it tells whether the handler has committed by itself.
            yield from ask(Undo())
        if result.op is None:
            yield from ask(RollBack())
            return result.answer
        written = yield from ask(result.op)
        if isinstance(written, Applied):
            yield from ask(Commit())
            return _committed(call, result.answer, written.expires_at)
    except SemelError as error:
        return (yield from _failed(call, result, error))
    yield from ask(RollBack())
    return (yield from as_zombie(call, written, result.answer))


def _committed(call: Call, answer: Answer, expires_at: Micros | None) -> Answer:
    if answer.response is None or answer.outcome is not Outcome.EXECUTED:
        return answer
    return replace(answer, response=first(call, answer.response, expires_at))


# ── when the transaction fails ────────────────────────────────────────────────────────────────────


def _failed(call: Call, result: _Result, error: SemelError) -> Flow[Answer]:
    yield from ask(RollBack())
    if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
        # The handler ended the transaction itself, and its writes may be there.
        own = Answer(doubt(call, status=500), Outcome.MISCONFIGURED, error, reraise=True)
        return (yield from _apart(call, _suspension(call, error), own))
    if result.op is None:
        return result.answer
    if isinstance(error, StoreError) and getattr(error, "applied", None) is not False:
        return (yield from _ascertained(call, result, error))
    return (yield from _nothing_kept(call, result, error))


def _nothing_kept(call: Call, result: _Result, error: SemelError) -> Flow[Answer]:
    if not result.doubtful:
        return _nothing_happened(call, result.answer, error)
    answer = result.answer
    if result.writes:
        answer = replace(answer, response=doubt(call, status=500), outcome=Outcome.SUSPENDED)
    return (yield from _apart(call, _without_writes(call, result), answer))


def _without_writes(call: Call, result: _Result) -> StoreOperation[Written]:
    """What is to be recorded of a doubt whose transaction is gone."""
    if result.writes or result.op is None:
        return _suspension(call, result.answer.error)
    return result.op


def _nothing_happened(call: Call, answer: Answer, error: SemelError) -> Answer:
    response = refuse("not-executed", retry_after=call.policy.retry_micros)
    return replace(
        answer, response=response, outcome=Outcome.STORE_ERROR, error=error, reraise=False
    )


def _suspension(call: Call, error: BaseException | None) -> StoreOperation[Written]:
    return concession(call, Verdict.SUSPEND, error, Course())


def _apart(call: Call, op: StoreOperation[Written], answer: Answer) -> Flow[Answer]:
    """Put on record, in a transaction of its own, that nobody may run this again."""
    for attempt in range(1, _TRIES + 1):
        try:
            yield from _claim_anew(call)
            written = yield from ask(op)
        except (SemelError, Interrupted):
            yield from ask(Pause(call.identity, call.fence, attempt))
        else:
            if isinstance(written, Lost):
                return (yield from as_zombie(call, written, answer))
            return _committed(call, answer, written.expires_at)
    yield from ask(Pursue(op, claim_of(call)))
    return answer if answer.outcome is not Outcome.EXECUTED else not_durable(call, answer)


def _claim_anew(call: Call) -> Flow[None]:
    """The claim went with its transaction, unless the handler itself has committed it."""
    reply = yield from ask(claim_of(call))
    if isinstance(reply, Found) and reply.record.fence != call.fence:
        yield from meet(call, reply)


def _ascertained(call: Call, result: _Result, error: SemelError) -> Flow[Answer]:
    """A commit nobody answered for: what is there, under the lock, is what happened."""
    found = yield from _look_again(call)
    answer = result.answer
    if found is None:
        if result.doubtful:
            yield from ask(Pursue(_without_writes(call, result), claim_of(call)))
        return answer if answer.outcome is Outcome.SUSPENDED else not_durable(call, answer)
    if isinstance(found, NoRecord):
        return (yield from _nothing_kept(call, result, error))
    record = found.record
    if record.fence == call.fence and record.state in (State.COMPLETED, State.UNKNOWN):
        return _committed(call, answer, record.expires_at)
    if record.state is State.FAILED_RETRYABLE and record.fence != result.seen:
        # It was committed, and evidence has settled it since: a stale holder changes nothing.
        return (yield from as_zombie(call, Lost(record, found.now), answer))
    if record.state is State.FAILED_RETRYABLE or record.forgettable(found.now):
        return (yield from _nothing_kept(call, result, error))
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
