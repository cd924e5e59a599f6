"""The first half of an exchange on a deferred route: the request is left to the worker."""

from __future__ import annotations

from typing import assert_never

from semel.core import operations as ops
from semel.core.exchange.answers import Answer, Outcome, accepted, from_record, in_flight, mismatch
from semel.core.exchange.claim import ROUNDS, differs, retake
from semel.core.exchange.exchange import Exchange
from semel.core.flow import Flow, Interrupted, ask
from semel.core.policy import Policy
from semel.core.records import Case, Fence, Micros, OnLapse, Record, State
from semel.errors import StoreError, StoreUnavailable


def hand_in(ex: Exchange) -> Flow[Answer]:
    """Leave the request to the worker; 202 until it has been run."""
    looks = ex.seen_before
    for _ in range(ROUNDS):
        reply = yield from _hand_over(ex, looks)
        looks = False
        match reply:
            case ops.Accepted():
                return accepted(ex, State.PENDING, Outcome.ACCEPTED)
            case ops.Stale():
                return Answer(ex.refusal("key-expired"), Outcome.EXPIRED)
            case ops.Found(record, now):
                answer = yield from _meet_deferred(ex, record, now)
                if answer is not None:
                    return answer
            case _:
                assert_never(reply)
    return in_flight(ex)


def _hand_over(ex: Exchange, looks: bool) -> Flow[ops.Accepted | ops.Found | ops.Stale]:
    """Accept the request. A key that was probably seen before is read first: reading is cheaper."""
    if looks:
        reply = yield from ask(ops.Read(ex.identity))
        if isinstance(reply, ops.Found):
            return reply
    if ex.stored is None:
        raise AssertionError("a deferred request must be stored")
    accept = ops.Accept(
        identity=ex.identity,
        fence=ex.fence,
        fingerprint=ex.prints.fingerprint.text,
        fields=ex.prints.evidence(ex.identity),
        origin=ex.origin,
        request=ex.stored,
        patience=ex.policy.abandon_micros,
        on_lapse=ex.policy.lapse,
        fresh_until=ex.fresh_until,
        terms=ex.plan.terms.id,
    )
    return (yield from ask(accept))


def _meet_deferred(ex: Exchange, record: Record, now: Micros) -> Flow[Answer | None]:
    """There is a record; None when it was moved out of the way and the request may be accepted."""
    if record.forgettable(now):
        yield from ask(ops.Forget(ex.identity, record.fence))
        return None
    if differs(ex, record):
        return mismatch(ex, record)
    if record.state is State.FAILED_RETRYABLE:
        # Settled as not done: asked for again, it goes back to the queue.
        taken = yield from retake(ex, record, ops.Retake)
        if isinstance(taken, ops.Claimed):
            # Held by nobody, it would lapse and become unknown.
            spent = (ex.identity, ex.fence, ex.policy.retention_micros)
            op = ops.Release(*spent, "asked for again", requeue=0)
            try:
                yield from ask(op)
            except StoreError:
                yield from ask(ops.Pursue(op))
                raise
        return None
    if record.lapsed(now) and record.on_lapse is not OnLapse.RESUME:
        yield from ask(ops.Lapse(ex.identity, record.fence, ex.policy.retention_micros))
        return None
    return (yield from from_record(ex, record, now))


# --- a worker's hold on a stored request: take it, and put down what could not be run


def take(case: Case, fence: Fence, policy: Policy) -> Flow[bool]:
    """Hold a pending request, or an operation whose holder is gone; False: another was first."""
    record = case.record
    how = ops.Take if record.state is State.PENDING else ops.Resume
    try:
        written: ops.Written = yield from ask(
            how(record.identity, record.fence, fence, policy.lease_micros)
        )
    except (StoreError, Interrupted) as error:
        surely_not = isinstance(error, StoreUnavailable) and error.applied is False
        if not surely_not and record.state is State.PENDING:
            # Held by nobody, it would lapse, and its outcome would be called unknown.
            put_back = not_run(case, fence, "taking was not answered", 0)
            yield from ask(ops.Pursue(put_back, seen=record.fence))
        raise
    return isinstance(written, ops.Applied)


def not_run(
    case: Case, fence: Fence, reason: str, again_in: Micros | None
) -> ops.StoreOperation[ops.Written]:
    """Nothing was executed: back to the queue; None: it was tried for long enough.

    An operation that was begun is not freed, since it may have acted: its lease is left to lapse.
    """
    record = case.record
    if again_in is None or case.terms is None:
        return turned_away(case, fence, reason)
    if record.state is State.PENDING:
        return ops.Release(record.identity, fence, case.terms.retention, reason, again_in)
    return ops.Renew(record.identity, fence, again_in)


def turned_away(case: Case, fence: Fence, reason: str) -> ops.StoreOperation[ops.Written]:
    """The application would not run it: a dead letter, for a person to look at."""
    return ops.Suspend(case.record.identity, fence, reason, None)
