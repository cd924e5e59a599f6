"""A record as the memory store keeps it, and what each kind of write does to it.

`core.states.TABLE` says which event may change a record in which state, and what proof it needs.
`WRITES` says the rest, one line for each kind of write: which event it is, which fence is its
proof, what else must hold, and which fields it fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

from semel.core import operations as ops
from semel.core.frozen import frozen, replace
from semel.core.records import (
    Case,
    Fence,
    Identity,
    Micros,
    OnLapse,
    Origin,
    Record,
    State,
    whole_origin,
)
from semel.core.states import TABLE, Proof, RecordEvent
from semel.core.terms import Terms, TermsId
from semel.core.texts import described, shown
from semel.stores.base import due_at

Write: TypeAlias = (
    ops.Take
    | ops.Resume
    | ops.Retake
    | ops.Renew
    | ops.Open
    | ops.Advance
    | ops.Complete
    | ops.Release
    | ops.Suspend
    | ops.Lapse
    | ops.Forget
    | ops.Inquire
    | ops.SettleHappened
    | ops.SettleAbsent
    | ops.SettleCall
    | ops.Evict
    | ops.EvictUnknown
    | ops.Erase
)
"""The operations that change an existing record."""

_blank: Final = object.__new__
_fields_of_record: Final[Callable[[Any], Any]] = attrgetter(*Record.__match_args__)


@dataclass(init=False, repr=False, eq=False, slots=True)
class Row:
    """A record as it is kept.

    A row in the dictionary never changes: a write fills in a copy and then replaces the row. So a
    write that fails halfway changes nothing, and what a caller has read stays as it was.
    """

    identity: Identity
    state: State
    fence: Fence
    fingerprint: str
    fields: bytes
    on_lapse: OnLapse
    created_at: Micros
    leased_until: Micros | None
    expires_at: Micros | None
    forget_at: Micros | None
    snapshot: bytes | None
    reason: str | None
    retired_at: Micros | None
    origin: Origin
    terms: TermsId
    request: bytes | None
    journal: bytes | None
    resource: str | None
    tries: int
    due_at: Micros | None
    patience: Micros | None
    """Only for a deferred request: how long it may wait to be run. ``abandon_at``: until when."""
    abandon_at: Micros | None
    made: Record | None
    """The cached `record`."""

    def __init__(self, op: ops.Claim | ops.Accept, state: State, end: Micros, now: Micros) -> None:
        origin = op.origin
        given = (op.fingerprint, origin.tenant, origin.method, origin.path, origin.key)
        kept = described(*given)  # as a store that keeps text would return it
        self.origin = origin if kept == given else Origin(*kept[1:])
        self.identity, self.state, self.fence = op.identity, state, op.fence
        self.fingerprint, self.fields = op.fingerprint, op.fields
        self.on_lapse, self.terms, self.request = op.on_lapse, op.terms, op.request
        self.created_at, self.leased_until = now, end
        self.expires_at = self.forget_at = self.retired_at = self.due_at = None
        self.snapshot = self.reason = self.journal = self.resource = None
        self.patience = self.abandon_at = self.made = None
        self.tries = 0

    def copy(self, state: State) -> Row:
        """A copy in another state, to be filled in. Written out: this is on the request's way."""
        row: Row = _blank(Row)
        row.identity, row.state, row.fence = self.identity, state, self.fence
        row.fingerprint, row.fields, row.origin = self.fingerprint, self.fields, self.origin
        row.on_lapse, row.terms, row.request = self.on_lapse, self.terms, self.request
        row.created_at, row.leased_until = self.created_at, self.leased_until
        row.expires_at, row.forget_at = self.expires_at, self.forget_at
        row.retired_at, row.due_at = self.retired_at, self.due_at
        row.snapshot, row.reason = self.snapshot, self.reason
        row.journal, row.resource, row.tries = self.journal, self.resource, self.tries
        row.patience, row.abandon_at, row.made = self.patience, self.abandon_at, None
        return row

    @property
    def record(self) -> Record:
        """The record as replies carry it; made on first use, since most rows are never read."""
        if self.made is None:
            self.made = Record(*_fields_of_record(self))
        return self.made

    @property
    def resumable(self) -> bool:
        return self.on_lapse is OnLapse.RESUME

    def case(self, known: Mapping[TermsId, Terms]) -> Case:
        """The record with all that belongs to it. ``known``: the terms on record."""
        own = self.request, self.journal, self.resource, self.tries
        due, terms = due_at(self.record, self.due_at), known.get(self.terms)
        return Case(self.record, whole_origin(self.origin, terms), *own, due, terms)


