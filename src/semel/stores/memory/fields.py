"""What each write must show and which fields it changes; the state table has the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, assert_never

from semel.core.contract import (
    Advance,
    Complete,
    Evict,
    EvictUnknown,
    Forget,
    Inquire,
    Lapse,
    Open,
    Release,
    Renew,
    Resume,
    Retake,
    SettleAbsent,
    SettleCall,
    SettleHappened,
    Suspend,
    Take,
)
from semel.core.custody import Erase
from semel.core.frozen import replace, value
from semel.core.model import Case, Fence, Glimpse, Micros, OnLapse, Origin, Record, State
from semel.core.states import Event, Proof, rule
from semel.core.terms import Terms, TermsId
from semel.core.texts import shown
from semel.stores.due import due_at

Holding: TypeAlias = Renew | Open | Advance | Complete | Release | Suspend
"""Asked by the one who holds the record's fence."""

Taking: TypeAlias = Take | Resume | Retake
"""Asked by the one who will hold it."""

Settling: TypeAlias = SettleHappened | SettleAbsent | SettleCall | EvictUnknown

Write: TypeAlias = Holding | Taking | Settling | Lapse | Forget | Inquire | Evict | Erase
"""The operations that change an existing record."""


@value
class Entry:
    """A record as it is kept."""

    record: Record
    origin: Origin
    terms: TermsId
    request: bytes | None
    due_at: Micros | None
    patience: Micros | None = None
    """Only of a deferred request: how long it may wait to be run, and until when."""
    abandon_at: Micros | None = None
    journal: bytes | None = None
    resource: str | None = None
    tries: int = 0

    @property
    def deferred(self) -> bool:
        return self.patience is not None

    def case(self, known: Mapping[TermsId, Terms]) -> Case:
        """``known``: the terms on record."""
        return Case(
            self.record,
            self.origin,
            self.request,
            self.journal,
            self.resource,
            self.tries,
            due_at(self.record, self.due_at),
            known.get(self.terms),
        )

    def glimpse(self, known: Mapping[TermsId, Terms]) -> Glimpse:
        record = self.record
        return Glimpse(
            record.identity,
            record.state,
            record.on_lapse,
            self.origin,
            record.created_at,
            record.leased_until,
            record.expires_at,
            record.forget_at,
            due_at(record, self.due_at),
            self.tries,
            record.reason,
            None if record.snapshot is None else len(record.snapshot),
            known.get(self.terms),
        )


_OF_THE_RECORD: Final = frozenset(Record.__match_args__)


def changed(entry: Entry, state: State, fields: dict[str, Any]) -> Entry:
    """The entry in its new state, with some fields changed."""
    own: dict[str, Any] = {}
    of_record: dict[str, Any] = {"state": state}
    for name, written in fields.items():
        (of_record if name in _OF_THE_RECORD else own)[name] = written
    return replace(entry, record=replace(entry.record, **of_record), **own)


# ── which event it is, and whether it is allowed ──────────────────────────────────────────────────


def event_of(op: Write, entry: Entry | None) -> Event:
    match op:
        case Lapse():
            return lapse_event(entry)
        case Release() if op.requeue is not None and entry is not None and entry.deferred:
            return Event.REQUEUE
        case EvictUnknown():
            return Event.EVICT_FREED if op.free else Event.EVICT_FORCED
        case _:
            return _EVENTS[type(op)]


def lapse_event(entry: Entry | None) -> Event:
    """What becomes of a record whose lease is past, but for a resumable one."""
    if entry is None or entry.record.on_lapse is not OnLapse.RELEASE:
        return Event.LAPSE
    return Event.LAPSE_REQUEUE if entry.deferred else Event.LAPSE_RELEASE


