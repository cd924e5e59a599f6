"""How much one tenant may ask for: new keys and look-ups by time, and keys alive at once.

Each process has its own token buckets, so that a limit costs no trip to the store. A look-up is
every request that makes no record: a replay, a refusal, a question for the status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from semel.core.exchange.admit import TurnedAway, resting, throttled
from semel.core.exchange.answers import Answer, answered
from semel.core.exchange.exchange import Exchange
from semel.core.exchange.problems import refuse
from semel.core.flow import Flow
from semel.core.frozen import frozen
from semel.core.maintenance import digest
from semel.core.operations.handler import Occupied
from semel.core.operations.requests import Accept, Claim, FlowOperation, Found, Stale
from semel.core.records import Micros, Response
from semel.core.texts import shown
from semel.errors import ConfigurationError, StoreUnavailable
from semel.runtime.breaker import Breaker

if TYPE_CHECKING:
    from semel.runtime.runtime import Runtime


TENANTS: Final = 16_384
"""Remembered at most, in each process: about five megabytes."""

CROWDED: Final = "too-many-keys"
"""The code of a refusal for too many keys. A key that is on record already is not refused."""

_LONG: Final = 64


class LimitCost(IntEnum):
    """What a request is charged for."""

    NEW_KEY = 0
    LOOKUP = 1


@frozen
class Rate:
    """``count`` in every ``per``, of which ``burst`` may come at once; all of them unless told."""

    count: int
    per: timedelta = timedelta(seconds=1)
    burst: int | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.count, int) and not isinstance(self.count, bool)
        if not whole or self.count < 1:
            raise ConfigurationError(f"a rate is a whole number from 1 up, not {self.count!r}")
        if not isinstance(self.per, timedelta) or self.per <= timedelta(0):
            raise ConfigurationError(f"a rate's per= is a timedelta above zero, not {self.per!r}")
        if self.burst is not None and (not isinstance(self.burst, int) or self.burst < 1):
            raise ConfigurationError(f"a rate's burst= is a whole number from 1 up, {self.burst!r}")

    @property
    def bucket(self) -> tuple[float, float]:
        """Seconds between two when they come evenly, and those an unused bucket has saved up."""
        interval = self.per.total_seconds() / self.count
        return interval, interval * (self.count if self.burst is None else self.burst)


@frozen
class Limits:
    """What each tenant may ask for; None: as much as it likes.

    ``new_keys`` and ``lookups`` count in each process for itself. ``active_keys``: how many of its
    keys may be alive in the store.
    """

    new_keys: Rate | None = None
    lookups: Rate | None = None
    active_keys: int | None = None

    def __post_init__(self) -> None:
        for name in ("new_keys", "lookups"):
            rate = getattr(self, name)
            if rate is not None and not isinstance(rate, Rate):
                raise ConfigurationError(f"{name}= takes a rate, such as semel.Rate(100), or None")
        cap = self.active_keys
        if cap is not None and (not isinstance(cap, int) or isinstance(cap, bool) or cap < 1):
            raise ConfigurationError(f"active_keys={cap!r} must be a whole number from 1 up")


@frozen
class OverLimit:
    """Refused: by which limit, and when it is worth coming again."""

    code: str
    wait: Micros


class _Account:
    """One tenant's: when each bucket will be full again, and keys made since the last count."""

    __slots__ = ("census", "full_at", "made")

    def __init__(self) -> None:
        self.full_at = [0.0, 0.0]
        self.made = 0
        self.census = 0


