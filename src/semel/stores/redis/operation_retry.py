"""One operation's way to Redis, without I/O: shared by both colours.

Every script is idempotent per fence, so a call whose answer was lost is simply sent again. A role
change, a moved slot or a link that broke is met here; what helps nothing is told by `verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from semel.core.operations.requests import StoreOperation
from semel.stores.redis.commands import pack
from semel.stores.redis.errors import RedisFault, Remedy, verdict
from semel.stores.redis.keys import Keys
from semel.stores.redis.plans import NAMED, WRITES, Plan, RedisCall
from semel.stores.redis.plans_audit import CUSTODY
from semel.stores.redis.plans_bodies import BODIES
from semel.stores.redis.plans_maintenance import ROUNDS
from semel.stores.redis.settings import NodeAddress

R = TypeVar("R")

PLANS: Final = {**NAMED, **WRITES, **ROUNDS, **CUSTODY}
_ALL: Final = {**PLANS, **BODIES}

HOPS: Final = 16
"""How often a call is led elsewhere, or sent again at once, before that is an error."""

PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Seconds before the next try where only waiting helps; the last one until the deadline."""

ALONE_TRIES: Final = 2
"""Of one server, over links that break: it is gone then. A cluster has others, who take over."""


def plan(op: StoreOperation[R], keys: Keys) -> Plan[R]:
    """How an operation is carried out."""
    make = cast("Callable[[StoreOperation[R], Keys], Plan[R]] | None", _ALL.get(type(op)))
    if make is None:
        raise TypeError(f"not an operation of a store: {type(op).__name__}")
    return make(op, keys)


class Attempt:
    """One call, and what has been tried for it."""

    __slots__ = ("asking", "call", "doubt", "fault", "full", "hops", "reply", "waits", "where")

    def __init__(self, call: RedisCall) -> None:
        self.call = call
        self.where: NodeAddress | None = None
        """Who is said to know, whatever the map says."""
        self.asking = False
        self.full = False
        self.hops = self.waits = 0
        self.doubt = False
        self.fault: RedisFault | None = None
        self.reply: Any = None

    def packed(self) -> bytes:
        """What is written on a link."""
        command = pack(self.call.full() if self.full else self.call.command)
        return _ASKING + command if self.asking else command

    def take(self, outcome: Any, cluster: bool) -> float | None:
        """A reply, kept; or a fault: the seconds to wait before the next try."""
        self.where, asked = None, self.asking
        self.asking = False
        if not isinstance(outcome, RedisFault):
            self.reply, self.fault = outcome, None
            return None
        self.doubt = self.doubt or outcome.doubt
        pause = self._remedy(outcome, cluster, asked)
        if pause is None:
            raise verdict(self._cause(outcome), doubt=self.doubt) from None
        self.fault = outcome
        return pause

    def _remedy(self, fault: RedisFault, cluster: bool, asked: bool) -> float | None:
        self.hops += 1
        match fault.remedy:
            case Remedy.NONE:
                return None
            case Remedy.TEXT:
                self.full, self.asking = True, asked
                self.where = fault.address
                return 0.0 if self.hops <= HOPS else None
            case Remedy.MOVED | Remedy.ASK:
                self.where, self.asking = fault.address, fault.remedy is Remedy.ASK
                return 0.0 if cluster and self.hops <= HOPS else None
            case Remedy.AGAIN if not cluster:
                return 0.0 if self.hops < ALONE_TRIES else None
            case Remedy.LATER if not cluster and fault.broken:
                return None  # nobody is there
            case Remedy.AGAIN | Remedy.LATER:
                self.hops = 0
                self.waits += 1
                return PAUSES[min(self.waits, len(PAUSES)) - 1]

    def _cause(self, fault: RedisFault) -> RedisFault:
        """That the time is up says less than what was waited for."""
        if fault.code != "TIME" or self.fault is None:
            return fault
        return RedisFault(f"{self.fault}, and no time is left", code="TIME")


_ASKING: Final = pack((b"ASKING",))


class SendBatches(NamedTuple):
    """To be sent; answered by a list of replies and faults."""

    attempts: Sequence[Attempt]


class RetryPause(NamedTuple):
    """Wait, and where there are several nodes look again who has what."""

    seconds: float


OperationSteps: TypeAlias = Generator[SendBatches | RetryPause, Any, R]


def errand(op: StoreOperation[R], keys: Keys, *, cluster: bool) -> OperationSteps[R]:
    """Everything that is to be done for ``op``."""
    steps = plan(op, keys)
    calls = next(steps)
    while True:
        attempts = [Attempt(call) for call in calls]
        yield from _settle(attempts, cluster)
        try:
            calls = steps.send([attempt.reply for attempt in attempts])
        except StopIteration as done:
            reply: R = done.value
            return reply


def _settle(attempts: Sequence[Attempt], cluster: bool) -> OperationSteps[None]:
    """Until each has its reply."""
    waiting: list[Attempt] = [*attempts]
    while waiting:
        outcomes = yield SendBatches(waiting)
        pauses = [
            attempt.take(outcome, cluster)
            for attempt, outcome in zip(waiting, outcomes, strict=True)
        ]
        waiting = [each for each, pause in zip(waiting, pauses, strict=True) if pause is not None]
        led = any(each.fault and each.fault.remedy is Remedy.MOVED for each in waiting)
        longest = max((pause for pause in pauses if pause is not None), default=0.0)
        if longest or led:
            yield RetryPause(longest)
