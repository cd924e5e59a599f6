"""Rows into replies. What cannot be true is StoreCorrupt: the request fails closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from semel.core import terms
from semel.core.operations.audit import AuditEntry, Belonging, Exhibit
from semel.core.operations.requests import Applied
from semel.core.records import (
    Case,
    Effect,
    Fence,
    Glimpse,
    Identity,
    Micros,
    OnLapse,
    Origin,
    Record,
    State,
)
from semel.errors import StoreCorrupt
from semel.stores.base import due_at, next_look

Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]
EffectState: TypeAlias = tuple[str | None, Fence | None, Micros | None, Micros]

CASE_COLUMNS, GLIMPSE_COLUMNS, EFFECT_COLUMNS = 24, 17, 15
_STATES = {state.value: state for state in State}
_ON_LAPSE = {choice.value: choice for choice in OnLapse}
_COMPLETED = State.COMPLETED
_UNSETTLED = (State.PENDING, State.IN_PROGRESS, State.UNKNOWN)
_AWAITED = (State.PENDING, State.IN_PROGRESS)


def record_and_now(rows: Rows) -> tuple[Record | None, Micros]:
    """The one row of ``read`` or ``claim``; no record when its identity is NULL."""
    row = _only(rows, 14)
    now = row[13]
    if type(now) is not int:
        raise StoreCorrupt("the store's clock is not a number")
    return (None if row[0] is None else record(row)), now


def census(rows: Rows) -> tuple[dict[str, int], int, Identity | None]:
    """Keys by tenant, how many records were looked at, and the last of them."""
    alive = [row for row in rows if row[1]]
    counts = {_text(row[0], "tenant"): _count(row[1], "count") for row in alive}
    last = Identity(_bytes(rows[0][3], 32, "identity")) if rows else None
    return counts, sum(_count(row[2], "count") for row in rows), last


def answer_and_now(rows: Rows) -> tuple[bytes | None, Micros]:
    """The one row of ``fetch``."""
    now, answer = _only(rows, 2)
    return (None if answer is None else _bytes(answer, None, "snapshot")), _time(now, "now")


_ANSWERED = (
    *(bytes, str, bytes, str, bytes, str, int, type(None), int, int, bytes),
    *(type(None), type(None)),
)
"""What the columns of a completed record hold, as nearly all that are read."""


def record(row: Row) -> Record:
    """A record from the first thirteen columns."""
    row = row[:13]
    if row[1] == "completed" and tuple(map(type, row)) == _ANSWERED:
        name, _, fence, mark, fields, lapse, made, _, ends, forgotten, answer, _, _ = row
        on = _ON_LAPSE.get(lapse)
        if on is not None and len(name) == 32 and len(fence) == 16:  # else see what is wrong
            done = _COMPLETED
            return Record(
                name, done, fence, mark, fields, on, made, None, ends, forgotten, answer, None
            )
    found = Record(
        Identity(_bytes(row[0], 32, "identity")),
        _state(row[1]),
        Fence(_bytes(row[2], 16, "fence")),
        _text(row[3], "fingerprint"),
        _bytes(row[4], None, "fields"),
        _on_lapse(row[5]),
        _time(row[6], "created_at"),
        None if row[7] is None else _time(row[7], "leased_until"),
        None if row[8] is None else _time(row[8], "expires_at"),
        None if row[9] is None else _time(row[9], "forget_at"),
        None if row[10] is None else _bytes(row[10], None, "snapshot"),
        None if row[11] is None else _text(row[11], "reason"),
        None if row[12] is None else _time(row[12], "retired_at"),
    )
    # What no sequence of operations leads to; acting on it could free a key, or never free it.
    if found.state in _AWAITED and found.leased_until is None:
        raise StoreCorrupt("a record is in progress or pending without an end of its time")
    if found.state is State.COMPLETED and (found.snapshot is None or found.expires_at is None):
        raise StoreCorrupt("a record is completed without an answer")
    if found.state in _UNSETTLED and found.forget_at is not None:
        raise StoreCorrupt("an unsettled record has a time to be forgotten")
    return found


def case(row: Row) -> Case:
    """A case from the columns of ``recall``."""
    _require_columns(row, CASE_COLUMNS, "a case")
    found = record(row)
    return Case(
        record=found,
        origin=_origin(row[13:17]),
        request=None if row[17] is None else _bytes(row[17], None, "request"),
        journal=None if row[18] is None else _bytes(row[18], None, "journal"),
        resource=None if row[19] is None else _text(row[19], "resource"),
        tries=_count(row[20], "tries"),
        due_at=due_at(found, None if row[21] is None else _time(row[21], "due_at")),
        terms=None if row[22] is None else terms.read(_text(row[22], "said")),
    )


def cases(rows: Rows) -> tuple[Case, ...]:
    return tuple([case(row) for row in rows])


def glimpse(row: Row) -> Glimpse:
    """A glimpse from the columns of ``scan``."""
    _require_columns(row, GLIMPSE_COLUMNS, "a glimpse")
    state = _state(row[1])
    leased_until, expires_at, forget_at, chosen = (
        None if row[place] is None else _time(row[place], "time") for place in (8, 9, 10, 11)
    )
    return Glimpse(
        identity=Identity(_bytes(row[0], 32, "identity")),
        state=state,
        on_lapse=_on_lapse(row[2]),
        origin=_origin(row[3:7]),
        created_at=_time(row[7], "created_at"),
        leased_until=leased_until,
        expires_at=expires_at,
        forget_at=forget_at,
        due_at=next_look(state, leased_until, expires_at, forget_at, chosen),
        tries=_count(row[12], "tries"),
        reason=None if row[13] is None else _text(row[13], "reason"),
        size=None if row[14] is None else _count(row[14], "size"),
        terms=None if row[15] is None else terms.read(_text(row[15], "said")),
    )


def case_and_now(rows: Rows) -> tuple[Case | None, Micros]:
    """The one row of ``recall``; no case when its identity is NULL."""
    row = _only(rows, CASE_COLUMNS)
    return (None if row[0] is None else case(row)), _time(row[-1], "now")


def effect(row: Row) -> Effect:
    """An effect from the columns of ``browse_effects``."""
    _require_columns(row, EFFECT_COLUMNS, "an effect")
    return Effect(
        key=_text(row[0], "key"),
        identity=None if row[1] is None else Identity(_bytes(row[1], 32, "identity")),
        name=_text(row[2], "name"),
        payload=_bytes(row[3], None, "payload"),
        order=None if row[4] is None else _text(row[4], "order_key"),
        tries=_count(row[5], "tries"),
        created_at=_time(row[6], "created_at"),
        error=None if row[7] is None else _text(row[7], "error"),
        dead_at=None if row[8] is None else _time(row[8], "dead_at"),
        delivered_at=None if row[9] is None else _time(row[9], "delivered_at"),
        provider_id=None if row[10] is None else _text(row[10], "provider_id"),
        due_at=None if row[11] is None else _time(row[11], "due_at"),
        leased_until=None if row[12] is None else _time(row[12], "leased_until"),
        application=_text(row[13], "application"),
    )


def effect_state(rows: Rows) -> EffectState:
    """state, fence, leased_until and now; no state when there is no such effect."""
    state, fence, leased_until, now = _only(rows, 4)
    return (
        None if state is None else _text(state, "state"),
        None if fence is None else Fence(_bytes(fence, 16, "fence")),
        None if leased_until is None else _time(leased_until, "leased_until"),
        _time(now, "now"),
    )


def now_in(rows: Rows) -> Micros:
    """The store's clock, in the last column of the last row."""
    if not rows or not rows[-1]:
        raise StoreCorrupt("the store did not tell the time")
    return _time(rows[-1][-1], "now")


