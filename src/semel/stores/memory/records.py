"""Claims, reads and writes of one record, in a dictionary.

Whether an event is allowed, what must be shown for it and where it leads is looked up in
``core/states``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

from semel.core.contract import (
    Accept,
    Accepted,
    Agree,
    Agreed,
    Applied,
    Claim,
    Claimed,
    Evict,
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
from semel.core.custody import Erase
from semel.core.frozen import replace
from semel.core.model import Identity, Micros, Origin, Record, State
from semel.core.snapshot import LARGE, brief
from semel.core.states import TABLE, Event
from semel.core.terms import Terms, TermsId, application_of
from semel.core.texts import described, exact, indexed
from semel.errors import StoreCorrupt
from semel.stores.memory.audit import VERBS, Audit
from semel.stores.memory.fields import (
    Entry,
    Settling,
    Write,
    allowed,
    already,
    changed,
    event_of,
    fields,
)

TARGET: Final = {row.event: row.target for row in TABLE}


class Records:
    """Every record, by identity."""

    def __init__(self, audit: Audit) -> None:
        self.entries: dict[Identity, Entry] = {}
        self.terms: dict[TermsId, Terms] = {}
        self._audit = audit

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        writes: dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]
        writes = dict.fromkeys(get_args(Write), self._write)
        return {
            Claim: self._claim,
            Accept: self._accept,
            Read: self._read,
            Fetch: self._fetch,
            Recall: self._recall,
            Agree: self._agree,
            **writes,
        }

    def happen(self, event: Event, entry: Entry, written: dict[str, Any]) -> Entry | None:
        """Change the record to where the table leads; None when it is gone."""
        target = TARGET[event]
        identity = entry.record.identity
        if target is None:
            del self.entries[identity]
            return None
        entry = self.entries[identity] = changed(entry, target, written)
        return entry

    def _read(self, op: Read, now: Micros) -> Found | NoRecord:
        entry = self.entries.get(op.identity)
        return NoRecord(now) if entry is None else Found(_brief(entry.record), now)

    def _fetch(self, op: Fetch, now: Micros) -> Fetched | NoRecord:
        entry = self.entries.get(op.identity)
        record = None if entry is None or entry.record.fence != op.fence else entry.record
        if record is None or record.state is not State.COMPLETED or record.snapshot is None:
            return NoRecord(now)
        return Fetched(record.snapshot)

    def _recall(self, op: Recall, now: Micros) -> Recalled | NoRecord:
        entry = self.entries.get(op.identity)
        return NoRecord(now) if entry is None else Recalled(entry.case(self.terms), now)

    def is_of(self, entry: Entry, application: str) -> bool:
        return application_of(self.terms.get(entry.terms)) == application

    def _agree(self, op: Agree, now: Micros) -> Agreed:
        for name in (op.terms.application, op.terms.route):
            indexed(name)  # as stores with an index have it
        self.terms[op.terms.id] = op.terms
        return Agreed(now)

    def _claim(self, op: Claim, now: Micros) -> Claimed | Found | Stale:
        entry = self.entries.get(op.identity)
        if entry is not None:
            return _claim_again(op, entry.record, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
        record = _new_record(op, Event.CLAIM, now + op.lease, now)
        self.entries[op.identity] = Entry(record, _told(op.origin), op.terms, op.request, None)
        return Claimed(now + op.lease, now, now)

    def _accept(self, op: Accept, now: Micros) -> Accepted | Found | Stale:
        entry = self.entries.get(op.identity)
        if entry is not None:
            return _accept_again(op, entry.record, now)
        if op.fresh_until is not None and op.fresh_until < now:
            return Stale()
        deadline = now + op.patience
        record = _new_record(op, Event.ACCEPT, deadline, now)
        kept = (record, _told(op.origin), op.terms, op.request)
        self.entries[op.identity] = Entry(*kept, now, op.patience, deadline)
        return Accepted(now)

    def _write(self, op: Write, now: Micros) -> Written:
        entry = self.entries.get(op.identity)
        event = event_of(op, entry)
        if entry is None:
            return Applied(None, now) if TARGET[event] is None else Lost(None, now)
        if allowed(op, event, entry, now):
            self._note(op, event, entry, now)
            left = self.happen(event, entry, fields(op, event, entry, now))
            return Applied(None, now) if left is None else _applied(left.record, now)
        if already(op, TARGET[event], entry.record, now):
            return _applied(entry.record, now)
        return Lost(_brief(entry.record), now)

    def _note(self, op: Write, event: Event, entry: Entry, now: Micros) -> None:
        """Put an act on record; most writes are none."""
        if isinstance(op, Settling | Evict | Erase):
            target = TARGET[event]
            states = entry.record.state.value, None if target is None else target.value
            self._audit.note(VERBS[event], op.act, now, identity=op.identity, states=states)


def _told(origin: Origin) -> Origin:
    """As stores that keep text have it."""
    place = (origin.tenant, origin.method, origin.path, origin.key)
    _, *texts = described("", *place)
    return origin if tuple(texts) == place else Origin(*texts)


def _brief(record: Record) -> Record:
    """As requests get it: of a large answer the head."""
    if record.snapshot is None or len(record.snapshot) <= LARGE:
        return record
    return replace(record, snapshot=brief(record.snapshot))


def _new_record(op: Claim | Accept, event: Event, end: Micros, now: Micros) -> Record:
    target = TARGET[event]
    if target is None:
        raise StoreCorrupt(f"{event.value} leads nowhere")
    return Record(
        identity=op.identity,
        state=target,
        fence=op.fence,
        fingerprint=exact(op.fingerprint),
        fields=op.fields,
        on_lapse=op.on_lapse,
        created_at=now,
        leased_until=end,
        expires_at=None,
        forget_at=None,
        snapshot=None,
        reason=None,
    )


def _claim_again(op: Claim, found: Record, now: Micros) -> Claimed | Found:
    """An own claim asked again is held already, but a lease that is past is not handed out."""
    held = found.fence == op.fence and found.state is State.IN_PROGRESS
    if held and found.leased_until is not None and not found.lapsed(now):
        return Claimed(found.leased_until, now, found.created_at)
    return Found(_brief(found), now)


def _accept_again(op: Accept, found: Record, now: Micros) -> Accepted | Found:
    own = found.fence == op.fence and found.state is State.PENDING
    return Accepted(now) if own else Found(_brief(found), now)


def _applied(record: Record, now: Micros) -> Applied:
    return Applied(record.state, now, record.leased_until, record.expires_at)
