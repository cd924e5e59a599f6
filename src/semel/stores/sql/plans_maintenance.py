"""The statements of workers, maintenance, operators, the audit and the outbox, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from json import dumps
from typing import Any, Final, TypeVar

from semel.core import operations as ops
from semel.core import terms
from semel.core.operations.maintenance import Work
from semel.core.records import DUTY_NUMBERS, STATE_NUMBERS, Duty, Identity, Micros, State
from semel.core.states import RecordEvent
from semel.core.texts import exact, indexed, shown
from semel.errors import ConfigurationError, StoreUnavailable
from semel.stores.options import whole
from semel.stores.sql import rows as read
from semel.stores.sql.rows import Row, Rows, now_in
from semel.stores.sql.statements import Plan, Statement, act_params, clock_of

R = TypeVar("R")

DUTIES: Final[Mapping[Work, int]] = {
    Work.PENDING: DUTY_NUMBERS["run"],
    Work.LAPSED: DUTY_NUMBERS["resume"],
    Work.UNKNOWN: DUTY_NUMBERS["ask"],
}

LAPSED_TO: Final[Mapping[State, RecordEvent]] = {
    State.UNKNOWN: RecordEvent.LAPSE,
    State.FAILED_RETRYABLE: RecordEvent.LAPSE_RELEASE,
    State.PENDING: RecordEvent.LAPSE_REQUEUE,
}
"""What happened to a swept record, by the state it has now."""

REAPED: Final = {
    "expire": RecordEvent.EXPIRE.value,
    "purge": RecordEvent.FORGET.value,
    "purge_effects": "effects",
    "purge_events": "events",
}
"""What each statement of the reaper is counted as. What expires first may be forgotten at once."""

UNSETTLED: Final = frozenset((State.PENDING, State.IN_PROGRESS, State.UNKNOWN))
LAST: Final = 2**63 - 1
"""After every entry of the audit, every notable, and every time."""
LAST_IDENTITY: Final = Identity(b"\xff" * 33)
"""After every identity."""

# ── pages: what is due, and lists ─────────────────────────────────────────────────────────────────


def _page(op: Any) -> dict[str, object]:
    """Where a page begins, at the first identity if no other is named, and how long it is."""
    return {"after": b"" if op.after is None else op.after, "limit": op.limit}


def _states(op: ops.Browse | ops.Scan) -> str:
    """The parameter that ``{in_states}`` compares with."""
    return dumps([STATE_NUMBERS[state] for state in op.states])


def _until(rows: Rows, limit: int) -> Identity | None:
    """How far a page looked; None: to the end."""
    return Identity(rows[-1][0]) if rows and len(rows) >= limit else None


def _listed(
    name: str,
    params: Mapping[str, object],
    row: Callable[[Row], Any],
    reply: Callable[[tuple[Any, ...], Micros], R],
) -> Plan[R]:
    """A page of rows, and the time."""
    rows = yield Statement(name, params)
    return reply(tuple(map(row, rows)), (yield from clock_of(rows)))


def _due(op: ops.Due) -> Plan[ops.DueRecords]:
    which: dict[str, object] = {"duty": DUTIES[op.work], "all": 1, "application": "", "names": "[]"}
    if (known := op.known) is not None:
        which |= {"all": 0, "application": known.application, "names": dumps(known.routes)}
    # Asked first: what becomes due between the two statements is then listed or announced.
    next_due, now = read.DUE.only((yield Statement("next_due", which)))
    rows = yield Statement("due", {**which, "limit": op.limit})
    found = tuple(map(read.case, rows))
    now = now_in(rows) if rows else now
    return ops.DueRecords(found, now, now if len(found) >= op.limit else next_due)


def _count_due(op: ops.CountDue) -> Plan[ops.Waiting]:
    rows = yield Statement("count_due", {"limit": op.limit})
    return ops.Waiting(read.waiting(rows), (yield from clock_of(rows)))


def _browse(op: ops.Browse) -> Plan[ops.DueRecords]:
    params = {**_page(op), "names": _states(op), "dead": int(op.dead)}
    name = "browse_unsettled" if {*op.states} <= UNSETTLED else "browse"
    return _listed(name, params, read.case, ops.DueRecords)


def _scan(op: ops.Scan) -> Plan[ops.Scanned]:
    if {*op.states} <= UNSETTLED:
        rows = yield Statement("scan_unsettled", {**_page(op), "names": _states(op)})
    else:
        rows = yield Statement("scan", _page(op))
    page = [read.glimpse(row) for row in rows]
    found = tuple([each for each in page if each.state in op.states])
    return ops.Scanned(found, _until(rows, op.limit), (yield from clock_of(rows)))


def _newest(op: ops.ListNewest) -> Plan[ops.Newest]:
    before = op.before or ops.DuePlace(LAST, LAST_IDENTITY)
    rows, identity = list[Any](), before.identity
    if before.due_at is not None:
        where = {"duty": DUTY_NUMBERS[op.duty], "due": before.due_at, "identity": identity}
        rows += yield Statement("newest", {**where, "limit": op.limit})
        identity = LAST_IDENTITY
    if op.duty is Duty.ASK and len(rows) < op.limit:
        more = {"identity": identity, "limit": op.limit - len(rows)}
        rows += yield Statement("newest_dead", more)
    found = tuple(map(read.placed, rows))
    until = found[-1].place if found and len(found) >= op.limit else None
    return ops.Newest(found, until, (yield from clock_of(rows)))


def _list_terms(op: ops.ListTerms) -> Plan[ops.KnownTerms]:
    rows = yield Statement("list_terms", {"limit": op.limit})
    found = tuple([terms.read(read.TERMS.read(row)[0]) for row in rows])
    return ops.KnownTerms(found, (yield from clock_of(rows)))


def _count_unsettled(op: ops.CountUnsettled) -> Plan[ops.UnsettledCounts]:
    rows = yield Statement("count_unsettled", {"limit": op.limit})
    return unsettled_counts(read.kind_counts(rows), (yield from clock_of(rows)))


LAPSED, DEAD = 0, 9
"""Kinds that have no duty of their own."""


def unsettled_counts(kinds: Mapping[int, ops.KindCount], now: Micros) -> ops.UnsettledCounts:
    """The reply from the counts of each kind: by the number of a duty, or one of the above."""

    def of(*numbers: int) -> ops.KindCount:
        found = [kinds[each] for each in numbers if each in kinds]
        oldest = [each.oldest for each in found if each.oldest is not None]
        return ops.KindCount(sum(each.count for each in found), min(oldest, default=None))

    duty = DUTY_NUMBERS
    return ops.UnsettledCounts(
        of(duty[Duty.RUN]),
        of(duty[Duty.LEASE], duty[Duty.RESUME]),
        of(LAPSED),
        of(duty[Duty.ASK]),
        of(DEAD),
        now,
    )


def _sample(op: ops.SampleRecords) -> Plan[ops.SampledRecords]:
    rows = yield Statement("sample", {**_page(op), "since": op.since})
    groups = tuple(map(read.record_group, rows))
    seen = sum(each.count for each in groups)
    until = Identity(rows[0][7]) if seen >= op.limit else None
    return ops.SampledRecords(groups, until, (yield from clock_of(rows)))


def _count(op: ops.Count) -> Plan[ops.Counted]:
    rows = yield Statement("census", _page(op))
    tenants, seen, last = read.census(rows)
    until = last if seen >= op.limit else None
    return ops.Counted(tenants, until, (yield from clock_of(rows)))


def _belongings(op: ops.ListBelongings) -> Plan[ops.Belongings]:
    params = {**_page(op), "tenant": shown(op.tenant), "application": op.application}
    rows = yield Statement("belongings", params)
    found = tuple([read.belonging(row) for row in rows if row[3]])
    return ops.Belongings(found, _until(rows, op.limit), (yield from clock_of(rows)))


def _unlike(op: ops.ListUnlike) -> Plan[ops.Exhibits]:
    rows = yield Statement("unlike", {**_page(op), "prefix": op.prefix, "size": len(op.prefix)})
    kept = [row for row in rows if any(cell is not None for cell in row[3:6])]
    found = tuple(map(read.exhibit, kept))
    return ops.Exhibits(found, _until(rows, op.limit), (yield from clock_of(rows)))


def _place(before: str | None, where: str) -> int:
    """The number of a place, to go on before it."""
    number = LAST if before is None else whole(before)
    if number is None or number > LAST:
        raise ConfigurationError(f"this is no place in the {where} of this store")
    return number


def _browse_audit(op: ops.BrowseAudit) -> Plan[ops.AuditEntries]:
    params = {"before": _place(op.before, "audit"), "limit": op.limit}
    return _listed("browse_audit", params, read.entry, ops.AuditEntries)


# ── maintenance ───────────────────────────────────────────────────────────────────────────────────


def _sweep(op: ops.Sweep) -> Plan[ops.Tended]:
    put_off = yield Statement("put_off", {"limit": op.limit})
    rows = yield Statement("sweep", {"limit": op.limit})
    counts = Counter(LAPSED_TO[state].value for state in read.states(rows))
    more = len(put_off) >= op.limit or len(rows) >= op.limit
    return ops.Tended(dict(counts), more, (yield from clock_of(rows)))


def _abandon(op: ops.Abandon) -> Plan[ops.Tended]:
    rows = yield Statement("abandon", {"limit": op.limit, "snapshot": op.snapshot})
    counts = {RecordEvent.ABANDON.value: len(rows)} if rows else {}
    return ops.Tended(counts, len(rows) >= op.limit, (yield from clock_of(rows)))


def _reap(op: ops.Reap) -> Plan[ops.Tended]:
    counts: dict[str, int] = {}
    more = False
    for name, counted_as in REAPED.items():
        rows = yield Statement(name, {"limit": op.limit})
        more = more or len(rows) >= op.limit
        if rows:
            counts[counted_as] = len(rows)
    return ops.Tended(counts, more, (yield from clock_of(())))


def _lead(op: ops.Lead) -> Plan[ops.Led]:
    name = indexed(op.name)
    rows = yield Statement("lead", {"name": name, "fence": op.fence, "lease": op.lease})
    leading = bool(rows)
    if not rows:
        rows = yield Statement("read_leader", {"name": name})
    until, now = read.DUE.only(rows)
    if until is None:
        raise StoreUnavailable("nobody leads, and yet nobody may", applied=False)
    return ops.Led(leading, until, now)


def _who_leads(op: ops.WhoLeads) -> Plan[ops.Leading]:
    rows = yield Statement("read_leader", {"name": indexed(op.name)})
    if not rows:
        return ops.Leading(None, (yield from clock_of(())))
    return ops.Leading(*read.DUE.only(rows))


def _retire(op: ops.Retire) -> Plan[ops.Retired]:
    params = {
        "resource": shown(op.resource),
        "tenant": shown(op.tenant),
        "application": op.application,
    }
    rows = yield Statement("retire", params)
    return ops.Retired(len(rows), (yield from clock_of(rows)))


def _remark(op: ops.Remark) -> Plan[ops.Remarked]:
    params = {"verb": op.verb.value, "subject": shown(op.subject), **act_params(op.act)}
    return ops.Remarked(now_in((yield Statement("remark", params))))


# ── notables and workers ──────────────────────────────────────────────────────────────────────────


def _write_notables(op: ops.WriteNotables) -> Plan[ops.NotablesChanged]:
    if not op.notables:
        return ops.NotablesChanged(0, (yield from clock_of(())))
    identities = [each.identity for each in op.notables if each.identity is not None]
    places = iter(range(1, 32 * len(identities), 32))
    given = [
        {
            "kind": each.kind.value,
            "application": indexed(each.application),
            "route": shown(each.route),
            "tenant": shown(each.tenant),
            "which": None if each.identity is None else next(places),
            "detail": exact(each.detail),
            "times": each.count,
        }
        for each in op.notables
    ]
    params = {"notables": dumps(given), "identities": b"".join(identities), "keep": op.keep}
    rows = yield Statement("write_notables", params)
    return ops.NotablesChanged(len(rows), now_in(rows))


def _browse_notables(op: ops.BrowseNotables) -> Plan[ops.NotableEntries]:
    params: dict[str, object] = {
        "before": _place(op.before, "notables"),
        "limit": op.limit,
        "all": int(not op.kinds),
        "names": dumps(op.kinds),
        "anywhere": int(op.route is None),
        "route": shown(op.route or ""),
    }
    if op.identity is None:
        rows = yield Statement("browse_notables", params)
    else:
        rows = yield Statement("notables_of", {**params, "identity": op.identity})
    entries = tuple(map(read.notable, rows))
    until = entries[-1].place if entries and len(entries) >= op.limit else None
    return ops.NotableEntries(entries, until, (yield from clock_of(rows)))


def _erase_notables(op: ops.EraseNotables) -> Plan[ops.NotablesChanged]:
    whose = {"tenant": shown(op.tenant), "application": indexed(op.application)}
    rows = yield Statement("erase_notables", {**whose, "limit": op.limit})
    return ops.NotablesChanged(len(rows), (yield from clock_of(rows)))


def _prune(op: ops.Prune) -> Plan[ops.Tended]:
    old = yield Statement("purge_notables", {"limit": op.limit})
    surplus = yield Statement("purge_surplus", {"most": ops.MOST_NOTABLES, "limit": op.limit})
    gone = yield Statement("purge_workers", {"memory": ops.WORKER_MEMORY, "limit": op.limit})
    counts = {"notables": len(old) + len(surplus), "workers": len(gone)}
    more = max(len(old), len(surplus), len(gone)) >= op.limit
    return ops.Tended(
        {name: count for name, count in counts.items() if count}, more, (yield from clock_of(()))
    )


def _beat(op: ops.Beat) -> Plan[ops.Beaten]:
    given = op.worker
    if op.lease is None:
        rows = yield Statement("leave", {"id": exact(given.id)})
        return ops.Beaten((yield from clock_of(rows)))
    texts = {name: shown(getattr(given, name)) for name in ("role", "does", "host", "version")}
    params = {
        **texts,
        "id": exact(given.id),
        "application": indexed(given.application),
        "pid": given.pid,
        "leads": int(given.leading),
        "lease": op.lease,
    }
    return ops.Beaten(now_in((yield Statement("beat", params))))


# ── the outbox, and providers' events ─────────────────────────────────────────────────────────────


def _set(name: str, params: Mapping[str, object]) -> Plan[ops.EffectWritten]:
    """A write whose rows say whether it did something."""
    rows = yield Statement(name, params)
    return ops.EffectWritten(bool(rows), (yield from clock_of(rows)))


def _enqueue(op: ops.Enqueue) -> Plan[ops.EffectWritten]:
    params = {
        "key": indexed(op.key),
        "identity": op.identity,
        "name": exact(op.name),
        "payload": op.payload,
        "order_key": None if op.order is None else indexed(op.order),
        "delay": op.delay,
        "application": indexed(op.application),
    }
    return _set("enqueue", params)


def _take_effects(op: ops.TakeEffects) -> Plan[ops.Effects]:
    wanted = {"names": dumps(op.names), "application": op.application}
    params = {**wanted, "limit": op.limit, "fence": op.fence, "lease": op.lease}
    # Asked first: what becomes due between the two statements is then taken or announced.
    next_due, now = read.DUE.only((yield Statement("next_effect", wanted)))
    rows = yield Statement("take_effects", params)
    taken = tuple([read.effect(row[1:]) for row in sorted(rows, key=lambda row: row[0])])
    now = now_in(rows) if rows else now
    return ops.Effects(taken, now, now if len(taken) >= op.limit else next_due)


def _mark_delivered(op: ops.MarkDelivered) -> Plan[ops.EffectWritten]:
    provider_id = None if op.provider_id is None else shown(op.provider_id)
    params = {"fence": op.fence, "provider_id": provider_id, "retention": op.retention}
    rows = yield Statement("deliver", {**params, "key": op.key})
    if rows:
        return ops.EffectWritten(True, now_in(rows))
    state, fence, _, now = yield from _state_of(op.key)
    return ops.EffectWritten(state == ops.Shelf.DELIVERED and fence == op.fence, now)


def _mark_failed(op: ops.MarkFailed) -> Plan[ops.EffectWritten]:
    params = {"fence": op.fence, "error": shown(op.error), "again_in": op.again_in}
    rows = yield Statement("fail", {**params, "key": op.key})
    if rows:
        return ops.EffectWritten(True, now_in(rows))
    state, fence, leased_until, now = yield from _state_of(op.key)
    failed = state in (ops.Shelf.WAITING, ops.Shelf.DEAD) and leased_until is None
    return ops.EffectWritten(failed and fence == op.fence, now)


def _requeue(op: ops.Requeue) -> Plan[ops.EffectWritten]:
    name, wanted = ("drop_effect", None) if op.drop else ("requeue_effect", ops.Shelf.WAITING)
    which = {"key": op.key, "died_at": op.died_at}
    rows = yield Statement(name, {**act_params(op.act), **which})
    if rows:
        return ops.EffectWritten(True, now_in(rows))
    state, _, _, now = yield from _state_of(op.key)
    return ops.EffectWritten(state == wanted, now)


def _state_of(key: str) -> Plan[list[Any]]:
    """State, fence, end of the lease and the time, of an effect that a write did not change: an
    earlier try did it, or another has it. No state: there is no such effect."""
    return read.EFFECT_STATE.only((yield Statement("read_effect", {"key": key})))


def _browse_effects(op: ops.BrowseEffects) -> Plan[ops.Effects]:
    after = "" if op.after is None else op.after
    params = {"shelf": op.shelf.value, "after": after, "limit": op.limit}
    return _listed("browse_effects", params, read.effect, ops.Effects)


def _count_effects(op: ops.CountEffects) -> Plan[ops.EffectCounts]:
    rows = yield Statement("count_effects", {"limit": op.limit})
    kinds, none = read.kind_counts(rows), ops.KindCount(0, None)
    now = yield from clock_of(rows)
    return ops.EffectCounts(kinds.get(1, none), kinds.get(2, none), now)


def _newest_effects(op: ops.ListNewestEffects) -> Plan[ops.NewestEffects]:
    name = None if op.name is None else shown(op.name)
    if op.shelf is ops.Shelf.DEAD:
        number = LAST if op.before is None else op.before.number
        where: dict[str, object] = {"number": number}
        rows = yield Statement("newest_dead_effects", {**where, "name": name, "limit": op.limit})
    else:
        due_at, number = LAST, LAST
        if op.before is not None and op.before.due_at is not None:
            due_at, number = op.before.due_at, op.before.number
        where = {"shelf": op.shelf.value, "due": due_at, "number": number}
        rows = yield Statement("newest_effects", {**where, "name": name, "limit": op.limit})
    named = [row for row in rows if row[2]]
    found, places = [read.effect(row[3:]) for row in named], map(read.effect_place, named)
    until = read.effect_place(rows[-1]) if rows and len(rows) >= op.limit else None
    now = yield from clock_of(rows)
    return ops.NewestEffects(tuple(found), tuple(places), len(rows), until, now)


def _note_event(op: ops.NoteEvent) -> Plan[ops.Noted]:
    which = {"source": indexed(op.source), "event": indexed(op.event)}
    if op.keep is None:
        count, now = read.DUE.only((yield Statement("read_event", which)))
        return ops.Noted(bool(count), now)
    rows = yield Statement("note", {**which, "keep": op.keep})
    return ops.Noted(not rows, (yield from clock_of(rows)))


PLANS: Final[dict[type[ops.StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    ops.Due: _due,
    ops.CountDue: _count_due,
    ops.Browse: _browse,
    ops.Scan: _scan,
    ops.ListNewest: _newest,
    ops.ListTerms: _list_terms,
    ops.CountUnsettled: _count_unsettled,
    ops.SampleRecords: _sample,
    ops.Count: _count,
    ops.ListBelongings: _belongings,
    ops.ListUnlike: _unlike,
    ops.BrowseAudit: _browse_audit,
    ops.Sweep: _sweep,
    ops.Abandon: _abandon,
    ops.Reap: _reap,
    ops.Lead: _lead,
    ops.WhoLeads: _who_leads,
    ops.Retire: _retire,
    ops.Remark: _remark,
    ops.WriteNotables: _write_notables,
    ops.BrowseNotables: _browse_notables,
    ops.EraseNotables: _erase_notables,
    ops.Prune: _prune,
    ops.Beat: _beat,
    ops.ListWorkers: lambda op: _listed(
        "list_workers", {"limit": op.limit}, read.worker, ops.WorkersSeen
    ),
    ops.Enqueue: _enqueue,
    ops.RenewEffects: lambda op: _set("renew_effects", {"fence": op.fence, "lease": op.lease}),
    ops.ResealEffect: lambda op: _set(
        "reseal_effect", {"key": op.key, "old": op.old, "new": op.new}
    ),
    ops.TakeEffects: _take_effects,
    ops.MarkDelivered: _mark_delivered,
    ops.MarkFailed: _mark_failed,
    ops.Requeue: _requeue,
    ops.BrowseEffects: _browse_effects,
    ops.ListNewestEffects: _newest_effects,
    ops.CountEffects: _count_effects,
    ops.FindEffect: lambda op: _listed("find_effect", {"key": op.key}, read.effect, ops.Effects),
    ops.NoteEvent: _note_event,
}
