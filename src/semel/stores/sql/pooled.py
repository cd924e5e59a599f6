"""What the pools for threads and for event loops share: settings, ages and counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from semel.backoff import between
from semel.stores.options import count, flag, seconds
from semel.stores.sql.batches import BatchKinds
from semel.stores.sql.dialect import dialect
from semel.stores.sql.migration import check_schema
from semel.stores.sql.rows import Rows
from semel.stores.sql.statements import Statement, StatementFault, ToStoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The options of every database server."""

    url: str
    """Without its password."""
    secrets: tuple[str, ...] = field(repr=False)
    pool_size: int
    timeout: float
    migrate: bool
    max_lifetime: float
    """Seconds after which a connection is closed when it comes back."""
    max_idle: float
    """Seconds after which a connection that nobody needed is closed."""

    def without_secrets(self, text: str) -> str:
        """``text`` without the passwords, should a driver ever print one."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def server_options(given: Mapping[str, object]) -> dict[str, Any]:
    """The fields of `ServerSettings` that are options, from what is given or their defaults."""
    return {
        "pool_size": count("pool_size", given.get("pool_size", 10)),
        "timeout": seconds("timeout", given.get("timeout", 5.0)),
        "migrate": flag("migrate", given.get("migrate", False)),
        "max_lifetime": seconds("max_lifetime", given.get("max_lifetime", 3600.0)),
        "max_idle": seconds("max_idle", given.get("max_idle", 600.0)),
    }


class ServerPool:
    """The settings of a pool. A server's own pools set what is in capitals, and `store_error`."""

    DIALECT: str
    KINDS: BatchKinds
    store_error: ToStoreError
    """A function of the server's, without ``self``."""

    def __init__(self, settings: ServerSettings, migrate: Callable[[], object] | None) -> None:
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

    def close(self) -> None:
        """Nothing happens when it is closed already."""
        raise NotImplementedError

    def rest(self, on_lost: Callable[[Any, BaseException | None], None] | None) -> None:
        """Be idle. Where an event loop watches it, ``on_lost`` is called if the server hangs up;
        else it is asked when it is taken (`lost`)."""

    def lost(self) -> bool:
        """Whether the server has hung up on it while it was idle and nobody watched it."""
        return False

    def join(self, connections: OpenConnections) -> None:
        """Be counted, until it is closed."""
        self._number, self._open = next(connections.numbers), connections.open
        connections.opened = self._number
        self._open.add(self._number)
        # Those that were opened together are not all closed together.
        self.expires_at = monotonic() + connections.max_lifetime * between(0.9, 1.0)

    def left(self) -> None:
        """It is closed, or nobody has it any more."""
        if hasattr(self, "_open"):
            self._open.discard(self._number)

    __del__ = left


class OpenConnections:
    """Which connections of a pool are open.

    Without a lock, which a fork might copy while it is held: each step is atomic.
    """

    def __init__(self, max_lifetime: float) -> None:
        self.max_lifetime = max_lifetime
        self.open: set[int] = set()
        self.numbers = itertools.count(1)
        self.opened = 0

    def statistics(self, idle: int, waiting: int) -> PoolStatistics:
        opened, size = self.opened, len(self.open)
        return PoolStatistics(size, max(0, size - idle), waiting, opened, max(0, opened - size))
