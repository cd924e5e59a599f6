"""Compares a provider's ledger with our records.

Both sides are matched by the downstream key that went with each call. The provider's entries are
stored on disk by key, and ours are read one by one, so that neither has to fit into memory.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

from semel.core.frozen import frozen
from semel.core.operations.outbox import Shelf
from semel.core.records import Case, Effect, Identity, Micros, State
from semel.core.recovery import journal
from semel.core.recovery.journal import PointKind
from semel.core.request import keys
from semel.core.terms import application_of
from semel.core.unknown.evidence import epoch_of
from semel.errors import ConfigurationError
from semel.operators.lists import cases, effects

if TYPE_CHECKING:
    from semel.guard import Guard


@frozen
class ProviderEntry:
    """One entry of the provider's ledger: the downstream key of the call, and its other fields."""

    key: str
    fields: Mapping[str, Any]


class CallState(StrEnum):
    """How sure we are that a call was made."""

    MADE = "made"
    """Its result is on record."""
    IN_DOUBT = "in doubt"
    """It was begun, or its record is unknown."""
    NOT_MADE = "not made"
    """Its record was released: a retry would make the call."""
    UNRECORDED = "unrecorded"
    """Its handler keeps no recovery points, so we cannot say."""


@frozen
class OurCall:
    """One call, or one delivered effect, in our records."""

    key: str
    identity: Identity | None
    state: CallState
    fields: Mapping[str, Any]
    created_at: Micros


@frozen
class Difference:
    """The same key on both sides, and what does not agree."""

    entry: ProviderEntry
    ours: OurCall
    what: str


@frozen
class LedgerReport:
    """``missing_here``: the provider has it and we do not; ``missing_there``: the other way."""

    matched: int
    missing_here: tuple[ProviderEntry, ...]
    missing_there: tuple[OurCall, ...]
    differing: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return not (self.missing_here or self.missing_there or self.differing)


def compare(
    guard: Guard,
    entries: Iterable[ProviderEntry],
    *,
    name: str,
    since: datetime | None = None,
    until: datetime | None = None,
    same: Callable[[ProviderEntry, OurCall], str | None] | None = None,
) -> LedgerReport:
    """Compare the provider's entries with our calls and effects called ``name``.

    What we made between ``since`` and ``until`` must be among the entries; the entries are looked
    for among all our records, whatever their age. So give entries of a little more than that time.
    ``same`` says what differs between two, or None; without it, fields of the same name must agree.
    """
    if not name:
        raise ConfigurationError("which call? name= is that of op.call, or of the downstream key")
    first, end = _micros(since), _micros(until)
    with closing(_StoredEntries(entries)) as stored:
        matched, missing, differing = 0, list[OurCall](), list[Difference]()
        for ours in _ours(guard, name):
            entry = stored.take(ours.key)
            if entry is None:
                late = first is None or ours.created_at >= first
                early = end is None or ours.created_at < end
                if ours.state is CallState.MADE and late and early:
                    missing.append(ours)
                continue
            what = _DIFFERS.get(ours.state) or (same or _fields_differ)(entry, ours)
            if what is None:
                matched += 1
            else:
                differing.append(Difference(entry, ours, what))
        return LedgerReport(matched, tuple(stored.left()), tuple(missing), tuple(differing))


_DIFFERS: Final = {
    CallState.NOT_MADE: "released here: a retry would make it again",
    CallState.IN_DOUBT: "unknown here: settle it as happened",
}
"""What is wrong when the provider made the call, and we would make it again or do not know."""


def _ours(guard: Guard, name: str) -> Iterator[OurCall]:
    """Every delivered effect and every record of this application.

    A record's key is derived, so none is left out.
    """
    for effect in effects(guard, Shelf.DELIVERED, name):
        if effect.application == guard.name:
            yield _of_effect(effect)
    for case, _ in cases(guard.backend.blocking(), tuple(State)):
        if application_of(case.terms) == guard.name:
            yield _of_record(case, name)


def _of_record(case: Case, name: str) -> OurCall:
    record = case.record
    points = journal.decode(case.journal).points
    called = next((p for p in points if p.name == name and p.kind is PointKind.CALL), None)
    if called is not None:
        state = CallState.MADE if called.done else CallState.IN_DOUBT
    elif record.state is State.FAILED_RETRYABLE:
        state = CallState.NOT_MADE
    elif record.state is State.UNKNOWN:
        state = CallState.IN_DOUBT
    else:
        state = CallState.UNRECORDED
    fields = _object(called.result) if called is not None else {}
    key = keys.downstream_key(record.identity, epoch_of(case), "call", name)
    return OurCall(key, record.identity, state, fields, record.created_at)


def _of_effect(effect: Effect) -> OurCall:
    try:
        fields = _object(json.loads(effect.payload))
    except ValueError:
        fields = dict[str, Any]()
    if effect.provider_id is not None:
        fields = {**fields, "provider_id": effect.provider_id}
    return OurCall(effect.key, effect.identity, CallState.MADE, fields, effect.created_at)


def _object(result: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", result) if isinstance(result, dict) else {}


def _fields_differ(entry: ProviderEntry, ours: OurCall) -> str | None:
    differing = [
        f"{name}: {_text(theirs)} there, {_text(ours.fields[name])} here"
        for name, theirs in entry.fields.items()
        if name in ours.fields and _text(theirs) != _text(ours.fields[name])
    ]
    return "; ".join(differing) or None


def _text(given: Any) -> str:
    """A value as a CSV file would have it, so that 500 and "500" are the same."""
    return given if isinstance(given, str) else json.dumps(given, sort_keys=True)


def _micros(moment: datetime | None) -> Micros | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise ConfigurationError("since= and until= need a time zone")
    return int(moment.timestamp() * 1_000_000)


class _StoredEntries:
    """The provider's entries by key, in a temporary database that spills to disk."""

    def __init__(self, entries: Iterable[ProviderEntry]) -> None:
        self._db = sqlite3.connect("")
        self._db.execute("CREATE TABLE entry (key TEXT, fields TEXT, seen INTEGER DEFAULT 0)")
        rows = ((entry.key, json.dumps(dict(entry.fields), default=str)) for entry in entries)
        self._db.executemany("INSERT INTO entry (key, fields) VALUES (?, ?)", rows)
        self._db.execute("CREATE INDEX by_key ON entry (key)")

    def take(self, key: str) -> ProviderEntry | None:
        """The entry with this key; a second one stays, and is missing here: it was made twice."""
        find = "SELECT rowid, fields FROM entry WHERE key = ? AND seen = 0 ORDER BY rowid LIMIT 1"
        row = self._db.execute(find, (key,)).fetchone()
        if row is None:
            return None
        self._db.execute("UPDATE entry SET seen = 1 WHERE rowid = ?", row[:1])
        return ProviderEntry(key, json.loads(row[1]))

    def left(self) -> Iterator[ProviderEntry]:
        rows = self._db.execute("SELECT key, fields FROM entry WHERE seen = 0 ORDER BY rowid")
        return (ProviderEntry(key, json.loads(fields)) for key, fields in rows)

    def close(self) -> None:
        self._db.close()
