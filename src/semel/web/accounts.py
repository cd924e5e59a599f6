"""What one keyed request came to: one event, for the log and for those who count.

The exchange is a flow (`core/flow.py`); an account follows it. With nobody listening it waits for
the end, and speaks only where something is wrong; else it times what the flow asks for, which costs
the others nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from semel.core.admission import Call, Refused, Ticket
from semel.core.answers import Answer, Outcome
from semel.core.conclusions import KeepFailed, NeverAwaited
from semel.core.contract import Applied, Lapse, Operation, Resume, Retake
from semel.core.flow import Flow
from semel.core.keys import mask
from semel.core.model import State
from semel.core.policy import Policy
from semel.core.runner import (
    Apart,
    Await,
    Discard,
    Drain,
    Invoke,
    Pause,
    Pursue,
    Render,
    Streaming,
)
from semel.core.settling import ONCE
from semel.errors import OperationChanged, StoreError
from semel.log import log
from semel.process.catalogue import DEBUG, ERROR, NONE
from semel.process.events import Events, short

_clock: Final = time.perf_counter

_FAILED: Final = frozenset((Outcome.STORE_ERROR, Outcome.MISCONFIGURED, Outcome.NOT_DURABLE))

_RAN: Final = frozenset(
    (
        Outcome.EXECUTED,
        Outcome.ACCEPTED,
        Outcome.RELEASED,
        Outcome.SUSPENDED,
        Outcome.NOT_DURABLE,
    )
)
_RESERVED: Final = {
    Outcome.REPLAYED: "replay",
    Outcome.RECEIPT: "replay",
    Outcome.IN_FLIGHT: "in_progress",
    Outcome.MISMATCH: "key_misuse",
    Outcome.UNKNOWN: "unknown",
    Outcome.EXPIRED: "expired",
}
"""What came of the try to reserve a key for which nothing was run."""

_HANDLER, _WAITING, _STORE, _NOTHING = range(4)
_PARTS: Final[dict[type[Operation[Any]], int]] = {
    Invoke: _HANDLER,
    Drain: _HANDLER,
    Render: _HANDLER,
    Await: _WAITING,
    Pause: _WAITING,
    Apart: _NOTHING,
    Discard: _NOTHING,
    Pursue: _NOTHING,
}
"""What the time of an operation is spent on; all others ask the store."""


class Account:
    """Follows one request from when its body has been read to its answer."""

    __slots__ = (
        "_again",
        "_began",
        "_call",
        "_events",
        "_label",
        "_operations",
        "_ran",
        "_spent",
        "_status",
        "_ticket",
    )

    def __init__(self, events: Events, ticket: Ticket, label: str) -> None:
        self._events = events
        self._ticket = ticket
        self._label = label
        self._call: Call | None = None
        self._ran = False
        if events.heard:
            self._began = _clock()
            self._spent = [0.0, 0.0, 0.0, 0.0]
            self._operations = 0
            self._again = False
            self._status: int | None = None

    def follow(self, call: Call, flow: Flow[Answer]) -> Flow[Answer]:
        """The same flow, told about at its end."""
        self._call = call
        return self._watch(flow) if self._events.heard else self._wait(flow)

    def at_once(self, answer: Answer, call: Call | None = None) -> Answer:
        """There was no flow: the answer was known without the store."""
        self._call = call
        self._tell(answer, at_once=True)
        return answer

    def _wait(self, flow: Flow[Answer]) -> Flow[Answer]:
        answer = yield from flow
        if answer.error is not None or answer.zombie or answer.outcome in _FAILED:
            self._tell(answer)
        return answer

    def _watch(self, flow: Flow[Answer]) -> Flow[Answer]:
        feed: Callable[[Any], Operation[Any]] = flow.send
        value: Any = None
        while True:
            try:
                op = feed(value)
            except StopIteration as done:
                self._tell(done.value)
                answer: Answer = done.value
                return answer
            asked = _clock()
            try:
                value = yield op
                feed = flow.send
            except Exception as error:
                value, feed = error, flow.throw
            self._saw(op, value, _clock() - asked)

    def _saw(self, op: Operation[Any], reply: Any, seconds: float) -> None:
        part = _PARTS.get(type(op), _STORE)
        self._spent[part] += seconds
        if part == _HANDLER:
            self._ran = self._ran or isinstance(op, Invoke)
            if isinstance(reply, Streaming):
                self._status = reply.status
        elif part == _STORE:
            self._operations += 1
            if isinstance(reply, StoreError):
                # No line of the log: that of the exchange tells whether it mattered.
                name = type(op).__name__
                self._events.emit(
                    "store.error", level=NONE, error=reply, during="exchange", operation=name
                )
            elif isinstance(reply, Applied) and isinstance(op, Retake | Resume | Lapse):
                self._met(op, reply)

    def _met(self, op: Retake | Resume | Lapse, reply: Applied) -> None:
        """A record that somebody held before."""
        self._again = self._again or not isinstance(op, Lapse)
        if not isinstance(op, Retake):
            self._events.emit("lapse", count=1, by="request")
        if isinstance(op, Lapse) and reply.state is State.UNKNOWN:
            self._events.emit("doubt", count=1, why="lapsed")

    def _tell(self, answer: Answer, at_once: bool = False) -> None:
        level = _level(answer, at_once)
        if not (self._events.heard or level or answer.zombie):
            return
        ticket, call, outcome = self._ticket, self._call, answer.outcome
        error = answer.error.__cause__ if isinstance(answer.error, KeepFailed) else answer.error
        self._events.emit(
            "exchange",
            level=level,
            error=error,
            outcome=outcome.value,
            reserved=self._reserved(outcome),
            route=self._label,
            method=ticket.request.method,
            policy=ticket.policy.name,
            tenant=ticket.tenant,
            replayed=outcome is Outcome.REPLAYED,
            from_memory=at_once and outcome in _RESERVED,
            lost_fence=answer.zombie,
            by=self._by(),
            identity=None if call is None else short(call.identity),
            key=mask(ticket.key),
            **self._measured(answer),
        )
        if answer.zombie:
            which = None if call is None else short(call.identity)
            self._events.emit("fence.lost", route=self._label, outcome=outcome, identity=which)
        if outcome is Outcome.SUSPENDED:
            self._events.emit("doubt", count=1, why="suspended")

    def _measured(self, answer: Answer) -> dict[str, float | None]:
        status = None if answer.response is None else answer.response.status
        if not self._events.heard:
            return {"status": status}
        handler, waiting, store, _ = self._spent
        return {
            "status": self._status if status is None else status,
            "seconds": _clock() - self._began,
            "store_seconds": store,
            "store_operations": self._operations,
            "handler_seconds": handler if self._ran else None,
            "waiting_seconds": waiting,
        }

    def _reserved(self, outcome: Outcome) -> str | None:
        """What came of the try to reserve the key; a worker's was reserved before."""
        if self._call is not None and self._call.alone:
            return None
        if self._ran or outcome in _RAN:
            return "failed_retry" if self._events.heard and self._again else "created"
        return _RESERVED.get(outcome)

    def _by(self) -> str:
        if self._call is not None and self._call.alone:
            return "worker"
        return "once" if self._ticket.request.method == ONCE else "client"


