"""How long and how often a call is tried: full-jitter backoff in a budget, and Retry-After."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_tz
from typing import Final

from semel.core.frozen import frozen
from semel.errors import ConfigurationError

_DIGITS: Final = re.compile(r"[0-9]+")
_LONGEST_NUMBER: Final = 12
"""Digits: a wait of thirty thousand years is as good as any longer one."""


@frozen
class Budget:
    """What one logical call may spend.

    ``tries`` counts tries that failed; waiting for a request that is under way costs time only.
    ``within`` is looked at between tries: the last one may take as long as its time-out allows.
    """

    tries: int = 8
    within: timedelta = timedelta(minutes=2)
    first_pause: timedelta = timedelta(milliseconds=200)
    longest_pause: timedelta = timedelta(seconds=20)

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ConfigurationError("a budget has one try at least")
        if not timedelta(0) < self.first_pause <= self.longest_pause <= self.within:
            raise ConfigurationError("a budget needs 0 < first_pause <= longest_pause <= within")

    def ceiling(self, attempt: int) -> float:
        """The longest pause after so many tries, in seconds."""
        grown = self.first_pause.total_seconds() * 2.0 ** min(attempt, 64)
        return min(self.longest_pause.total_seconds(), grown)

    def pause(
        self, attempt: int, elapsed: float, retry_after: float | None
    ) -> tuple[float, float] | None:
        """The shortest and longest next pause; None if the budget does not allow another.

        Full jitter: from nothing to the ceiling; after a Retry-After, from that to twice as long.
        If less time than a first pause is left there is no other try: else the rest of a budget
        would be spent in ever smaller pauses.
        """
        first = self.first_pause.total_seconds()
        left = self.within.total_seconds() - elapsed
        least, spread = 0.0, self.ceiling(attempt)
        if retry_after is not None:
            least, spread = retry_after, min(spread, max(first, retry_after))
        return None if least + first > left else (least, min(left, least + spread))


def retry_after(value: str | None, date: str | None, wall: float) -> float | None:
    """The seconds that a Retry-After asks for (RFC 9110, 10.2.3); None if it is not usable.

    A date is counted from the answer's own ``Date`` if there is one: the server's clock may differ
    from ours.
    """
    value = (value or "").strip()
    if _DIGITS.fullmatch(value):
        return float(value if len(value) <= _LONGEST_NUMBER else "9" * _LONGEST_NUMBER)
    moment = _moment(value)
    if moment is None:
        return None
    said = _moment((date or "").strip())
    return max(0.0, moment - (wall if said is None else said))


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an HTTP date in any of its three forms; None for anything else."""
    if not text or len(text) > 64:
        return None
    try:
        read = parsedate_tz(text)
        if read is None:
            return None
        year, month, day, hour, minute, second, *_, offset = read
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
        return moment.timestamp() - (offset or 0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
