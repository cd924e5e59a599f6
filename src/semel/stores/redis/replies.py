"""Parse what scripts answer. What cannot be true is StoreCorrupt: the request fails closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from semel.core import operations as ops
from semel.core.records import Case, Glimpse, Identity, Micros, State
from semel.core.terms import TermsId
from semel.errors import StoreCorrupt
from semel.stores.redis import layout
from semel.stores.redis.layout import Stored
from semel.stores.sql import rows

Answer: TypeAlias = Any
"""bytes, int, None, or a list of these."""


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


def stored(identity: Identity, value: object) -> Stored | None:
    """A record with its origin and terms; None where there is none."""
    found = data(value)
    return layout.stored(identity, found) if found else None


def case(found: Stored, terms_texts: Mapping[TermsId, str], more: Answer) -> Case:
    """A record with everything else that is kept of it."""
    request, journal, resource, tries = fields(more, 4)[:4]
    own = (*found.origin, request, journal, optional_text(resource))
    asked = 0 if tries is None else time(tries)
    terms = terms_texts.get(found.terms)
    return rows.case((*found.row, *own, asked, found.due_at, terms, 0))


def glimpse(found: Stored, terms_texts: Mapping[TermsId, str], more: Sequence[Answer]) -> Glimpse:
    """A record as lists show it. ``more``: size, tries, resource, and how its answer begins."""
    identity, state, _, _, _, on_lapse, *times, _, reason, _ = found.row
    size, tries, resource, start = fields(more, 4)[:4]
    told = (*times, found.due_at, time(tries), reason, size, start, optional_text(resource))
    terms = terms_texts.get(found.terms)
    return rows.glimpse((identity, state, on_lapse, *found.origin, *told, terms, 0))


def written(identity: Identity, answer: Answer) -> ops.Written:
    """The reply of a write: 1 and what is left, or 0 and the record as it was found."""
    match answer:
        case [1, int(now), left, leased_until, expires_at]:
            ends = optional_time(leased_until), optional_time(expires_at)
            return ops.Applied(state(left), now, *ends)
        case [0, int(now), found]:
            return ops.Lost(layout.record(identity, found), now)
        case _:
            raise StoreCorrupt("a script answered something else than a write does")


def state(value: object) -> State | None:
    if value is None:
        return None
    known = layout.STATES.get(value) if type(value) is int else None
    if known is None:
        raise StoreCorrupt("a record has a state that does not exist")
    return known
