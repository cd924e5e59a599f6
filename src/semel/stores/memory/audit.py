"""What was done to records and effects beside the way of requests, in a list."""

from __future__ import annotations

from semel.core.operations.acts import Act, Verb
from semel.core.operations.audit import (
    AuditEntries,
    AuditEntry,
    BrowseAudit,
    Remark,
    Remarked,
)
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
"""What an event is called where somebody answers for it."""


class AuditLog:
    """Every act, oldest first."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []

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
        place = str(len(self._entries) + 1)
        said = (verb.value, shown(act.by), shown(act.reason))
        self._entries.append(AuditEntry(place, now, *said, identity, subject, *states))

    def remark(self, op: Remark, now: Micros) -> Remarked:
        self.note(op.verb, op.act, now, subject=shown(op.subject))
        return Remarked(now)

    def browse(self, op: BrowseAudit, now: Micros) -> AuditEntries:
        place = len(self._entries) + 1 if op.before is None else whole(op.before)
        if place is None:
            raise ConfigurationError("this is no place in the audit of this store")
        end = max(0, place - 1)
        return AuditEntries(tuple(self._entries[:end][::-1][: op.limit]), now)
