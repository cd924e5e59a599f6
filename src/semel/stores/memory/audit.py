"""The audit log: what operators and programs did to records and effects, in a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.core.operations.acts import Act, Verb
from semel.core.operations.audit import AuditEntries, AuditEntry, BrowseAudit, Remark, Remarked
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity, Micros
from semel.core.states import RecordEvent
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.options import whole

VERBS = {
    RecordEvent.SETTLE_HAPPENED: Verb.SETTLE,
    RecordEvent.SETTLE_ABSENT: Verb.SETTLE,
    RecordEvent.SETTLE_CALL: Verb.SETTLE,
    RecordEvent.EVICT: Verb.EVICT,
    RecordEvent.EVICT_FORCED: Verb.BURY,
    RecordEvent.EVICT_FREED: Verb.FREE,
    RecordEvent.ERASE: Verb.ERASE,
}
"""The events that are written into the log, and the verb each is written as."""


class AuditLog:
    """Every entry, oldest first."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []

    def answers(self) -> dict[type[StoreOperation[Any]], Callable[[Any, Micros], object]]:
        return {Remark: self._remark, BrowseAudit: self._browse}

    def note(
        self,
        verb: Verb,
        act: Act,
        now: Micros,
        *,
        identity: Identity | None = None,
        subject: str | None = None,
        states: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Append an entry. ``states``: of the record or effect, before and after."""
        place = str(len(self._entries) + 1)
        by, reason = shown(act.by), shown(act.reason)
        entry = AuditEntry(place, now, verb.value, by, reason, identity, subject, *states)
        self._entries.append(entry)

    def _remark(self, op: Remark, now: Micros) -> Remarked:
        self.note(op.verb, op.act, now, subject=shown(op.subject))
        return Remarked(now)

    def _browse(self, op: BrowseAudit, now: Micros) -> AuditEntries:
        """A page of entries, newest first, before the place ``op.before``."""
        place = len(self._entries) + 1 if op.before is None else whole(op.before)
        if place is None:
            raise ConfigurationError("this is no place in the audit of this store")
        end = max(0, place - 1)
        return AuditEntries(tuple(self._entries[:end][::-1][: op.limit]), now)