def time_and_now(rows: Rows) -> tuple[Micros | None, Micros]:
    """One row: a time, or NULL, and now."""
    value, now = _only(rows, 2)
    return (None if value is None else _time(value, "time")), _time(now, "now")


def states(rows: Rows) -> list[State]:
    """The states in the first column."""
    return [_state(row[0]) for row in rows]


def written(rows: Rows) -> Applied:
    """The one row of a write that was applied."""
    state, leased_until, expires_at, now = _only(rows, 4)
    return Applied(
        None if state is None else _state(state),
        _time(now, "now"),
        None if leased_until is None else _time(leased_until, "leased_until"),
        None if expires_at is None else _time(expires_at, "expires_at"),
    )


def recipe(rows: Rows) -> tuple[str, str | None, Micros | None, Micros]:
    """recipe, previous, alive_until and now."""
    current, previous, alive_until, now = _only(rows, 4)
    return (
        _text(current, "recipe"),
        None if previous is None else _text(previous, "previous"),
        None if alive_until is None else _time(alive_until, "alive_until"),
        _time(now, "now"),
    )


def terms_and_now(rows: Rows) -> tuple[str, Micros]:
    """What terms say, and now."""
    said, now = _only(rows, 2)
    return _text(said, "said"), _time(now, "now")


