"""Parse what scripts answer. What cannot be true is StoreCorrupt: the request fails closed.

Redis answers bytes. They become rows like those of SQL, and `stores.sql.rows` checks both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from semel.core import operations as ops
from semel.core.records import Case, Glimpse, Identity, Micros, OnLapse, Record, State
from semel.core.terms import TermsId
from semel.errors import StoreCorrupt
from semel.stores.sql import rows

Answer: TypeAlias = Any
"""bytes, int, None, or a list of these."""

_RECORD = 12
_REST = 10
_GLIMPSE = 14
_STATES = {state.value.encode(): state for state in State}
_ON_LAPSE = {choice.value.encode(): choice for choice in OnLapse}


def fields(answer: Answer, least: int) -> Sequence[Any]:
    """Check that an answer is a list of at least so many fields."""
    if not isinstance(answer, list) or len(answer) < least:  # pyright: ignore[reportUnknownArgumentType]
        raise StoreCorrupt("a script answered something else than a list")
    return answer  # pyright: ignore[reportUnknownVariableType]


def time(value: object) -> Micros:
    """A time that a script counted (a number), or that it read from a field (text)."""
    if type(value) is int:
        return value
    try:
        if type(value) is bytes:
            return int(value)
    except ValueError:
        pass
    raise StoreCorrupt("a field does not hold a time")


def clock(answer: Answer) -> Micros:
    """The reply of TIME."""
    seconds, micros = fields(answer, 2)
    return time(seconds) * 1_000_000 + time(micros)


def optional_time(value: object) -> Micros | None:
    return None if value is None else time(value)


def text(value: object) -> str:
    try:
        if type(value) is bytes:
            return value.decode()
    except UnicodeDecodeError:
        pass
    raise StoreCorrupt("a field does not hold text")


def data(value: object) -> bytes:
    if type(value) is not bytes:
        raise StoreCorrupt("a field does not hold bytes")
    return value


def optional_text(value: object) -> str | None:
    return None if value is None else text(value)


def record(identity: Identity, answer: Answer) -> Record | None:
    """A record; None where there is none: then every field is missing."""
    found = fields(answer, _RECORD)
    if found[0] == b"completed" and tuple(map(type, found[:_RECORD])) == _ANSWERED:
        kept = _completed(identity, found)
        if kept is not None:  # else `rows.record` says what is wrong
            return kept
    row = _row(identity, found)
    return None if row is None else rows.record(row)


_ANSWERED = (*([bytes] * 6), type(None), *([bytes] * 3), type(None), type(None))
"""The types of the fields of a completed record, which is what replays read."""


def _completed(identity: Identity, found: Sequence[Any]) -> Record | None:
    """The same record as `rows.record` makes, faster: every replay reads one. None: ask that."""
    if len(identity) != 32 or len(found[1]) != 16:
        return None
    try:
        request = found[2].decode(), found[3], _ON_LAPSE[found[4]], int(found[5])
        times = None, int(found[7]), int(found[8])
    except (KeyError, ValueError):
        return None
    return Record(identity, State.COMPLETED, found[1], *request, *times, found[9], None, None)


def terms_id(answer: Answer) -> TermsId | None:
    """The number of a record's terms, its last field; None where there is no record."""
    number = fields(answer, 1)[-1]
    return None if number is None else TermsId(time(number))


def case(
    identity: Identity, answer: Answer, rest: Answer, terms_texts: Mapping[TermsId, str]
) -> Case | None:
    """A record with everything else that is stored about it; None where there is none."""
    row = _row(identity, answer)
    if row is None:
        return None
    more, number = fields(rest, _REST), terms_id(rest)
    terms = None if number is None else terms_texts.get(number)
    own = (text(more[0]), text(more[1]), text(more[2]), text(more[3]), more[4], more[5])
    tries = 0 if more[7] is None else time(more[7])
    due_at = optional_time(more[8])
    return rows.case((*row, *own, optional_text(more[6]), tries, due_at, terms, 0))


def glimpse(
    identity: Identity, answer: Answer, size: object, terms_texts: Mapping[TermsId, str]
) -> Glimpse | None:
    """A record as lists show it; None where there is none."""
    found = fields(answer, _GLIMPSE)
    if found[0] is None:
        return None
    texts = [text(each) for each in found[:6]]
    times = [time(found[6]), *map(optional_time, found[7:11])]
    tries = 0 if found[11] is None else time(found[11])
    reason = optional_text(found[12])
    terms = None if found[13] is None else terms_texts.get(TermsId(time(found[13])))
    return rows.glimpse((identity, *texts, *times, tries, reason, size, terms, 0))


def _row(identity: Identity, answer: Answer) -> tuple[Any, ...] | None:
    found = fields(answer, _RECORD)
    if found[0] is None:
        return None
    state, fence, fingerprint, sent, on_lapse, created_at, *ends = found[:9]
    head = (identity, text(state), fence, text(fingerprint), sent, text(on_lapse))
    times = (time(created_at), *map(optional_time, ends))
    return (*head, *times, found[9], optional_text(found[10]), optional_time(found[11]))


def written(identity: Identity, answer: Answer) -> ops.Written:
    """The reply of a write: 1 and what is left, or 0 and the record as it was found."""
    match answer:
        case [1, int(now), b"completed", None, int(expires_at)]:
            return ops.Applied(State.COMPLETED, now, None, expires_at)
        case [1, now, left, leased_until, expires_at]:
            ends = optional_time(leased_until), optional_time(expires_at)
            return ops.Applied(state(left), time(now), *ends)
        case [0, now, found]:
            return ops.Lost(record(identity, found), time(now))
        case _:
            raise StoreCorrupt("a script answered something else than a write does")


def state(value: object) -> State | None:
    if value is None:
        return None
    known = _STATES.get(value) if type(value) is bytes else None
    if known is None:
        raise StoreCorrupt("a record has a state that does not exist")
    return known
