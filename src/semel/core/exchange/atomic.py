"""Claim, run and complete in one transaction of the application's own database.

kill -9 at any instant leaves nothing behind. Nobody else sees the record before it is completed, so
others learn of a run under way from the identity's lock: they find it taken and hold nothing.

A record that says "it may have happened" must stand even where the transaction cannot: it is then
written apart, in one of its own.
"""

from __future__ import annotations

from typing import Final

from semel.core import operations as ops
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
from semel.core.records import Micros, State
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreError

_TRIES: Final = 8
"""How often a doubt is written apart while its caller waits; after that without the caller."""


def claim(ex: Exchange) -> Flow[ops.Claimed | Answer]:
    """The first half: afterwards a transaction is open that holds the record, or none is."""
    entry = yield from _enter(ex)
    if isinstance(entry, ops.Occupied) and ex.policy.patience_micros:
        # Holding nothing: neither the lock nor a connection.
        woken = yield from ask(ops.Await(ex.identity, None, ex.policy.patience_micros))
        entry = ops.Occupied() if isinstance(woken, ops.Unwoken) else (yield from _enter(ex))
    if isinstance(entry, ops.Occupied):
        return in_flight(ex)
    if isinstance(entry, ops.Claimed):
        ex.seen = entry.seen
    return entry


# ── getting in ────────────────────────────────────────────────────────────────────────────────────


def _enter(ex: Exchange) -> Flow[ops.Claimed | ops.Occupied | Answer]:
    if ex.seen_before:
        answer = yield from _replayed(ex)
        if answer is not None:
            return answer
    if isinstance((yield from ask(ops.Begin(ex.identity))), ops.Occupied):
        # Whoever is in there may only be asking for the answer, as this one does.
        answer = None if ex.seen_before else (yield from _replayed(ex))
        return ops.Occupied() if answer is None else answer
    try:
        looked = (yield ops.Read(ex.identity)) if ex.seen_before else (yield from seize(ex))
        entry = yield from enter(ex, 0, looked)
        if isinstance(entry, ops.Claimed):
            yield from ask(ops.Save())
            return entry
    except Exception:
        yield from ask(ops.RollBack())
        raise
    yield from ask(ops.RollBack())
    waits = entry.outcome is Outcome.IN_FLIGHT and ex.policy.patience_micros
    return ops.Occupied() if waits else entry


def _replayed(ex: Exchange) -> Flow[Answer | None]:
    """A key met before is probably a replay, which needs no transaction."""
    found = yield from ask(ops.Read(ex.identity))
    if not isinstance(found, ops.Found) or found.record.state is not State.COMPLETED:
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
    op: ops.StoreOperation[ops.Written] | None
    """The record's write; None: there is to be no record."""
    writes: bool
    """The handler's own writes are kept."""

    @property
    def doubtful(self) -> bool:
        """Something may have happened outside: without a record nobody would know."""
        return self.op is not None and (not self.writes or is_ambiguous(self.answer.error))


def settle(ex: Exchange, outcome: ops.HandlerOutcome, progress: Progress) -> Flow[Answer]:
    """The second half: the transaction is ended, and nothing of it is left open.

    A success is sent only after the transaction is durable.
    """
    if isinstance(outcome, ops.Streaming):
        # It broke off before its end, and nothing of it has been sent.
        outcome = ops.Raised(outcome.error or RuntimeError("the answer broke off"))
    result = _result(ex, outcome, progress)
    try:
        if result.writes:
            try:
                yield from ask(ops.Flush())
            except SemelError:
                raise
            except Exception as error:  # what the database says to the handler's own writes
                result = _result(ex, ops.Raised(error), progress)
        if not result.writes:
            # Also where all is rolled back: it tells whether the handler has committed by itself.
            yield from ask(ops.Undo())
        if result.op is None:
            yield from ask(ops.RollBack())
            return result.answer
        written = yield from ask(result.op)
        if isinstance(written, ops.Applied):
            yield from ask(ops.Commit())
            return _committed(ex, result.answer, written.expires_at)
        # A claim that is gone may have gone with the transaction, which the handler has ended.
        yield from ask(ops.Undo())
    except SemelError as error:
        return (yield from _failed(ex, result, error))
    yield from ask(ops.RollBack())
    return (yield from as_zombie(ex, written, result.answer))


