"""Audit, erasure and encryption, of records and effects in dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.core.operations.audit import (
    Belonging,
    Belongings,
    BrowseAudit,
    Exhibit,
    Exhibits,
    ListBelongings,
    ListUnlike,
    Remark,
    Reseal,
    ResealEffect,
)
from semel.core.operations.outbox import EffectWritten
from semel.core.operations.requests import Applied, Lost, StoreOperation, Written
from semel.core.records import Identity, Micros
from semel.core.texts import shown
from semel.stores.memory.audit import AuditLog
from semel.stores.memory.outbox import MemoryOutbox
from semel.stores.memory.records import MemoryRecords
from semel.stores.memory.rows import Row


class Custody:
    """For those who answer for what is kept."""

    def __init__(self, records: MemoryRecords, outbox: MemoryOutbox, audit: AuditLog) -> None:
        self._records = records
        self._outbox = outbox
        self._audit = audit

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        return {
            Remark: self._audit.remark,
            BrowseAudit: self._audit.browse,
            ListBelongings: self._belongings,
            ListUnlike: self._unlike,
            Reseal: self._reseal,
            ResealEffect: self._reseal_effect,
        }

    def _page(self, after: Identity | None, limit: int) -> tuple[list[Row], Identity | None]:
        past = sorted(each for each in self._records.rows if each > (after or b""))
        page = past[:limit]
        until = page[-1] if page and len(page) >= limit else None
        return [self._records.rows[each] for each in page], until

    def _belongings(self, op: ListBelongings, now: Micros) -> Belongings:
        page, until = self._page(op.after, op.limit)
        found = [
            Belonging(row.identity, row.state, row.fence)
            for row in page
            if row.origin.tenant == shown(op.tenant) and self._records.is_of(row, op.application)
        ]
        return Belongings(tuple(found), until, now)

    def _unlike(self, op: ListUnlike, now: Micros) -> Exhibits:
        page, until = self._page(op.after, op.limit)
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
        row = self._records.rows.get(op.identity)
        if row is None:
            return Lost(None, now)
        if row.fence != op.seen or getattr(row, op.part.value) != op.old:
            return Lost(row.record, now)
        resealed = row.copy(row.state)
        setattr(resealed, op.part.value, op.new)
        self._records.rows[op.identity] = resealed
        return Applied(row.state, now, row.leased_until, row.expires_at)

    def _reseal_effect(self, op: ResealEffect, now: Micros) -> EffectWritten:
        return EffectWritten(self._outbox.exchange(op.key, op.old, op.new), now)
