"""Times and durations as people read them; all of them by the store's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from semel.core.frozen import frozen
from semel.core.records import Micros

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@frozen
class Moment:
    """A time; ``now`` is the store's, so that its age is right on every machine."""

    at: Micros
    now: Micros

    @property
    def iso(self) -> str:
        """With microseconds, in UTC, as the command line writes it."""
        return _utc(self.at).isoformat(timespec="microseconds").replace("+00:00", "Z")

    @property
    def utc(self) -> str:
        """For a title: 2026-11-18 14:13:21 UTC."""
        return f"{_utc(self.at):%Y-%m-%d %H:%M:%S} UTC"

    @property
    def words(self) -> str:
        """How long ago, or in how long."""
        apart = self.now - self.at
        if abs(apart) < 1_000_000:
            return "now"
        return f"{Span(apart)} ago" if apart > 0 else f"in {Span(-apart)}"

    @property
    def age(self) -> Span:
        return Span(self.now - self.at)


@frozen
class Span:
    """A duration; prints as its two largest units."""

    micros: Micros

    @property
    def seconds(self) -> float:
        return self.micros / 1_000_000

    def __str__(self) -> str:
        rest = abs(self.micros) // 1_000_000
        if rest == 0:
            return f"{abs(self.micros) // 1000} ms"
        parts: list[str] = []
        for size, unit in _UNITS:
            count, rest = divmod(rest, size)
            if count or parts:
                parts.append(f"{count} {unit}")
            if len(parts) == 2 or (parts and count >= 10):
                break
        return " ".join(part for part in parts if not part.startswith("0 "))


def moment(at: Micros | None, now: Micros) -> Moment | None:
    """A time that may be missing."""
    return None if at is None else Moment(at, now)


def _utc(at: Micros) -> datetime:
    """The store's times may be far off; what no calendar has is shown as its last day."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
