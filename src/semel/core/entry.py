"""Getting in: claim the key, or find out why not.

A flow, like the exchange it belongs to: each ``yield`` is a place where the process may die or
another request may run.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from semel.core.admission import Call
from semel.core.answers import (
    Answer,
    Outcome,
    accepted,
    from_record,
    in_flight,
    mismatch,
    unknown,
)
from semel.core.contract import (
    Accept,
    Accepted,
    Applied,
    Claim,
    Claimed,
    Forget,
    Found,
    Lapse,
    Read,
    Release,
    Resume,
    Retake,
    Stale,
)
from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen, replace
from semel.core.model import Fence, Micros, OnLapse, Record, State
from semel.core.problems import refuse
from semel.core.runner import Await, Pursue, Unwoken, Woken
from semel.errors import StoreError, StoreUnavailable

_ROUNDS: Final = 8
"""How often a claim may meet a record that changes under its eyes before it gives way."""


@frozen
class _Busy:
    """Somebody else holds the record."""

    record: Record


_Step: TypeAlias = Claimed | Found | Stale | _Busy | Answer
"""Where a request stands on its way in."""


def under_which_identity(call: Call) -> Flow[Call]:
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


def enter(call: Call, patience: Micros) -> Flow[Claimed | Answer]:
    """Claim, or find out why not; wait for another's answer as long as ``patience`` lasts."""
    reply: _Step = yield from (_look(call) if call.familiar else _seize(call, claim_of(call)))
    for _ in range(_ROUNDS):
        match reply:
            case Claimed() | Answer():
                return reply
            case Stale():
                return Answer(refuse("key-expired"), Outcome.EXPIRED)
            case Found():
                reply = yield from meet(call, reply)
            case _Busy(record):
                reply = yield from _wait(call, record, patience)
                patience = 0
            case _:
                assert_never(reply)
    return in_flight(call)


def _look(call: Call) -> Flow[Claimed | Found | Stale]:
    """A key met before is probably a replay: reading is cheaper, and asks for less of the body."""
    reply = yield from ask(Read(call.identity))
    return reply if isinstance(reply, Found) else (yield from _seize(call, claim_of(call)))


def claim_of(call: Call) -> Claim:
    return Claim(
        identity=call.identity,
        fence=call.fence,
        fingerprint=call.prints.fingerprint.text,
        fields=call.prints.evidence(call.fence),
        origin=call.origin,
        lease=call.policy.lease_micros,
        on_lapse=call.policy.lapse,
        fresh_until=call.fresh_until,
        request=call.request,
        terms=call.terms,
    )


def _seize(call: Call, claim: Claim) -> Flow[Claimed | Found | Stale]:
    """A claim whose answer never came does not run the handler; it is taken back."""
    try:
        return (yield from ask(claim))
    except (StoreError, Interrupted) as error:
        yield from _retract(call, error)
        raise


def _retract(call: Call, error: Exception, seen: Fence | None = None) -> Flow[None]:
    surely_not_applied = isinstance(error, StoreUnavailable) and error.applied is False
    if not surely_not_applied and call.policy.mode != "atomic":
        yield from ask(Pursue(release(call, "claim unanswered"), seen=seen))


def release(call: Call, reason: str) -> Release:
    return Release(call.identity, call.fence, call.policy.retention_micros, reason, call.requeue)


def meet(call: Call, found: Found) -> Flow[_Step]:
    """There is a record: what it means for this request."""
    record, now = found.record, found.now
    if record.forgettable(now):
        yield from ask(Forget(call.identity, record.fence))
        return (yield from _seize(call, claim_of(call)))
    if _differs(call, record):
        return mismatch(call, record)
    if record.lapsed(now) and record.on_lapse is OnLapse.RESUME:
        # One that was begun as an operation and is none any more is left to whoever knows it.
        return (yield from _retake(call, record, Resume)) if call.resumable else _Busy(record)
    if record.lapsed(now):
        yield from ask(Lapse(call.identity, record.fence, call.policy.retention_micros))
        return (yield from _seize(call, claim_of(call)))
    if record.state is State.FAILED_RETRYABLE:
        return (yield from _retake(call, record, Retake))
    if record.state in (State.IN_PROGRESS, State.PENDING):
        return _Busy(record)
    return (yield from from_record(call, record, now))


def _differs(call: Call, record: Record) -> bool:
    """An erased record has no fingerprint any more, and refuses everything alike."""
    return record.fingerprint != "" and not call.prints.match(record)