def _result(ex: Exchange, outcome: ops.HandlerOutcome, progress: Progress) -> _Result:
    outcome, verdict = conclude(ex, outcome, progress)
    answer = own_answer(ex, outcome, verdict, progress)
    response = answer.response
    if verdict is Verdict.KEEP and response is not None:
        keep = completion(ex, replay.secured(response, ex.policy), progress)
        returned = isinstance(outcome, ops.Returned) and not outcome.raised  # to raise is to undo
        return _Result(answer, keep, writes=returned and response.status < 500)
    if isinstance(outcome, ops.Returned) and response is not None:
        answer = replace(answer, response=first(ex, response, None))
    op = concession(ex, verdict, answer.error, progress) if verdict is Verdict.SUSPEND else None
    return _Result(answer, op, writes=False)


def _committed(ex: Exchange, answer: Answer, expires_at: Micros | None) -> Answer:
    if answer.response is None or answer.outcome is not Outcome.EXECUTED:
        return answer
    return replace(answer, response=first(ex, answer.response, expires_at))


# ── when the transaction fails ────────────────────────────────────────────────────────────────────


def _failed(ex: Exchange, result: _Result, error: SemelError) -> Flow[Answer]:
    yield from ask(ops.RollBack())
    if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
        # The handler ended the transaction itself, and its writes may be there.
        own = Answer(doubt(ex, ex.can_ask, status=500), Outcome.MISCONFIGURED, error, reraise=True)
        return (yield from _apart(ex, concession(ex, Verdict.SUSPEND, error, Progress()), own))
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


def _without_writes(ex: Exchange, result: _Result) -> ops.StoreOperation[ops.Written]:
    """What is to be recorded of a doubt whose transaction is gone."""
    if result.writes or result.op is None:
        return concession(ex, Verdict.SUSPEND, result.answer.error, Progress())
    return result.op


def _apart(ex: Exchange, op: ops.StoreOperation[ops.Written], answer: Answer) -> Flow[Answer]:
    """Put on record, in a transaction of its own, that nobody may run this again."""
    for attempt in range(1, _TRIES + 1):
        try:
            # The claim went with its transaction, unless the handler itself has committed it.
            claimed = yield from ask(claim_of(ex))
            if isinstance(claimed, ops.Found) and claimed.record.fence != ex.fence:
                yield from meet(ex, claimed)
            written = yield from ask(op)
        except (SemelError, Interrupted):
            yield from ask(ops.Pause(ex.identity, ex.fence, attempt))
        else:
            if isinstance(written, ops.Lost):
                return (yield from as_zombie(ex, written, answer))
            return _committed(ex, answer, written.expires_at)
    yield from ask(ops.Pursue(op, claim_of(ex)))
    return answer if answer.outcome is not Outcome.EXECUTED else not_durable(ex, answer)


def _ascertained(ex: Exchange, result: _Result, error: SemelError) -> Flow[Answer]:
    """A commit nobody answered for: what is there, under the lock, is what happened."""
    found = yield from _look_again(ex)
    answer = result.answer
    if found is None:
        if result.doubtful:
            yield from ask(ops.Pursue(_without_writes(ex, result), claim_of(ex)))
        return answer if answer.outcome is Outcome.SUSPENDED else not_durable(ex, answer)
    if isinstance(found, ops.NoRecord):
        return (yield from _nothing_kept(ex, result, error))
    record = found.record
    if record.fence == ex.fence and record.state in (State.COMPLETED, State.UNKNOWN):
        return _committed(ex, answer, record.expires_at)
    if record.state is State.FAILED_RETRYABLE and record.fence != ex.seen:
        # It was committed, and evidence has settled it since: a stale holder changes nothing.
        return (yield from as_zombie(ex, ops.Lost(record, found.now), answer))
    if record.state is State.FAILED_RETRYABLE or record.forgettable(found.now):
        return (yield from _nothing_kept(ex, result, error))
    return (yield from from_record(ex, record, found.now))


def _look_again(ex: Exchange) -> Flow[ops.Found | ops.NoRecord | None]:
    """What the record says once nobody can change it any more; None when no answer came in time."""
    attempt = 0
    while True:
        try:
            return (yield from ask(ops.Ascertain(ex.identity)))
        except StoreError:
            attempt += 1
        if not (yield from ask(ops.Pause(ex.identity, ex.fence, attempt))):
            return None
