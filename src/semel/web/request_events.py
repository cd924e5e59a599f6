"""What one keyed request came to: one event, for the log and for those who count.

Where somebody listens, an `Account` times what the exchange asks for; with nobody listening there
is none, and an exchange is told of only where something is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from semel.core import operations as ops
from semel.core.exchange.admit import Refusal
from semel.core.exchange.answers import Answer, Outcome
from semel.core.exchange.problems import problem_code
from semel.core.exchange.settle import KeepFailed, NeverAwaited
from semel.core.operations.notables import NotableKind
from semel.core.policy import Policy
from semel.core.records import State
from semel.core.request.keys import mask
from semel.core.unknown.settle_unknown import ONCE
from semel.errors import OperationChanged, StoreError
from semel.log import log
from semel.runtime.events import DEBUG, ERROR, NONE, Events, short
from semel.runtime.runtime import FAILED

if TYPE_CHECKING:
    from semel.runtime.notables import NotableRecorder
    from semel.runtime.runtime import Runtime
    from semel.web.exchange import WebExchange

_clock: Final = time.perf_counter

_RAN: Final = frozenset(
    (Outcome.EXECUTED, Outcome.ACCEPTED, Outcome.RELEASED, Outcome.SUSPENDED, Outcome.NOT_DURABLE)
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
_PARTS: Final[dict[type[ops.FlowOperation[Any]], int]] = {
    ops.Render: _HANDLER,
    ops.Await: _WAITING,
    ops.Pause: _WAITING,
    ops.Apart: _NOTHING,
    ops.Pursue: _NOTHING,
}
"""What the time of an operation is spent on; all others ask the store."""


class Account:
    """Times one request, from when its body has been read to its answer."""

    __slots__ = ("_began", "_events", "_operations", "_spent", "again", "ran", "status")

    def __init__(self, events: Events) -> None:
        self._events = events
        self._began = _clock()
        self._spent = [0.0, 0.0, 0.0, 0.0]
        self._operations = 0
        self.again = False
        """Somebody held the record before."""
        self.ran = False
        self.status: int | None = None
        """That of an answer whose body flowed past."""

    def saw(self, op: ops.FlowOperation[Any], reply: Any, asked: float) -> None:
        """An operation was performed, or raised ``reply``."""
        part = _PARTS.get(type(op), _STORE)
        self._spent[part] += _clock() - asked
        if part != _STORE:
            return
        self._operations += 1
        if isinstance(reply, StoreError):
            # No line of the log: that of the exchange tells whether it mattered.
            where = {"during": "exchange", "operation": type(op).__name__}
            self._events.emit("store.error", level=NONE, error=reply, **where)
        elif isinstance(reply, ops.Applied) and isinstance(op, ops.Retake | ops.Resume | ops.Lapse):
            self.again = self.again or not isinstance(op, ops.Lapse)
            if not isinstance(op, ops.Retake):
                self._events.emit("lapse", count=1, by="request")
            if isinstance(op, ops.Lapse) and reply.state is State.UNKNOWN:
                self._events.emit("doubt", count=1, why="lapsed")

    def handler(self, seconds: float) -> None:
        """The application has run for so long."""
        self.ran = True
        self._spent[_HANDLER] += seconds

    def measured(self) -> dict[str, float | None]:
        handler, waiting, store, _ = self._spent
        return {
            "seconds": _clock() - self._began,
            "store_seconds": store,
            "store_operations": self._operations,
            "handler_seconds": handler if self.ran else None,
            "waiting_seconds": waiting,
        }


def now() -> float:
    """The clock of accounts."""
    return _clock()


def tell(ex: WebExchange, answer: Answer, at_once: bool = False) -> None:
    """One event of what an exchange came to. ``at_once``: it was known without the store."""
    if ex.policy.shadow:
        from semel.web.shadow import tell_shadow

        if tell_shadow(ex):
            return
    events, outcome, account = ex.runtime.events, answer.outcome, ex.account
    if ex.runtime.notables is not None:
        _note(ex.runtime.notables, ex, answer)
    level = _level(answer, at_once)
    if not (events.heard or level or answer.zombie):
        return
    error = answer.error.__cause__ if isinstance(answer.error, KeepFailed) else answer.error
    status = None if answer.response is None else answer.response.status
    if status is None and account is not None:
        status = account.status
    identity = getattr(ex, "identity", None)  # none, where it could not be made
    which = None if identity is None else short(identity)
    by = "once" if ex.request.method == ONCE else "client"
    events.emit(
        "exchange",
        level=level,
        error=error,
        outcome=outcome.value,
        reserved=_reserved(ex, outcome),
        route=ex.plan.label,
        method=ex.request.method,
        policy=ex.policy.name,
        tenant=ex.tenant,
        replayed=outcome is Outcome.REPLAYED,
        from_memory=at_once and outcome in _RESERVED,
        lost_fence=answer.zombie,
        by=by if ex.worker is None else "worker",
        identity=which,
        key=mask(ex.key),
        status=status,
        **({} if account is None else account.measured()),
    )
    if answer.zombie:
        events.emit("fence.lost", route=ex.plan.label, outcome=outcome, identity=which)
    if outcome is Outcome.SUSPENDED:
        events.emit("doubt", count=1, why="suspended")


# --- notables: what an operator wants to see later, and no record keeps

_NOTABLE: Final = {
    Outcome.MISMATCH: NotableKind.MISMATCH,
    Outcome.IN_FLIGHT: NotableKind.CONFLICT,
    Outcome.UNKNOWN: NotableKind.CONFLICT,
    Outcome.REPLAYED: NotableKind.REPLAY,
    **dict.fromkeys((Outcome.EXPIRED, Outcome.RECEIPT, Outcome.THROTTLED), NotableKind.REFUSAL),
    **dict.fromkeys(FAILED, NotableKind.REFUSAL),
}
_MOST_FIELDS: Final = 20


def _note(notables: NotableRecorder, ex: WebExchange, answer: Answer) -> None:
    """Note what a request came to, if it is worth a look: codes and names of fields, no values."""
    outcome, response = answer.outcome, answer.response
    where: Any = {"route": ex.plan.label, "tenant": getattr(ex, "tenant", "")}
    where["identity"] = getattr(ex, "identity", None)  # none, where it could not be made
    if answer.zombie:
        detail: dict[str, object] = {"outcome": outcome.value}
        notables.note(NotableKind.LOST_FENCE, **where, detail=detail)
    kind = _NOTABLE.get(outcome)
    if kind is None or answer.zombie or (kind is NotableKind.REPLAY and not notables.replays):
        return
    detail = {} if response is None else {"code": problem_code(response), "status": response.status}
    if kind is NotableKind.MISMATCH and (differing := getattr(ex, "differing", None)) is not None:
        detail |= {"fields": list(differing.named[:_MOST_FIELDS]), "missing": differing.missing}
    if kind is NotableKind.REPLAY:
        detail = {}
    if outcome is Outcome.STORE_ERROR:  # very many, and none of them says more than the others
        where = {"route": ex.plan.label}
    notables.note(kind, **where, detail=detail)


def note_key(ex: WebExchange, detail: Mapping[str, object]) -> None:
    """Note that a key looks suspicious. No identity: a client that makes such keys makes many."""
    if (notables := ex.runtime.notables) is not None:
        kind = NotableKind.SUSPICIOUS_KEY
        notables.note(kind, route=ex.plan.label, tenant=ex.tenant, detail=detail)


def _reserved(ex: WebExchange, outcome: Outcome) -> str | None:
    """What came of the try to reserve the key; a worker's was reserved before."""
    if ex.worker is not None:
        return None
    account = ex.account
    if outcome in _RAN or (account is not None and account.ran):
        return "failed_retry" if account is not None and account.again else "created"
    return _RESERVED.get(outcome)


