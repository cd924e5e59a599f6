"""Replies whose times can be compared, whatever clock they were read from.

Where every duration is a multiple of `UNIT`, and what is compared took far less than one, times
are told in units from the reply's own instant.
"""

from __future__ import annotations

from typing import Any, Final

from semel.core.frozen import replace
from semel.core.records import Micros

UNIT: Final[Micros] = 1_000 * 1_000_000

_TIMES: Final = frozenset(
    """
    created_at leased_until expires_at forget_at retired_at due_at delivered_at dead_at next_due
    until alive_until at
    """.split()  # noqa: SIM905 - as a column is named
)


def timeless(reply: Any) -> Any:
    """A reply with its times in units from its own instant."""
    now = getattr(reply, "now", None)
    return reply if now is None else replace(_in_units(reply, now), now=0)


def _in_units(thing: Any, now: Micros) -> Any:
    return replace(
        thing, **{name: _told(name, getattr(thing, name), now) for name in _fields(thing)}
    )


def _told(name: str, held: Any, now: Micros) -> Any:
    if isinstance(held, tuple):
        return tuple(_told(name, each, now) for each in held)
    if _fields(held):
        return _in_units(held, now)
    return round((held - now) / UNIT) if name in _TIMES and isinstance(held, int) else held


def _fields(thing: object) -> tuple[str, ...]:
    """Of a frozen class; nothing else has some."""
    return getattr(thing, "__match_args__", ())
