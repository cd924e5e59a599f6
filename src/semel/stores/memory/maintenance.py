"""What workers, maintenance and operators ask of many records at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from semel.core import operations as ops
from semel.core.records import ABANDONED, Case, Fence, Glimpse, Identity, Micros, State
from semel.core.states import RecordEvent
from semel.core.terms import route_of
from semel.core.texts import indexed, shown
from semel.stores.base import due_as, due_at, is_due
from semel.stores.memory.outbox import MemoryOutbox
from semel.stores.memory.records import Answers, MemoryRecords
from semel.stores.memory.rows import Fill, Row, empty, keep, lapse, lapse_event, nothing, proved


class MemoryMaintenance:
    """Lists, counts and rounds over all records. The outbox is reaped together with them."""

    def __init__(self, records: MemoryRecords, outbox: MemoryOutbox) -> None:
        self._records = records
        self._outbox = outbox
        self._leaders: dict[str, tuple[Fence, Micros]] = {}
        """Who leads what, and until when."""

    def answers(self) -> Answers:
        return {
            ops.Due: self._due,
            ops.CountDue: self._count_due,
            ops.Browse: self._browse,
            ops.Scan: self._scan,
            ops.Count: self._count,
            ops.Sweep: self._sweep,
            ops.Abandon: self._abandon,
            ops.Reap: self._reap,
            ops.Lead: self._lead,
            ops.WhoLeads: self._who_leads,
            ops.Retire: self._retire,
            ops.ListBelongings: self._belongings,
            ops.ListUnlike: self._unlike,
            ops.Reseal: self._reseal,
        }

    def _rows(self) -> list[Row]:
        return list(self._records.rows.values())

    def _cases(self) -> list[Case]:
        return [row.case(self._records.terms) for row in self._rows()]

    # ── lists ────────────────────────────────────────────────────────────────────────────────────

    def _due(self, op: ops.Due, now: Micros) -> ops.DueRecords:
        work = [
            (due, case)
            for case in self._cases()
            if (due := due_as(op.work, case, now))
            and (op.known is None or op.known.covers(case.terms))
        ]
        work.sort(key=lambda item: item[0])
        cases = tuple([case for due, case in work if due <= now][: op.limit])
        if cases and len(cases) >= op.limit:
            return ops.DueRecords(cases, now, now)
        return ops.DueRecords(cases, now, next((due for due, _ in work if due > now), None))

    def _count_due(self, op: ops.CountDue, now: Micros) -> ops.Waiting:
        counts: Counter[tuple[str, str] | None] = Counter()
        for work in ops.Work:
            due = [case for case in self._cases() if is_due(work, case, now)]
            counts.update(route_of(case.terms) for case in due[: op.limit])
        return ops.Waiting(dict(counts), now)

    def _browse(self, op: ops.Browse, now: Micros) -> ops.DueRecords:
        cases = [case for case in self._cases() if case.record.state in op.states]
        cases = [case for case in cases if case.due_at is None or not op.dead]
        cases = [case for case in cases if case.record.identity > (op.after or b"")]
        cases.sort(key=lambda case: case.record.identity)
        return ops.DueRecords(tuple(cases[: op.limit]), now)

    def _page(
        self, op: ops.Scan | ops.Count | ops.ListBelongings | ops.ListUnlike
    ) -> tuple[list[Row], Identity | None]:
        """The next rows by identity, and where the page after them begins; None at the end."""
        past = [row for row in self._rows() if row.identity > (op.after or b"")]
        page = sorted(past, key=lambda row: row.identity)[: op.limit]
        return page, page[-1].identity if len(page) < len(past) else None

    def _count(self, op: ops.Count, now: Micros) -> ops.Counted:
        page, until = self._page(op)
        alive = [row for row in page if row.state is not State.EXPIRED]
        return ops.Counted(dict(Counter(row.origin.tenant for row in alive)), until, now)

    def _scan(self, op: ops.Scan, now: Micros) -> ops.Scanned:
        page, until = self._page(op)
        seen = [
            Glimpse(
                *(row.identity, row.state, row.on_lapse, row.origin),
                *(row.created_at, row.leased_until, row.expires_at, row.forget_at),
                *(due_at(row.record, row.due_at), row.tries, row.reason),
                None if row.snapshot is None else len(row.snapshot),
                self._records.terms.get(row.terms),
            )
            for row in page
            if row.state in op.states
        ]
        return ops.Scanned(tuple(seen), until, now)

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────

    def _sweep(self, op: ops.Sweep, now: Micros) -> ops.Tended:
        def lapsing(row: Row) -> tuple[RecordEvent, Fill] | None:
            event, terms = lapse_event(row), self._records.terms.get(row.terms)
            if row.resumable or (terms is None and event is RecordEvent.LAPSE_RELEASE):
                return None
            retention = 0 if terms is None else terms.retention
            return event, lambda _, left, at: lapse(left, retention, at)

        return self._round(op, now, lapsing)

    def _abandon(self, op: ops.Abandon, now: Micros) -> ops.Tended:
        def abandoning(row: Row) -> tuple[RecordEvent, Fill] | None:
            terms = self._records.terms.get(row.terms)
            if terms is None:
                return None

            def fill(op: ops.Abandon, left: Row, now: Micros) -> None:
                keep(left, op.snapshot, terms, now)
                left.reason = ABANDONED

            return RecordEvent.ABANDON, fill

        return self._round(op, now, abandoning)

    def _reap(self, op: ops.Reap, now: Micros) -> ops.Tended:
        def forgetting(row: Row) -> tuple[RecordEvent, Fill] | None:
            # What was completed is expired first.
            return None if row.state is State.COMPLETED else (RecordEvent.FORGET, nothing)

        expire: tuple[RecordEvent, Fill] = RecordEvent.EXPIRE, lambda _, left, at: empty(left)
        expired = self._round(op, now, lambda row: expire)
        forgotten = self._round(op, now, forgetting)
        others = self._outbox.reap(op.limit, now)
        more = expired.more or forgotten.more or any(n >= op.limit for n in others.values())
        return ops.Tended({**expired.counts, **forgotten.counts, **others}, more, now)

    def _round(
        self,
        op: ops.Sweep | ops.Abandon | ops.Reap,
        now: Micros,
        event_of: Callable[[Row], tuple[RecordEvent, Fill] | None],
    ) -> ops.Tended:
        """Bring on the event of each row that is due, longest due first, up to the limit.

        ``event_of``: the event, and what fills in the row's copy; None leaves the row alone.
        """
        counts: Counter[str] = Counter()
        due = [(row.case(self._records.terms).due_at or now, row) for row in self._rows()]
        for _, row in sorted(due, key=lambda item: item[0]):
            if counts.total() >= op.limit:
                break
            found = event_of(row)
            if found is not None and proved(found[0], row.fence, row, now):
                self._records.happen(found[0], row, found[1], op, now)
                counts[found[0].value] += 1
        return ops.Tended(dict(counts), counts.total() >= op.limit, now)

    def _retire(self, op: ops.Retire, now: Micros) -> ops.Retired:
        def fill(op: ops.Retire, left: Row, now: Micros) -> None:
            left.retired_at = now if left.retired_at is None else left.retired_at

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
            self._records.happen(RecordEvent.RETIRE, row, fill, op, now)
        return ops.Retired(len(made), now)

    def _lead(self, op: ops.Lead, now: Micros) -> ops.Led:
        fence, until = self._leaders.get(indexed(op.name), (op.fence, now))
        if fence == op.fence or until <= now:
            fence, until = self._leaders[op.name] = op.fence, now + op.lease
        return ops.Led(fence == op.fence, until, now)

    def _who_leads(self, op: ops.WhoLeads, now: Micros) -> ops.Leading:
        leader = self._leaders.get(indexed(op.name))
        return ops.Leading(None if leader is None else leader[1], now)

    # ── erasure and key rotation ─────────────────────────────────────────────────────────────────

    def _belongings(self, op: ops.ListBelongings, now: Micros) -> ops.Belongings:
        page, until = self._page(op)
        found = [
            ops.Belonging(row.identity, row.state, row.fence)
            for row in page
            if row.origin.tenant == shown(op.tenant) and self._records.is_of(row, op.application)
        ]
        return ops.Belongings(tuple(found), until, now)

    def _unlike(self, op: ops.ListUnlike, now: Micros) -> ops.Exhibits:
        """Rows with a stored value that does not begin with ``op.prefix``."""
        page, until = self._page(op)
        found: list[ops.Exhibit] = []
        for row in page:
            parts = [
                None if blob is None or blob.startswith(op.prefix) else blob
                for blob in (row.request, row.journal, row.snapshot)
            ]
            if any(part is not None for part in parts):
                found.append(ops.Exhibit(row.identity, row.fence, row.reason, *parts))
        return ops.Exhibits(tuple(found), until, now)

    def _reseal(self, op: ops.Reseal, now: Micros) -> ops.Written:
        """Replace a stored value by the same value under another key."""
        row = self._records.rows.get(op.identity)
        if row is None:
            return ops.Lost(None, now)
        if row.fence != op.seen or getattr(row, op.part.value) != op.old:
            return ops.Lost(row.record, now)
        resealed = row.copy(row.state)
        setattr(resealed, op.part.value, op.new)
        self._records.rows[op.identity] = resealed
        return ops.Applied(row.state, now, row.leased_until, row.expires_at)
