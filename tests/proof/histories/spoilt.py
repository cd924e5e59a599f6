"""Stores with one guard taken out: each makes a history that no order of single steps explains."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, TypeVar

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Identity, State
from semel.stores.base import Clock, system_clock
from semel.stores.memory import MemoryBackend

R = TypeVar("R")

Perform = Callable[[ops.StoreOperation[Any]], Any]


class Spoilt(MemoryBackend):
    """The memory store, whose verb a subclass spoils."""

    alone: ClassVar[bool] = False
    """Whether it shows, every time, to one who asks one thing after the other."""

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock=clock)
        self._turn = threading.Lock()
        self._count = 0

    def perform(self, op: ops.StoreOperation[R]) -> R:
        reply: R = self.spoil(op, super().perform)
        return reply

    def spoil(self, op: Any, perform: Perform) -> Any:
        raise NotImplementedError

    def every(self, count: int) -> bool:
        with self._turn:
            self._count += 1
            return self._count % count == 0


class WithoutFence(Spoilt):
    """Writes of a holder are taken from anybody: the condition on the fence is missing."""

    alone = True

    def spoil(self, op: Any, perform: Perform) -> Any:
        if isinstance(op, ops.Complete | ops.Release | ops.Suspend | ops.Renew):
            found = perform(ops.Read(op.identity))
            if isinstance(found, ops.Found):
                op = replace(op, fence=found.record.fence)
        return perform(op)


class StaleRead(Spoilt):
    """A claim is answered from what was read a while ago, as a lagging replica would."""

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._read: dict[Identity, Any] = {}

    def spoil(self, op: Any, perform: Perform) -> Any:
        if not isinstance(op, ops.Claim):
            return perform(op)
        old = self._read.pop(op.identity, None)
        if isinstance(old, ops.Found):
            return old
        reply = perform(op)
        self._read[op.identity] = reply
        return reply


class AppliedTwice(Spoilt):
    """A claim is sent again after it was answered, as by a queue that redelivers; by then the
    record may be gone."""

    alone = True

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._sent: dict[Identity, ops.Claim] = {}

    def spoil(self, op: Any, perform: Perform) -> Any:
        reply = perform(op)
        if isinstance(op, ops.Claim) and isinstance(reply, ops.Claimed):
            self._sent[op.identity] = op
        gone = isinstance(reply, ops.Applied) and reply.state is None
        if gone and (again := self._sent.pop(op.identity, None)) is not None:
            perform(again)
        return reply


class LostWrite(Spoilt):
    """An acknowledged write is now and then not there: answered before it was durable."""

    def spoil(self, op: Any, perform: Perform) -> Any:
        if isinstance(op, ops.Complete) and self.every(3):
            found = perform(ops.Read(op.identity))
            held = isinstance(found, ops.Found) and found.record.fence == op.fence
            if held and found.record.state is State.IN_PROGRESS:
                return ops.Applied(State.COMPLETED, found.now, None, found.now + op.retention)
        return perform(op)


class CheckThenAct(Spoilt):
    """A claim reads, and then inserts in a second step: two may be told that they are first."""

    def spoil(self, op: Any, perform: Perform) -> Any:
        if not isinstance(op, ops.Claim):
            return perform(op)
        found = perform(ops.Read(op.identity))
        time.sleep(0)  # another thread's turn: what a transaction would have prevented
        if isinstance(found, ops.Found):
            return found
        reply = perform(op)
        return (
            ops.Claimed(reply.now + op.lease, reply.now, reply.record.created_at)
            if isinstance(reply, ops.Found)
            else reply
        )


class LateEffect(Spoilt):
    """An eviction is answered at once and carried out behind the next write to its key."""

    def __init__(self, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._waiting: dict[Identity, ops.Evict] = {}

    def spoil(self, op: Any, perform: Perform) -> Any:
        if isinstance(op, ops.Evict):
            found = perform(ops.Read(op.identity))
            if isinstance(found, ops.Found) and found.record.state is State.COMPLETED:
                self._waiting[op.identity] = op
                return ops.Applied(None, found.now)
        reply = perform(op)
        if not isinstance(op, ops.Read):
            late = self._waiting.pop(getattr(op, "identity", Identity(b"")), None)
            if late is not None:
                perform(late)
        return reply


SPOILT: Final[Mapping[str, type[Spoilt]]] = {
    "without the fence": WithoutFence,
    "claims from a stale read": StaleRead,
    "a claim applied twice": AppliedTwice,
    "an acknowledged write lost": LostWrite,
    "a claim in two steps": CheckThenAct,
    "an eviction carried out later": LateEffect,
}
