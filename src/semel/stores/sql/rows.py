"""Rows into replies. What cannot be true is StoreCorrupt: the request fails closed.

A layout names the columns of a row in their order; ``?``: it may be NULL. What a column must hold
follows from its name (`_CHECKS`), and is text where nothing else is said. States and what becomes
of a lapsed lease are numbers in SQL (`core/records.py`) and words in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from semel.core import terms
from semel.core.operations.audit import AuditEntry
from semel.core.operations.erasure import Belonging
from semel.core.operations.lists import DuePlace, EffectPlace, KindCount, Placed, RecordGroup
from semel.core.operations.notables import NotableEntry
from semel.core.operations.requests import Applied
from semel.core.operations.resealing import Exhibit
from semel.core.operations.workers import WorkerInfo, WorkerSeen
from semel.core.records import (
    ON_LAPSE_NUMBERS,
    STATE_NUMBERS,
    Case,
    Effect,
    Glimpse,
    Identity,
    Micros,
    OnLapse,
    Origin,
    Record,
    State,
    whole_origin,
)
from semel.core.stored.packed import unpacked_fingerprint, unpacked_key
from semel.core.stored.snapshot import status_in
from semel.errors import StoreCorrupt
from semel.stores.base import due_at, next_look

Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]
Check: TypeAlias = Callable[[object, str], object]

_STATES: dict[object, State] = {
    **{number: state for state, number in STATE_NUMBERS.items()},
    **{state.value: state for state in State},
}
_ON_LAPSE: dict[object, OnLapse] = {
    **{number: choice for choice, number in ON_LAPSE_NUMBERS.items()},
    **{choice.value: choice for choice in OnLapse},
}
COMPLETED: Final = STATE_NUMBERS[State.COMPLETED]
IN_PROGRESS: Final = STATE_NUMBERS[State.IN_PROGRESS]
_UNSETTLED = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)
_AWAITED = (State.PENDING, State.IN_PROGRESS)

# ── cells ─────────────────────────────────────────────────────────────────────────────────────────


def _text(value: object, column: str) -> str:
    if type(value) is not str:
        raise StoreCorrupt(f"the column {column} does not hold text")
    return value


def _mark(value: object, column: str) -> str:
    return unpacked_fingerprint(value) if type(value) is bytes else _text(value, column)


def _key(value: object, column: str) -> str:
    return unpacked_key(value) if type(value) is bytes else _text(value, column)


def _count(value: object, column: str) -> int:
    if type(value) is not int or value < 0:
        raise StoreCorrupt(f"the column {column} does not hold a count")
    return value


def _time(value: object, column: str) -> Micros:
    if type(value) is not int:
        raise StoreCorrupt(f"the column {column} does not hold a time")
    return value


_LENGTHS: Final = {"identity": 32, "fence": 16}


def _bytes(value: object, column: str) -> bytes:
    if type(value) is not bytes or len(value) != _LENGTHS.get(column, len(value)):
        raise StoreCorrupt(f"the column {column} does not hold the bytes it should")
    return value


def _state(value: object, column: str) -> State:
    if isinstance(value, int | str) and (state := _STATES.get(value)):
        return state
    raise StoreCorrupt("a record has a state that does not exist")


def _on_lapse(value: object, column: str) -> OnLapse:
    if isinstance(value, int | str) and (choice := _ON_LAPSE.get(value)):
        return choice
    raise StoreCorrupt("a record has an on_lapse that does not exist")


_TIMES: Final = (
    "now at created_at leased_until expires_at forget_at retired_at due_at dead_at oldest newest"
)
_CHECKS: Final[dict[str, Check]] = {
    **dict.fromkeys((*_TIMES.split(), "delivered_at", "alive_until", "seen_at", "until"), _time),
    **dict.fromkeys(("identity", "fence", "fields", "snapshot"), _bytes),
    **dict.fromkeys(("request", "journal", "payload", "start"), _bytes),
    **dict.fromkeys(("tries", "size", "place", "times", "pid", "leads"), _count),
    **dict.fromkeys(("which", "count", "recent"), _count),
    "state": _state,
    "on_lapse": _on_lapse,
    "fingerprint": _mark,
    "client_key": _key,
}


class Layout:
    """The columns of a row."""

    def __init__(self, columns: str) -> None:
        named = [(each.removesuffix("?"), each.endswith("?")) for each in columns.split()]
        self._columns = [(name, _CHECKS.get(name, _text), may) for name, may in named]

    def read(self, row: Row) -> list[Any]:
        """The cells, each as it must be."""
        if len(row) != len(self._columns):
            raise StoreCorrupt(
                f"the store answered {len(row)} columns where {len(self._columns)} were asked for"
            )
        return [
            None if cell is None and may_be_null else check(cell, name)
            for cell, (name, check, may_be_null) in zip(row, self._columns, strict=True)
        ]

    def only(self, rows: Rows) -> list[Any]:
        """The cells of the one row."""
        if len(rows) != 1:
            raise StoreCorrupt(f"the store answered {len(rows)} rows where one was asked for")
        return self.read(rows[0])


_RECORD: Final = Layout(
    "identity state fence fingerprint? fields? on_lapse created_at leased_until? expires_at? "
    "forget_at? snapshot? reason? retired_at?"
)
_OF_CASE: Final = Layout(
    "tenant method? path? client_key? request? journal? resource? tries? due_at? said? now"
)
_GLIMPSE: Final = Layout(
    "identity state on_lapse tenant method? path? client_key? created_at leased_until? expires_at? "
    "forget_at? due_at? tries? reason? size? start? resource? said? now"
)
_EFFECT: Final = Layout(
    "key identity? name payload order? tries created_at error? dead_at? delivered_at? "
    "provider_id? due_at? leased_until? application now"
)
_EFFECT_PLACE: Final = Layout("due_at? place")
EFFECT_STATE: Final = Layout("shelf? fence? leased_until? now")
_WRITTEN: Final = Layout("state? leased_until? expires_at? now")
RECIPE: Final = Layout("recipe previous? alive_until? now")
TERMS: Final = Layout("said now")
ANSWER: Final = Layout("now snapshot?")
DUE: Final = Layout("due_at? now")
_KIND: Final = Layout("which count oldest now")
_GROUP: Final = Layout("application? route? state count recent oldest newest identity now")
_BELONGING: Final = Layout("identity state fence")
_EXHIBIT: Final = Layout("identity fence reason? request? journal? snapshot? now")
_ENTRY: Final = Layout("at verb by reason identity? subject? before? after? now")
_NOTABLE: Final = Layout("at kind application route tenant identity? detail times now")
_WORKER: Final = Layout("id application role does host pid version leads seen_at until now")

# ── rows ──────────────────────────────────────────────────────────────────────────────────────────


def record_and_now(rows: Rows) -> tuple[Record | None, Micros]:
    """The one row of ``read`` or ``claim``; no record when its identity is NULL."""
    if len(rows) != 1 or len(rows[0]) != 14:
        raise StoreCorrupt("the store did not answer the one row of a record")
    row = rows[0]
    now = row[13]
    if type(now) is not int:
        raise StoreCorrupt("the store's clock is not a number")
    return (None if row[0] is None else record(row)), now


_FIRST: Final = (bytes, int, bytes, bytes, bytes, int, int)
_NULL: Final = type(None)
_USUAL: Final[dict[tuple[type, ...], State]] = {
    (*_FIRST, _NULL, int, int, bytes, _NULL, _NULL): State.COMPLETED,
    (*_FIRST, int, _NULL, _NULL, _NULL, _NULL, _NULL): State.IN_PROGRESS,
}
"""What the columns hold of nearly all records that are read: answered ones, and new ones."""


def record(row: Row) -> Record:
    """A record from the first thirteen columns."""
    row = row[:13]
    state = _USUAL.get(tuple(map(type, row)))
    if state is not None and _STATES.get(row[1]) is state:
        name, _, fence, mark, fields, lapse, made, until, ends, forgotten, *rest = row
        on = _ON_LAPSE.get(lapse)
        if on is not None and mark and len(name) == 32 and len(fence) == 16:  # else see below
            said = unpacked_fingerprint(mark)
            times = made, until, ends, forgotten
            return Record(name, state, fence, said, fields, on, *times, rest[0], None)
    cells = _RECORD.read(row)
    # An expired one has no digests, an erased one no fingerprint either.
    cells[3], cells[4] = cells[3] or "", cells[4] or b""
    found = Record(*cells)
    # What no sequence of operations leads to; acting on it could free a key, or never free it.
    if not found.fingerprint and found.state is not State.EXPIRED:
        raise StoreCorrupt("a record has no fingerprint, and was not erased")
    if found.state in _AWAITED and found.leased_until is None:
        raise StoreCorrupt("a record is in progress or pending without an end of its time")
    if found.state is State.COMPLETED and (found.snapshot is None or found.expires_at is None):
        raise StoreCorrupt("a record is completed without an answer")
    if found.state in _UNSETTLED and found.forget_at is not None:
        raise StoreCorrupt("an unsettled record has a time to be forgotten")
    return found


def case(row: Row) -> Case:
    """A case from the columns of ``recall``."""
    tenant, method, path, key, request, journal, resource, tries, due, said, _ = _OF_CASE.read(
        row[13:]
    )
    found, agreed = record(row), None if said is None else terms.read(said)
    place = Origin(tenant, method or "", path or "", key or "")
    origin, due = whole_origin(place, agreed), due_at(found, due)
    return Case(found, origin, request, journal, resource, tries or 0, due, agreed)


def case_and_now(rows: Rows) -> tuple[Case | None, Micros]:
    """The one row of ``recall``; no case when its identity is NULL."""
    if len(rows) != 1 or not rows[0]:
        raise StoreCorrupt("the store did not answer the one row of a case")
    return (None if rows[0][0] is None else case(rows[0])), now_in(rows)


def glimpse(row: Row) -> Glimpse:
    """A glimpse from the columns of ``scan``."""
    identity, state, on_lapse, *rest = _GLIMPSE.read(row)
    tenant, method, path, key, created_at, *times, tries, reason, size, start, made, said, _ = rest
    leased_until, expires_at, forget_at, _ = times
    agreed = None if said is None else terms.read(said)
    return Glimpse(
        identity,
        state,
        on_lapse,
        whole_origin(Origin(tenant, method or "", path or "", key or ""), agreed),
        created_at,
        leased_until,
        expires_at,
        forget_at,
        next_look(state, *times),
        tries or 0,
        reason,
        size,
        None if start is None else status_in(start),
        made,
        agreed,
    )


def placed(row: Row) -> Placed:
    """The same, with the place it stands at: by the column, whatever the record says."""
    seen = glimpse(row)
    return Placed(DuePlace(row[11], seen.identity), seen)


def effect(row: Row) -> Effect:
    """An effect from the columns of ``browse_effects``."""
    return Effect(*_EFFECT.read(row)[:-1])


def effect_place(row: Row) -> EffectPlace:
    """Where the effect of a row of ``newest_effects`` stands, whether it is listed or not."""
    return EffectPlace(*_EFFECT_PLACE.read(row[:2]))


def now_in(rows: Rows) -> Micros:
    """The store's clock, in the last column of the last row."""
    if not rows or not rows[-1]:
        raise StoreCorrupt("the store did not tell the time")
    return _time(rows[-1][-1], "now")


