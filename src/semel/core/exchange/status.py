"""The status resource: tells the caller of an accepted request how it is doing, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from semel.core.exchange import replay
from semel.core.exchange.answers import under_way
from semel.core.exchange.problems import refuse
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.operations.handler import Begin, Occupied, RollBack
from semel.core.operations.requests import NoRecord, Recall
from semel.core.policy import Policy
from semel.core.records import Case, Identity, Micros, Record, Response, State
from semel.core.stored import snapshot
from semel.core.texts import shown
from semel.errors import StoreError


@frozen
class StatusCall:
    """Who asks about which request, and how its route answers."""

    identity: Identity
    tenant: str
    address: str
    accept_encoding: str | None
    cross_origin: bool
    hidden: bool = False
    """Requests may be under way in transactions that nobody sees the record of yet."""


PolicyOf: TypeAlias = Callable[[Case], Policy | None]
"""How the route of a record answers; None where it is another application's."""

_PAUSE: Final = 1_000_000


def answered(response: Response) -> Flow[Response]:
    """A flow that returns ``response`` and asks for nothing."""
    yield from ()
    return response


def status(call: StatusCall, policy_of: PolicyOf) -> Flow[Response]:
    """What the record says; nothing is run and nothing is changed."""
    try:
        reply = yield from ask(Recall(call.identity))
    except StoreError:
        return refuse("store-unavailable", retry_after=_PAUSE)
    if isinstance(reply, NoRecord) and call.hidden:
        return (yield from _under_way_unseen(call))
    # Another tenant's request and none at all must look alike.
    if isinstance(reply, NoRecord) or reply.case.origin.tenant != shown(call.tenant):
        return refuse("no-such-operation")
    case, policy = reply.case, policy_of(reply.case)
    if policy is None or case.terms is None:
        return refuse("no-such-operation")
    asked = case.terms.probe and case.due_at is not None  # else it was given up
    return (yield from _from_record(call, policy, asked, case.record, reply.now))


def _under_way_unseen(call: StatusCall) -> Flow[Response]:
    """Whether the identity's lock is taken: whose request it is cannot be known before it commits,
    and only its own caller has been told the address."""
    try:
        begun = yield from ask(Begin(call.identity))
        yield from ask(RollBack())
    except StoreError:
        return refuse("store-unavailable", retry_after=_PAUSE)
    if isinstance(begun, Occupied):
        return under_way(call.address, State.IN_PROGRESS, _PAUSE)
    return refuse("no-such-operation")


def _from_record(
    call: StatusCall, policy: Policy, asked: bool, record: Record, now: Micros
) -> Flow[Response]:
    if record.forgettable(now):
        return refuse("no-such-operation")
    if record.past_retention(now):
        return refuse("key-expired")
    if record.state is State.COMPLETED:
        return (yield from _kept_answer(call, policy, record))
    if record.state is State.FAILED_RETRYABLE:
        return refuse("attempt-failed", retry_after=policy.retry_micros)
    if record.state is State.UNKNOWN and not asked:
        return refuse("outcome-unknown", retryable=False)
    return under_way(call.address, record.state, policy.retry_micros)


def _kept_answer(call: StatusCall, policy: Policy, record: Record) -> Flow[Response]:
    if record.retired_at is not None and policy.after_retire == "refuse":
        return refuse("replay-impossible")
    try:
        kept = snapshot.decode(record.snapshot or b"")
    except StoreError:
        return refuse("store-unavailable", retry_after=policy.retry_micros)
    response = kept.response()
    if response is None:
        return refuse("body-not-kept", extra={"original_status": kept.status})
    given = (response, policy, record.expires_at, call.accept_encoding)
    make = partial(replay.replayed, *given, cross_origin=call.cross_origin)
    return (yield from replay.unhurried(response, call.accept_encoding, make))
