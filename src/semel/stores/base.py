"""What every store is: one verb, in two colours, over one place where records live.

A `Backend` is what a store URL names. Making one does no I/O; it opens on first use, once per
process (and per event loop for the awaited colour), and again in a forked child.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from semel.core.flow import Perform
from semel.core.frozen import frozen
from semel.core.operations.requests import FlowOperation, Found, NoRecord, StoreOperation
from semel.core.records import Identity, Micros

R = TypeVar("R")

Clock = Callable[[], Micros]
"""Microseconds since 1970; injected where the store's clock is this machine's (memory, SQLite)."""


CHECK_AGAIN: Final = 1.0
"""Seconds after which a server is asked again, on a connection that is in use, whether it keeps
what it acknowledges: its settings can be changed under open connections."""


@frozen
class Capabilities:
    """What a store can and cannot do: declared, never sniffed."""

    durable: bool
    """An acknowledged write survives kill -9 and a power cut."""
    shared: bool
    """Several processes may use it at once."""
    transactions: bool
    """Records, outbox and the application's own tables can be written in one transaction."""
    outbox: bool = True
    """It keeps effects: `core/operations/outbox.py`."""
    one_writer: bool = False
    """While one writes, all others wait."""


@frozen
class Finding:
    """Something found out about a store, in a sentence.

    limit: what it cannot promise. refused: it is not used like this. error: it is used, and what is
    promised is not kept. unchecked: it could not be found out.
    """

    severity: Literal["limit", "refused", "error", "warning", "unchecked"]
    text: str


@runtime_checkable
class Examined(Protocol):
    """A backend that knows what to look for in its servers."""

    def examine(self) -> tuple[Finding, ...]: ...


class Store(Protocol):
    """The blocking colour."""

    def perform(self, op: StoreOperation[R], /) -> R:
        """One atomic step. Raises StoreUnavailable when no usable answer came."""
        ...


def performer(store: Store) -> Perform:
    """``store`` as the performer of a flow that asks nothing but a store."""

    def perform(op: FlowOperation[R]) -> R:
        if not isinstance(op, StoreOperation):
            raise TypeError(f"no store performs {op!r}")
        reply: R = store.perform(op)
        return reply

    return perform


class AsyncStore(Protocol):
    """The awaited colour, bound to the event loop it was made in."""

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        """The same. A future does as well as a coroutine, and is one frame less."""
        ...


class Transaction(Protocol):
    """A transaction on the store's database, for the application's writes and the record's."""

    @property
    def connection(self) -> Any:
        """What a handler writes with, in the colour of the thread that asks: a `sqlite3` or psycopg
        connection whose own commit and rollback are refused."""
        ...

    @property
    def session(self) -> Any:
        """The same as a SQLAlchemy Session, or AsyncSession in an event loop."""
        ...

    def perform(self, op: StoreOperation[R], /) -> R:
        """One step within the transaction: durable when it commits."""
        ...

    def savepoint(self) -> None:
        """What follows can be undone."""
        ...

    def undo(self) -> None:
        """Back to the savepoint."""
        ...

    def flush(self) -> None:
        """Write what a session still holds; raises the database's own error."""
        ...

    def commit(self) -> None:
        """StoreUnavailable with ``applied`` None when nobody can say whether it committed."""
        ...

    def roll_back(self) -> None:
        """Leave nothing, and give the connection back; after a commit it does nothing."""
        ...

    def sever(self, why: str) -> bool:
        """End it from any thread, under the hands of whoever uses it: nothing of it stays, its
        lock is free, and a commit is refused with ``why``. Once its end has begun it is left alone.
        False when it cannot be ended now: ask again.
        """
        ...


class AsyncTransaction(Protocol):
    """The same, awaited."""

    @property
    def connection(self) -> Any: ...

    @property
    def session(self) -> Any: ...

    async def perform(self, op: StoreOperation[R], /) -> R: ...

    async def savepoint(self) -> None: ...

    async def undo(self) -> None: ...

    async def flush(self) -> None: ...

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...

    def sever(self, why: str) -> bool: ...


@runtime_checkable
class Transactional(Protocol):
    """A backend whose database the application's own tables live in (`Capabilities`)."""

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        """Begin; None, holding nothing, when another transaction has the identity's lock.

        A server ends one that lies idle for ``limit`` seconds: its process may be stopped, or its
        machine gone, and nobody else could free the lock.
        """
        ...

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None: ...

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """What a commit in doubt came to: read after waiting for the identity's lock."""
        ...

    async def aascertain(self, identity: Identity) -> Found | NoRecord: ...


@runtime_checkable
class Backend(Protocol):
    """One place where records live."""

    @property
    def url(self) -> str:
        """Where it is, without password: safe to print."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def blocking(self) -> Store:
        """The store for threads of this process. Cheap; opens on the first ``perform``."""
        ...

    def awaited(self) -> AsyncStore:
        """The store for the running event loop. Cheap; opens on the first ``perform``."""
        ...

    def migrate(self) -> int:
        """Bring the schema up to date, safe when many nodes do so at once; returns its version."""
        ...

    def close(self) -> None:
        """Close what this process opened in the blocking colour. It may be used again after."""
        ...

    async def aclose(self) -> None:
        """Close what the running loop opened."""
        ...


# --- the clock of the stores whose clock is this machine's


def system_clock() -> Micros:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
