"""``memory://``: records in a dictionary. The executable reading of the state table, for tests.

Whether an event is allowed, what must be shown for it and where it leads is looked up in
``core/states``; this module only knows which fields an operation writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never, cast

from semel.core.contract import (
    Applied,
    Claim,
    Claimed,
    Complete,
    Conflicting,
    Evict,
    EvictUnknown,
    Forget,
    Found,
    Lapse,
    Lost,
    NoRecord,
    Open,
    Read,
    Register,
    Registered,
    Release,
    Renew,
    Retake,
    SettleAbsent,
    SettleHappened,
    Stale,
    StoreOperation,
    Suspend,
    Written,
)
from semel.core.frozen import replace
from semel.core.model import Fence, Identity, Micros, OnLapse, Record
from semel.core.states import TABLE, Event, Proof, rule
from semel.errors import StoreCorrupt
from semel.stores.base import AsyncStore, Capabilities, Clock, Store
from semel.stores.clock import system_clock
from semel.stores.texts import exact, shown

R = TypeVar("R")

Write = (
    Retake
    | Renew
    | Open
    | Complete
    | Release
    | Suspend
    | Lapse
    | Forget
    | SettleHappened
    | SettleAbsent
    | Evict
    | EvictUnknown
)
"""The operations that change an existing record."""

_TARGET = {row.event: row.target for row in TABLE}


@dataclass(frozen=True, slots=True)
class _Recipe:
    recipe: str
    previous: str | None
    alive_until: Micros | None


class MemoryBackend:
    """All records of this object, in this process; gone with it."""

    def __init__(self, url: str = "memory://", *, clock: Clock = system_clock) -> None:
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[Identity, Record] = {}
        self._recipes: dict[str, _Recipe] = {}

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False, shared=False, transactions=False)

    def blocking(self) -> Store:
        return _MemoryStore(self)

    def awaited(self) -> AsyncStore:
        return _AsyncMemoryStore(self)

    def migrate(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing was opened; the records stay."""

    async def aclose(self) -> None:
        """Nothing was opened; the records stay."""

    def perform(self, op: StoreOperation[R]) -> R:
        """One atomic step: the lock is the transaction."""
        with self._lock:
            return cast("R", self._perform(op, self._clock()))

    def _perform(self, op: StoreOperation[Any], now: Micros) -> object:
        match op:
            case Claim():
                return self._claim(op, now)
            case Read():
                found = self._look(op.identity)
                return NoRecord(now) if found is None else Found(found, now)
            case Register():
                return self._register(op, now)
            case _ if isinstance(op, Write):
                return self._write(op, now)
            case _:
                raise TypeError(f"not an operation of a store: {type(op).__name__}")

    def _look(self, identity: Identity) -> Record | None:
        return self._records.get(identity)

    def _claim(self, op: Claim, now: Micros) -> Claimed | Found | Stale:
        found = self._look(op.identity)
        if found is not None:
            return _claim_again(op, found, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
        self._records[op.identity] = _new_record(op, now)
        return Claimed(now + op.lease, now)

    def _write(self, op: Write, now: Micros) -> Written:
        found = self._look(op.identity)
        event = _event(op, found)
        if found is None or not _allowed(op, event, found, now):
            return _refuse(op, event, found, now)
        target = _TARGET[event]
        if target is None:
            del self._records[op.identity]
            return Applied(None, now)
        changed = replace(found, state=target, **_fields(op, event, now))
        self._records[op.identity] = changed
        return _applied(changed, now)

    def _register(self, op: Register, now: Micros) -> Registered | Conflicting:
        recipe, previous = exact(op.recipe), op.previous and exact(op.previous)
        recorded = self._recipes.get(exact(op.route))
        if recorded is None:
            recorded = self._recipes[op.route] = _Recipe(recipe, None, None)
        elif recorded.recipe == previous != recipe and (recorded.alive_until or 0) <= now:
            recorded = self._recipes[op.route] = _Recipe(recipe, previous, now + op.alive)
        if recorded.recipe != recipe:
            return Conflicting(recorded.recipe, recorded.alive_until, now)
        return Registered(recorded.previous, recorded.alive_until, now)


class _MemoryStore:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._backend.perform(op)


class _AsyncMemoryStore:
    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    async def perform(self, op: StoreOperation[R], /) -> R:
        return self._backend.perform(op)


def _new_record(op: Claim, now: Micros) -> Record:
    target = _TARGET[Event.CLAIM]
    if target is None:
        raise StoreCorrupt("a claim leads nowhere")
    return Record(
        identity=op.identity,
        state=target,
        fence=op.fence,
        fingerprint=exact(op.fingerprint),
        fields=op.fields,
        on_lapse=op.on_lapse,
        created_at=now,
        leased_until=now + op.lease,
        expires_at=None,
        forget_at=None,
        snapshot=None,
        reason=None,
    )


def _claim_again(op: Claim, found: Record, now: Micros) -> Claimed | Found:
    """An own claim asked again is held already, but a lease that is past is not handed out."""
    held = found.fence == op.fence and found.state is _TARGET[Event.CLAIM]
    if held and found.leased_until is not None and not found.lapsed(now):
        return Claimed(found.leased_until, now)
    return Found(found, now)


def _event(op: Write, found: Record | None) -> Event:
    match op:
        case Lapse():
            released = found is not None and found.on_lapse is OnLapse.RELEASE
            return Event.LAPSE_RELEASE if released else Event.LAPSE
        case EvictUnknown():
            return Event.EVICT_FREED if op.free else Event.EVICT_FORCED
        case _:
            return _EVENTS[type(op)]


_EVENTS: dict[type[Write], Event] = {
    Retake: Event.RETAKE,
    Renew: Event.RENEW,
    Open: Event.ADVANCE,
    Complete: Event.COMPLETE,
    Release: Event.RELEASE,
    Suspend: Event.SUSPEND,
    Forget: Event.FORGET,
    SettleHappened: Event.SETTLE_HAPPENED,
    SettleAbsent: Event.SETTLE_ABSENT,
    Evict: Event.EVICT,
}


def _allowed(op: Write, event: Event, found: Record, now: Micros) -> bool:
    row = rule(found.state, event)
    if row is None or not _PROOFS[row.proof](_shown_fence(op), found, now):
        return False
    # A lease that is past is not revived; others may already have been told that it lapsed.
    return event is not Event.RENEW or not found.lapsed(now)


_PROOFS: dict[Proof, Callable[[Fence, Record, Micros], bool]] = {
    Proof.NONE: lambda fence, found, now: True,
    Proof.FENCE: lambda fence, found, now: fence == found.fence,
    Proof.LAST_FENCE: lambda fence, found, now: fence == found.fence,
    Proof.SEEN_FENCE: lambda fence, found, now: fence == found.fence,
    Proof.SEEN_FENCE_LAPSED: lambda fence, found, now: fence == found.fence and found.lapsed(now),
    Proof.SEEN_FENCE_OVERDUE: lambda fence, found, now: (
        fence == found.fence and found.forgettable(now)
    ),
}


def _shown_fence(op: Write) -> Fence:
    """The fence the asker shows as its proof."""
    match op:
        case Renew() | Open() | Complete() | Release() | Suspend():
            return op.fence
        case _:
            return op.seen


def _left_fence(op: Write) -> Fence:
    """The fence a record has after the operation."""
    match op:
        case Lapse() | Forget() | Evict():
            return op.seen
        case _:
            return op.fence


def _refuse(op: Write, event: Event, found: Record | None, now: Micros) -> Written:
    """Lost, unless the record is just as an earlier try of the same operation left it."""
    target = _TARGET[event]
    if found is None:
        return Applied(None, now) if target is None else Lost(None, now)
    reached = found.state is target and found.fence == _left_fence(op)
    if reached and event is not Event.RENEW and not found.lapsed(now):
        return _applied(found, now)
    return Lost(found, now)


def _applied(record: Record, now: Micros) -> Applied:
    return Applied(record.state, now, record.leased_until, record.expires_at)


def _fields(op: Write, event: Event, now: Micros) -> dict[str, Any]:
    """The fields, other than the state, that an operation writes."""
    match op:
        case Renew():
            return {"leased_until": now + op.lease}
        case Open():
            return {"snapshot": op.snapshot}
        case Complete():
            return _kept(op, now) | {"reason": None}
        case Release():
            return _released(op.retention, now) | {"reason": op.reason and shown(op.reason)}
        case Suspend():
            return {"leased_until": None, "reason": op.reason and shown(op.reason)}
        case Forget() | Evict():
            return {}
        case _:
            return _fields_of_others(op, event, now)


def _fields_of_others(
    op: Retake | Lapse | SettleHappened | SettleAbsent | EvictUnknown, event: Event, now: Micros
) -> dict[str, Any]:
    """The same, for those who never held the record's present fence."""
    match op:
        case Retake():
            free = {"expires_at": None, "forget_at": None, "snapshot": None, "reason": None}
            lease = {"leased_until": now + op.lease, "on_lapse": op.on_lapse}
            return free | lease | {"fence": op.fence}
        case Lapse():
            reason = {"leased_until": None, "reason": "the lease ran out"}
            released = event is Event.LAPSE_RELEASE
            return (_released(op.retention, now) if released else {}) | reason
        case SettleHappened():
            return _kept(op, now) | {"fence": op.fence, "reason": shown(op.evidence)}
        case SettleAbsent():
            burnt = {"fence": op.fence, "reason": shown(op.evidence)}
            return _released(op.retention, now) | burnt
        case EvictUnknown():
            return _buried(op, now)
        case _:
            assert_never(op)


def _kept(op: Complete | SettleHappened, now: Micros) -> dict[str, Any]:
    expires_at = now + op.retention
    forget_at = expires_at + op.tombstone
    times = {"leased_until": None, "expires_at": expires_at, "forget_at": forget_at}
    return {"snapshot": op.snapshot, **times}


def _released(retention: Micros, now: Micros) -> dict[str, Any]:
    return {"leased_until": None, "forget_at": now + retention, "snapshot": None}


def _buried(op: EvictUnknown, now: Micros) -> dict[str, Any]:
    times = {"leased_until": None, "expires_at": now, "forget_at": now + op.tombstone}
    return {"fence": op.fence, "snapshot": None, "reason": shown(op.reason), **times}