def states(rows: Rows) -> list[State]:
    """The states in the first column."""
    return [_state(row[0], "state") for row in rows]


def written(rows: Rows) -> Applied:
    """The one row of a write that was applied."""
    state, leased_until, expires_at, now = _WRITTEN.only(rows)
    return Applied(state, now, leased_until, expires_at)


def census(rows: Rows) -> tuple[dict[str, int], int, Identity | None]:
    """Keys by tenant, how many records were looked at, and the last of them."""
    alive = [row for row in rows if row[1]]
    counts = {_text(row[0], "tenant"): _count(row[1], "count") for row in alive}
    last = Identity(_bytes(rows[0][3], "identity")) if rows else None
    return counts, sum(_count(row[2], "count") for row in rows), last


def waiting(rows: Rows) -> dict[tuple[str, str] | None, int]:
    """How many records are due of each route, from the columns of ``count_due``."""
    counts: dict[tuple[str, str] | None, int] = {}
    for application, route, count, _ in rows:
        known = application is not None
        which = (_text(application, "application"), _text(route, "route")) if known else None
        counts[which] = _count(count, "count")
    return counts


def kind_counts(rows: Rows) -> dict[int, KindCount]:
    """How many there are of each kind, from the columns of `count_unsettled`, `count_effects`."""
    read = (_KIND.read(row) for row in rows)
    return {kind: KindCount(count, oldest) for kind, count, oldest, _ in read}


def record_group(row: Row) -> RecordGroup:
    """Records of one route in one state, from the columns of ``sample``."""
    return RecordGroup(*_GROUP.read(row)[:7])


def belonging(row: Row) -> Belonging:
    """A record of a tenant's, from the columns of ``belongings``."""
    return Belonging(*_BELONGING.read(row[:3]))


def exhibit(row: Row) -> Exhibit:
    """The parts of a record, from the columns of ``unlike``."""
    return Exhibit(*_EXHIBIT.read(row)[:-1])


def entry(row: Row) -> AuditEntry:
    """An act, from the columns of ``browse_audit``."""
    return AuditEntry(str(row[0]), *_ENTRY.read(row[1:])[:-1])


def notable(row: Row) -> NotableEntry:
    """A notable, from the columns of ``browse_notables``."""
    return NotableEntry(str(row[0]), *_NOTABLE.read(row[1:])[:-1])


def worker(row: Row) -> WorkerSeen:
    """A worker, from the columns of ``list_workers``."""
    cells = _WORKER.read(row)
    cells[7] = bool(cells[7])
    return WorkerSeen(WorkerInfo(*cells[:8]), *cells[8:10])
