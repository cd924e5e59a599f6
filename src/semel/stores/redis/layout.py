"""What a record is in Redis: one string, which the scripts of ``lua/`` and this module read alike.

::

    head       fixed: numbers of state and on_lapse, what it has, fence, times, terms, lengths
    origin     fingerprint, tenant, method, path and key, each with NUL after it; digests of fields
    reason
    answer     the rest

States share the slots of times: one in progress has a ``leased_until`` where a completed one has
``retired_at``; what waits for a worker or a probe has ``due_at`` where others have ``forget_at``.
What few records have (a stored request, a journal, a resource, tries) is in a hash beside the
record, which is there only where the head says so.

One string instead of a hash, because Redis keeps a hash with one long field as a table: with a
field for each of these, a key with an answer of 300 bytes took 1,400 bytes of memory
(docs/contributing/decisions.md).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from semel.core.records import (
    ON_LAPSE_NUMBERS,
    STATE_NUMBERS,
    Identity,
    Micros,
    Record,
    State,
)
from semel.core.terms import TermsId
from semel.errors import StoreCorrupt
from semel.stores.sql import rows

HEAD: Final = struct.Struct(">BBB16sQQQQqII")
SIZE: Final = HEAD.size
HAS_ANSWER: Final = 1
HAS_MORE: Final = 2

STATES: Final = {number: state for state, number in STATE_NUMBERS.items()}
ON_LAPSE: Final = {number: choice for choice, number in ON_LAPSE_NUMBERS.items()}
_COMPLETED: Final = STATE_NUMBERS[State.COMPLETED]
_AWAITED: Final = (State.PENDING, State.IN_PROGRESS)
_ASKED: Final = (State.PENDING, State.UNKNOWN)


class Stored(NamedTuple):
    """A record with what stands beside it in the string."""

    row: rows.Row
    """The columns of a record, as SQL stores answer them."""
    origin: tuple[str, str, str, str]
    due_at: Micros | None
    terms: TermsId


def record(identity: Identity, data: object) -> Record | None:
    """A record; None where there is none. Every replay reads one that is completed."""
    if type(data) is not bytes:
        raise StoreCorrupt("a script answered something else than a record")
    if not data:
        return None
    if data[0] == _COMPLETED and len(data) >= SIZE and len(identity) == 32:
        head = HEAD.unpack_from(data)
        _, lapse, has, fence, made, retired, ends, forgotten, _, size, reason = head
        start = SIZE + size
        on, parts = ON_LAPSE.get(lapse), data[SIZE:start].split(b"\0", 5)
        if on and has & HAS_ANSWER and ends and len(parts) == 6 and not (reason or retired):
            try:
                request = parts[0].decode(), parts[5], on, made
            except UnicodeDecodeError:
                raise StoreCorrupt("a record holds something else than text") from None
            times = None, ends, forgotten or None
            return Record(identity, State.COMPLETED, fence, *request, *times, data[start:], None)
    return rows.record(stored(identity, data).row)


def stored(identity: Identity, data: bytes) -> Stored:
    """All that the string says. Whether it can be true is checked by `rows.record`."""
    try:
        number, lapse, has, fence, made, first, ends, third, terms, size, length = HEAD.unpack_from(
            data
        )
        texts = data[SIZE : SIZE + size].split(b"\0", 5)
        fingerprint, *origin = [each.decode() for each in texts[:5]]
        tenant, method, path, key = origin
        reason = data[SIZE + size : SIZE + size + length].decode() or None
        state, on_lapse, fields = STATES[number], ON_LAPSE[lapse], texts[5]
    except (struct.error, UnicodeDecodeError, KeyError, ValueError, IndexError):
        raise StoreCorrupt("a record cannot be read") from None
    awaited, asked = state in _AWAITED, state in _ASKED
    answer = data[SIZE + size + length :] if has & HAS_ANSWER else None
    times = (first if awaited else None, ends, None if asked else third)
    row = (
        *(identity, state.value, fence, fingerprint, fields, on_lapse.value, made),
        *(time or None for time in times),
        *(answer, reason, None if awaited else first or None),
    )
    due_at = third or None if asked else None
    return Stored(row, (tenant, method, path, key), due_at, TermsId(terms))


# ── places in the index ───────────────────────────────────────────────────────────────────────────

RANK: Final = 2**44
"""How far two duties are apart in the index of a bucket, in milliseconds: five centuries. The last
place of a duty is that of records nobody has to look at."""