def _level(answer: Answer, at_once: bool) -> int:
    """Whether an operator should see a line about it."""
    if answer.outcome in _FAILED:
        # Refused because the store is out already, it is one of very many.
        return DEBUG if at_once and answer.outcome is Outcome.STORE_ERROR else ERROR
    ours = isinstance(answer.error, OperationChanged | KeepFailed | NeverAwaited)
    on_replay = answer.outcome is Outcome.REPLAYED and answer.error is not None
    return ERROR if ours or on_replay else NONE


def tell_refusal(events: Events, refused: Refused, policy: Policy, method: str, label: str) -> None:
    """A request was turned away at the door; loud where that is the operator's own code."""
    error = refused.error
    if not events.heard and error is None:
        return
    code = json.loads(refused.response.body)["code"]
    if error is not None and code == "tenant-missing":
        _note_nobody(error, label)
        error = None
    events.emit(
        "refusal",
        level=NONE if error is None else ERROR,
        error=error,
        code=code,
        status=refused.response.status,
        route=label,
        method=method,
        policy=policy.name,
    )


_noted: set[type[Exception]] = set()


def _note_nobody(error: Exception, label: str) -> None:
    """Callers without a name are no news; that ``tenant=`` raises for them is, once."""
    if type(error) not in _noted:
        _noted.add(type(error))
        log.warning(
            "semel: tenant= or session= raised %s at %s, which is taken for a caller who is not "
            "authenticated (told once): return None for those",
            type(error).__name__,
            label,
        )
