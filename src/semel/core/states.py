"""The life of a record: one table. No other change of state exists in any store.

A record belongs to one key. It is in one of six states, or there is no record:

    (none) ─ claim ▶ in_progress ─ complete ▶ completed ─ expire ▶ expired ─ forget ▶ (none)

`in_progress` has a holder: one run of the handler, named by its fence, for as long as its lease
lasts. From there a record goes to

- `completed`: the handler answered, and the answer is kept. Every later request gets that answer.
- `failed_retryable`: nothing happened. The next request may take the key again (retake).
- `unknown`: nobody can say whether it happened. Nobody may run it again; only evidence settles it.
- `pending`: a worker is to run it, now or again. Deferred requests begin here.

Three rules make this safe:

1. Every write shows a proof (`Proof`). The holder shows its fence; whoever decides about somebody
   else's record shows the fence that it saw when it decided. A write whose proof no longer fits
   changes nothing. So a run that was given up, and comes back late, cannot overwrite what was
   decided since.
2. A lease that runs out proves nothing about the handler: it may have acted, and may still run. So
   the record becomes `unknown`, unless the route has declared that running again does no harm
   (release), or that its recovery points say where to go on (resume).
3. Doubt never becomes permission. There is no way from `unknown` to a run but evidence that nothing
   happened.

The memory store executes this table. The SQL files and Lua scripts are checked against it, and the
contract suite's matrix and the diagram in the docs are made from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import State


class RecordEvent(StrEnum):
    """What can happen to a record."""

    CLAIM = "claim"
    CLAIM_COMPLETE = "claim and complete in one commit"
    ACCEPT = "accept"
    TAKE = "take"
    ABANDON = "abandon"
    REQUEUE = "release, back to the queue"
    RENEW = "renew"
    ADVANCE = "advance"
    COMPLETE = "complete"
    RELEASE = "release"
    SUSPEND = "suspend"
    LAPSE = "lapse"
    LAPSE_RELEASE = "lapse, declared release"
    LAPSE_REQUEUE = "lapse, declared release, back to the queue"
    LAPSE_RESUME = "lapse, declared resume"
    RETAKE = "retake"
    SETTLE_HAPPENED = "settle: it happened"
    SETTLE_ABSENT = "settle: it did not"
    SETTLE_CALL = "settle: its call happened"
    INQUIRE = "inquire"
    RETIRE = "retire"
    EXPIRE = "expire"
    FORGET = "forget"
    EVICT = "evict"
    EVICT_FORCED = "evict, forced"
    EVICT_FREED = "evict, forced and freed on purpose"
    ERASE = "erase"


class Proof(StrEnum):
    """What the one who asks must show before the event is allowed."""

    NONE = "nothing"
    FENCE = "the fence that holds the record"
    LAST_FENCE = "the fence that last held the record"
    SEEN_FENCE = "the fence it saw when it decided"
    SEEN_FENCE_LAPSED = "the fence it saw, and a lease that is past"
    SEEN_FENCE_OVERDUE = "the fence it saw, and a retention that is past"
    OVERDUE = "a time that is past"


@frozen
class Rule:
    """One row: from ``source`` by ``event`` to ``target``; None stands for "no record"."""

    source: State | None
    event: RecordEvent
    target: State | None
    proof: Proof
    by: str
    burns: bool = False
    """Whether the old fence is dead afterwards."""


_PENDING = State.PENDING
_IN_PROGRESS = State.IN_PROGRESS
_COMPLETED = State.COMPLETED
_FAILED = State.FAILED_RETRYABLE
_UNKNOWN = State.UNKNOWN
_EXPIRED = State.EXPIRED

TABLE: Final[tuple[Rule, ...]] = (
    Rule(None, RecordEvent.CLAIM, _IN_PROGRESS, Proof.NONE, "a request"),
    Rule(None, RecordEvent.CLAIM_COMPLETE, _COMPLETED, Proof.NONE, "a request in atomic mode"),
    Rule(None, RecordEvent.ACCEPT, _PENDING, Proof.NONE, "a request to a deferred route"),
    Rule(_PENDING, RecordEvent.TAKE, _IN_PROGRESS, Proof.SEEN_FENCE, "the worker", burns=True),
    Rule(_PENDING, RecordEvent.ABANDON, _COMPLETED, Proof.OVERDUE, "maintenance"),
    Rule(_IN_PROGRESS, RecordEvent.RENEW, _IN_PROGRESS, Proof.FENCE, "the holder"),
    Rule(_IN_PROGRESS, RecordEvent.ADVANCE, _IN_PROGRESS, Proof.FENCE, "the holder"),
    Rule(_IN_PROGRESS, RecordEvent.COMPLETE, _COMPLETED, Proof.FENCE, "the holder"),
    Rule(_IN_PROGRESS, RecordEvent.RELEASE, _FAILED, Proof.FENCE, "the holder"),
    Rule(
        _IN_PROGRESS,
        RecordEvent.REQUEUE,
        _PENDING,
        Proof.FENCE,
        "the holder, of a deferred request",
    ),
    Rule(_IN_PROGRESS, RecordEvent.SUSPEND, _UNKNOWN, Proof.FENCE, "the holder"),
    Rule(
        _IN_PROGRESS, RecordEvent.LAPSE, _UNKNOWN, Proof.SEEN_FENCE_LAPSED, "next request, sweeper"
    ),
    Rule(
        _IN_PROGRESS,
        RecordEvent.LAPSE_RELEASE,
        _FAILED,
        Proof.SEEN_FENCE_LAPSED,
        "next request, sweeper",
    ),
    Rule(
        _IN_PROGRESS,
        RecordEvent.LAPSE_REQUEUE,
        _PENDING,
        Proof.SEEN_FENCE_LAPSED,
        "sweeper, worker",
    ),
    Rule(
        _IN_PROGRESS,
        RecordEvent.LAPSE_RESUME,
        _IN_PROGRESS,
        Proof.SEEN_FENCE_LAPSED,
        "next request, completer",
        burns=True,
    ),
    Rule(_UNKNOWN, RecordEvent.COMPLETE, _COMPLETED, Proof.LAST_FENCE, "the late holder"),
    Rule(_FAILED, RecordEvent.RETAKE, _IN_PROGRESS, Proof.SEEN_FENCE, "a request", burns=True),
    Rule(
        _UNKNOWN,
        RecordEvent.SETTLE_HAPPENED,
        _COMPLETED,
        Proof.SEEN_FENCE,
        "reconciler, webhook, operator",
        burns=True,
    ),
    Rule(
        _UNKNOWN,
        RecordEvent.SETTLE_ABSENT,
        _FAILED,
        Proof.SEEN_FENCE,
        "reconciler, webhook, operator",
        burns=True,
    ),
    Rule(
        _UNKNOWN,
        RecordEvent.SETTLE_CALL,
        _IN_PROGRESS,
        Proof.SEEN_FENCE,
        "reconciler, webhook, operator; of an operation with points",
        burns=True,
    ),
    Rule(_UNKNOWN, RecordEvent.INQUIRE, _UNKNOWN, Proof.SEEN_FENCE, "reconciler"),
    Rule(_COMPLETED, RecordEvent.RETIRE, _COMPLETED, Proof.NONE, "the application"),
    Rule(_COMPLETED, RecordEvent.EXPIRE, _EXPIRED, Proof.OVERDUE, "reaper"),
    Rule(_COMPLETED, RecordEvent.FORGET, None, Proof.SEEN_FENCE_OVERDUE, "reaper, next request"),
    Rule(_FAILED, RecordEvent.FORGET, None, Proof.SEEN_FENCE_OVERDUE, "reaper, next request"),
    Rule(_EXPIRED, RecordEvent.FORGET, None, Proof.SEEN_FENCE_OVERDUE, "reaper, next request"),
    Rule(_COMPLETED, RecordEvent.EVICT, None, Proof.SEEN_FENCE, "operator", burns=True),
    Rule(_FAILED, RecordEvent.EVICT, None, Proof.SEEN_FENCE, "operator", burns=True),
    Rule(_EXPIRED, RecordEvent.EVICT, None, Proof.SEEN_FENCE, "operator", burns=True),
    Rule(_UNKNOWN, RecordEvent.EVICT_FORCED, _EXPIRED, Proof.SEEN_FENCE, "operator", burns=True),
    Rule(_UNKNOWN, RecordEvent.EVICT_FREED, None, Proof.SEEN_FENCE, "operator", burns=True),
    Rule(_COMPLETED, RecordEvent.ERASE, _EXPIRED, Proof.SEEN_FENCE, "operator"),
    Rule(_FAILED, RecordEvent.ERASE, _EXPIRED, Proof.SEEN_FENCE, "operator"),
    Rule(_EXPIRED, RecordEvent.ERASE, _EXPIRED, Proof.SEEN_FENCE, "operator"),
)

_BY_STEP: Final = {(rule.source, rule.event): rule for rule in TABLE}


def rule(source: State | None, event: RecordEvent) -> Rule | None:
    """The row for ``event`` in state ``source``, or None: the event is not allowed there."""
    return _BY_STEP.get((source, event))


def sources(event: RecordEvent) -> frozenset[State]:
    """The states in which ``event`` may happen to an existing record."""
    return frozenset(row.source for row in TABLE if row.event is event and row.source is not None)
