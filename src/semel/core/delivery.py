"""Delivers one effect: one try, its record, and whether and when it is tried again.

A delivery happens at least once: when a worker dies between the provider's answer and the record of
it, the effect is delivered again. So every try carries the same downstream key, by which the
receiver recognises the second. `semel.worker` has the whole story.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from semel.core.flow import Flow, Interrupted, ask
from semel.core.frozen import frozen
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.outbox import EffectWritten, MarkDelivered, MarkFailed
from semel.core.operations.requests import FlowOperation
from semel.core.records import Effect, Fence, Micros
from semel.core.stored.sealed import demand_opened
from semel.errors import (
    EncryptionKeyMissing,
    GiveUp,
    RetryLater,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)

_SECOND: Final = 1_000_000
_LONGEST_ERROR: Final = 500
"""Characters kept of what an exception says."""

RECORD_TRIES: Final = 9
"""How often a result is written to a store that does not answer: about 13 seconds in all."""
_FIRST_REST: Final = _SECOND // 20


@frozen
class Delivery:
    """One try at one effect: what its deliverer is called with."""

    key: str
    """The downstream key, the same on every try. Send it along: it makes a second try harmless."""
    name: str
    payload: Any
    """What was enqueued (JSON)."""
    identity: bytes | None
    """The record whose run enqueued it, if one did."""
    tries: int
    """Which try this is; 1 is the first."""
    created_at: datetime
    order: str | None
    """Effects of one order are delivered one after the other, as they were enqueued."""


@frozen
class RetryRules:
    """How often an effect is tried, with which pauses, and how long it is kept when delivered."""

    tries: int
    first_pause: Micros
    longest_pause: Micros
    keep: Micros


@frozen
class DelivererReturned:
    """The deliverer returned; ``provider_id`` is what the provider calls it."""

    provider_id: str | None


@frozen
class DelivererFailed:
    """The deliverer raised, or took too long. The effect may have been delivered all the same."""

    error: BaseException


@frozen
class CallDeliverer(FlowOperation[DelivererReturned | DelivererFailed]):
    """Call the deliverer."""

    delivery: Delivery


class DeliveryEnding(StrEnum):
    """How one try ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """It will be tried again."""
    DEAD = "dead"
    """Nobody tries it again, unless an operator says so."""
    OVERTAKEN = "overtaken"
    """The lease had passed, and another worker has the effect."""
    UNRECORDED = "unrecorded"
    """The store did not take the result; when the lease has passed it is delivered again."""


@frozen
class DeliveryReport:
    """The result of one try, for the log."""

    ending: DeliveryEnding
    error: str | None = None
    again_in: Micros | None = None


def deliver(effect: Effect, rules: RetryRules, fence: Fence, luck: float) -> Flow[DeliveryReport]:
    """Deliver ``effect``, taken with ``fence``; ``luck``, from 0 to 1, spreads the next try."""
    if effect.tries > rules.tries:
        # Its last try never came to an end: it may be what took the worker down.
        why = f"no end of try {effect.tries - 1} was recorded, and it was the last"
        return (yield from _fail(effect, fence, why, None))
    try:
        delivery = delivery_of(effect)
    except StoreCorrupt as error:
        return (yield from _fail(effect, fence, error_line(error), None))
    except (EncryptionKeyMissing, SchemaTooNew) as error:
        again_in = next_pause(effect.tries, rules, luck, error)
        return (yield from _fail(effect, fence, error_line(error), again_in))
    try:
        reply = yield from ask(CallDeliverer(delivery))
    except Interrupted:
        # Due again at once: that this worker is stopped says nothing about the provider.
        return (yield from _fail(effect, fence, "the worker was stopped during the delivery", 0))
    match reply:
        case DelivererReturned():
            op = MarkDelivered(effect.key, fence, reply.provider_id, rules.keep)
            return (yield from _record(op, DeliveryReport(DeliveryEnding.DELIVERED)))
        case DelivererFailed():
            again_in = next_pause(effect.tries, rules, luck, reply.error)
            return (yield from _fail(effect, fence, error_line(reply.error), again_in))


def next_pause(tries: int, rules: RetryRules, luck: float, error: BaseException) -> Micros | None:
    """How long to wait after the try that failed with ``error``; None gives up.

    Full jitter: anything up to the pause that doubles with each try, so that what failed together
    does not come back together.
    """
    if isinstance(error, GiveUp) or tries >= rules.tries:
        return None
    doubled = min(rules.longest_pause, rules.first_pause << min(tries - 1, 40))
    pause = int(doubled * luck)
    if isinstance(error, RetryLater):
        asked = min(rules.longest_pause, error.after // timedelta(microseconds=1))
        return max(0, asked) + pause
    return pause


def delivery_of(effect: Effect) -> Delivery:
    """The delivery of an effect; raises StoreCorrupt where the payload is no JSON."""
    demand_opened(effect.payload, "the payload of an effect")
    try:
        payload = json.loads(effect.payload)
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt(f"the payload of an effect is no JSON: {error}") from error
    return Delivery(
        key=effect.key,
        name=effect.name,
        payload=payload,
        identity=effect.identity,
        tries=effect.tries,
        created_at=datetime.fromtimestamp(0, UTC) + timedelta(microseconds=effect.created_at),
        order=effect.order,
    )


def encode_payload(payload: Any) -> bytes:
    """A payload as the outbox stores it; raises TypeError or ValueError when it is no JSON."""
    text = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def error_line(error: BaseException) -> str:
    """An exception in one line, for the list of dead letters."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}"[:_LONGEST_ERROR] if text else name


def _fail(
    effect: Effect, fence: Fence, error: str, again_in: Micros | None
) -> Flow[DeliveryReport]:
    ending = DeliveryEnding.DEAD if again_in is None else DeliveryEnding.FAILED
    return (
        yield from _record(
            MarkFailed(effect.key, fence, error, again_in), DeliveryReport(ending, error, again_in)
        )
    )


def _record(op: MarkDelivered | MarkFailed, report: DeliveryReport) -> Flow[DeliveryReport]:
    """Write the result until the store has it; its fence makes a second write harmless."""
    for attempt in range(RECORD_TRIES):
        if attempt:
            yield from ask(PauseBetweenLooks(_FIRST_REST << attempt - 1))
        try:
            kept: EffectWritten = yield from ask(op)
        except StoreUnavailable:
            continue
        return report if kept.applied else DeliveryReport(DeliveryEnding.OVERTAKEN, report.error)
    return DeliveryReport(DeliveryEnding.UNRECORDED, report.error)