# ── which writes are allowed ──────────────────────────────────────────────────────────────────────

TARGET: Final = {row.event: row.target for row in TABLE}


def allowed(kind: WriteKind, op: Write, event: RecordEvent, row: Row, now: Micros) -> bool:
    """Whether the table allows the event, its proof is given, and `WriteKind.asks` holds."""
    if not proved(event, kind.shown(op), row, now):
        return False
    return kind.asks is None or kind.asks(op, row, now)


def proved(event: RecordEvent, fence: Fence, row: Row, now: Micros) -> bool:
    """Whether the table has the event in this state, and ``fence`` and time are its proof."""
    proof = _PROOF.get((row.state, event))
    return proof is not None and proof(fence, row, now)


def _by_fence(fence: Fence, row: Row, now: Micros) -> bool:
    return fence == row.fence


def _overdue(fence: Fence, row: Row, now: Micros) -> bool:
    end = row.leased_until if row.state is State.PENDING else row.expires_at
    return end is not None and end <= now


_Check: TypeAlias = Callable[[Fence, Row, Micros], bool]

_CHECKS: Final[dict[Proof, _Check]] = {
    Proof.NONE: lambda fence, row, now: True,
    Proof.FENCE: _by_fence,
    Proof.LAST_FENCE: _by_fence,
    Proof.SEEN_FENCE: _by_fence,
    Proof.SEEN_FENCE_LAPSED: lambda fence, row, now: fence == row.fence and row.record.lapsed(now),
    Proof.SEEN_FENCE_OVERDUE: lambda fence, row, now: (
        fence == row.fence and row.record.forgettable(now)
    ),
    Proof.OVERDUE: _overdue,
}

_PROOF: Final = {(row.source, row.event): _CHECKS[row.proof] for row in TABLE}
"""The check for each state and event: the table, read once."""


def already(op: Write, target: State | None, row: Row, now: Micros) -> bool:
    """Whether the record is as an earlier try of the same operation left it."""
    match op:
        case ops.Renew() | ops.Inquire():
            return False
        case ops.SettleCall():  # it writes a lease that is over at once
            return row.state is target and row.fence == op.fence
        case ops.Release() if op.requeue is not None:
            return row.state in _RELEASED and row.fence == op.fence
        case ops.Lapse() if row.on_lapse is OnLapse.RELEASE:
            return row.state in _RELEASED and row.fence == op.seen
        case ops.Lapse() | ops.Forget() | ops.Evict() | ops.Erase():
            return row.state is target and row.fence == op.seen
        case _:
            same = row.state is target and row.fence == op.fence
            return same and not row.record.lapsed(now)


_RELEASED: Final = (State.FAILED_RETRYABLE, State.PENDING)


# ── which event a write is, where the record decides ──────────────────────────────────────────────


def lapse_event(row: Row | None) -> RecordEvent:
    """The event that a lapsed lease is, for a record that is not resumable."""
    if row is None or row.on_lapse is not OnLapse.RELEASE:
        return RecordEvent.LAPSE
    return RecordEvent.LAPSE_REQUEUE if row.patience is not None else RecordEvent.LAPSE_RELEASE


def _release_event(op: ops.Release, row: Row | None) -> RecordEvent:
    again = op.requeue is not None and row is not None and row.patience is not None
    return RecordEvent.REQUEUE if again else RecordEvent.RELEASE


