"""What the pools for threads and for event loops share: how old a connection is, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from time import monotonic
from typing import NamedTuple, Protocol

from semel.backoff import between


class PoolSettings(Protocol):
    """What a pool must know of the settings of its server."""

    @property
    def pool_size(self) -> int: ...

    @property
    def timeout(self) -> float: ...

    @property
    def max_lifetime(self) -> float:
        """Seconds after which a connection is closed when it comes back."""
        ...

    @property
    def max_idle(self) -> float:
        """Seconds after which a connection that nobody needed is closed."""
        ...


class PoolStatistics(NamedTuple):
    """The connections of a pool."""

    size: int = 0
    """Open now."""
    in_use: int = 0
    waiting: int = 0
    """Callers that wait for one."""
    opened: int = 0
    """Since the process began."""
    closed: int = 0


def total(pools: Iterable[PoolStatistics]) -> PoolStatistics:
    """Of several pools together."""
    columns = zip(*pools, strict=True)
    return PoolStatistics(*map(sum, columns))


class PooledConnection:
    """A connection of a pool. A server's own class closes it."""

    __slots__ = ("_number", "_open", "expires_at", "idle_since")

    expires_at: float
    """When it is closed instead of being used again."""
    idle_since: float

    def join(self, connections: OpenConnections) -> None:
        """Be counted, until it is closed."""
        self._number, self._open = connections.number(), connections.open
        self._open.add(self._number)
        # Those that were opened together are not all closed together.
        self.expires_at = monotonic() + connections.max_lifetime * between(0.9, 1.0)

    def left(self) -> None:
        """It is closed, or nobody has it any more."""
        if hasattr(self, "_open"):
            self._open.discard(self._number)

    def __del__(self) -> None:
        self.left()


class OpenConnections:
    """Which connections of a pool are open.

    Without a lock, which a fork might copy while it is held: each step is atomic.
    """

    def __init__(self, max_lifetime: float) -> None:
        self.max_lifetime = max_lifetime
        self.open: set[int] = set()
        self._numbers = count(1)
        self._opened = 0

    def number(self) -> int:
        self._opened = number = next(self._numbers)
        return number

    def statistics(self, idle: int, waiting: int) -> PoolStatistics:
        opened, size = self._opened, len(self.open)
        return PoolStatistics(size, max(0, size - idle), waiting, opened, max(0, opened - size))