def _level(answer: Answer, at_once: bool) -> int:
    """Whether an operator should see a line about it."""
    if answer.outcome in FAILED:
        # Refused because the store is out already, it is one of very many.
        return DEBUG if at_once and answer.outcome is Outcome.STORE_ERROR else ERROR
    ours = isinstance(answer.error, OperationChanged | KeepFailed | NeverAwaited)
    on_replay = answer.outcome is Outcome.REPLAYED and answer.error is not None
    return ERROR if ours or on_replay else NONE


_noted: set[type[Exception]] = set()
"""What ``tenant=`` or ``session=`` has raised for callers who are not authenticated."""


def tell_refusal(
    runtime: Runtime, refused: Refusal, policy: Policy, method: str, label: str
) -> None:
    """A request was turned away at the door; loud where that is the operator's own code."""
    events, error = runtime.events, refused.error
    if runtime.notables is not None:
        detail = {"code": refused.response.problem.code, "status": refused.response.status}
        runtime.notables.note(NotableKind.REFUSAL, route=label, detail=detail)
    if not events.heard and error is None:
        return
    code = refused.response.problem.code
    if error is not None and code == "tenant-missing":
        # Callers without a name are no news; that ``tenant=`` raises for them is, once.
        if type(error) not in _noted:
            _noted.add(type(error))
            log.warning(
                "semel: tenant= or session= raised %s at %s, which is taken for a caller who is "
                "not authenticated (told once): return None for those",
                type(error).__name__,
                label,
            )
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
