"""Answers: what an exchange comes to, and what a record says to those who may not run."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from typing import Final, assert_never

from semel.core.exchange import replay
from semel.core.exchange.exchange import Exchange
from semel.core.flow import Flow, ask
from semel.core.frozen import value
from semel.core.operations.handler import Render
from semel.core.operations.requests import Fetch, Found, NoRecord, Recall, Recalled
from semel.core.policy import Policy
from semel.core.records import Micros, Record, Response, State
from semel.core.stored import snapshot
from semel.core.stored.snapshot import Snapshot
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
            if _is_retired(ex, record):
                return _retired(ex)
            return (yield from _replay(ex, record))
        case State.COMPLETED | State.EXPIRED:
            return Answer(ex.refusal("key-expired"), Outcome.EXPIRED)
        case _:
            assert_never(record.state)


def _somebody_is_asked(ex: Exchange) -> Flow[bool]:
    """Whether anybody is still asked about it: a dead letter waits for a person."""
    if not ex.can_ask:
        return False
    try:
        reply = yield from ask(Recall(ex.identity))
    except StoreError:
        return True  # the record itself was read: only how long to wait is not known
    return not (isinstance(reply, Recalled) and reply.case.due_at is None)


def kept_answer(record: Record) -> Flow[Snapshot | None]:
    """What was kept of a completed record; None when it is another by now."""
    blob = record.snapshot or b""
    if snapshot.is_head(blob):
        reply = yield from ask(Fetch(record.identity, record.fence, blob))
        if isinstance(reply, NoRecord):
            return None
        blob = reply.snapshot
    return snapshot.decode(blob)


def usual_replay(ex: Exchange, found: Found) -> Answer | None:
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
    try:
        kept = yield from kept_answer(record)
    except StoreError as error:
        return closed(ex, error)
    if kept is None:
        return in_flight(ex)
    make = partial(_repeated, ex, record, kept)
    answer = yield from replay.unhurried(kept.response(), ex.accept_encoding, make)
    response = answer.response
    if ex.policy.on_replay is None or answer.outcome is Outcome.RECEIPT or response is None:
        return answer
    try:
        current = replay.measured((yield from ask(Render(response))))
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
        if record.past_retention(now) or ex.older is not None:
            return None
        if ex.policy.on_replay is not None:
            return None
        if kept is not None and replay.takes_long(kept, ex.accept_encoding):
            return None
        if not ex.prints.match(record):
            return mismatch(ex, record)
        return _retired(ex) if _is_retired(ex, record) else self._repeated(ex)

    def _repeated(self, ex: Exchange) -> Answer:
        """The answer, made once for all retries that ask in the same way, as most do."""
        said, policy = self._said, ex.policy
        how = (ex.accept_encoding, ex.cross_origin)
        if said is not None and said[0] is policy and said[1:3] == how:
            return said[3]
        answer = _repeated(ex, self.record, self._kept)
        if answer.response is not None and answer.response.body is self._kept.body:
            # Not what was decoded for one caller: it may be far larger than what is kept.
            self._said = (policy, *how, answer)
        return answer


def _is_retired(ex: Exchange, record: Record) -> bool:
    return record.retired_at is not None and ex.policy.after_retire == "refuse"


def _retired(ex: Exchange) -> Answer:
    return Answer(ex.refusal("replay-impossible"), Outcome.RECEIPT)


def mismatch(ex: Exchange, record: Record) -> Answer:
    differing = ex.prints.differing(record.fields)
    extra: dict[str, object] = {}
    if differing.named:
        extra["differing_fields"] = list(differing.named)
    if differing.missing:
        extra["missing_fields"] = differing.missing
    response = ex.refusal("key-reused", status=ex.policy.mismatch_status, extra=extra)
    return Answer(response, Outcome.MISMATCH)


def accepted(ex: Exchange, state: State, outcome: Outcome) -> Answer:
    """Under way: where the answer can be asked for."""
    return Answer(under_way(ex.status_of(ex.identity), state, ex.policy.retry_micros), outcome)


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
    if not asked:
        return ex.refusal("outcome-unknown", status=status, retryable=False)
    return ex.refusal(
        "outcome-unknown", status=status, retryable=True, retry_after=ex.policy.retry_micros
    )
