"""The first half of an exchange on a deferred route: the request is left to the worker."""

from __future__ import annotations

from typing import assert_never

from semel.core.answers import Answer, Outcome, accepted, from_record, in_flight, mismatch
from semel.core.claim import ROUNDS, differs, retake
from semel.core.contract import (
    Accept,
    Accepted,
    Claimed,
    Forget,
    Found,
    Lapse,
    Read,
    Release,
    Retake,
    Stale,
)
from semel.core.exchange import Exchange
from semel.core.flow import Flow, ask
from semel.core.model import Micros, OnLapse, Record, State
from semel.core.problems import refuse
from semel.core.runner import Pursue
from semel.errors import StoreError


def hand_in(ex: Exchange) -> Flow[Answer]:
    """Leave the request to the worker; 202 until it has been run."""
    looks = ex.familiar
    for _ in range(ROUNDS):
        reply = yield from _hand_over(ex, looks)
        looks = False
        match reply:
            case Accepted():
                return accepted(ex, State.PENDING, Outcome.ACCEPTED)
            case Stale():
                return Answer(refuse("key-expired"), Outcome.EXPIRED)
            case Found(record, now):
                answer = yield from _meet_deferred(ex, record, now)
                if answer is not None:
                    return answer
            case _:
                assert_never(reply)
    return in_flight(ex)


def _hand_over(ex: Exchange, looks: bool) -> Flow[Accepted | Found | Stale]:
    """As `_look`: what was met before is read, and its request not sent again."""
    if looks:
        reply = yield from ask(Read(ex.identity))
        if isinstance(reply, Found):
            return reply
    return (yield from ask(_accept(ex)))


def _accept(ex: Exchange) -> Accept:
    if ex.stored is None:
        raise AssertionError("a deferred request must be stored")
    return Accept(
        identity=ex.identity,
        fence=ex.fence,
        fingerprint=ex.prints.fingerprint.text,
        fields=ex.prints.evidence(ex.fence),
        origin=ex.origin,
        request=ex.stored,
        patience=ex.policy.abandon_micros,
        on_lapse=ex.policy.lapse,
        fresh_until=ex.fresh_until,
        terms=ex.plan.terms.id,
    )


def _meet_deferred(ex: Exchange, record: Record, now: Micros) -> Flow[Answer | None]:
    """There is a record; None when it was moved out of the way and the request may be accepted."""
    if record.forgettable(now):
        yield from ask(Forget(ex.identity, record.fence))
        return None
    if differs(ex, record):
        return mismatch(ex, record)
    if record.state is State.FAILED_RETRYABLE:
        # Settled as not done: asked for again, it goes back to the queue.
        taken = yield from retake(ex, record, Retake)
        if isinstance(taken, Claimed):
            yield from _put_back(ex)
        return None
    if record.lapsed(now) and record.on_lapse is not OnLapse.RESUME:
        yield from ask(Lapse(ex.identity, record.fence, ex.policy.retention_micros))
        return None
    return (yield from from_record(ex, record, now))


def _put_back(ex: Exchange) -> Flow[None]:
    """Into the queue. Held by nobody it would lapse, and its outcome would be called unknown."""
    op = Release(ex.identity, ex.fence, ex.policy.retention_micros, "asked for again", requeue=0)
    try:
        yield from ask(op)
    except StoreError:
        yield from ask(Pursue(op))
        raise
