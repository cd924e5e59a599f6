"""Answers: what an exchange comes to, and what a record says to those who may not run.

To them belong the callers of the status resource, who ask how an accepted request is doing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Final, TypeAlias, assert_never

from semel.core import operations as ops
from semel.core.exchange import replay
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.problems import refuse
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen, value
from semel.core.policy import Policy
from semel.core.records import Case, Fence, Identity, Micros, Record, Response, State
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
from semel.core.texts import shown
from semel.errors import SchemaError, StoreError


class Outcome(StrEnum):
    """What an exchange came to: one word for logs and metrics."""

    EXECUTED = "executed"
    ACCEPTED = "accepted"
    RELEASED = "released"
    SUSPENDED = "suspended"
    REPLAYED = "replayed"
    RECEIPT = "receipt"
    IN_FLIGHT = "in_flight"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    THROTTLED = "throttled"
    STORE_ERROR = "store_error"
    NOT_DURABLE = "not_durable"
    MISCONFIGURED = "misconfigured"
    INTERRUPTED = "interrupted"


_COMPLETED: Final = State.COMPLETED
_REPLAYED: Final = Outcome.REPLAYED
"""A member of an enumeration takes four times as long to find as a constant."""


@value
class Answer:
    """What the adapter has to do last.

    ``response`` is None when there is nothing (more) to send. ``error`` is the handler's or the
    store's exception: the handler's is raised again after sending (``reraise``), the store's is
    only logged. ``zombie``: the holder came too late and answers from the record.
    """

    response: Response | None
    outcome: Outcome
    error: BaseException | None = None
    reraise: bool = False
    zombie: bool = False


def closed(ex: Exchange, error: StoreError | SchemaError) -> Answer:
    """Fail closed: without a record nothing is executed."""
    response = ex.refusal("store-unavailable", retry_after=ex.policy.retry_micros)
    return Answer(response, Outcome.STORE_ERROR, error)


def from_record(ex: Exchange, record: Record | None, now: Micros) -> Flow[Answer]:
    """The answer a record gives to somebody who may not run the handler."""
    if record is None:
        return in_flight(ex)
    match record.state:
        case State.IN_PROGRESS | State.PENDING | State.FAILED_RETRYABLE:
            return in_flight(ex)
        case State.UNKNOWN:
            return unknown(ex, (yield from _somebody_is_asked(ex)))
        case State.COMPLETED if not record.past_retention(now):
            return _retired(ex, record) or (yield from _replay(ex, record))
        case State.COMPLETED | State.EXPIRED:
            return Answer(ex.refusal("key-expired"), Outcome.EXPIRED)
        case _:
            assert_never(record.state)


def _somebody_is_asked(ex: Exchange) -> Flow[bool]:
    """Whether anybody is still asked about it: a dead letter waits for a person."""
    if not ex.can_ask:
        return False
    try:
        reply = yield from ask(ops.Recall(ex.identity))
    except StoreError:
        return True  # the record itself was read: only how long to wait is not known
    return not (isinstance(reply, ops.Recalled) and reply.case.due_at is None)


def usual_replay(ex: Exchange, found: ops.Found) -> Answer | None:
    """The answer of a completed record to the same request, as most retries get it; else None.

    Not retired, not past its retention, not large, in no content coding, by no ``on_replay``:
    nobody need be asked for anything more. All else is said by `from_record`.
    """
    record, policy = found.record, ex.policy
    ends = record.expires_at
    if record.state is not _COMPLETED or ends is None or ends <= found.now:
        return None
    if record.retired_at is not None or policy.on_replay is not None:
        return None
    whole = snapshot.decode_whole(record.snapshot or b"")
    if whole is None or not ex.prints.match(record):
        return None
    crossed = b"origin" in ex.request.headers.first
    response = replay.repeated(whole, policy, ends, crossed)
    return None if response is None else Answer(response, _REPLAYED)


def _replay(ex: Exchange, record: Record) -> Flow[Answer]:
    blob = record.snapshot or b""
    try:
        if snapshot.is_head(blob):
            reply = yield from ask(ops.Fetch(record.identity, record.fence, blob))
            if isinstance(reply, ops.NoRecord):
                return in_flight(ex)  # it is another by now
            blob = reply.snapshot
        kept = snapshot.decode(blob)
        if kept.shadow and (yield from ran_again(record)):
            return Answer(ex.refusal("ran-again"), Outcome.RECEIPT)
    except StoreError as error:
        return closed(ex, error)
    make = partial(_repeated, ex, record, kept)
    answer = yield from replay.unhurried(kept.response(), ex.accept_encoding, make)
    response = answer.response
    if ex.policy.on_replay is None or answer.outcome is Outcome.RECEIPT or response is None:
        return answer
    try:
        current = replay.measured((yield from ask(ops.Render(response))))
    except Exception as error:
        return Answer(ex.refusal("replay-failed"), Outcome.REPLAYED, error)
    return Answer(current, Outcome.REPLAYED)


def _repeated(ex: Exchange, record: Record, kept: Snapshot) -> Answer:
    response = kept.response()
    if response is None:
        extra = {"original_status": kept.status}
        return Answer(ex.refusal("body-not-kept", extra=extra), Outcome.RECEIPT)
    given = (response, ex.policy, record.expires_at, ex.accept_encoding)
    answer = replay.replayed(*given, cross_origin=ex.cross_origin)
    return Answer(answer, Outcome.REPLAYED)


# --- keys that were used in shadow (`core/exchange/shadow.py`), as they are met under enforcement

_SHADOW_FENCE: Final = b"\0shd"
"""The rest of a fence stays random. One that begins so by chance costs a look, and no more."""
_AGAIN: Final = b"semel ran again\n"


def shadow_fence(fence: Fence) -> Fence:
    """A fence that says of its record: while it was held, others may have run beside it."""
    return Fence(_SHADOW_FENCE + fence[len(_SHADOW_FENCE) :])


def made_in_shadow(record: Record) -> bool:
    """Whether its last run was one in shadow."""
    return record.fence.startswith(_SHADOW_FENCE)


def identity_of_second_run(identity: Identity) -> Identity:
    """Where it is on record that a request ran more than once in shadow, and what it answered."""
    return Identity(sha256(_AGAIN + identity).digest())


def ran_again(record: Record) -> Flow[bool]:
    """Whether another run in shadow came to something else than what ``record`` says."""
    reply = yield from ask(ops.Read(identity_of_second_run(record.identity)))
    if not isinstance(reply, ops.Found) or reply.record.forgettable(reply.now):
        return False
    return reply.record.fence != record.fence  # else it is the same run, written down late


class Remembered:
    """A completed record that was read a moment ago, and the answer it gave last."""

    __slots__ = ("_kept", "_said", "record")

    def __init__(self, record: Record, kept: Snapshot) -> None:
        self.record = record
        self._kept = kept
        self._said: tuple[Policy, str | None, bool, Answer] | None = None

    def answer(self, ex: Exchange, now: Micros) -> Answer | None:
        """What it says to ``ex``; None: the store must be asked.

        It is asked where that is the very purpose (``on_replay``), where an older record may come
        first (``previous``), or where much must be decoded, which takes longer than to ask.
        """
        record, kept = self.record, self._kept.response()
        if record.past_retention(now) or ex.older is not None or ex.policy.on_replay is not None:
            return None
        if kept is not None and replay.takes_long(kept, ex.accept_encoding):
            return None
        if not ex.prints.match(record):
            return mismatch(ex, record)
        if (retired := _retired(ex, record)) is not None:
            return retired
        # Made once for all retries that ask in the same way, as most do.
        said, policy = self._said, ex.policy
        how = (ex.accept_encoding, ex.cross_origin)
        if said is not None and said[0] is policy and said[1:3] == how:
            return said[3]
        answer = _repeated(ex, record, self._kept)
        if answer.response is not None and answer.response.body is self._kept.body:
            # Not what was decoded for one caller: it may be far larger than what is kept.
            self._said = (policy, *how, answer)
        return answer


def _retired(ex: Exchange, record: Record) -> Answer | None:
    """What is said instead of an answer that is true no more, where the policy asks for that."""
    if record.retired_at is None or ex.policy.after_retire != "refuse":
        return None
    return Answer(ex.refusal("replay-impossible"), Outcome.RECEIPT)


def mismatch(ex: Exchange, record: Record) -> Answer:
    differing = ex.differing = ex.prints.differing(record)
    extra: dict[str, object] = {}
    if differing.named:
        extra["differing_fields"] = list(differing.named)
    if differing.missing:
        extra["missing_fields"] = differing.missing
    response = ex.refusal("key-reused", status=ex.policy.mismatch_status, extra=extra)
    return Answer(response, Outcome.MISMATCH)


def accepted(ex: Exchange, state: State, outcome: Outcome) -> Answer:
    """Under way: where the answer can be asked for."""
    address = f"{ex.status_at}/{ex.identity.hex()}"
    return Answer(under_way(address, state, ex.policy.retry_micros), outcome)


def under_way(address: str, state: State, retry_after: Micros) -> Response:
    """202: neither an answer nor a refusal."""
    document = {"status": state.value, "location": address}
    headers = (
        (b"content-type", b"application/json"),
        (b"cache-control", b"no-store"),
        (b"location", address.encode("latin-1")),
        (b"retry-after", b"%d" % max(1, -(-retry_after // 1_000_000))),
    )
    return Response(202, headers, json.dumps(document).encode())


def in_flight(ex: Exchange) -> Answer:
    if ex.policy.in_flight == "accept":
        return accepted(ex, State.IN_PROGRESS, Outcome.IN_FLIGHT)
    response = ex.refusal("in-flight", retry_after=ex.policy.retry_micros)
    return Answer(response, Outcome.IN_FLIGHT)


def unknown(ex: Exchange, asked: bool) -> Answer:
    """``asked``: somebody is asked what happened, so that it helps to wait."""
    if ex.policy.in_flight == "accept" and asked:
        return accepted(ex, State.UNKNOWN, Outcome.UNKNOWN)
    return Answer(doubt(ex, asked), Outcome.UNKNOWN)


def doubt(ex: Exchange, asked: bool, status: int | None = None) -> Response:
    """With somebody to ask, waiting helps; with nobody, only an operator does."""
    wait = ex.policy.retry_micros if asked else None
    return ex.refusal("outcome-unknown", status=status, retryable=asked, retry_after=wait)


# --- the status resource: tells the caller of an accepted request how it is doing, and nobody else


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
        reply = yield from ask(ops.Recall(call.identity))
        if isinstance(reply, ops.NoRecord) and call.hidden:
            # Whether the lock is taken: whose request it is cannot be known before it commits, and
            # only its own caller has been told the address.
            begun = yield from ask(ops.Begin(call.identity))
            yield from ask(ops.RollBack())
            if isinstance(begun, ops.Occupied):
                return under_way(call.address, State.IN_PROGRESS, _PAUSE)
    except StoreError:
        return refuse("store-unavailable", retry_after=_PAUSE)
    # Another tenant's request and none at all must look alike.
    if isinstance(reply, ops.NoRecord) or reply.case.origin.tenant != shown(call.tenant):
        return refuse("no-such-operation")
    case, policy, record = reply.case, policy_of(reply.case), reply.case.record
    if policy is None or case.terms is None or record.forgettable(reply.now):
        return refuse("no-such-operation")
    if record.past_retention(reply.now):
        return refuse("key-expired")
    if record.state is State.COMPLETED:
        return (yield from _status_of_completed(call, policy, record))
    if record.state is State.FAILED_RETRYABLE:
        return refuse("attempt-failed", retry_after=policy.retry_micros)
    asked = case.terms.probe and case.due_at is not None  # else it was given up
    if record.state is State.UNKNOWN and not asked:
        return refuse("outcome-unknown", retryable=False)
    return under_way(call.address, record.state, policy.retry_micros)


def _status_of_completed(call: StatusCall, policy: Policy, record: Record) -> Flow[Response]:
    if record.retired_at is not None and policy.after_retire == "refuse":
        return refuse("replay-impossible")
    try:
        kept = snapshot.decode(record.snapshot or b"")
        if kept.shadow and (yield from ran_again(record)):
            return refuse("ran-again")
    except StoreError:
        return refuse("store-unavailable", retry_after=policy.retry_micros)
    response = kept.response()
    if response is None:
        return refuse("body-not-kept", extra={"original_status": kept.status})
    given = (response, policy, record.expires_at, call.accept_encoding)
    make = partial(replay.replayed, *given, cross_origin=call.cross_origin)
    return (yield from replay.unhurried(response, call.accept_encoding, make))
