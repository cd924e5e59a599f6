"""The statements of workers, maintenance, operators and the audit, without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.core.operations.audit import (
    AuditEntries,
    Belongings,
    BrowseAudit,
    Erase,
    Exhibits,
    ListBelongings,
    ListUnlike,
    Remark,
    Remarked,
    Reseal,
    ResealEffect,
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
from semel.core.operations.outbox import EffectWritten
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Identity, Micros, Record, State
from semel.core.states import RecordEvent
from semel.core.texts import indexed, shown
from semel.errors import ConfigurationError, StoreUnavailable
from semel.stores.options import whole
from semel.stores.sql.plan_steps import Plan, Statement, act_params, clock_of, names, write
from semel.stores.sql.rows import (
    Rows,
    belonging,
    cases,
    census,
    entry,
    exhibit,
    glimpse,
    now_in,
    states,
    time_and_now,
    waiting,
)

DUTIES: Final[Mapping[Work, str]] = {
    Work.PENDING: "run",
    Work.LAPSED: "resume",
    Work.UNKNOWN: "ask",
}

LAPSED_TO: Final[Mapping[State, RecordEvent]] = {
    State.UNKNOWN: RecordEvent.LAPSE,
    State.FAILED_RETRYABLE: RecordEvent.LAPSE_RELEASE,
    State.PENDING: RecordEvent.LAPSE_REQUEUE,
}
"""What happened to a swept record, by the state it has now."""

UNSETTLED: Final = frozenset((State.PENDING, State.IN_PROGRESS, State.UNKNOWN))
FIRST: Final = b""
"""Before every identity."""


def _due(op: Due) -> Plan[DueRecords]:
    which: dict[str, object] = {"duty": DUTIES[op.work], "all": 1, "application": "", "names": "[]"}
    if (known := op.known) is not None:
        which |= {"all": 0, "application": known.application, "names": names(known.routes)}
    # Asked first: what becomes due between the two statements is then listed or announced.
    next_due, now = time_and_now((yield Statement("next_due", which)))
    rows = yield Statement("due", {**which, "limit": op.limit})
    found = cases(rows)
    now = now_in(rows) if rows else now
    return DueRecords(found, now, now if len(found) >= op.limit else next_due)


def _count_due(op: CountDue) -> Plan[Waiting]:
    rows = yield Statement("count_due", {"limit": op.limit})
    return Waiting(waiting(rows), (yield from clock_of(rows)))


def _browse(op: Browse) -> Plan[DueRecords]:
    params = {
        "names": names([state.value for state in op.states]),
        "after": FIRST if op.after is None else op.after,
        "limit": op.limit,
        "dead": int(op.dead),
    }
    rows = yield Statement("browse_unsettled" if {*op.states} <= UNSETTLED else "browse", params)
    return DueRecords(cases(rows), (yield from clock_of(rows)))


def _scan(op: Scan) -> Plan[Scanned]:
    params: dict[str, object] = {
        "after": FIRST if op.after is None else op.after,
        "limit": op.limit,
    }
    if {*op.states} <= UNSETTLED:
        params["names"] = names([state.value for state in op.states])
        rows = yield Statement("scan_unsettled", params)
    else:
        rows = yield Statement("scan", params)
    page = [glimpse(row) for row in rows]
    until = page[-1].identity if page and len(page) >= op.limit else None
    found = tuple([each for each in page if each.state in op.states])
    return Scanned(found, until, (yield from clock_of(rows)))


def _count(op: Count) -> Plan[Counted]:
    after = FIRST if op.after is None else op.after
    rows = yield Statement("census", {"after": after, "limit": op.limit})
    tenants, seen, last = census(rows)
    until = last if seen >= op.limit else None
    return Counted(tenants, until, (yield from clock_of(rows)))


def _sweep(op: Sweep) -> Plan[Tended]:
    put_off = yield Statement("put_off", {"limit": op.limit})
    rows = yield Statement("sweep", {"limit": op.limit})
    counts = Counter(LAPSED_TO[state].value for state in states(rows))
    more = len(put_off) >= op.limit or len(rows) >= op.limit
    return Tended(dict(counts), more, (yield from clock_of(rows)))


def _abandon(op: Abandon) -> Plan[Tended]:
    rows = yield Statement("abandon", {"limit": op.limit, "snapshot": op.snapshot})
    counts = {RecordEvent.ABANDON.value: len(rows)} if rows else {}
    return Tended(counts, len(rows) >= op.limit, (yield from clock_of(rows)))


REAPED: Final = {
    "expire": RecordEvent.EXPIRE.value,
    "purge": RecordEvent.FORGET.value,
    "purge_effects": "effects",
    "purge_events": "events",
}
"""What each statement of the reaper is counted as. What expires first may be forgotten at once."""


def _reap(op: Reap) -> Plan[Tended]:
    counts: dict[str, int] = {}
    more = False
    for name, counted_as in REAPED.items():
        rows = yield Statement(name, {"limit": op.limit})
        more = more or len(rows) >= op.limit
        if rows:
            counts[counted_as] = len(rows)
    return Tended(counts, more, (yield from clock_of(())))


def _lead(op: Lead) -> Plan[Led]:
    name = indexed(op.name)
    rows = yield Statement("lead", {"name": name, "fence": op.fence, "lease": op.lease})
    leading = bool(rows)
    if not rows:
        rows = yield Statement("read_leader", {"name": name})
    until, now = time_and_now(rows)
    if until is None:
        raise StoreUnavailable("nobody leads, and yet nobody may", applied=False)
    return Led(leading, until, now)


def _who_leads(op: WhoLeads) -> Plan[Leading]:
    rows = yield Statement("read_leader", {"name": indexed(op.name)})
    if not rows:
        return Leading(None, (yield from clock_of(())))
    return Leading(*time_and_now(rows))


def _retire(op: Retire) -> Plan[Retired]:
    params = {
        "resource": shown(op.resource),
        "tenant": shown(op.tenant),
        "application": op.application,
    }
    rows = yield Statement("retire", params)
    return Retired(len(rows), (yield from clock_of(rows)))


# ── audit, erasure and encryption ─────────────────────────────────────────────────────────────────

LAST: Final = 2**63 - 1
"""After every entry of the audit."""


def _erased(op: Erase, record: Record | None, now: Micros) -> bool:
    return record is not None and record.state is State.EXPIRED and record.fence == op.seen


def _erase(op: Erase) -> Plan[Written]:
    return write("erase", op, {"seen": op.seen, "nothing": b"", **act_params(op.act)}, _erased)


def _belongings(op: ListBelongings) -> Plan[Belongings]:
    params: dict[str, object] = {
        "tenant": shown(op.tenant),
        "application": op.application,
        "after": FIRST if op.after is None else op.after,
        "limit": op.limit,
    }
    rows = yield Statement("belongings", params)
    found = tuple([belonging(row) for row in rows if row[3]])
    return Belongings(found, _until(rows, op.limit), (yield from clock_of(rows)))


def _unlike(op: ListUnlike) -> Plan[Exhibits]:
    params: dict[str, object] = {
        "prefix": op.prefix,
        "size": len(op.prefix),
        "after": FIRST if op.after is None else op.after,
        "limit": op.limit,
    }
    rows = yield Statement("unlike", params)
    found = tuple([exhibit(row) for row in rows if any(cell is not None for cell in row[3:6])])
    return Exhibits(found, _until(rows, op.limit), (yield from clock_of(rows)))


def _until(rows: Rows, limit: int) -> Identity | None:
    """How far a page looked; None: to the end."""
    return Identity(rows[-1][0]) if rows and len(rows) >= limit else None


def _reseal(op: Reseal) -> Plan[Written]:
    params = {"seen": op.seen, "old": op.old, "new": op.new}
    # Never done already: a second try finds nothing left to exchange.
    return write(f"reseal_{op.part}", op, params, lambda op, record, now: False)


def _reseal_effect(op: ResealEffect) -> Plan[EffectWritten]:
    rows = yield Statement("reseal_effect", {"key": op.key, "old": op.old, "new": op.new})
    return EffectWritten(bool(rows), (yield from clock_of(rows)))


def _remark(op: Remark) -> Plan[Remarked]:
    params = {"verb": op.verb.value, "subject": shown(op.subject), **act_params(op.act)}
    return Remarked(now_in((yield Statement("remark", params))))


def _browse_audit(op: BrowseAudit) -> Plan[AuditEntries]:
    before = LAST if op.before is None else whole(op.before)
    if before is None or before > LAST:
        raise ConfigurationError("this is no place in the audit of this store")
    rows = yield Statement("browse_audit", {"before": before, "limit": op.limit})
    return AuditEntries(tuple([entry(row) for row in rows]), (yield from clock_of(rows)))


PLANS: Final[dict[type[StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    Due: _due,
    CountDue: _count_due,
    Browse: _browse,
    Scan: _scan,
    Count: _count,
    Sweep: _sweep,
    Abandon: _abandon,
    Reap: _reap,
    Lead: _lead,
    WhoLeads: _who_leads,
    Retire: _retire,
    Erase: _erase,
    ListBelongings: _belongings,
    ListUnlike: _unlike,
    Reseal: _reseal,
    ResealEffect: _reseal_effect,
    Remark: _remark,
    BrowseAudit: _browse_audit,
}