def waiting(rows: Rows) -> dict[tuple[str, str] | None, int]:
    """How many records are due of each route, from the columns of ``count_due``."""
    counts: dict[tuple[str, str] | None, int] = {}
    for application, route, count, _ in rows:
        known = application is not None
        which = (_text(application, "application"), _text(route, "route")) if known else None
        counts[which] = _count(count, "count")
    return counts


def belonging(row: Row) -> Belonging:
    """A record of a tenant's, from the columns of ``belongings``."""
    return Belonging(
        Identity(_bytes(row[0], 32, "identity")), _state(row[1]), Fence(_bytes(row[2], 16, "fence"))
    )


def exhibit(row: Row) -> Exhibit:
    """The parts of a record, from the columns of ``unlike``."""
    identity, fence, reason, request, journal, snapshot, _ = row
    return Exhibit(
        Identity(_bytes(identity, 32, "identity")),
        Fence(_bytes(fence, 16, "fence")),
        None if reason is None else _text(reason, "reason"),
        None if request is None else _bytes(request, None, "request"),
        None if journal is None else _bytes(journal, None, "journal"),
        None if snapshot is None else _bytes(snapshot, None, "snapshot"),
    )


def entry(row: Row) -> AuditEntry:
    """An act, from the columns of ``browse_audit``."""
    place, at, verb, actor, reason, identity, subject, before, after, _ = row
    return AuditEntry(
        str(place),
        _time(at, "at"),
        _text(verb, "verb"),
        _text(actor, "actor"),
        _text(reason, "reason"),
        None if identity is None else Identity(_bytes(identity, 32, "identity")),
        None if subject is None else _text(subject, "subject"),
        None if before is None else _text(before, "state_before"),
        None if after is None else _text(after, "state_after"),
    )


def _only(rows: Rows, columns: int) -> Row:
    if len(rows) != 1 or len(rows[0]) != columns:
        shape = f"{len(rows)} rows" if len(rows) != 1 else f"{len(rows[0])} columns"
        raise StoreCorrupt(f"the store answered {shape} where one row of {columns} was asked for")
    return rows[0]


def _require_columns(row: Row, count: int, what: str) -> None:
    if len(row) != count:
        raise StoreCorrupt(f"the store answered {len(row)} columns for {what}")


def _origin(texts: Row) -> Origin:
    tenant, method, path, key = texts
    return Origin(
        _text(tenant, "tenant"), _text(method, "method"), _text(path, "path"), _text(key, "key")
    )


def _state(value: object) -> State:
    if isinstance(value, str) and value in _STATES:
        return _STATES[value]
    raise StoreCorrupt("a record has a state that does not exist")


def _on_lapse(value: object) -> OnLapse:
    if isinstance(value, str) and value in _ON_LAPSE:
        return _ON_LAPSE[value]
    raise StoreCorrupt("a record has an on_lapse that does not exist")


def _bytes(value: object, length: int | None, column: str) -> bytes:
    if type(value) is not bytes or (length is not None and len(value) != length):
        raise StoreCorrupt(f"the column {column} does not hold the bytes it should")
    return value


def _text(value: object, column: str) -> str:
    if type(value) is not str:
        raise StoreCorrupt(f"the column {column} does not hold text")
    return value


def _count(value: object, column: str) -> int:
    if type(value) is not int or value < 0:
        raise StoreCorrupt(f"the column {column} does not hold a count")
    return value


def _time(value: object, column: str) -> Micros:
    if type(value) is not int:
        raise StoreCorrupt(f"the column {column} does not hold a time")
    return value