_EVENTS: Final[dict[type[Write], Event]] = {
    Retake: Event.RETAKE,
    Take: Event.TAKE,
    Resume: Event.LAPSE_RESUME,
    Renew: Event.RENEW,
    Open: Event.ADVANCE,
    Advance: Event.ADVANCE,
    Complete: Event.COMPLETE,
    Release: Event.RELEASE,
    Suspend: Event.SUSPEND,
    Forget: Event.FORGET,
    SettleHappened: Event.SETTLE_HAPPENED,
    SettleAbsent: Event.SETTLE_ABSENT,
    SettleCall: Event.SETTLE_CALL,
    Inquire: Event.INQUIRE,
    Evict: Event.EVICT,
    Erase: Event.ERASE,
}


def allowed(op: Write, event: Event, entry: Entry, now: Micros) -> bool:
    """By the table, by what is shown for it, and by what the operation itself asks for."""
    found = entry.record
    if not proved(event, shown_fence(op), found, now):
        return False
    resumable = found.on_lapse is OnLapse.RESUME
    match op:
        case Renew():
            # A lease that is past is not revived; others may have been told that it lapsed.
            return not found.lapsed(now)
        case Resume() | SettleCall():
            return resumable
        case Lapse():
            return not resumable
        case Inquire():
            return entry.tries == op.tries
        case Erase():
            return bool(entry.origin.key)  # one without was erased before
        case _:
            return True


def proved(event: Event, fence: Fence, found: Record, now: Micros) -> bool:
    row = rule(found.state, event)
    return row is not None and _PROOFS[row.proof](fence, found, now)


def _overdue(found: Record, now: Micros) -> bool:
    end = found.leased_until if found.state is State.PENDING else found.expires_at
    return end is not None and end <= now


_PROOFS: Final[dict[Proof, Callable[[Fence, Record, Micros], bool]]] = {
    Proof.NONE: lambda fence, found, now: True,
    Proof.FENCE: lambda fence, found, now: fence == found.fence,
    Proof.LAST_FENCE: lambda fence, found, now: fence == found.fence,
    Proof.SEEN_FENCE: lambda fence, found, now: fence == found.fence,
    Proof.SEEN_FENCE_LAPSED: lambda fence, found, now: fence == found.fence and found.lapsed(now),
    Proof.SEEN_FENCE_OVERDUE: lambda fence, found, now: (
        fence == found.fence and found.forgettable(now)
    ),
    Proof.OVERDUE: lambda fence, found, now: _overdue(found, now),
}


def shown_fence(op: Write) -> Fence:
    """The fence the asker shows as its proof."""
    match op:
        case Renew() | Open() | Advance() | Complete() | Release() | Suspend():
            return op.fence
        case _:
            return op.seen


def already(op: Write, target: State | None, found: Record, now: Micros) -> bool:
    """Whether the record is just as an earlier try of the same operation left it."""
    match op:
        case Renew() | Inquire():
            return False
        case SettleCall():  # its lease is past from the start
            return found.state is target and found.fence == op.fence
        case Release() if op.requeue is not None:
            return found.state in _RELEASED and found.fence == op.fence
        case Lapse() if found.on_lapse is OnLapse.RELEASE:
            return found.state in _RELEASED and found.fence == op.seen
        case Lapse() | Forget() | Evict() | Erase():
            return found.state is target and found.fence == op.seen
        case _:
            return found.state is target and found.fence == op.fence and not found.lapsed(now)


_RELEASED: Final = (State.FAILED_RETRYABLE, State.PENDING)


# ── which fields it writes ────────────────────────────────────────────────────────────────────────


def fields(op: Write, event: Event, entry: Entry, now: Micros) -> dict[str, Any]:
    """The fields, other than the state, that an operation writes."""
    match op:
        case Renew() | Open() | Advance() | Complete() | Release() | Suspend():
            return _of_the_holder(op, event, entry, now)
        case Take() | Resume() | Retake():
            return _of_the_taker(op, entry, now)
        case Lapse():
            return lapsed_fields(event, op.retention, entry, now)
        case Inquire():
            return {"tries": entry.tries + 1, "due_at": _later(now, op.again_in)}
        case Forget() | Evict():
            return {}
        case Erase():
            origin = replace(entry.origin, tenant="", path="", key="")
            said = {"fingerprint": "", "fields": b"", "reason": "erased"}
            return EMPTIED | said | {"origin": origin, "resource": None}
        case _:
            return _of_the_settler(op, now)


