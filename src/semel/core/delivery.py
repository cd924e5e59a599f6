"""Delivering one effect: try, record what came of it, decide whether and when to try again.

A delivery happens at least once: a worker that dies between the provider's answer and its record
leaves an effect that is sent again. So every try carries the same downstream key, and the provider,
or whoever receives it, takes the second for the first.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

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
"""How often a result is offered to a store that does not answer: about 13 seconds in all."""
_FIRST_REST: Final = _SECOND // 20


@frozen
class Delivery:
    """One try at one effect, as its deliverer gets it."""

    key: str
    """The downstream key, the same on every try: send it along, and a second try is recognised."""
    name: str
    payload: Any
    """What was put into the outbox (JSON)."""
    identity: bytes | None
    """The record whose run asked for it, if one did."""
    tries: int
    """Which try this is; 1 is the first."""
    created_at: datetime
    order: str | None
    """Effects of one order are delivered one after the other, as they were written."""


@frozen
class RetryRules:
    """How long it is tried, and how long the delivered effect is remembered."""

    tries: int
    first_pause: Micros
    longest_pause: Micros
    keep: Micros


# ── asked of whoever runs the flow ────────────────────────────────────────────────────────────────


@frozen
class DelivererReturned:
    """The deliverer returned; ``provider_id`` is what the provider calls it."""

    provider_id: str | None


@frozen
class DelivererFailed:
    """The deliverer raised, or took too long. It may have been delivered all the same."""

    error: BaseException


@frozen
class CallDeliverer(FlowOperation[DelivererReturned | DelivererFailed]):
    """Let the deliverer have it."""

    delivery: Delivery


# ── what comes of it ──────────────────────────────────────────────────────────────────────────────


class DeliveryEnding(StrEnum):
    """How one try ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """It is tried again later."""
    DEAD = "dead"
    """Nobody tries it again, unless an operator says so."""
    OVERTAKEN = "overtaken"
    """Another worker has it by now: the lease had passed."""
    UNRECORDED = "unrecorded"
    """The store took no result; it is delivered again when the lease has passed."""


@frozen
class DeliveryReport:
    """One try, for the log."""

    ending: DeliveryEnding
    error: str | None = None
    again_in: Micros | None = None


Recording: TypeAlias = MarkDelivered | MarkFailed


def deliver(effect: Effect, rules: RetryRules, fence: Fence, luck: float) -> Flow[DeliveryReport]:
    """Deliver ``effect``, taken with ``fence``; ``luck``, from 0 to 1, spreads the next try."""
    if effect.tries > rules.tries:
        # Its last try never came to an end: it may be what took the worker down.
        why = f"no end of try {effect.tries - 1} was recorded, and it was the last"
        return (yield from _fail(effect, fence, why, None))
    try:
        delivery = delivery_of(effect)
    except StoreCorrupt as error:
        return (yield from _fail(effect, fence, one_line(error), None))
    except (EncryptionKeyMissing, SchemaTooNew) as error:
        again_in = next_pause(effect.tries, rules, luck, error)
        return (yield from _fail(effect, fence, one_line(error), again_in))
    try:
        reply = yield from ask(CallDeliverer(delivery))
    except Interrupted:
        # At once, by another worker: that this one is stopped says nothing of the provider.
        return (yield from _fail(effect, fence, "the worker was stopped during the delivery", 0))
    match reply:
        case DelivererReturned():
            op = MarkDelivered(effect.key, fence, reply.provider_id, rules.keep)
            return (yield from _record(op, DeliveryReport(DeliveryEnding.DELIVERED)))
        case DelivererFailed():
            again_in = next_pause(effect.tries, rules, luck, reply.error)
            return (yield from _fail(effect, fence, one_line(reply.error), again_in))


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
    """What a deliverer gets to see; a payload that is no JSON is StoreCorrupt."""
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
    """A payload as the outbox keeps it; TypeError or ValueError when it is no JSON."""
    text = json.dumps(payload, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def one_line(error: BaseException) -> str:
    """An exception in one line, for those who look at dead letters."""
    said = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {said}"[:_LONGEST_ERROR] if said else name


def _fail(
    effect: Effect, fence: Fence, error: str, again_in: Micros | None
) -> Flow[DeliveryReport]:
    ending = DeliveryEnding.DEAD if again_in is None else DeliveryEnding.FAILED
    return (
        yield from _record(
            MarkFailed(effect.key, fence, error, again_in), DeliveryReport(ending, error, again_in)
        )
    )


def _record(op: Recording, report: DeliveryReport) -> Flow[DeliveryReport]:
    """Offer the result until the store has it; its fence makes a second offer harmless."""
    for attempt in range(RECORD_TRIES):
        if attempt:
            yield from ask(PauseBetweenLooks(_FIRST_REST << attempt - 1))
        try:
            kept: EffectWritten = yield from ask(op)
        except StoreUnavailable:
            continue
        return report if kept.applied else DeliveryReport(DeliveryEnding.OVERTAKEN, report.error)
    return DeliveryReport(DeliveryEnding.UNRECORDED, report.error)
