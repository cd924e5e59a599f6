"""The first half of an exchange: claim the key, or find out why not.

A flow (see `core/flow.py`): each ``yield`` is a place where the process may die or another request
may run; what must always hold is argued at those places.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from semel.core.exchange.admit import TurnedAway, throttled
from semel.core.exchange.answers import (
    Answer,
    Outcome,
    closed,
    from_record,
    in_flight,
    mismatch,
    unknown,
    usual_replay,
)
from semel.core.exchange.exchange import Exchange
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import value
from semel.core.operations.handler import Await, Pursue, Unwoken, Woken
from semel.core.operations.requests import (
    Applied,
    Claim,
    Claimed,
    Forget,
    Found,
    Lapse,
    NoRecord,
    Read,
    Recall,
    Recalled,
    Release,
    Renew,
    Resume,
    Retake,
    Stale,
    Suspend,
)
from semel.core.records import Fence, Micros, OnLapse, Record, State
from semel.core.recovery import journal
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable

ROUNDS: Final = 8
"""How often a claim may meet a record that changes under its eyes before it gives way."""


@value
class _Busy:
    """Somebody else holds the record."""

    record: Record


_Step: TypeAlias = Claimed | Found | NoRecord | Stale | _Busy | Answer
"""Where a request stands on its way in."""


def claim(ex: Exchange, before: Flow[None] | None = None) -> Flow[Claimed | Answer]:
    """The right to run the handler, or the answer there is instead of running it.

    What fails ``before`` fails closed as well.
    """
    try:
        if before is not None:
            yield from before
        if ex.older is not None:
            yield from _choose_identity(ex)
        if not ex.policy.leased:
            return (yield from _claim_otherwise(ex))
        op: Read | Claim = Read(ex.identity) if ex.seen_before else claim_of(ex)
        try:
            reply: Claimed | Found | Stale | NoRecord = yield op
        except (StoreError, Interrupted) as error:
            if type(op) is Claim:
                yield from _retract(ex, error)
            raise
        if type(reply) is Claimed:
            return reply
        usual = usual_replay(ex, reply) if type(reply) is Found else None
        return usual or (yield from _enter(ex, reply))
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except TurnedAway as error:
        return throttled(ex, error.code, error.wait)
    except (StoreError, SchemaError) as error:  # in an upgrade, another node may well answer
        return closed(ex, error)
    except ConfigurationError as error:
        return Answer(ex.refusal("misconfigured"), Outcome.MISCONFIGURED, error)


def _claim_otherwise(ex: Exchange) -> Flow[Claimed | Answer]:
    """In a transaction, or by a worker; both need this module, and few routes need them."""
    if ex.policy.mode == "atomic":
        from semel.core.exchange import atomic

        return (yield from atomic.claim(ex))
    from semel.core.exchange import deferred

    return (yield from deferred.hand_in(ex))


def _enter(ex: Exchange, reply: _Step) -> Flow[Claimed | Answer]:
    """An operation that was begun before goes on from its journal."""
    entry = yield from enter(ex, ex.policy.patience_micros, reply)
    if isinstance(entry, Claimed) and entry.again and ex.policy.resumable:
        return (yield from resume(ex, entry))
    return entry


def resume(ex: Exchange, entry: Claimed) -> Flow[Claimed | Answer]:
    """An operation that somebody held before goes on from its journal.

    Where that cannot be read nothing is run. The key is not freed, since it may have acted: it
    lapses and is resumed, unless nobody can ever read it.
    """
    try:
        reply: Recalled | NoRecord = yield Recall(ex.identity)
        if isinstance(reply, Recalled):
            ex.journal = journal.decode(reply.case.journal)
        return entry
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except StoreError as error:
        op: Renew | Suspend = Renew(ex.identity, ex.fence, ex.policy.retry_micros)
        if isinstance(error, StoreCorrupt):
            op = Suspend(ex.identity, ex.fence, "its journal is damaged", None)
        try:
            yield op
        except (StoreError, ConfigurationError):
            yield Pursue(op)
        return closed(ex, error)


def _choose_identity(ex: Exchange) -> Flow[None]:
    """A key that is alive under the previous settings keeps its old identity to its end."""
    older, ex.older = ex.older, None
    if older is None:
        return
    reply = yield from ask(Read(older.identity))
    if not isinstance(reply, Found) or reply.record.forgettable(reply.now):
        return
    if older.identity == ex.identity and ex.prints.match(reply.record):
        return  # only the fingerprint has changed, and this record has the new one
    ex.identity, ex.prints = older.identity, older.prints


def enter(ex: Exchange, patience: Micros, reply: _Step) -> Flow[Claimed | Answer]:
    """Find out what the first ``reply`` of the store means, until there is an answer or a claim.

    Another's answer is waited for as long as ``patience`` lasts.
    """
    for _ in range(ROUNDS):
        match reply:
            case Claimed() | Answer():
                return reply
            case Stale():
                return Answer(ex.refusal("key-expired"), Outcome.EXPIRED)
            case NoRecord():
                reply = yield from seize(ex)
            case Found():
                reply = yield from meet(ex, reply)
            case _Busy(record):
                reply = yield from _wait(ex, record, patience)
                patience = 0
            case _:
                assert_never(reply)
    return in_flight(ex)


def claim_of(ex: Exchange) -> Claim:
    policy, prints = ex.policy, ex.prints
    return Claim(
        identity=ex.identity,
        fence=ex.fence,
        fingerprint=prints.fingerprint.text,
        fields=prints.evidence(ex.fence),
        origin=ex.origin,
        lease=policy.lease_micros,
        on_lapse=policy.lapse,
        fresh_until=ex.fresh_until,
        request=ex.stored,
        terms=ex.plan.terms.id,
    )


def seize(ex: Exchange) -> Flow[Claimed | Found | Stale]:
    """Send the claim. If its answer never comes, the handler does not run and it is taken back."""
    try:
        reply: Claimed | Found | Stale = yield claim_of(ex)
    except (StoreError, Interrupted) as error:
        yield from _retract(ex, error)
        raise
    return reply


def _retract(ex: Exchange, error: Exception, seen: Fence | None = None) -> Flow[None]:
    surely_not_applied = isinstance(error, StoreUnavailable) and error.applied is False
    if not surely_not_applied and ex.policy.mode != "atomic":
        yield from ask(Pursue(release(ex, "claim unanswered"), seen=seen))


def release(ex: Exchange, reason: str) -> Release:
    requeue = None if ex.worker is None else ex.worker.requeue
    return Release(ex.identity, ex.fence, ex.policy.retention_micros, reason, requeue)


def meet(ex: Exchange, found: Found) -> Flow[_Step]:
    """There is a record: what it means for this request."""
    record, now = found.record, found.now
    if record.forgettable(now):
        yield from ask(Forget(ex.identity, record.fence))
        return (yield from seize(ex))
    if differs(ex, record):
        return mismatch(ex, record)
    if record.state is State.COMPLETED:
        return (yield from from_record(ex, record, now))
    if record.lapsed(now) and record.on_lapse is OnLapse.RESUME:
        # One that was begun as an operation and is none any more is left to whoever knows it.
        return (yield from retake(ex, record, Resume)) if ex.policy.resumable else _Busy(record)
    if record.lapsed(now):
        yield from ask(Lapse(ex.identity, record.fence, ex.policy.retention_micros))
        return (yield from seize(ex))
    if record.state is State.FAILED_RETRYABLE:
        return (yield from retake(ex, record, Retake))
    if record.state in (State.IN_PROGRESS, State.PENDING):
        return _Busy(record)
    return (yield from from_record(ex, record, now))


def differs(ex: Exchange, record: Record) -> bool:
    """Whether the record was made by another request. An erased one cannot tell any more."""
    return record.fingerprint != "" and not ex.prints.match(record)


def retake(
    ex: Exchange, record: Record, how: type[Retake | Resume]
) -> Flow[Claimed | Found | Stale]:
    """Hold a record that another held before, whose journal stays."""
    policy = ex.policy
    op: Retake | Resume = Resume(ex.identity, record.fence, ex.fence, policy.lease_micros)
    if how is Retake:
        op = Retake(ex.identity, record.fence, ex.fence, policy.lease_micros, policy.lapse)
    try:
        reply = yield from ask(op)
    except (StoreError, Interrupted) as error:
        if how is Retake:  # one that was resumed may have acted: it lapses again, and is not freed
            yield from _retract(ex, error, record.fence)
        raise
    if isinstance(reply, Applied):
        until = reply.leased_until or reply.now
        return Claimed(until, reply.now, record.created_at, again=True, seen=record.fence)
    if reply.record is not None:
        return Found(reply.record, reply.now)
    return (yield from seize(ex))


def _wait(ex: Exchange, record: Record, patience: Micros) -> Flow[Found | Answer]:
    """Wait once, then act on what the record has become.

    Of all who waited in this process one is elected to act; for the others the attempt they
    waited for is the answer, or a herd would run one failing handler after the other.
    """
    if patience == 0:
        return in_flight(ex)
    reply = yield from ask(Await(ex.identity, record.fence, patience))
    match reply:
        case Unwoken():
            return in_flight(ex)
        case Woken(found, now, elected):
            if elected or not (found.state is State.FAILED_RETRYABLE or found.lapsed(now)):
                return Found(found, now)
            if found.state is State.FAILED_RETRYABLE or found.on_lapse is OnLapse.RELEASE:
                response = ex.refusal("attempt-failed", retry_after=ex.policy.retry_micros)
                return Answer(response, Outcome.IN_FLIGHT)
            # An operation is resumed, by the elected one or by a worker: nothing is lost yet.
            return in_flight(ex) if found.on_lapse is OnLapse.RESUME else unknown(ex, ex.can_ask)
        case _:
            assert_never(reply)
