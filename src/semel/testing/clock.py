"""The clock of a private store: it stands still, and moves when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from semel.core.records import Micros
from semel.errors import ConfigurationError
from semel.stores.base import system_clock

_MICROSECOND: Final = timedelta(microseconds=1)


class StoreClock:
    """What the store takes for the time: leases, retention and tombstones end by it.

    It begins at the time of the test and stands still. So nothing lapses because a machine is slow.
    """

    def __init__(self) -> None:
        self._now: Micros = system_clock()
        self.movable = True
        """Not where the store goes by its database's own clock."""

    def __call__(self) -> Micros:
        return self._now

    @property
    def now(self) -> datetime:
        """In UTC."""
        return datetime.fromtimestamp(0, UTC) + self._now * _MICROSECOND

    def move(self, by: timedelta) -> None:
        """Let ``by`` pass. Nothing is done about it before somebody looks: a request, or
        `PrivateStore.run_once`."""
        if not isinstance(by, timedelta):
            raise ConfigurationError("move() takes a timedelta, such as timedelta(hours=1)")
        if not self.movable:
            raise ConfigurationError(
                "the store is in Django's test database, which has a clock of its own: to let time "
                "pass, test with a guard on sqlite:///…"
            )
        if by < timedelta(0):
            raise ConfigurationError(
                f"a store's clock does not go back: move() takes no {by!r}; in the next test it "
                "begins anew"
            )
        self._now += by // _MICROSECOND
