"""How audit, erasure and encryption are served in SQL, without I/O."""

from __future__ import annotations

from collections.abc import Callable
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
from semel.core.operations.outbox import EffectWritten
from semel.core.operations.requests import StoreOperation, Written
from semel.core.records import Identity, Micros, Record, State
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.options import whole
from semel.stores.sql.plan_steps import Plan, Statement, act_params, clock_of, write
from semel.stores.sql.rows import Rows, belonging, entry, exhibit, now_in

FIRST: Final = b""
"""Before every identity."""
LAST: Final = 2**63 - 1
"""After every entry."""


def _erase(op: Erase) -> Plan[Written]:
    def done(record: Record | None, now: Micros) -> bool:
        return record is not None and record.state is State.EXPIRED and record.fence == op.seen

    params: dict[str, object] = {"seen": op.seen, "nothing": b"", **act_params(op.act)}
    return write("erase", op.identity, params, done)


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


def _never(record: Record | None, now: Micros) -> bool:
    """Whoever asks again finds nothing left to exchange."""
    return False


def _reseal(op: Reseal) -> Plan[Written]:
    params: dict[str, object] = {"seen": op.seen, "old": op.old, "new": op.new}
    return write(f"reseal_{op.part}", op.identity, params, _never)


def _reseal_effect(op: ResealEffect) -> Plan[EffectWritten]:
    rows = yield Statement("reseal_effect", {"key": op.key, "old": op.old, "new": op.new})
    return EffectWritten(bool(rows), (yield from clock_of(rows)))


def _remark(op: Remark) -> Plan[Remarked]:
    params = {"verb": op.verb.value, "subject": shown(op.subject), **act_params(op.act)}
    return Remarked(now_in((yield Statement("remark", params))))


def _browse_audit(op: BrowseAudit) -> Plan[AuditEntries]:
    params: dict[str, object] = {"before": _place(op.before), "limit": op.limit}
    rows = yield Statement("browse_audit", params)
    return AuditEntries(tuple([entry(row) for row in rows]), (yield from clock_of(rows)))


def _place(text: str | None) -> int:
    if text is None:
        return LAST
    place = whole(text)
    if place is None or place > LAST:
        raise ConfigurationError("this is no place in the audit of this store")
    return place


PLANS: Final[dict[type[StoreOperation[Any]], Callable[[Any], Plan[Any]]]] = {
    Erase: _erase,
    ListBelongings: _belongings,
    ListUnlike: _unlike,
    Reseal: _reseal,
    ResealEffect: _reseal_effect,
    Remark: _remark,
    BrowseAudit: _browse_audit,
}
