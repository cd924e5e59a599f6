"""Claims, reads and writes of one record, and the audit log of what operators did.

`core.states` says which event is allowed, what proof it needs and which state it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import Identity, Micros, Record, State
from semel.core.states import RecordEvent
from semel.core.stored.snapshot import LARGE, brief
from semel.core.terms import Terms, TermsId, application_of
from semel.core.texts import indexed, shown
from semel.errors import ConfigurationError
from semel.stores.memory.rows import TARGET, WRITES, Fill, Row, Write, allowed, already
from semel.stores.options import whole

Answers: TypeAlias = dict[type[ops.StoreOperation[Any]], Callable[[Any, Micros], object]]
"""What performs each kind of operation: it takes the operation and the time."""

VERBS: Final = {
    RecordEvent.SETTLE_HAPPENED: ops.Verb.SETTLE,
    RecordEvent.SETTLE_ABSENT: ops.Verb.SETTLE,
    RecordEvent.SETTLE_CALL: ops.Verb.SETTLE,
    RecordEvent.EVICT: ops.Verb.EVICT,
    RecordEvent.EVICT_FORCED: ops.Verb.BURY,
    RecordEvent.EVICT_FREED: ops.Verb.FREE,
    RecordEvent.ERASE: ops.Verb.ERASE,
}
"""The events that are written into the audit log, and the verb each is written as."""


class AuditLog:
    """What operators and programs did to records and effects, oldest first."""

    def __init__(self) -> None:
        self._entries: list[ops.AuditEntry] = []

    def answers(self) -> Answers:
        return {ops.Remark: self._remark, ops.BrowseAudit: self._browse}

    def note(
        self,
        verb: ops.Verb,
        act: ops.Act,
        now: Micros,
        *,
        identity: Identity | None = None,
        subject: str | None = None,
        states: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Append an entry. ``states``: of the record or effect, before and after."""
        place = str(len(self._entries) + 1)
        by, reason = shown(act.by), shown(act.reason)
        entry = ops.AuditEntry(place, now, verb.value, by, reason, identity, subject, *states)
        self._entries.append(entry)

    def _remark(self, op: ops.Remark, now: Micros) -> ops.Remarked:
        self.note(op.verb, op.act, now, subject=shown(op.subject))
        return ops.Remarked(now)

    def _browse(self, op: ops.BrowseAudit, now: Micros) -> ops.AuditEntries:
        """A page of entries, newest first, before the place ``op.before``."""
        place = len(self._entries) + 1 if op.before is None else whole(op.before)
        if place is None:
            raise ConfigurationError("this is no place in the audit of this store")
        end = max(0, place - 1)
        return ops.AuditEntries(tuple(self._entries[:end][::-1][: op.limit]), now)


class MemoryRecords:
    """Every record, by identity."""

    def __init__(self, audit: AuditLog) -> None:
        self.rows: dict[Identity, Row] = {}
        self.terms: dict[TermsId, Terms] = {}
        self._audit = audit

    def answers(self) -> Answers:
        return {
            ops.Claim: self._claim,
            ops.Accept: self._accept,
            ops.Read: self._read,
            ops.Fetch: self._fetch,
            ops.Recall: self._recall,
            ops.Agree: self._agree,
            **dict.fromkeys(WRITES, self._write),
        }

    def _read(self, op: ops.Read, now: Micros) -> ops.Found | ops.NoRecord:
        row = self.rows.get(op.identity)
        return ops.NoRecord(now) if row is None else ops.Found(_brief(row), now)

    def _fetch(self, op: ops.Fetch, now: Micros) -> ops.Fetched | ops.NoRecord:
        row = self.rows.get(op.identity)
        if row is None or row.fence != op.fence or row.state is not State.COMPLETED:
            return ops.NoRecord(now)
        return ops.NoRecord(now) if row.snapshot is None else ops.Fetched(row.snapshot)

    def _recall(self, op: ops.Recall, now: Micros) -> ops.Recalled | ops.NoRecord:
        row = self.rows.get(op.identity)
        return ops.NoRecord(now) if row is None else ops.Recalled(row.case(self.terms), now)

    def is_of(self, row: Row, application: str) -> bool:
        return application_of(self.terms.get(row.terms)) == application

    def _agree(self, op: ops.Agree, now: Micros) -> ops.Agreed:
        for name in (op.terms.application, op.terms.route):
            indexed(name)  # raises for what a store with an index could not keep
        self.terms[op.terms.id] = op.terms
        return ops.Agreed(now)

    def _claim(self, op: ops.Claim, now: Micros) -> ops.Claimed | ops.Found | ops.Stale:
        row = self.rows.get(op.identity)
        if row is not None:
            return _claim_again(op, row, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return ops.Stale()
        end = now + op.lease
        self.rows[op.identity] = Row(op, State.IN_PROGRESS, end, now)
        return ops.Claimed(end, now, now)

    def _accept(self, op: ops.Accept, now: Micros) -> ops.Accepted | ops.Found | ops.Stale:
        row = self.rows.get(op.identity)
        if row is not None:
            own = row.fence == op.fence and row.state is State.PENDING
            return ops.Accepted(now) if own else ops.Found(_brief(row), now)
        if op.fresh_until is not None and op.fresh_until < now:
            return ops.Stale()
        end = now + op.patience
        row = Row(op, State.PENDING, end, now)
        row.due_at, row.patience, row.abandon_at = now, op.patience, end
        self.rows[op.identity] = row
        return ops.Accepted(now)

    def _write(self, op: Write, now: Micros) -> ops.Written:
        kind, row = WRITES[type(op)], self.rows.get(op.identity)
        event = kind.event if kind.chosen is None else kind.chosen(op, row)
        target = TARGET[event]
        if row is None:
            return ops.Applied(None, now) if target is None else ops.Lost(None, now)
        if allowed(kind, op, event, row, now):
            if event in VERBS:  # most writes are not for the audit log
                act: ops.Act = cast("Any", op).act
                states = row.state.value, None if target is None else target.value
                self._audit.note(VERBS[event], act, now, identity=op.identity, states=states)
            row = self.happen(event, row, kind.fill, op, now)
        elif not already(op, target, row, now):
            return ops.Lost(_brief(row), now)
        if row is None:
            return ops.Applied(None, now)
        return ops.Applied(row.state, now, row.leased_until, row.expires_at)

    def happen(self, event: RecordEvent, row: Row, fill: Fill, op: Any, now: Micros) -> Row | None:
        """Bring the record into the state that the event leads to; None when that deletes it."""
        target = TARGET[event]
        if target is None:
            del self.rows[row.identity]
            return None
        left = row.copy(target)
        fill(op, left, now)
        self.rows[row.identity] = left
        return left


def _brief(row: Row) -> Record:
    """The record with only the head of a large answer; `Fetch` reads the whole."""
    record = row.record
    if record.snapshot is None or len(record.snapshot) <= LARGE:
        return record
    return replace(record, snapshot=brief(record.snapshot))


def _claim_again(op: ops.Claim, row: Row, now: Micros) -> ops.Claimed | ops.Found:
    """Claimed when an earlier try of this claim succeeded and its lease still runs; else Found."""
    held = row.fence == op.fence and row.state is State.IN_PROGRESS
    if held and row.leased_until is not None and not row.record.lapsed(now):
        return ops.Claimed(row.leased_until, now, row.created_at)
    return ops.Found(_brief(row), now)
