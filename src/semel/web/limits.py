"""What stands before the store: a tenant's limits, and the breaker while the store is out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.admit import TurnedAway, resting, throttled
from semel.core.exchange.answers import Answer
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.problems import refuse
from semel.core.exchange.status import answered
from semel.core.flow import Flow
from semel.core.operations.handler import Occupied
from semel.core.operations.requests import Accept, Claim, FlowOperation, Found, Stale
from semel.core.records import Response
from semel.errors import StoreUnavailable
from semel.runtime.breaker import Breaker
from semel.runtime.limits import CROWDED, LimitCost, Limiter

if TYPE_CHECKING:
    from semel.runtime.runtime import Runtime

_MAKES_A_RECORD: Final = (Claim, Accept)
_MADE_NONE: Final = (Found, Stale, Occupied)


def at_once(runtime: Runtime, ex: Exchange) -> Answer | None:
    """The answer for which the store is not asked: a remembered one, or a refusal.

    Of a tenant with too many keys, one that is there already is still answered: only the store
    knows, so it is looked for, and refused where it would be made (`Charge`).
    """
    replays, limiter, breaker = runtime.replays, runtime.limiter, runtime.breaker
    answer = None if replays is None else replays.answer(ex)
    toll, tenant = _expected(ex, answer), ex.tenant
    over = None if limiter is None else limiter.charge(tenant, toll)
    if limiter is not None and over is not None and over.code == CROWDED:
        toll, ex.seen_before = LimitCost.LOOKUP, True
        over = limiter.charge(tenant, toll)
    if over is not None:
        if toll is LimitCost.NEW_KEY:
            runtime.seen_keys.forget(ex.identity)
        return throttled(over.code, over.wait)
    if answer is None and (wait := breaker.refuses()) is not None:
        if limiter is not None:
            limiter.give_back(tenant, toll)
        return resting(ex, wait)
    return answer


def _expected(ex: Exchange, answer: Answer | None = None) -> LimitCost:
    """What a request is for, as far as can be known before the store is asked."""
    return LimitCost.LOOKUP if ex.seen_before or answer is not None else LimitCost.NEW_KEY


def protected(runtime: Runtime, tenant: str, flow: Flow[Response]) -> Flow[Response]:
    """The flow of a question for the status, or a refusal for which the store is not asked."""
    limiter, breaker = runtime.limiter, runtime.breaker
    over = None if limiter is None else limiter.charge(tenant, LimitCost.LOOKUP)
    if over is not None:
        return answered(refuse(over.code, retry_after=over.wait))
    wait = breaker.refuses()
    if wait is not None:
        return answered(refuse("store-unavailable", retry_after=wait))
    return _heard(breaker, flow)


def _heard(breaker: Breaker, flow: Flow[Response]) -> Flow[Response]:
    """The same flow; the breaker learns what the store made of it."""
    feed: Callable[[Any], FlowOperation[Any]] = flow.send
    value: Any = None
    while True:
        try:
            op = feed(value)
        except StopIteration as done:
            response: Response = done.value
            return response
        asked = time.monotonic()
        try:
            value, feed = (yield op), flow.send
            breaker.succeeded()
        except Exception as error:
            value, feed = error, flow.throw
            if isinstance(error, StoreUnavailable):
                breaker.failed(asked)


class Charge:
    """What one request was charged for, corrected by what it turns out to be."""

    __slots__ = ("_limiter", "_tenant", "_toll")

    def __init__(self, limiter: Limiter, ex: Exchange) -> None:
        self._limiter = limiter
        self._tenant = ex.tenant
        self._toll = _expected(ex)

    def before(self, op: FlowOperation[Any]) -> None:
        """A look-up that is to make a record is a new key, and may be one too many."""
        if self._toll is LimitCost.NEW_KEY or not isinstance(op, _MAKES_A_RECORD):
            return
        over = self._limiter.charge(self._tenant, LimitCost.NEW_KEY)
        if over is not None:
            raise TurnedAway(throttled(over.code, over.wait))
        self._limiter.give_back(self._tenant, LimitCost.LOOKUP)
        self._toll = LimitCost.NEW_KEY

    def after(self, reply: object) -> None:
        """A new key that was there already is a look-up."""
        if self._toll is LimitCost.NEW_KEY and isinstance(reply, _MADE_NONE):
            self._limiter.convert(self._tenant)
            self._toll = LimitCost.LOOKUP
