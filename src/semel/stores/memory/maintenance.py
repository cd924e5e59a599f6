"""What workers, maintenance and operators ask of many records at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from semel.core.frozen import frozen
from semel.core.operations.audit import (
    Belonging,
    Belongings,
    Exhibit,
    Exhibits,
    ListBelongings,
    ListUnlike,
    Reseal,
)
from semel.core.operations.maintenance import (
    Abandon,
    Browse,
    Count,
    CountDue,
    Counted,
    Due,
    DueRecords,
    Lead,
    Leading,
    Led,
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
from semel.core.operations.requests import Applied, Lost, StoreOperation, Written
from semel.core.records import Case, Fence, Identity, Micros, OnLapse, State
from semel.core.states import RecordEvent
from semel.core.terms import route_of
from semel.core.texts import indexed, shown
from semel.stores.memory.outbox import MemoryOutbox
from semel.stores.memory.records import MemoryRecords
from semel.stores.memory.rows import Row, empty, keep, lapse, lapse_event, nothing, proved


@frozen
class _Leader:
    fence: Fence
    until: Micros


class MemoryMaintenance:
    """Lists, counts and rounds over all records. The outbox is reaped together with them."""

    def __init__(self, records: MemoryRecords, outbox: MemoryOutbox) -> None:
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
            ListBelongings: self._belongings,
            ListUnlike: self._unlike,
            Reseal: self._reseal,
        }

    def _rows(self) -> list[Row]:
        return list(self._records.rows.values())

    def _due(self, op: Due, now: Micros) -> DueRecords:
        work = [
            (due, case)
            for case in self._cases()
            if (due := _due_for(op.work, case, now))
            and (op.known is None or op.known.covers(case.terms))
        ]
        work.sort(key=lambda item: item[0])
        cases = tuple([case for due, case in work if due <= now][: op.limit])
        if cases and len(cases) >= op.limit:
            return DueRecords(cases, now, now)
        return DueRecords(cases, now, next((due for due, _ in work if due > now), None))

    def _count_due(self, op: CountDue, now: Micros) -> Waiting:
        counts: Counter[tuple[str, str] | None] = Counter()
        for work in Work:
            due = [case for case in self._cases() if (_due_for(work, case, now) or now + 1) <= now]
            counts.update(route_of(case.terms) for case in due[: op.limit])
        return Waiting(dict(counts), now)

    def _cases(self) -> list[Case]:
        return [row.case(self._records.terms) for row in self._rows()]

    def _browse(self, op: Browse, now: Micros) -> DueRecords:
        cases = [case for case in self._cases() if case.record.state in op.states]
        cases = [case for case in cases if case.due_at is None or not op.dead]
        cases.sort(key=lambda case: case.record.identity)
        after = op.after or b""
        return DueRecords(
            tuple([case for case in cases if case.record.identity > after][: op.limit]), now
        )

    def _page(self, op: Scan | Count) -> tuple[list[Row], Identity | None]:
        """The next rows by identity, and where the page after them begins; None at the end."""
        after = op.after or b""
        past = [row for row in self._rows() if row.identity > after]
        page = sorted(past, key=lambda row: row.identity)[: op.limit]
        return page, page[-1].identity if len(page) < len(past) else None

    def _count(self, op: Count, now: Micros) -> Counted:
        page, until = self._page(op)
        alive = [row for row in page if row.state is not State.EXPIRED]
        return Counted(dict(Counter(row.origin.tenant for row in alive)), until, now)

    def _scan(self, op: Scan, now: Micros) -> Scanned:
        page, until = self._page(op)
        known = self._records.terms
        seen = [row.glimpse(known) for row in page if row.state in op.states]
        return Scanned(tuple(seen), until, now)

    def _sweep(self, op: Sweep, now: Micros) -> Tended:
        def sweep(row: Row) -> RecordEvent | None:
            event = lapse_event(row)
            if row.resumable or not proved(event, row.fence, row, now):
                return None
            terms = self._records.terms.get(row.terms)
            if terms is None and event is RecordEvent.LAPSE_RELEASE:
                return None
            retention = 0 if terms is None else terms.retention
            self._records.happen(
                event, row, lambda _, left, at: lapse(left, retention, at), op, now
            )
            return event

        return self._round(op.limit, now, sweep)

    def _abandon(self, op: Abandon, now: Micros) -> Tended:
        def abandon(row: Row) -> RecordEvent | None:
            if not proved(RecordEvent.ABANDON, row.fence, row, now):
                return None
            terms = self._records.terms.get(row.terms)
            if terms is None:
                return None

            def fill(op: Abandon, left: Row, now: Micros) -> None:
                keep(left, op.snapshot, terms, now)
                left.reason = "nobody ran it in time"

            self._records.happen(RecordEvent.ABANDON, row, fill, op, now)
            return RecordEvent.ABANDON

        return self._round(op.limit, now, abandon)

    def _reap(self, op: Reap, now: Micros) -> Tended:
        def expire(row: Row) -> RecordEvent | None:
            if not proved(RecordEvent.EXPIRE, row.fence, row, now):
                return None
            self._records.happen(RecordEvent.EXPIRE, row, lambda _, left, at: empty(left), op, now)
            return RecordEvent.EXPIRE

        def forget(row: Row) -> RecordEvent | None:
            # What was completed is expired first.
            if row.state is State.COMPLETED or not proved(RecordEvent.FORGET, row.fence, row, now):
                return None
            self._records.happen(RecordEvent.FORGET, row, nothing, op, now)
            return RecordEvent.FORGET

        rounds = [self._round(op.limit, now, tend) for tend in (expire, forget)]
        counts = {**rounds[0].counts, **rounds[1].counts}
        others = self._outbox.reap(op.limit, now)
        more = any(each.more for each in rounds)
        more = more or any(count >= op.limit for count in others.values())
        return Tended({**counts, **others}, more, now)

    def _round(self, limit: int, now: Micros, tend: Callable[[Row], RecordEvent | None]) -> Tended:
        """Call ``tend`` on the rows, longest due first, until it has changed ``limit`` of them."""
        counts: Counter[str] = Counter()
        due = [(row.case(self._records.terms).due_at or now, row) for row in self._rows()]
        for _, row in sorted(due, key=lambda item: item[0]):
            if counts.total() >= limit:
                break
            if event := tend(row):
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
            row
            for row in self._rows()
            if row.resource == resource
            and row.origin.tenant == tenant
            and self._records.is_of(row, op.application)
            and proved(RecordEvent.RETIRE, row.fence, row, now)
        ]
        for row in made:
            self._records.happen(RecordEvent.RETIRE, row, _retired, op, now)
        return Retired(len(made), now)

    # ── erasure and key rotation ─────────────────────────────────────────────────────────────────

    def _full_page(self, op: ListBelongings | ListUnlike) -> tuple[list[Row], Identity | None]:
        """The next rows by identity; only a page that is not full is known to be the last."""
        past = [row for row in self._rows() if row.identity > (op.after or b"")]
        page = sorted(past, key=lambda row: row.identity)[: op.limit]
        return page, page[-1].identity if page and len(page) >= op.limit else None

    def _belongings(self, op: ListBelongings, now: Micros) -> Belongings:
        page, until = self._full_page(op)
        found = [
            Belonging(row.identity, row.state, row.fence)
            for row in page
            if row.origin.tenant == shown(op.tenant) and self._records.is_of(row, op.application)
        ]
        return Belongings(tuple(found), until, now)

    def _unlike(self, op: ListUnlike, now: Micros) -> Exhibits:
        """Rows with a stored value that does not begin with ``op.prefix``."""
        page, until = self._full_page(op)
        found: list[Exhibit] = []
        for row in page:
            parts = [
                None if blob is None or blob.startswith(op.prefix) else blob
                for blob in (row.request, row.journal, row.snapshot)
            ]
            if any(part is not None for part in parts):
                found.append(Exhibit(row.identity, row.fence, row.reason, *parts))
        return Exhibits(tuple(found), until, now)

    def _reseal(self, op: Reseal, now: Micros) -> Written:
        """Replace a stored value by the same value under another key."""
        row = self._records.rows.get(op.identity)
        if row is None:
            return Lost(None, now)
        if row.fence != op.seen or getattr(row, op.part.value) != op.old:
            return Lost(row.record, now)
        resealed = row.copy(row.state)
        setattr(resealed, op.part.value, op.new)
        self._records.rows[op.identity] = resealed
        return Applied(row.state, now, row.leased_until, row.expires_at)


def _retired(op: Retire, row: Row, now: Micros) -> None:
    row.retired_at = now if row.retired_at is None else row.retired_at


def _due_for(work: Work, case: Case, now: Micros) -> Micros | None:
    """When the record becomes this kind of work; None when it does not."""
    record, due = case.record, case.due_at
    match work:
        case Work.PENDING:
            # After its deadline only the abandoner may take it.
            waits = record.leased_until is not None and record.leased_until > now
            return due if record.state is State.PENDING and waits else None
        case Work.LAPSED:
            resumable = record.on_lapse is OnLapse.RESUME
            return due if record.state is State.IN_PROGRESS and resumable else None
        case Work.UNKNOWN:
            return due if record.state is State.UNKNOWN else None
