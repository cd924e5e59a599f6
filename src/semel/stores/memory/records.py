"""What the store does with records: claims, reads and writes of one, lists and rounds over all.

`core.states` says which event is allowed, what proof it needs and which state it leads to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import (
    ABANDONED,
    Case,
    Duty,
    Fence,
    Glimpse,
    Identity,
    Micros,
    Record,
    State,
    duty_of,
    whole_origin,
)
from semel.core.states import RecordEvent
from semel.core.stored.snapshot import LARGE, brief, status_in
from semel.core.terms import Terms, TermsId, application_of, route_of
from semel.core.texts import indexed, shown
from semel.stores.base import due_as, due_at, is_due, record_groups
from semel.stores.memory.outbox import Answers, MemoryOutbox
from semel.stores.memory.rows import (
    TARGET,
    WRITES,
    Fill,
    Row,
    Write,
    allowed,
    already,
    keep,
    lapse,
    lapse_event,
    nothing,
    proved,
    tombstone,
)

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


class MemoryRecords:
    """Every record, by identity. Rounds of maintenance take the outbox along."""

    def __init__(self, outbox: MemoryOutbox) -> None:
        self.rows: dict[Identity, Row] = {}
        self.terms: dict[TermsId, Terms] = {}
        self._outbox = outbox
        self._leaders: dict[str, tuple[Fence, Micros]] = {}
        """Who leads what, and until when."""

    def answers(self) -> Answers:
        return {
            ops.Claim: self._claim,
            ops.Accept: self._accept,
            ops.Read: self._read,
            ops.Fetch: self._fetch,
            ops.Recall: self._recall,
            ops.Agree: self._agree,
            **dict.fromkeys(WRITES, self._write),
            ops.Due: self._due,
            ops.CountDue: self._count_due,
            ops.Browse: self._browse,
            ops.Scan: self._scan,
            ops.ListNewest: self._newest,
            ops.ListTerms: self._list_terms,
            ops.CountUnsettled: self._count_unsettled,
            ops.SampleRecords: self._sample,
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
                self._outbox.note(VERBS[event], act, now, identity=op.identity, states=states)
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

    # ── lists ────────────────────────────────────────────────────────────────────────────────────

    def _cases(self) -> list[Case]:
        return [row.case(self.terms) for row in self.rows.values()]

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
        self, op: ops.Scan | ops.Count | ops.SampleRecords | ops.ListBelongings | ops.ListUnlike
    ) -> tuple[list[Row], Identity | None]:
        """The next rows by identity, and where the page after them begins; None at the end."""
        past = [row for row in self.rows.values() if row.identity > (op.after or b"")]
        page = sorted(past, key=lambda row: row.identity)[: op.limit]
        return page, page[-1].identity if len(page) < len(past) else None

    def _count(self, op: ops.Count, now: Micros) -> ops.Counted:
        page, until = self._page(op)
        alive = [row for row in page if row.state is not State.EXPIRED]
        return ops.Counted(dict(Counter(row.origin.tenant for row in alive)), until, now)

    def _scan(self, op: ops.Scan, now: Micros) -> ops.Scanned:
        page, until = self._page(op)
        seen = [self._glimpse(row) for row in page if row.state in op.states]
        return ops.Scanned(tuple(seen), until, now)

    def _glimpse(self, row: Row) -> Glimpse:
        return Glimpse(
            row.identity,
            row.state,
            row.on_lapse,
            whole_origin(row.origin, self.terms.get(row.terms)),
            *(row.created_at, row.leased_until, row.expires_at, row.forget_at),
            *(due_at(row.record, row.due_at), row.tries, row.reason),
            None if row.snapshot is None else len(row.snapshot),
            None if row.snapshot is None else status_in(row.snapshot),
            row.resource,
            self.terms.get(row.terms),
        )

    def _newest(self, op: ops.ListNewest, now: Micros) -> ops.Newest:
        found = [
            ops.Placed(ops.DuePlace(seen.due_at, seen.identity), seen)
            for seen in map(self._glimpse, self.rows.values())
            if duty_of(seen.state, seen.on_lapse) is op.duty
        ]
        if op.before is not None:
            found = [each for each in found if each.place.rank < op.before.rank]
        found.sort(key=lambda each: each.place.rank, reverse=True)
        page = tuple(found[: op.limit])
        return ops.Newest(page, page[-1].place if page and len(page) < len(found) else None, now)

    def _list_terms(self, op: ops.ListTerms, now: Micros) -> ops.KnownTerms:
        return ops.KnownTerms(tuple(self.terms.values())[: op.limit], now)

    def _count_unsettled(self, op: ops.CountUnsettled, now: Micros) -> ops.UnsettledCounts:
        def counted(*duties: Duty, lapsed: bool = False, dead: bool = False) -> ops.KindCount:
            made: list[Micros] = []
            for duty in duties:
                rows = [
                    row
                    for row in self.rows.values()
                    if duty_of(row.state, row.on_lapse) is duty
                    and (row.record.lapsed(now) or not lapsed)
                    and (duty is not Duty.ASK or (row.due_at is None) == dead)
                ]
                made += [row.created_at for row in rows[: op.limit]]
            return ops.KindCount(len(made), min(made, default=None))

        held = (Duty.LEASE, Duty.RESUME)
        return ops.UnsettledCounts(
            counted(Duty.RUN),
            counted(*held),
            counted(*held, lapsed=True),
            counted(Duty.ASK),
            counted(Duty.ASK, dead=True),
            now,
        )

    def _sample(self, op: ops.SampleRecords, now: Micros) -> ops.SampledRecords:
        page, until = self._page(op)
        seen = [(self.terms.get(row.terms), row.state, row.created_at) for row in page]
        return ops.SampledRecords(record_groups(seen, op.since), until, now)

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────

    def _sweep(self, op: ops.Sweep, now: Micros) -> ops.Tended:
        def lapsing(row: Row) -> tuple[RecordEvent, Fill] | None:
            event, terms = lapse_event(row), self.terms.get(row.terms)
            if row.resumable or (terms is None and event is RecordEvent.LAPSE_RELEASE):
                return None
            retention = 0 if terms is None else terms.retention
            return event, lambda _, left, at: lapse(left, retention, at)

        return self._round(op, now, lapsing)

    def _abandon(self, op: ops.Abandon, now: Micros) -> ops.Tended:
        def abandoning(row: Row) -> tuple[RecordEvent, Fill] | None:
            terms = self.terms.get(row.terms)
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

        expire: tuple[RecordEvent, Fill] = RecordEvent.EXPIRE, lambda _, left, at: tombstone(left)
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
        due = [(row.case(self.terms).due_at or now, row) for row in self.rows.values()]
        for _, row in sorted(due, key=lambda item: item[0]):
            if counts.total() >= op.limit:
                break
            found = event_of(row)
            if found is not None and proved(found[0], row.fence, row, now):
                self.happen(found[0], row, found[1], op, now)
                counts[found[0].value] += 1
        return ops.Tended(dict(counts), counts.total() >= op.limit, now)

    def _retire(self, op: ops.Retire, now: Micros) -> ops.Retired:
        def fill(op: ops.Retire, left: Row, now: Micros) -> None:
            left.retired_at = now if left.retired_at is None else left.retired_at

        resource, tenant = shown(op.resource), shown(op.tenant)
        made = [
            row
            for row in self.rows.values()
            if row.resource == resource
            and row.origin.tenant == tenant
            and application_of(self.terms.get(row.terms)) == op.application
            and proved(RecordEvent.RETIRE, row.fence, row, now)
        ]
        for row in made:
            self.happen(RecordEvent.RETIRE, row, fill, op, now)
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
            if row.origin.tenant == shown(op.tenant)
            and application_of(self.terms.get(row.terms)) == op.application
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
        row = self.rows.get(op.identity)
        if row is None:
            return ops.Lost(None, now)
        if row.fence != op.seen or getattr(row, op.part.value) != op.old:
            return ops.Lost(row.record, now)
        resealed = row.copy(row.state)
        setattr(resealed, op.part.value, op.new)
        self.rows[op.identity] = resealed
        return ops.Applied(row.state, now, row.leased_until, row.expires_at)


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