# ── which fields a write fills in ─────────────────────────────────────────────────────────────────

Fill: TypeAlias = Callable[[Any, Row, Micros], None]


def nothing(op: object, row: Row, now: Micros) -> None:
    """For a write that deletes the record or changes only its state."""


def _take(op: ops.Take | ops.Resume | ops.Retake, row: Row, now: Micros) -> None:
    row.fence, row.leased_until, row.reason = op.fence, now + op.lease, None
    if not isinstance(op, ops.Take):
        row.snapshot = None
    if isinstance(op, ops.Retake):
        row.expires_at = row.forget_at = None
        row.on_lapse, row.abandon_at = op.on_lapse, _later(now, row.patience)


def _go_on(op: ops.Renew | ops.Open | ops.Advance, row: Row, now: Micros) -> None:
    match op:
        case ops.Renew():
            row.leased_until = now + op.lease
        case ops.Open():
            row.snapshot = op.snapshot
        case ops.Advance():
            row.journal = op.journal


def _complete(op: ops.Complete, row: Row, now: Micros) -> None:
    keep(row, op.snapshot, op, now)
    row.reason, row.resource = None, op.resource and shown(op.resource)


def _release(op: ops.Release, row: Row, now: Micros) -> None:
    _give_back(row, now + (op.requeue or 0), now + op.retention)
    row.reason = op.reason and shown(op.reason)


def _suspend(op: ops.Suspend, row: Row, now: Micros) -> None:
    row.leased_until, row.reason = None, op.reason and shown(op.reason)
    row.tries, row.due_at = 0, _later(now, op.probe_after)


def lapse(row: Row, retention: Micros, now: Micros) -> None:
    """Fill in a row whose lease ran out, as its new state needs it."""
    if row.state is State.UNKNOWN:
        row.leased_until, row.due_at = None, now
    else:
        _give_back(row, now, now + retention)
    row.reason, row.tries = "the lease ran out", 0


def _inquire(op: ops.Inquire, row: Row, now: Micros) -> None:
    row.tries, row.due_at = row.tries + 1, _later(now, op.again_in)


def _settle(
    op: ops.SettleHappened | ops.SettleAbsent | ops.SettleCall | ops.EvictUnknown,
    row: Row,
    now: Micros,
) -> None:
    """Somebody knows or decides what happened; the fence is burnt for whoever held it."""
    match op:
        case ops.SettleHappened():
            keep(row, op.snapshot, op, now)
        case ops.SettleAbsent():
            _give_back(row, now, now + op.retention)
            row.journal = row.journal if op.journal is None else op.journal
        case ops.SettleCall():
            row.leased_until, row.journal, row.tries, row.snapshot = now, op.journal, 0, None
        case ops.EvictUnknown():
            empty(row)
            row.leased_until, row.forget_at = None, now + op.tombstone
    row.fence, row.reason = op.fence, shown(op.act.line)


def _erase(op: ops.Erase, row: Row, now: Micros) -> None:
    empty(row)
    row.origin = replace(row.origin, tenant="", path="", key="")
    row.fingerprint, row.fields, row.reason, row.resource = "", b"", "erased", None


def tombstone(row: Row) -> None:
    """Leave a tombstone of an answer past its retention.

    It keeps what refuses other requests, and where the key was used. Nobody has to name fields or
    the key any more.
    """
    empty(row)
    row.fields, row.resource, row.origin = b"", None, replace(row.origin, key="")


def keep(
    row: Row, snapshot: bytes, times: ops.Complete | ops.SettleHappened | Terms, now: Micros
) -> None:
    """Keep an answer for its retention, and after that its tombstone."""
    end = now + times.retention
    row.snapshot, row.request, row.leased_until = snapshot, None, None
    row.expires_at, row.forget_at = end, end + times.tombstone


def empty(row: Row) -> None:
    """Leave a tombstone, which says that the key was used and nothing else."""
    row.snapshot = row.request = row.journal = row.expires_at = None