class Limiter:
    """The accounts of all tenants in this process.

    When there are too many, those go whose buckets are fullest, since least is lost with them: who
    sends most is remembered longest. No lock, which a fork could copy while it is held; threads
    that meet here may let one request too many pass.
    """

    def __init__(
        self, limits: Limits, clock: Callable[[], float] = time.monotonic, room: int = TENANTS
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._room = room
        self._steps = tuple(
            [rate.bucket if rate else None for rate in (limits.new_keys, limits.lookups)]
        )
        self._accounts: dict[str | bytes, _Account] = {}
        self._active: Mapping[str, int] = {}
        self._census = 0
        self._census_due = 0.0

    def __len__(self) -> int:
        return len(self._accounts)

    def charge(self, tenant: str, cost: LimitCost) -> OverLimit | None:
        """Take a token; None: granted."""
        account = self._account(tenant)
        if cost is LimitCost.NEW_KEY and (over := self._crowded(tenant, account)) is not None:
            return over
        step = self._steps[cost]
        if step is not None:
            interval, depth = step
            now = self._clock()
            full_at = max(account.full_at[cost], now) + interval
            wait = full_at - now - depth
            if wait > _ROUNDING:
                return OverLimit("too-fast", int(wait * 1_000_000) + 1)
            account.full_at[cost] = full_at
        if cost is LimitCost.NEW_KEY:
            account.made += 1
        return None

    def convert(self, tenant: str) -> None:
        """Charge a look-up in place of a new key. It is done already, so it is never refused."""
        account = self._account(tenant)
        account.made -= 1
        new_key, lookup = self._steps
        if new_key is not None:
            account.full_at[LimitCost.NEW_KEY] -= new_key[0]
        if lookup is not None:
            at = max(account.full_at[LimitCost.LOOKUP], self._clock())
            account.full_at[LimitCost.LOOKUP] = at + lookup[0]

    def give_back(self, tenant: str, cost: LimitCost) -> None:
        """Return the token: the request did nothing."""
        account, step = self._account(tenant), self._steps[cost]
        if step is not None:
            account.full_at[cost] -= step[0]
        if cost is LimitCost.NEW_KEY:
            account.made -= 1

    def count(self, active: Mapping[str, int], again_in: float) -> None:
        """How many keys the largest tenants have, by digest, and when they are looked up next."""
        self._active = active
        self._census += 1
        self._census_due = self._clock() + again_in

    def _crowded(self, tenant: str, account: _Account) -> OverLimit | None:
        cap = self.limits.active_keys
        if cap is None:
            return None
        if account.census != self._census:
            account.census, account.made = self._census, 0
        noted = self._active.get(digest(shown(tenant)), 0) if self._active else 0
        if noted + account.made < cap:
            return None
        left = self._census_due - self._clock()
        return OverLimit(CROWDED, max(1, int(left * 1_000_000)))

    def _account(self, tenant: str) -> _Account:
        name = named(tenant)
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._room:
                # Half of them go.
                accounts = list(self._accounts.items())
                accounts.sort(key=lambda it: (max(it[1].full_at), it[1].made), reverse=True)
                self._accounts = dict(accounts[: self._room // 2])
            account = self._accounts.setdefault(name, _Account())
        return account


_ROUNDING: Final = 1e-6
"""Seconds: sums of many fractions are a little off."""


def named(tenant: str) -> str | bytes:
    """What a tenant is remembered by: a name may be of any length."""
    if len(tenant) <= _LONG:
        return tenant
    return sha256(tenant.encode("utf-8", "surrogatepass")).digest()


# --- what stands before the store: a tenant's limits, and the breaker while the store is out

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
        return throttled(ex, over.code, over.wait)
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
    """The same flow; the breaker learns what the store made of it.

    A flow around a flow, no third driver: what `run` would perform, it yields to whoever runs it.
    """
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
            raise TurnedAway(over.code, over.wait)
        self._limiter.give_back(self._tenant, LimitCost.LOOKUP)
        self._toll = LimitCost.NEW_KEY

    def after(self, reply: object) -> None:
        """A new key that was there already is a look-up."""
        if self._toll is LimitCost.NEW_KEY and isinstance(reply, _MADE_NONE):
            self._limiter.convert(self._tenant)
            self._toll = LimitCost.LOOKUP
