"""What a lane asks next: something that the state table knows for what it believes, by seed.

Beliefs are what the lanes of a process were told last, so they are often out of date.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from semel.core import operations as ops
from semel.core.records import Case, Fence, Identity, Micros, OnLapse, Origin, Record, State
from semel.core.states import TABLE, RecordEvent
from semel.testing.contract.terms import terms
from tests.stores.timeless import UNIT


class Dice(random.Random):
    """``past``: how often what has an end is past from the start, where no time is to pass."""

    past: float = 0.0


Make: TypeAlias = Callable[[Dice, Identity, Fence], ops.StoreOperation[Any]]

TENANT: Final = "tenant"
ACT: Final = ops.Act("tests", "to see what it does")
STALE: Final = 0.2
"""How often a fence of before is used where the last one would do."""
LIMIT: Final = 1_000
"""Of a round of maintenance: more than there are records."""
TERMS: Final = tuple(
    terms(retention=retention, tombstone=tombstone)
    for retention in (-UNIT, 3 * UNIT)
    for tombstone in (-UNIT, 3 * UNIT)
)
"""Of all records: whoever plays agrees to them first."""


def ahead(dice: Dice) -> Micros:
    return dice.randint(2, 5) * UNIT


LONGEST: Final = 6 * UNIT


def either(dice: Dice) -> Micros:
    """Ahead, or past from the start."""
    return -UNIT if dice.random() < dice.past else ahead(dice)


def new_fence(dice: Dice) -> Fence:
    return Fence(dice.randbytes(16))


def some_bytes(dice: Dice) -> bytes:
    """Told apart from all others; some are long."""
    return dice.randbytes(8) * dice.choice((1, 1, 1, 300))


def _origin(identity: Identity) -> Origin:
    return Origin(TENANT, "POST", "/payments", identity.hex())


def _claim(dice: Dice, identity: Identity, _: Fence) -> ops.Claim:
    on_lapse = dice.choice(list(OnLapse))
    request = dice.choice((None, some_bytes(dice)))
    return ops.Claim(
        identity,
        new_fence(dice),
        "v1:abc",
        b"\0fields",
        _origin(identity),
        ahead(dice),  # a claim whose lease is past is handed out by no store; a renewal ends it
        on_lapse,
        None,
        request,
        dice.choice(TERMS).id,
    )


def _accept(dice: Dice, identity: Identity, _: Fence) -> ops.Accept:
    on_lapse = dice.choice(list(OnLapse))
    told = "v1:abc", b"\0fields", _origin(identity), some_bytes(dice)
    return ops.Accept(
        identity, new_fence(dice), *told, either(dice), on_lapse, terms=dice.choice(TERMS).id
    )


def _complete(dice: Dice, identity: Identity, fence: Fence) -> ops.Complete:
    resource = dice.choice((None, identity.hex()))
    return ops.Complete(identity, fence, some_bytes(dice), either(dice), either(dice), resource)


def _release(dice: Dice, identity: Identity, fence: Fence, *, requeue: bool = False) -> ops.Release:
    later = dice.randint(0, 3) * UNIT if requeue else None
    return ops.Release(identity, fence, either(dice), dice.choice((None, "refused")), later)


def _settle_happened(dice: Dice, identity: Identity, seen: Fence) -> ops.SettleHappened:
    times = either(dice), either(dice)
    return ops.SettleHappened(identity, seen, new_fence(dice), some_bytes(dice), *times, ACT)


def _settle_absent(dice: Dice, identity: Identity, seen: Fence) -> ops.SettleAbsent:
    journal = dice.choice((None, some_bytes(dice)))
    return ops.SettleAbsent(identity, seen, new_fence(dice), either(dice), ACT, journal)


def _evict_unknown(dice: Dice, identity: Identity, seen: Fence, *, free: bool) -> ops.EvictUnknown:
    return ops.EvictUnknown(identity, seen, new_fence(dice), either(dice), ACT, free)


def _lapse(dice: Dice, identity: Identity, seen: Fence) -> ops.StoreOperation[Any]:
    if dice.random() < 0.3:
        return ops.Sweep(LIMIT)
    return ops.Lapse(identity, seen, either(dice))


def _forget(dice: Dice, identity: Identity, seen: Fence) -> ops.StoreOperation[Any]:
    return ops.Reap(LIMIT) if dice.random() < 0.3 else ops.Forget(identity, seen)


def _advance(dice: Dice, identity: Identity, fence: Fence) -> ops.StoreOperation[Any]:
    return dice.choice((ops.Advance, ops.Open))(identity, fence, some_bytes(dice))


def _renew(dice: Dice, identity: Identity, fence: Fence) -> ops.Renew:
    """It pushes the end away; where no time passes, it is how a lease comes to its end."""
    return ops.Renew(identity, fence, -UNIT if dice.random() < dice.past else LONGEST)


def _inquire(dice: Dice, identity: Identity, seen: Fence) -> ops.Inquire:
    return ops.Inquire(identity, seen, dice.choice((0, 0, 1)), dice.choice((None, ahead(dice))))


def _suspend(dice: Dice, identity: Identity, fence: Fence) -> ops.Suspend:
    after = dice.choice((None, ahead(dice)))
    return ops.Suspend(identity, fence, dice.choice((None, "timed out")), after)


MAKERS: Final[Mapping[RecordEvent, Make]] = {
    RecordEvent.CLAIM: _claim,
    RecordEvent.ACCEPT: _accept,
    RecordEvent.TAKE: lambda dice, i, f: ops.Take(i, f, new_fence(dice), either(dice)),
    RecordEvent.ABANDON: lambda dice, i, f: ops.Abandon(LIMIT, some_bytes(dice)),
    RecordEvent.REQUEUE: lambda dice, i, f: _release(dice, i, f, requeue=True),
    RecordEvent.RENEW: _renew,
    RecordEvent.ADVANCE: _advance,
    RecordEvent.COMPLETE: _complete,
    RecordEvent.RELEASE: _release,
    RecordEvent.SUSPEND: _suspend,
    RecordEvent.LAPSE: _lapse,
    RecordEvent.LAPSE_RELEASE: _lapse,
    RecordEvent.LAPSE_REQUEUE: _lapse,
    RecordEvent.LAPSE_RESUME: lambda dice, i, f: ops.Resume(i, f, new_fence(dice), either(dice)),
    RecordEvent.RETAKE: lambda dice, i, f: ops.Retake(
        i, f, new_fence(dice), either(dice), dice.choice(list(OnLapse))
    ),
    RecordEvent.SETTLE_HAPPENED: _settle_happened,
    RecordEvent.SETTLE_ABSENT: _settle_absent,
    RecordEvent.SETTLE_CALL: lambda dice, i, f: ops.SettleCall(
        i, f, new_fence(dice), some_bytes(dice), ACT
    ),
    RecordEvent.INQUIRE: _inquire,
    RecordEvent.RETIRE: lambda dice, i, f: ops.Retire(i.hex(), TENANT),
    RecordEvent.EXPIRE: lambda dice, i, f: ops.Reap(LIMIT),
    RecordEvent.FORGET: _forget,
    RecordEvent.EVICT: lambda dice, i, f: ops.Evict(i, f, ACT),
    RecordEvent.EVICT_FORCED: lambda dice, i, f: _evict_unknown(dice, i, f, free=False),
    RecordEvent.EVICT_FREED: lambda dice, i, f: _evict_unknown(dice, i, f, free=True),
    RecordEvent.ERASE: lambda dice, i, f: ops.Erase(i, f, ACT),
}
"""Every event of the table, but for the one that only a transaction has."""

ROWS: Final = [(row.source, row.event) for row in TABLE if row.event in MAKERS]
"""What a history can take of the table."""

LOOKS: Final[tuple[Make, ...]] = (
    lambda dice, i, f: ops.Read(i),
    lambda dice, i, f: ops.Recall(i),
    lambda dice, i, f: ops.Fetch(i, f, b""),
    _claim,
)
"""Whoever looks, and whoever comes with the same key."""


class Board:
    """What the lanes of one process know about one key."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._state: State | None = None
        self._fence = Fence(identity[:16])
        self._fences: tuple[Fence, ...] = (self._fence,)

    def choose(self, dice: Dice) -> ops.StoreOperation[Any]:
        luck = dice.random()
        if luck < 0.25:
            return dice.choice(LOOKS)(dice, self.identity, self._fence)
        if luck < 0.40:  # anything, by anybody who ever had a say
            make = MAKERS[dice.choice(list(MAKERS))]
            return make(dice, self.identity, dice.choice(self._fences))
        state = self._state  # which another lane may change meanwhile
        events = [row.event for row in TABLE if row.source is state and row.event in MAKERS]
        make = MAKERS[dice.choice(events)]
        late = dice.random() < STALE  # what would be right, by somebody who had his time
        return make(dice, self.identity, dice.choice(self._fences) if late else self._fence)

    def claim(self, dice: Dice) -> ops.Claim:
        return _claim(dice, self.identity, self._fence)

    def learn(self, op: ops.StoreOperation[Any], reply: Any) -> None:
        record: Record | None = getattr(reply, "record", None)
        case: Case | None = getattr(reply, "case", None)
        record = record if case is None else case.record
        if record is not None:
            self._state, fence = record.state, record.fence
        else:
            self._state = getattr(reply, "state", self._implied(reply))
            fence = getattr(op, "fence", self._fence)
        self._fence = fence
        if fence not in self._fences:
            self._fences = (*self._fences[-3:], fence)

    def _implied(self, reply: Any) -> State | None:
        match reply:
            case ops.Claimed():
                return State.IN_PROGRESS
            case ops.Accepted():
                return State.PENDING
            case ops.NoRecord() | ops.Lost():  # a Lost with a record tells it
                return None
            case _:
                return self._state