def _retake(
    call: Call, record: Record, how: type[Retake | Resume]
) -> Flow[Claimed | Found | Stale]:
    """Hold a record that another held before, whose journal stays."""
    policy = call.policy
    op: Retake | Resume = Resume(call.identity, record.fence, call.fence, policy.lease_micros)
    if how is Retake:
        op = Retake(call.identity, record.fence, call.fence, policy.lease_micros, policy.lapse)
    try:
        reply = yield from ask(op)
    except (StoreError, Interrupted) as error:
        if how is Retake:  # one that was resumed may have acted: it lapses again, and is not freed
            yield from _retract(call, error, record.fence)
        raise
    if isinstance(reply, Applied):
        until = reply.leased_until or reply.now
        return Claimed(until, reply.now, record.created_at, again=True, seen=record.fence)
    if reply.record is not None:
        return Found(reply.record, reply.now)
    return (yield from _seize(call, claim_of(call)))


def _wait(call: Call, record: Record, patience: Micros) -> Flow[Found | Answer]:
    """Wait once, then act on what the record has become.

    Of all who waited in this process one is elected to act; for the others the attempt they
    waited for is the answer, or a herd would run one failing handler after the other.
    """
    if patience == 0:
        return in_flight(call)
    reply = yield from ask(Await(call.identity, record.fence, patience))
    match reply:
        case Unwoken():
            return in_flight(call)
        case Woken(found, now, elected):
            if elected or not (found.state is State.FAILED_RETRYABLE or found.lapsed(now)):
                return Found(found, now)
            if found.state is State.FAILED_RETRYABLE or found.on_lapse is OnLapse.RELEASE:
                response = refuse("attempt-failed", retry_after=call.policy.retry_micros)
                return Answer(response, Outcome.IN_FLIGHT)
            # An operation is resumed, by the elected one or by a worker: nothing is lost yet.
            return in_flight(call) if found.on_lapse is OnLapse.RESUME else unknown(call)
        case _:
            assert_never(reply)


# ── deferred requests ─────────────────────────────────────────────────────────────────────────────


def hand_in(call: Call) -> Flow[Answer]:
    """Leave the request to the worker; 202 until it has been run."""
    looks = call.familiar
    for _ in range(_ROUNDS):
        reply = yield from _hand_over(call, looks)
        looks = False
        match reply:
            case Accepted():
                return accepted(call, State.PENDING, Outcome.ACCEPTED)
            case Stale():
                return Answer(refuse("key-expired"), Outcome.EXPIRED)
            case Found(record, now):
                answer = yield from _meet_deferred(call, record, now)
                if answer is not None:
                    return answer
            case _:
                assert_never(reply)
    return in_flight(call)


def _hand_over(call: Call, looks: bool) -> Flow[Accepted | Found | Stale]:
    """As `_look`: what was met before is read, and its request not sent again."""
    if looks:
        reply = yield from ask(Read(call.identity))
        if isinstance(reply, Found):
            return reply
    return (yield from ask(_accept(call)))


def _accept(call: Call) -> Accept:
    if call.request is None:
        raise AssertionError("a deferred request must be stored")
    return Accept(
        identity=call.identity,
        fence=call.fence,
        fingerprint=call.prints.fingerprint.text,
        fields=call.prints.evidence(call.fence),
        origin=call.origin,
        request=call.request,
        patience=call.policy.abandon_micros,
        on_lapse=call.policy.lapse,
        fresh_until=call.fresh_until,
        terms=call.terms,
    )


def _meet_deferred(call: Call, record: Record, now: Micros) -> Flow[Answer | None]:
    """There is a record; None when it was moved out of the way and the request may be accepted."""
    if record.forgettable(now):
        yield from ask(Forget(call.identity, record.fence))
        return None
    if _differs(call, record):
        return mismatch(call, record)
    if record.state is State.FAILED_RETRYABLE:
        # Settled as not done: asked for again, it goes back to the queue.
        taken = yield from _retake(call, record, Retake)
        if isinstance(taken, Claimed):
            yield from _put_back(call)
        return None
    if record.lapsed(now) and record.on_lapse is not OnLapse.RESUME:
        yield from ask(Lapse(call.identity, record.fence, call.policy.retention_micros))
        return None
    return (yield from from_record(call, record, now))


def _put_back(call: Call) -> Flow[None]:
    """Into the queue. Held by nobody it would lapse, and its outcome would be called unknown."""
    op = release(replace(call, requeue=0), "asked for again")
    try:
        yield from ask(op)
    except StoreError:
        yield from ask(Pursue(op))
        raise
