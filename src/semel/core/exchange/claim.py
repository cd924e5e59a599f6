"""The first half of an exchange: claim the key, or find out why not.

A flow (see `core/flow.py`): each ``yield`` is a place where the process may die or another request
may run; what must always hold is argued at those places.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from semel.core import operations as ops
from semel.core.exchange.admit import TurnedAway, throttled
from semel.core.exchange.answers import (
    Answer,
    Outcome,
    closed,
    from_record,
    in_flight,
    made_in_shadow,
    mismatch,
    ran_again,
    unknown,
    usual_replay,
)
from semel.core.exchange.exchange import Exchange, PreviousPrints
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import value
from semel.core.records import Fence, Micros, OnLapse, Record, State
from semel.core.recovery import journal
from semel.errors import ConfigurationError, SchemaError, StoreCorrupt, StoreError, StoreUnavailable

ROUNDS: Final = 8
"""How often a claim may meet a record that changes under its eyes before it gives way."""


@value
class _Busy:
    """Somebody else holds the record."""

    record: Record


_Step: TypeAlias = ops.Claimed | ops.Found | ops.NoRecord | ops.Stale | _Busy | Answer
"""Where a request stands on its way in."""


def claim(ex: Exchange, before: Flow[None] | None = None) -> Flow[ops.Claimed | Answer]:
    """The right to run the handler, or the answer there is instead of running it.

    What fails ``before`` fails closed as well.
    """
    try:
        if before is not None:
            yield from before
        if ex.older is not None:
            yield from _choose_identity(ex, ex.older)
        if not ex.policy.leased:
            return (yield from _claim_otherwise(ex))
        op: ops.Read | ops.Claim = ops.Read(ex.identity) if ex.seen_before else claim_of(ex)
        try:
            reply: ops.Claimed | ops.Found | ops.Stale | ops.NoRecord = yield op
        except (StoreError, Interrupted) as error:
            if type(op) is ops.Claim:
                yield from _retract(ex, error)
            raise
        if type(reply) is ops.Claimed:
            return reply
        if type(reply) is ops.Found and (usual := usual_replay(ex, reply)) is not None:
            return usual
        entry = yield from enter(ex, ex.policy.patience_micros, reply)
        if isinstance(entry, ops.Claimed) and entry.again and ex.policy.resumable:
            return (yield from resume(ex, entry))
        return entry
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except TurnedAway as error:
        return throttled(ex, error.code, error.wait)
    except (StoreError, SchemaError) as error:  # in an upgrade, another node may well answer
        return closed(ex, error)
    except ConfigurationError as error:
        return Answer(ex.refusal("misconfigured"), Outcome.MISCONFIGURED, error)


def _claim_otherwise(ex: Exchange) -> Flow[ops.Claimed | Answer]:
    """In a transaction, or by a worker; both need this module, and few routes need them."""
    if ex.policy.mode == "atomic":
        from semel.core.exchange import atomic

        return (yield from atomic.claim(ex))
    from semel.core.exchange import deferred

    return (yield from deferred.hand_in(ex))


def resume(ex: Exchange, entry: ops.Claimed) -> Flow[ops.Claimed | Answer]:
    """An operation that somebody held before goes on from its journal.

    Where that cannot be read nothing is run. The key is not freed, since it may have acted: it
    lapses and is resumed, unless nobody can ever read it.
    """
    try:
        reply: ops.Recalled | ops.NoRecord = yield ops.Recall(ex.identity)
        if isinstance(reply, ops.Recalled):
            ex.journal = journal.decode(reply.case.journal)
        return entry
    except Interrupted:
        return Answer(None, Outcome.INTERRUPTED)
    except StoreError as error:
        op: ops.Renew | ops.Suspend = ops.Renew(ex.identity, ex.fence, ex.policy.retry_micros)
        if isinstance(error, StoreCorrupt):
            op = ops.Suspend(ex.identity, ex.fence, "its journal is damaged", None)
        try:
            yield op
        except (StoreError, ConfigurationError):
            yield ops.Pursue(op)
        return closed(ex, error)


def _choose_identity(ex: Exchange, older: PreviousPrints) -> Flow[None]:
    """A key that is alive under the previous settings keeps its old identity to its end."""
    ex.older = None
    reply = yield from ask(ops.Read(older.identity))
    if not isinstance(reply, ops.Found) or reply.record.forgettable(reply.now):
        return
    if older.identity == ex.identity and ex.prints.match(reply.record):
        return  # only the fingerprint has changed, and this record has the new one
    ex.identity, ex.prints = older.identity, older.prints


def enter(ex: Exchange, patience: Micros, reply: _Step) -> Flow[ops.Claimed | Answer]:
    """Find out what the first ``reply`` of the store means, until there is an answer or a claim.

    Another's answer is waited for as long as ``patience`` lasts.
    """
    for _ in range(ROUNDS):
        match reply:
            case ops.Claimed() | Answer():
                return reply
            case ops.Stale():
                return Answer(ex.refusal("key-expired"), Outcome.EXPIRED)
            case ops.NoRecord():
                reply = yield from seize(ex)
            case ops.Found():
                reply = yield from meet(ex, reply)
            case _Busy(record):
                reply = yield from _wait(ex, record, patience)
                patience = 0
            case _:
                assert_never(reply)
    return in_flight(ex)


def claim_of(ex: Exchange) -> ops.Claim:
    policy, prints = ex.policy, ex.prints
    return ops.Claim(
        identity=ex.identity,
        fence=ex.fence,
        fingerprint=prints.fingerprint.text,
        fields=prints.evidence(ex.identity),
        origin=ex.origin,
        lease=policy.lease_micros,
        on_lapse=policy.lapse,
        fresh_until=ex.fresh_until,
        request=ex.stored,
        terms=ex.plan.terms.id,
    )


def seize(ex: Exchange) -> Flow[ops.Claimed | ops.Found | ops.Stale]:
    """Send the claim. If its answer never comes, the handler does not run and it is taken back."""
    try:
        reply: ops.Claimed | ops.Found | ops.Stale = yield claim_of(ex)
    except (StoreError, Interrupted) as error:
        yield from _retract(ex, error)
        raise
    return reply


def _retract(ex: Exchange, error: Exception, seen: Fence | None = None) -> Flow[None]:
    if ex.policy.shadow and not isinstance(error, Interrupted):
        # It runs all the same, and what comes of it is written under its fence.
        ex.shadow.may_hold = getattr(error, "applied", None) is not False
        return
    surely_not_applied = isinstance(error, StoreUnavailable) and error.applied is False
    if not surely_not_applied and ex.policy.mode != "atomic":
        yield from ask(ops.Pursue(release(ex, "claim unanswered"), seen=seen))


def release(ex: Exchange, reason: str) -> ops.Release:
    requeue = None if ex.worker is None else ex.worker.requeue
    return ops.Release(ex.identity, ex.fence, ex.policy.retention_micros, reason, requeue)


def meet(ex: Exchange, found: ops.Found) -> Flow[_Step]:
    """There is a record: what it means for this request."""
    record, now = found.record, found.now
    if record.forgettable(now):
        yield from ask(ops.Forget(ex.identity, record.fence))
        return (yield from seize(ex))
    if differs(ex, record):
        return mismatch(ex, record)
    if record.state is State.COMPLETED:
        return (yield from from_record(ex, record, now))
    if record.lapsed(now) and record.on_lapse is OnLapse.RESUME:
        # One that was begun as an operation and is none any more is left to whoever knows it.
        return (yield from retake(ex, record, ops.Resume)) if ex.policy.resumable else _Busy(record)
    if record.lapsed(now):
        yield from ask(ops.Lapse(ex.identity, record.fence, ex.policy.retention_micros))
        return (yield from seize(ex))
    if record.state is State.FAILED_RETRYABLE:
        if made_in_shadow(record) and not ex.policy.shadow and (yield from ran_again(record)):
            return Answer(ex.refusal("ran-again"), Outcome.RECEIPT)
        return (yield from retake(ex, record, ops.Retake))
    if record.state in (State.IN_PROGRESS, State.PENDING):
        return _Busy(record)
    return (yield from from_record(ex, record, now))


def differs(ex: Exchange, record: Record) -> bool:
    """Whether the record was made by another request. An erased one cannot tell any more."""
    return record.fingerprint != "" and not ex.prints.match(record)


def retake(
    ex: Exchange, record: Record, how: type[ops.Retake | ops.Resume]
) -> Flow[ops.Claimed | ops.Found | ops.Stale]:
    """Hold a record that another held before, whose journal stays."""
    held = (ex.identity, record.fence, ex.fence, ex.policy.lease_micros)
    op: ops.Retake | ops.Resume
    op = ops.Retake(*held, ex.policy.lapse) if how is ops.Retake else ops.Resume(*held)
    try:
        reply = yield from ask(op)
    except (StoreError, Interrupted) as error:
        if (
            how is ops.Retake
        ):  # one that was resumed may have acted: it lapses again, and is not freed
            yield from _retract(ex, error, record.fence)
        raise
    if isinstance(reply, ops.Applied):
        until = reply.leased_until or reply.now
        return ops.Claimed(until, reply.now, record.created_at, again=True, seen=record.fence)
    if reply.record is not None:
        return ops.Found(reply.record, reply.now)
    return (yield from seize(ex))


def _wait(ex: Exchange, record: Record, patience: Micros) -> Flow[ops.Found | Answer]:
    """Wait once, then act on what the record has become.

    Of all who waited in this process one is elected to act; for the others the attempt they
    waited for is the answer, or a herd would run one failing handler after the other.
    """
    if patience == 0:
        return in_flight(ex)
    reply = yield from ask(ops.Await(ex.identity, record.fence, patience))
    match reply:
        case ops.Unwoken():
            return in_flight(ex)
        case ops.Woken(found, now, elected):
            if elected or not (found.state is State.FAILED_RETRYABLE or found.lapsed(now)):
                return ops.Found(found, now)
            if found.state is State.FAILED_RETRYABLE or found.on_lapse is OnLapse.RELEASE:
                response = ex.refusal("attempt-failed", retry_after=ex.policy.retry_micros)
                return Answer(response, Outcome.IN_FLIGHT)
            # An operation is resumed, by the elected one or by a worker: nothing is lost yet.
            return in_flight(ex) if found.on_lapse is OnLapse.RESUME else unknown(ex, ex.can_ask)
        case _:
            assert_never(reply)
