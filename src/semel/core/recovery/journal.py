"""The journal: the recovery points an operation has reached, in order, with their results.

Layout: ``J1`` · CRC-32 of the rest · JSON, a list of [name, kind, result] where the result is
absent for a call that was begun and whose result nobody has seen. The checksum turns a damaged row
into a refusal instead of a wrong resume.
"""

from __future__ import annotations

import json
import struct
import zlib
from enum import StrEnum
from typing import Any, Final

from semel.core.frozen import frozen, replace
from semel.core.stored.sealed import demand_opened
from semel.errors import StoreCorrupt

_MAGIC: Final = b"J1"
_HEAD: Final = struct.Struct(">2sI")


class PointKind(StrEnum):
    """What stands at a point."""

    PHASE = "phase"
    """A local transaction."""
    CALL = "call"
    """At most one outside effect."""


@frozen
class Point:
    """One recovery point. ``done`` is False for a call whose intent alone is on record."""

    name: str
    kind: PointKind
    done: bool
    result: Any = None


@frozen
class Journal:
    """The points reached so far."""

    points: tuple[Point, ...] = ()

    @property
    def intent(self) -> Point | None:
        """The call that was begun and may have happened: there is at most one, the last."""
        last = self.points[-1] if self.points else None
        return last if last is not None and not last.done else None

    @property
    def acted(self) -> bool:
        """Something was done outside: what was begun has to be finished."""
        return any(point.done and point.kind is PointKind.CALL for point in self.points)

    def intending(self, name: str) -> Journal:
        """With the intent to make a call."""
        if self.intent is not None:
            raise ValueError("an intent is on record already")
        return Journal((*self.points, Point(name, PointKind.CALL, done=False)))

    def reaching(self, name: str, kind: PointKind, result: Any) -> Journal:
        """With a point reached: a new one, or the intent's own."""
        before = self.withdrawing().points
        return Journal((*before, Point(name, kind, True, result)))

    def withdrawing(self) -> Journal:
        """Without the intent that came to nothing."""
        return self if self.intent is None else Journal(self.points[:-1])

    def doubting(self) -> Journal:
        """With the last call in doubt again: what it was said to have come to does not count."""
        last = self.points[-1] if self.points else None
        if last is None or last.kind is not PointKind.CALL:
            raise ValueError("the last point is no call")
        return Journal((*self.points[:-1], replace(last, done=False, result=None)))

    def settling(self, result: Any) -> Journal:
        """With the intent's call settled: it happened, and this was its result."""
        intent = self.intent
        if intent is None:
            raise ValueError("no call is in doubt")
        return Journal((*self.points[:-1], replace(intent, done=True, result=result)))


def encode(journal: Journal) -> bytes:
    """The bytes a store keeps; results must be JSON (TypeError, ValueError)."""
    points = [
        [point.name, point.kind.value, *([point.result] if point.done else [])]
        for point in journal.points
    ]
    rest = json.dumps(points, allow_nan=False, separators=(",", ":")).encode()
    return _HEAD.pack(_MAGIC, zlib.crc32(rest)) + rest


def decode(blob: bytes | None) -> Journal:
    """The journal that was encoded; none is an empty one, anything else is StoreCorrupt."""
    if blob is None:
        return Journal()
    try:
        magic, checksum = _HEAD.unpack_from(blob)
        rest = blob[_HEAD.size :]
        if magic != _MAGIC:
            demand_opened(blob, "a journal", _MAGIC)
        if magic != _MAGIC or zlib.crc32(rest) != checksum:
            raise StoreCorrupt("a journal is damaged: its checksum does not match")
        return Journal(
            tuple(
                Point(name, PointKind(kind), bool(result), result[0] if result else None)
                for name, kind, *result in json.loads(rest)
            )
        )
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreCorrupt(f"a journal cannot be read: {error}") from error
