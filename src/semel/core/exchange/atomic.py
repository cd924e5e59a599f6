"""Claim, run and complete in one transaction of the application's own database.

kill -9 at any instant leaves nothing behind. Nobody else sees the record before it is completed, so
others learn of a run under way from the identity's lock: they find it taken and hold nothing.

A record that says "it may have happened" must stand even where the transaction cannot: it is then
written apart, in one of its own.
"""

from __future__ import annotations

from typing import Final

from semel.core.exchange import replay
from semel.core.exchange.answers import Answer, Outcome, doubt, from_record, in_flight
from semel.core.exchange.claim import claim_of, enter, meet, seize
from semel.core.exchange.exchange import Exchange, Progress
from semel.core.exchange.settle import (
    Verdict,
    as_zombie,
    completion,
    concession,
    conclude,
    first,
    is_ambiguous,
    not_durable,
    own_answer,
)
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import replace, value
from semel.core.operations.handler import (
    Ascertain,
    Await,
    Begin,
    Commit,
    Flush,
    HandlerOutcome,
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
from semel.core.operations.requests import (
    Applied,
    Claimed,
    Found,
    Lost,
    NoRecord,
    Read,
    StoreOperation,
    Written,
)
from semel.core.records import Micros, State
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreError

_TRIES: Final = 8
"""How often a doubt is written apart while its caller waits; after that without the caller."""


def claim(ex: Exchange) -> Flow[Claimed | Answer]:
    """The first half: afterwards a transaction is open that holds the record, or none is."""
    entry = yield from _enter(ex)
    if isinstance(entry, Occupied) and ex.policy.patience_micros:
        # Holding nothing: neither the lock nor a connection.
        woken = yield from ask(Await(ex.identity, None, ex.policy.patience_micros))
        entry = Occupied() if isinstance(woken, Unwoken) else (yield from _enter(ex))
    if isinstance(entry, Occupied):
        return in_flight(ex)
    if isinstance(entry, Claimed):
        ex.seen = entry.seen
    return entry


# ── getting in ────────────────────────────────────────────────────────────────────────────────────


def _enter(ex: Exchange) -> Flow[Claimed | Occupied | Answer]:
    if ex.seen_before:
        answer = yield from _replayed(ex)
        if answer is not None:
            return answer
    if isinstance((yield from ask(Begin(ex.identity))), Occupied):
        # Whoever is in there may only be asking for the answer, as this one does.
        answer = None if ex.seen_before else (yield from _replayed(ex))
        return Occupied() if answer is None else answer
    try:
        looked = (yield Read(ex.identity)) if ex.seen_before else (yield from seize(ex))
        entry = yield from enter(ex, 0, looked)
        if isinstance(entry, Claimed):
            yield from ask(Save())
            return entry
    except Exception:
        yield from ask(RollBack())
        raise
    yield from ask(RollBack())
    waits = entry.outcome is Outcome.IN_FLIGHT and ex.policy.patience_micros
    return Occupied() if waits else entry


def _replayed(ex: Exchange) -> Flow[Answer | None]:
    """A key met before is probably a replay, which needs no transaction."""
    found = yield from ask(Read(ex.identity))
    if not isinstance(found, Found) or found.record.state is not State.COMPLETED:
        return None
    if found.record.forgettable(found.now):
        return None
    answer = yield from meet(ex, found)
    return answer if isinstance(answer, Answer) else None


# ── what the handler came to ──────────────────────────────────────────────────────────────────────


@value
class _Result:
    """What a run came to."""

    answer: Answer
    op: StoreOperation[Written] | None
    """The record's write; None: there is to be no record."""
    writes: bool
    """The handler's own writes are kept."""

    @property
    def doubtful(self) -> bool:
        """Something may have happened outside: without a record nobody would know."""
        return self.op is not None and (not self.writes or is_ambiguous(self.answer.error))


def settle(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> Flow[Answer]:
    """The second half: the transaction is ended, and nothing of it is left open."""
    if isinstance(outcome, Streaming):
        # It broke off before its end, and nothing of it has been sent.
        outcome = Raised(outcome.error or RuntimeError("the answer broke off"))
    result = _result(ex, outcome, progress)
    if result.writes:
        try:
            yield from ask(Flush())
        except SemelError as error:
            return (yield from _failed(ex, result, error))
        except Exception as error:  # what the database says to the handler's own writes
            result = _result(ex, Raised(error), progress)
    return (yield from _settle(ex, result))


def _result(ex: Exchange, outcome: HandlerOutcome, progress: Progress) -> _Result:
    outcome, verdict = conclude(ex, outcome, progress)
    answer = own_answer(ex, outcome, verdict, progress)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        keep = completion(ex, replay.secured(response, ex.policy), progress)
        returned = isinstance(outcome, Returned) and not outcome.raised  # to raise is to undo
        return _Result(answer, keep, writes=returned and response.status < 500)
    if isinstance(outcome, Returned) and response is not None:
        answer = replace(answer, response=first(ex, response, None))
    op = concession(ex, verdict, answer.error, progress) if verdict is Verdict.SUSPEND else None
    return _Result(answer, op, writes=False)


def _settle(ex: Exchange, result: _Result) -> Flow[Answer]:
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
            return _committed(ex, result.answer, written.expires_at)
    except SemelError as error:
        return (yield from _failed(ex, result, error))
    yield from ask(RollBack())
    return (yield from as_zombie(ex, written, result.answer))


def _committed(ex: Exchange, answer: Answer, expires_at: Micros | None) -> Answer:
    if answer.response is None or answer.outcome is not Outcome.EXECUTED:
        return answer
    return replace(answer, response=first(ex, answer.response, expires_at))


# ── when the transaction fails ────────────────────────────────────────────────────────────────────


def _failed(ex: Exchange, result: _Result, error: SemelError) -> Flow[Answer]:
    yield from ask(RollBack())
    if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
        # The handler ended the transaction itself, and its writes may be there.
        own = Answer(doubt(ex, ex.can_ask, status=500), Outcome.MISCONFIGURED, error, reraise=True)
        return (yield from _apart(ex, _suspension(ex, error), own))
    if result.op is None:
        return result.answer
    if isinstance(error, StoreError) and getattr(error, "applied", None) is not False:
        return (yield from _ascertained(ex, result, error))
    return (yield from _nothing_kept(ex, result, error))


def _nothing_kept(ex: Exchange, result: _Result, error: SemelError) -> Flow[Answer]:
    answer = result.answer
    if not result.doubtful:
        response = ex.refusal("not-executed", retry_after=ex.policy.retry_micros)
        own = Outcome.STORE_ERROR
        return replace(answer, response=response, outcome=own, error=error, reraise=False)
    if result.writes:
        answer = replace(
            answer, response=doubt(ex, ex.can_ask, status=500), outcome=Outcome.SUSPENDED
        )
    return (yield from _apart(ex, _without_writes(ex, result), answer))


def _without_writes(ex: Exchange, result: _Result) -> StoreOperation[Written]:
    """What is to be recorded of a doubt whose transaction is gone."""
    if result.writes or result.op is None:
        return _suspension(ex, result.answer.error)
    return result.op


def _suspension(ex: Exchange, error: BaseException | None) -> StoreOperation[Written]:
    return concession(ex, Verdict.SUSPEND, error, Progress())


def _apart(ex: Exchange, op: StoreOperation[Written], answer: Answer) -> Flow[Answer]:
    """Put on record, in a transaction of its own, that nobody may run this again."""
    for attempt in range(1, _TRIES + 1):
        try:
            # The claim went with its transaction, unless the handler itself has committed it.
            claimed = yield from ask(claim_of(ex))
            if isinstance(claimed, Found) and claimed.record.fence != ex.fence:
                yield from meet(ex, claimed)
            written = yield from ask(op)
        except (SemelError, Interrupted):
            yield from ask(Pause(ex.identity, ex.fence, attempt))
        else:
            if isinstance(written, Lost):
                return (yield from as_zombie(ex, written, answer))
            return _committed(ex, answer, written.expires_at)
    yield from ask(Pursue(op, claim_of(ex)))
    return answer if answer.outcome is not Outcome.EXECUTED else not_durable(ex, answer)


def _ascertained(ex: Exchange, result: _Result, error: SemelError) -> Flow[Answer]:
    """A commit nobody answered for: what is there, under the lock, is what happened."""
    found = yield from _look_again(ex)
    answer = result.answer
    if found is None:
        if result.doubtful:
            yield from ask(Pursue(_without_writes(ex, result), claim_of(ex)))
        return answer if answer.outcome is Outcome.SUSPENDED else not_durable(ex, answer)
    if isinstance(found, NoRecord):
        return (yield from _nothing_kept(ex, result, error))
    record = found.record
    if record.fence == ex.fence and record.state in (State.COMPLETED, State.UNKNOWN):
        return _committed(ex, answer, record.expires_at)
    if record.state is State.FAILED_RETRYABLE and record.fence != ex.seen:
        # It was committed, and evidence has settled it since: a stale holder changes nothing.
        return (yield from as_zombie(ex, Lost(record, found.now), answer))
    if record.state is State.FAILED_RETRYABLE or record.forgettable(found.now):
        return (yield from _nothing_kept(ex, result, error))
    return (yield from from_record(ex, record, found.now))


def _look_again(ex: Exchange) -> Flow[Found | NoRecord | None]:
    """What the record says once nobody can change it any more; None when no answer came in time."""
    attempt = 0
    while True:
        try:
            return (yield from ask(Ascertain(ex.identity)))
        except StoreError:
            attempt += 1
        if not (yield from ask(Pause(ex.identity, ex.fence, attempt))):
            return None