def _of_the_holder(op: Holding, event: Event, entry: Entry, now: Micros) -> dict[str, Any]:
    match op:
        case Renew():
            return {"leased_until": now + op.lease}
        case Open():
            return {"snapshot": op.snapshot}
        case Advance():
            return {"journal": op.journal}
        case Complete():
            resource = op.resource and shown(op.resource)
            kept = kept_fields(op.snapshot, op, now)
            return kept | {"reason": None, "resource": resource}
        case Release():
            reason = {"reason": op.reason and shown(op.reason)}
            if event is Event.REQUEUE:
                return _queued(entry, now + (op.requeue or 0)) | reason
            return _released(op.retention, now) | reason
        case Suspend():
            reason = {"leased_until": None, "reason": op.reason and shown(op.reason)}
            return reason | {"tries": 0, "due_at": _later(now, op.probe_after)}
        case _:
            assert_never(op)


def _of_the_taker(op: Taking, entry: Entry, now: Micros) -> dict[str, Any]:
    lease: dict[str, Any] = {"fence": op.fence, "leased_until": now + op.lease, "reason": None}
    match op:
        case Take():
            return lease
        case Resume():
            return lease | {"snapshot": None}
        case Retake():
            lease |= {"expires_at": None, "forget_at": None, "snapshot": None}
            return lease | {
                "on_lapse": op.on_lapse,
                "abandon_at": _later(now, entry.patience),
            }
        case _:
            assert_never(op)


def _of_the_settler(op: Settling, now: Micros) -> dict[str, Any]:
    burnt: dict[str, Any] = {"fence": op.fence}
    match op:
        case SettleHappened():
            kept = kept_fields(op.snapshot, op, now)
            return kept | burnt | {"reason": shown(op.act.line)}
        case SettleAbsent():
            journal = {} if op.journal is None else {"journal": op.journal}
            return _released(op.retention, now) | burnt | journal | {"reason": shown(op.act.line)}
        case SettleCall():
            resumable = {"leased_until": now, "journal": op.journal, "tries": 0, "snapshot": None}
            return resumable | burnt | {"reason": shown(op.act.line)}
        case EvictUnknown():
            times = {"leased_until": None, "expires_at": now, "forget_at": now + op.tombstone}
            return burnt | times | EMPTIED | {"reason": shown(op.act.line)}
        case _:
            assert_never(op)


EMPTIED: Final[dict[str, Any]] = {"snapshot": None, "request": None, "journal": None}
"""A tombstone tells that a key was used, and nothing else."""


def lapsed_fields(event: Event, retention: Micros, entry: Entry, now: Micros) -> dict[str, Any]:
    reason: dict[str, Any] = {"reason": "the lease ran out", "tries": 0}
    match event:
        case Event.LAPSE_RELEASE:
            return _released(retention, now) | reason
        case Event.LAPSE_REQUEUE:
            return _queued(entry, now) | reason
        case _:
            return {"leased_until": None, "due_at": now} | reason


def kept_fields(
    snapshot: bytes, times: Complete | SettleHappened | Terms, now: Micros
) -> dict[str, Any]:
    end = now + times.retention
    until = {"leased_until": None, "expires_at": end, "forget_at": end + times.tombstone}
    return {"snapshot": snapshot, "request": None, **until}


def _released(retention: Micros, now: Micros) -> dict[str, Any]:
    return {"leased_until": None, "forget_at": now + retention, "snapshot": None}


def _queued(entry: Entry, due: Micros) -> dict[str, Any]:
    """Due no later than the deadline, where the abandoner looks."""
    due = due if entry.abandon_at is None else min(due, entry.abandon_at)
    return {"leased_until": entry.abandon_at, "due_at": due, "snapshot": None}


def _later(now: Micros, wait: Micros | None) -> Micros | None:
    return None if wait is None else now + wait
