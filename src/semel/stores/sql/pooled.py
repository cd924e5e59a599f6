"""What the pools for threads and for event loops share: settings, ages and counts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import count
from time import monotonic
from typing import Any, NamedTuple, Protocol

from semel.backoff import between
from semel.stores.sql.batches import BatchKinds
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, ToStoreError


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


class ServerPool:
    """The settings of a pool. A server's own pools set what is in capitals, and `store_error`."""

    DIALECT: str
    KINDS: BatchKinds
    store_error: ToStoreError
    """A function of the server's, without ``self``."""

    def __init__(self, settings: PoolSettings, migrate: Callable[[], object] | None) -> None:
        self._settings: Any = settings
        self._migrate = migrate
        self._size = settings.pool_size
        self._timeout = settings.timeout
        self._max_idle = settings.max_idle
        self._connections = OpenConnections(settings.max_lifetime)
        self._ready = False
        """Whether the schema was found to be right."""

    def deadline(self) -> float:
        return monotonic() + self._timeout

    def _check_schema(self) -> Generator[Statement, Rows, None]:
        yield from check_schema(dialect(self.DIALECT))
        self._ready = True

    def _none_came_free(self) -> StatementFault:
        said = f"no connection came free within the time limit (pool_size={self._size})"
        return StatementFault(said)


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
