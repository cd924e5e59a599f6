"""Statements, and the steps that several plans share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from json import dumps
from typing import Any, NamedTuple, TypeAlias, TypeVar

from semel.core.operations.acts import Act
from semel.core.operations.requests import Applied, Lost, Written
from semel.core.records import Identity, Micros, Record, State
from semel.core.texts import shown
from semel.stores.sql.rows import Rows, now_in, record_and_now, written

R = TypeVar("R")


class Statement(NamedTuple):
    """One query of the dialect, by name, and its parameters (the clock is added by the store)."""

    name: str
    params: Mapping[str, object]


Plan: TypeAlias = Generator[Statement, Rows, R]

Done: TypeAlias = Callable[[Any, Record | None, Micros], bool]
"""Whether the record that a read found is the work of an earlier try of the same operation."""


def write(
    name: str, op: Any, params: dict[str, Any], done: Done, *, again: bool = True
) -> Plan[Written]:
    """Compare and set. No row means: already done by this very fence, or lost; a read tells.

    The read may find a record that came in between: then the write is tried once more.
    """
    identity: Identity = op.identity
    params["identity"] = identity
    rows = yield Statement(name, params)
    if rows:
        return written(rows)
    record, now = record_and_now((yield Statement("read", {"identity": identity})))
    if again and _has_just_come(record, now, params):
        return (yield from write(name, op, params, done, again=False))
    if not done(op, record, now):
        return Lost(record, now)
    if record is None:
        return Applied(None, now)
    return Applied(record.state, now, record.leased_until, record.expires_at)


def _has_just_come(record: Record | None, now: Micros, params: Mapping[str, object]) -> bool:
    """Whether the record is held by the very fence that found none: its claim or retake was late.

    Called lost, nobody would hold it: its holder takes it back and does not look again.
    """
    if record is None or "seen" in params or record.fence != params.get("fence"):
        return False
    return record.state is State.IN_PROGRESS and not record.lapsed(now)


def act_params(act: Act) -> dict[str, object]:
    """The parameters of a statement that writes an audit entry (`stores/sql/dialect.py`)."""
    return {"actor": shown(act.by), "why": shown(act.reason)}


def clock_of(rows: Rows) -> Plan[Micros]:
    """The time in the last column of a statement's rows; without rows, ask for the clock."""
    return now_in(rows if rows else (yield Statement("clock", {})))


def names(texts: Sequence[str]) -> str:
    """The parameter that ``{among}`` compares with."""
    return dumps(list(texts))
