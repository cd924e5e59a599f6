"""What workers, maintenance and operators ask, of records in a dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from semel.core.contract import StoreOperation
from semel.core.frozen import frozen
from semel.core.model import Case, Fence, Identity, Micros, OnLapse, State
from semel.core.states import Event
from semel.core.terms import route_of
from semel.core.texts import indexed, shown
from semel.core.upkeep import (
    Abandon,
    Browse,
    Count,
    CountDue,
    Counted,
    Due,
    Lead,
    Leading,
    Led,
    Listed,
    Reap,
    Retire,
    Retired,
    Scan,
    Scanned,
    Sweep,
    Tended,
    Waiting,
    WhoLeads,
    Work,
)
from semel.stores.memory.fields import (
    EMPTIED,
    Entry,
    changed,
    kept_fields,
    lapse_event,
    lapsed_fields,
    proved,
)
from semel.stores.memory.outbox import Outbox
from semel.stores.memory.records import Records


@frozen
class _Leader:
    fence: Fence
    until: Micros


class Upkeep:
    """A round over the records; also over outbox and events, which are reaped with them."""

    def __init__(self, records: Records, outbox: Outbox) -> None:
        self._records = records
        self._outbox = outbox
        self._leaders: dict[str, _Leader] = {}

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        return {
            Due: self._due,
            CountDue: self._count_due,
            Browse: self._browse,
            Scan: self._scan,
            Count: self._count,
            Sweep: self._sweep,
            Abandon: self._abandon,
            Reap: self._reap,
            Lead: self._lead,
            WhoLeads: self._who_leads,
            Retire: self._retire,
        }

    def _entries(self) -> Iterable[Entry]:
        return list(self._records.entries.values())

    def _due(self, op: Due, now: Micros) -> Listed:
        work = [
            (due, case)
            for case in self._cases()
            if (due := _due_for(op.work, case, now))
            and (op.known is None or op.known.covers(case.terms))
        ]
        work.sort(key=lambda item: item[0])
        cases = tuple([case for due, case in work if due <= now][: op.limit])
        if cases and len(cases) >= op.limit:
            return Listed(cases, now, now)
        return Listed(cases, now, next((due for due, _ in work if due > now), None))

    def _count_due(self, op: CountDue, now: Micros) -> Waiting:
        counts: Counter[tuple[str, str] | None] = Counter()
        for work in Work:
            due = [case for case in self._cases() if (_due_for(work, case, now) or now + 1) <= now]
            counts.update(route_of(case.terms) for case in due[: op.limit])
        return Waiting(dict(counts), now)

    def _cases(self) -> list[Case]:
        return [entry.case(self._records.terms) for entry in self._entries()]

    def _browse(self, op: Browse, now: Micros) -> Listed:
        cases = [case for case in self._cases() if case.record.state in op.states]
        cases = [case for case in cases if case.due_at is None or not op.dead]
        cases.sort(key=lambda case: case.record.identity)
        after = op.after or b""
        return Listed(
            tuple([case for case in cases if case.record.identity > after][: op.limit]), now
        )

    def _page(self, op: Scan | Count) -> tuple[list[Entry], Identity | None]:
        after = op.after or b""
        past = [entry for entry in self._entries() if entry.record.identity > after]
        page = sorted(past, key=lambda entry: entry.record.identity)[: op.limit]
        return page, page[-1].record.identity if len(page) < len(past) else None

    def _count(self, op: Count, now: Micros) -> Counted:
        page, until = self._page(op)
        alive = [entry for entry in page if entry.record.state is not State.EXPIRED]
        return Counted(dict(Counter(entry.origin.tenant for entry in alive)), until, now)

    def _scan(self, op: Scan, now: Micros) -> Scanned:
        page, until = self._page(op)
        known = self._records.terms
        seen = [entry.glimpse(known) for entry in page if entry.record.state in op.states]
        return Scanned(tuple(seen), until, now)

    def _sweep(self, op: Sweep, now: Micros) -> Tended:
        def lapse(entry: Entry) -> Event | None:
            if entry.record.on_lapse is OnLapse.RESUME:
                return None
            event = lapse_event(entry)
            if not proved(event, entry.record.fence, entry.record, now):
                return None
            terms = self._records.terms.get(entry.terms)
            if terms is None and event is Event.LAPSE_RELEASE:
                return None
            retention = 0 if terms is None else terms.retention
            self._records.happen(event, entry, lapsed_fields(event, retention, entry, now))
            return event

        return self._round(op.limit, now, lapse)

    def _abandon(self, op: Abandon, now: Micros) -> Tended:
        def abandon(entry: Entry) -> Event | None:
            if not proved(Event.ABANDON, entry.record.fence, entry.record, now):
                return None
            terms = self._records.terms.get(entry.terms)
            if terms is None:
                return None
            fields = kept_fields(op.snapshot, terms, now) | {"reason": "nobody ran it in time"}
            self._records.happen(Event.ABANDON, entry, fields)
            return Event.ABANDON

        return self._round(op.limit, now, abandon)

    def _reap(self, op: Reap, now: Micros) -> Tended:
        def expire(entry: Entry) -> Event | None:
            if not proved(Event.EXPIRE, entry.record.fence, entry.record, now):
                return None
            self._records.happen(Event.EXPIRE, entry, EMPTIED)
            return Event.EXPIRE

        def forget(entry: Entry) -> Event | None:
            # What was completed is expired first.
            if entry.record.state is State.COMPLETED:
                return None
            if not proved(Event.FORGET, entry.record.fence, entry.record, now):
                return None
            self._records.happen(Event.FORGET, entry, {})
            return Event.FORGET

        rounds = [self._round(op.limit, now, tend) for tend in (expire, forget)]
        counts = {**rounds[0].counts, **rounds[1].counts}
        others = self._outbox.reap(op.limit, now)
        more = any(each.more for each in rounds)
        more = more or any(count >= op.limit for count in others.values())
        return Tended({**counts, **others}, more, now)

    def _round(self, limit: int, now: Micros, tend: Callable[[Entry], Event | None]) -> Tended:
        """What ``tend`` changes, longest due first, up to ``limit``."""
        counts: Counter[str] = Counter()
        due = [(entry.case(self._records.terms).due_at or now, entry) for entry in self._entries()]
        for _, entry in sorted(due, key=lambda item: item[0]):
            if counts.total() >= limit:
                break
            if event := tend(entry):
                counts[event.value] += 1
        return Tended(dict(counts), counts.total() >= limit, now)

    def _lead(self, op: Lead, now: Micros) -> Led:
        leader = self._leaders.get(indexed(op.name))
        if leader is None or leader.fence == op.fence or leader.until <= now:
            leader = self._leaders[indexed(op.name)] = _Leader(op.fence, now + op.lease)
        return Led(leader.fence == op.fence, leader.until, now)

    def _who_leads(self, op: WhoLeads, now: Micros) -> Leading:
        leader = self._leaders.get(indexed(op.name))
        return Leading(None if leader is None else leader.until, now)

    def _retire(self, op: Retire, now: Micros) -> Retired:
        resource, tenant = shown(op.resource), shown(op.tenant)
        made = [
            entry
            for entry in self._entries()
            if entry.resource == resource
            and entry.origin.tenant == tenant
            and self._records.is_of(entry, op.application)
        ]
        made = [
            entry for entry in made if proved(Event.RETIRE, entry.record.fence, entry.record, now)
        ]
        for entry in made:
            first = entry.record.retired_at
            retired_at = now if first is None else first
            identity = entry.record.identity
            self._records.entries[identity] = changed(
                entry, entry.record.state, {"retired_at": retired_at}
            )
        return Retired(len(made), now)


def _due_for(work: Work, case: Case, now: Micros) -> Micros | None:
    """When the record is, or will be, this kind of work; None: it is not."""
    record, due = case.record, case.due_at
    match work:
        case Work.PENDING:
            # Past its deadline it is the abandoner's.
            waits = record.leased_until is not None and record.leased_until > now
            return due if record.state is State.PENDING and waits else None
        case Work.LAPSED:
            resumable = record.on_lapse is OnLapse.RESUME
            return due if record.state is State.IN_PROGRESS and resumable else None
        case Work.UNKNOWN:
            return due if record.state is State.UNKNOWN else None
