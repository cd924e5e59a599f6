"""Claims, reads and writes of one record.

`core.states` says which event is allowed, what proof it needs and which state it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from semel.core.frozen import replace
from semel.core.operations.requests import (
    Accept,
    Accepted,
    Agree,
    Agreed,
    Applied,
    Claim,
    Claimed,
    Fetch,
    Fetched,
    Found,
    Lost,
    NoRecord,
    Read,
    Recall,
    Recalled,
    Stale,
    StoreOperation,
    Written,
)
from semel.core.records import Identity, Micros, Record, State
from semel.core.states import RecordEvent
from semel.core.stored.snapshot import LARGE, brief
from semel.core.terms import Terms, TermsId, application_of
from semel.core.texts import indexed
from semel.errors import StoreCorrupt
from semel.stores.memory.audit import VERBS, AuditLog
from semel.stores.memory.rows import TARGET, WRITES, Fill, Row, Write, allowed, already


class MemoryRecords:
    """Every record, by identity."""

    def __init__(self, audit: AuditLog) -> None:
        self.rows: dict[Identity, Row] = {}
        self.terms: dict[TermsId, Terms] = {}
        self._audit = audit

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        return {
            Claim: self._claim,
            Accept: self._accept,
            Read: self._read,
            Fetch: self._fetch,
            Recall: self._recall,
            Agree: self._agree,
            **dict.fromkeys(WRITES, self._write),
        }

    def _read(self, op: Read, now: Micros) -> Found | NoRecord:
        row = self.rows.get(op.identity)
        return NoRecord(now) if row is None else Found(_brief(row), now)

    def _fetch(self, op: Fetch, now: Micros) -> Fetched | NoRecord:
        row = self.rows.get(op.identity)
        if row is None or row.fence != op.fence or row.state is not State.COMPLETED:
            return NoRecord(now)
        return NoRecord(now) if row.snapshot is None else Fetched(row.snapshot)

    def _recall(self, op: Recall, now: Micros) -> Recalled | NoRecord:
        row = self.rows.get(op.identity)
        return NoRecord(now) if row is None else Recalled(row.case(self.terms), now)

    def is_of(self, row: Row, application: str) -> bool:
        return application_of(self.terms.get(row.terms)) == application

    def _agree(self, op: Agree, now: Micros) -> Agreed:
        for name in (op.terms.application, op.terms.route):
            indexed(name)  # raises for what a store with an index could not keep
        self.terms[op.terms.id] = op.terms
        return Agreed(now)

    def _claim(self, op: Claim, now: Micros) -> Claimed | Found | Stale:
        row = self.rows.get(op.identity)
        if row is not None:
            return _claim_again(op, row, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
        end = now + op.lease
        self.rows[op.identity] = Row(op, _CLAIMED, end, now)
        return Claimed(end, now, now)

    def _accept(self, op: Accept, now: Micros) -> Accepted | Found | Stale:
        row = self.rows.get(op.identity)
        if row is not None:
            return _accept_again(op, row, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
        end = now + op.patience
        row = Row(op, _ACCEPTED, end, now)
        row.due_at, row.patience, row.abandon_at = now, op.patience, end
        self.rows[op.identity] = row
        return Accepted(now)

    def _write(self, op: Write, now: Micros) -> Written:
        kind, row = WRITES[type(op)], self.rows.get(op.identity)
        event = kind.event if kind.chosen is None else kind.chosen(op, row)
        if row is None:
            return Applied(None, now) if TARGET[event] is None else Lost(None, now)
        if allowed(kind, op, event, row, now):
            if event in VERBS:  # most writes are not for the audit log
                self._audit_write(op, event, row, now)
            row = self.happen(event, row, kind.fill, op, now)
        elif not already(op, TARGET[event], row, now):
            return Lost(_brief(row), now)
        if row is None:
            return Applied(None, now)
        return Applied(row.state, now, row.leased_until, row.expires_at)

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

    def _audit_write(self, op: Any, event: RecordEvent, row: Row, now: Micros) -> None:
        target = TARGET[event]
        states = row.state.value, None if target is None else target.value
        self._audit.note(VERBS[event], op.act, now, identity=op.identity, states=states)


def _leads_to(event: RecordEvent) -> State:
    target = TARGET[event]
    if target is None:
        raise StoreCorrupt(f"{event.value} leads nowhere")
    return target


_CLAIMED: Final = _leads_to(RecordEvent.CLAIM)
_ACCEPTED: Final = _leads_to(RecordEvent.ACCEPT)


def _brief(row: Row) -> Record:
    """The record with only the head of a large answer; `Fetch` reads the whole."""
    record = row.record
    if record.snapshot is None or len(record.snapshot) <= LARGE:
        return record
    return replace(record, snapshot=brief(record.snapshot))


def _claim_again(op: Claim, row: Row, now: Micros) -> Claimed | Found:
    """Claimed when an earlier try of this claim succeeded and its lease still runs; else Found."""
    held = row.fence == op.fence and row.state is State.IN_PROGRESS
    if held and row.leased_until is not None and not row.record.lapsed(now):
        return Claimed(row.leased_until, now, row.created_at)
    return Found(_brief(row), now)


def _accept_again(op: Accept, row: Row, now: Micros) -> Accepted | Found:
    own = row.fence == op.fence and row.state is State.PENDING
    return Accepted(now) if own else Found(_brief(row), now)
