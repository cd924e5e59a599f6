"""What was done to records and effects beside the way of requests, in a list."""

from __future__ import annotations

from semel.core.operations.acts import Act, Verb
from semel.core.operations.audit import (
    BrowseAudit,
    Entries,
    Entry,
    Remark,
    Remarked,
)
from semel.core.records import Identity, Micros
from semel.core.states import Event
from semel.core.texts import shown
from semel.errors import ConfigurationError
from semel.stores.options import whole

VERBS = {
    Event.SETTLE_HAPPENED: Verb.SETTLE,
    Event.SETTLE_ABSENT: Verb.SETTLE,
    Event.SETTLE_CALL: Verb.SETTLE,
    Event.EVICT: Verb.EVICT,
    Event.EVICT_FORCED: Verb.BURY,
    Event.EVICT_FREED: Verb.FREE,
    Event.ERASE: Verb.ERASE,
}
"""What an event is called where somebody answers for it."""


class Audit:
    """Every act, oldest first."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

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
        self._entries.append(Entry(place, now, *said, identity, subject, *states))

    def remark(self, op: Remark, now: Micros) -> Remarked:
        self.note(op.verb, op.act, now, subject=shown(op.subject))
        return Remarked(now)

    def browse(self, op: BrowseAudit, now: Micros) -> Entries:
        place = len(self._entries) + 1 if op.before is None else whole(op.before)
        if place is None:
            raise ConfigurationError("this is no place in the audit of this store")
        end = max(0, place - 1)
        return Entries(tuple(self._entries[:end][::-1][: op.limit]), now)