def _give_back(row: Row, due: Micros, forget_at: Micros) -> None:
    """Free the key until ``forget_at``; a deferred request waits in the queue until ``due``."""
    row.leased_until = row.snapshot = None
    if row.state is not State.PENDING:
        row.forget_at = forget_at
    elif row.abandon_at is None:
        row.due_at = due
    else:  # at its deadline the abandoner takes it
        row.leased_until, row.due_at = row.abandon_at, min(due, row.abandon_at)


def _later(now: Micros, wait: Micros | None) -> Micros | None:
    return None if wait is None else now + wait


# ── the kinds of write ────────────────────────────────────────────────────────────────────────────


@frozen
class WriteKind:
    """What one kind of write does."""

    event: RecordEvent
    shown: Callable[[Any], Fence]
    """The fence that is the operation's proof: the one it holds, or the one it has seen."""
    fill: Fill
    """Fills in the fields of a copy that already has its new state."""
    asks: Callable[[Any, Row, Micros], bool] | None = None
    """What else must hold."""
    chosen: Callable[[Any, Row | None], RecordEvent] | None = None
    """Chooses the event where the record decides which one it is."""


_HELD: Final[Callable[[Any], Fence]] = attrgetter("fence")
_SEEN: Final[Callable[[Any], Fence]] = attrgetter("seen")


WRITES: Final[dict[type[Write], WriteKind]] = {
    ops.Take: WriteKind(RecordEvent.TAKE, _SEEN, _take),
    ops.Resume: WriteKind(
        RecordEvent.LAPSE_RESUME, _SEEN, _take, lambda op, row, now: row.resumable
    ),
    ops.Retake: WriteKind(RecordEvent.RETAKE, _SEEN, _take),
    # A lapsed lease is not renewed: another caller may already know that it lapsed.
    ops.Renew: WriteKind(
        RecordEvent.RENEW, _HELD, _go_on, lambda op, row, now: not row.record.lapsed(now)
    ),
    ops.Open: WriteKind(RecordEvent.ADVANCE, _HELD, _go_on),
    ops.Advance: WriteKind(RecordEvent.ADVANCE, _HELD, _go_on),
    ops.Complete: WriteKind(RecordEvent.COMPLETE, _HELD, _complete),
    ops.Release: WriteKind(RecordEvent.RELEASE, _HELD, _release, chosen=_release_event),
    ops.Suspend: WriteKind(RecordEvent.SUSPEND, _HELD, _suspend),
    ops.Lapse: WriteKind(
        RecordEvent.LAPSE,
        _SEEN,
        lambda op, row, now: lapse(row, op.retention, now),
        lambda op, row, now: not row.resumable,
        lambda op, row: lapse_event(row),
    ),
    ops.Forget: WriteKind(RecordEvent.FORGET, _SEEN, nothing),
    ops.Inquire: WriteKind(
        RecordEvent.INQUIRE, _SEEN, _inquire, lambda op, row, now: bool(row.tries == op.tries)
    ),
    ops.SettleHappened: WriteKind(RecordEvent.SETTLE_HAPPENED, _SEEN, _settle),
    ops.SettleAbsent: WriteKind(RecordEvent.SETTLE_ABSENT, _SEEN, _settle),
    ops.SettleCall: WriteKind(
        RecordEvent.SETTLE_CALL, _SEEN, _settle, lambda op, row, now: row.resumable
    ),
    ops.Evict: WriteKind(RecordEvent.EVICT, _SEEN, nothing),
    ops.EvictUnknown: WriteKind(
        RecordEvent.EVICT_FORCED,
        _SEEN,
        _settle,
        chosen=lambda op, row: RecordEvent.EVICT_FREED if op.free else RecordEvent.EVICT_FORCED,
    ),
    # A record without a fingerprint is already erased.
    ops.Erase: WriteKind(
        RecordEvent.ERASE, _SEEN, _erase, lambda op, row, now: bool(row.fingerprint)
    ),
}
