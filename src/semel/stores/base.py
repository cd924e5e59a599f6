"""What every store is: one verb, in two colours, over one place where records live.

A `Backend` is what a store URL names. Making one does no I/O; it opens on first use, once per
process (and per event loop for the awaited colour), and again in a forked child.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from semel.core.contract import Operation, StoreOperation
from semel.core.flow import Perform
from semel.core.frozen import frozen
from semel.core.model import Micros

R = TypeVar("R")

Clock = Callable[[], Micros]
"""Microseconds since 1970; injected where the store's clock is this machine's (memory, SQLite)."""


@frozen
class Capabilities:
    """What a store can and cannot do: declared, never sniffed."""

    durable: bool
    """An acknowledged write survives kill -9 and a power cut."""
    shared: bool
    """Several processes may use it at once."""
    joins_transactions: bool
    """``on(connection)`` works inside the application's own transaction."""


class Store(Protocol):
    """The blocking colour."""

    def perform(self, op: StoreOperation[R], /) -> R:
        """One atomic step. Raises StoreUnavailable when no usable answer came."""
        ...


def performer(store: Store) -> Perform:
    """``store`` as the performer of a flow that asks nothing but a store."""

    def perform(op: Operation[R]) -> R:
        if not isinstance(op, StoreOperation):
            raise TypeError(f"no store performs {op!r}")
        reply: R = store.perform(op)
        return reply

    return perform


class AsyncStore(Protocol):
    """The awaited colour, bound to the event loop it was made in."""

    async def perform(self, op: StoreOperation[R], /) -> R: ...


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
