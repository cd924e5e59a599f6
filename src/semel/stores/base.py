"""The protocols of a store. `semel.stores` explains the rules behind them.

A `Backend` is what a store URL names. Making one does no I/O. It opens on first use, once per
process (and per event loop for the async store), and again in a forked child.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Literal, Protocol, TypeVar, cast, runtime_checkable

from semel.core.flow import Perform
from semel.core.frozen import frozen
from semel.core.operations.lists import RecordGroup
from semel.core.operations.maintenance import Work
from semel.core.operations.requests import FlowOperation, Found, NoRecord, StoreOperation
from semel.core.records import Case, Identity, Micros, OnLapse, Record, State
from semel.core.terms import Terms, route_of

R = TypeVar("R")

Clock = Callable[[], Micros]
"""Microseconds since 1970. Tests inject it into stores that use this machine's clock."""


def system_clock() -> Micros:
    """Microseconds since 1970, by this machine's clock."""
    return time.time_ns() // 1000


def due_at(record: Record, chosen: Micros | None) -> Micros | None:
    """When a record needs attention next: from a worker, the sweeper or the reaper.

    ``chosen``: the time set for a worker's retry or a probe; other states have their own.
    """
    times = (record.leased_until, record.expires_at, record.forget_at)
    return next_look(record.state, *times, chosen)


def next_look(
    state: State,
    leased_until: Micros | None,
    expires_at: Micros | None,
    forget_at: Micros | None,
    chosen: Micros | None,
) -> Micros | None:
    """The same from single columns. A record in progress is due when its lease ends, whatever the
    SQL stores' own column says: renewals do not write that column.
    """
    match state:
        case State.PENDING | State.UNKNOWN:
            return chosen
        case State.IN_PROGRESS:
            return leased_until
        case State.COMPLETED:
            return expires_at
        case State.FAILED_RETRYABLE | State.EXPIRED:
            return forget_at


def due_as(work: Work, case: Case, now: Micros) -> Micros | None:
    """When the record becomes this kind of work; None when it does not."""
    record, due = case.record, case.due_at
    match work:
        case Work.PENDING:
            # After its deadline only the abandoner may take it.
            waits = record.leased_until is not None and record.leased_until > now
            return due if record.state is State.PENDING and waits else None
        case Work.LAPSED:
            resumable = record.on_lapse is OnLapse.RESUME
            return due if record.state is State.IN_PROGRESS and resumable else None
        case Work.UNKNOWN:
            return due if record.state is State.UNKNOWN else None


def is_due(work: Work, case: Case, now: Micros) -> bool:
    due = due_as(work, case, now)
    return due is not None and due <= now


def record_groups(
    seen: Iterable[tuple[Terms | None, State, Micros]], since: Micros
) -> tuple[RecordGroup, ...]:
    """Records by route and state, from the terms, the state and the making of each."""
    made: dict[tuple[tuple[str, str] | None, State], list[Micros]] = {}
    for terms, state, created_at in seen:
        made.setdefault((route_of(terms), state), []).append(created_at)
    return tuple(
        RecordGroup(
            None if route is None else route[0],
            None if route is None else route[1],
            state,
            len(times),
            sum(each >= since for each in times),
            min(times),
            max(times),
        )
        for (route, state), times in made.items()
    )


CHECK_AGAIN: Final = 1.0
"""Seconds after which a connection asks its server again whether acknowledged writes are durable:
its settings can change while connections are open."""


@frozen
class Capabilities:
    """What a store can do. Each store declares it; nothing is guessed."""

    durable: bool
    """An acknowledged write survives kill -9 and a power cut."""
    shared: bool
    """Several processes may use it at once."""
    transactions: bool
    """Records, outbox and the application's own tables can be written in one transaction."""
    outbox: bool = True
    """It keeps effects (`core.operations.outbox`)."""
    one_writer: bool = False
    """While one transaction writes, all others wait."""
    threads: bool = True
    """Threads of semel's own may use it. Within Django's tests only the test's own thread may."""


@frozen
class Finding:
    """One thing that an examination found, in a sentence.

    limit: what the store cannot promise. refused: semel does not use a store like this. error: the
    store is in use and breaks a promise. unchecked: it could not be found out.
    """

    severity: Literal["limit", "refused", "error", "warning", "unchecked"]
    text: str


@runtime_checkable
class Examined(Protocol):
    """A backend that can examine its servers."""

    def examine(self) -> tuple[Finding, ...]: ...


class Store(Protocol):
    """A store for threads."""

    def perform(self, op: StoreOperation[R], /) -> R:
        """Carry out one atomic step. Raises StoreUnavailable when no usable answer came."""
        ...


def performer(store: Store) -> Perform:
    """``store`` as the performer of a flow whose operations are all for a store."""

    def perform(op: FlowOperation[R]) -> R:
        if not isinstance(op, StoreOperation):
            raise TypeError(f"no store performs {op!r}")
        reply: R = store.perform(op)
        return reply

    return perform


class AsyncStore(Protocol):
    """A store for the event loop it was made in."""

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        """The same. It may return a future instead of a coroutine, which saves a frame."""
        ...


class _AnyTransaction(Protocol):
    """What a transaction has in both colours."""

    @property
    def connection(self) -> Any:
        """The connection given to the handler: of `sqlite3`, psycopg or PyMySQL, an async one in an
        event loop. Its own commit and rollback are refused."""
        ...

    @property
    def session(self) -> Any:
        """The same as a SQLAlchemy Session; in an event loop an AsyncSession."""
        ...

    def sever(self, why: str) -> bool:
        """End the transaction from any thread, while another uses it. It is undone, its lock is
        free, and a later commit is refused with ``why``. A transaction whose end has begun is left
        alone. False when it cannot be ended now: try again.
        """
        ...


class Transaction(_AnyTransaction, Protocol):
    """A transaction on the store's database, for the application's writes and the record's."""

    def perform(self, op: StoreOperation[R], /) -> R:
        """Carry out one step in the transaction; it is durable once the transaction commits."""
        ...

    def savepoint(self) -> None:
        """Mark the place that `undo` goes back to."""
        ...

    def undo(self) -> None:
        """Go back to the savepoint."""
        ...

    def flush(self) -> None:
        """Write what a session has not sent yet; raises the database's own error."""
        ...

    def commit(self) -> None:
        """Commit. StoreUnavailable with ``applied`` None: it is in doubt whether it committed."""
        ...

    def roll_back(self) -> None:
        """Undo everything and give the connection back; after a commit it does nothing."""
        ...


class AsyncTransaction(_AnyTransaction, Protocol):
    """A `Transaction` for event loops."""

    async def perform(self, op: StoreOperation[R], /) -> R: ...

    async def savepoint(self) -> None: ...

    async def undo(self) -> None: ...

    async def flush(self) -> None: ...

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...


@runtime_checkable
class Transactional(Protocol):
    """A backend whose database can also hold the application's tables (`Capabilities`)."""

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        """Begin; None, holding nothing, when another transaction has the identity's lock.

        A server ends a transaction that is idle for ``limit`` seconds: when a process stops or its
        machine is gone, nobody else could free the lock.
        """
        ...

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None: ...

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """Read the outcome of a commit in doubt, after waiting for the identity's lock."""
        ...

    async def aascertain(self, identity: Identity) -> Found | NoRecord: ...


@runtime_checkable
class Backend(Protocol):
    """One place where records live."""

    @property
    def url(self) -> str:
        """The store's address without its password, safe to print."""
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
        """Bring the schema up to date and return its version. Many nodes may do so at once."""
        ...

    def close(self) -> None:
        """Close what this process opened for threads. The backend may be used again."""
        ...

    async def aclose(self) -> None:
        """Close what the running loop opened."""
        ...


class PrintableBackend:
    """Prints as its class and its address, which has no password."""

    url: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


@runtime_checkable
class FailsOver(Protocol):
    """A backend whose server can be replaced by one that lacks what was acknowledged last."""

    def on_failover(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener`` when that was seen, with the addresses of both."""
        ...


class BackendWrapper:
    """A backend around another: it forwards everything that a subclass does not change.

    It has all methods of a transactional backend; `capabilities` says which of them work.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Forward what only some backends have."""
        if name == "inner":  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def blocking(self) -> Store:
        return self.inner.blocking()

    def awaited(self) -> AsyncStore:
        return self.inner.awaited()

    def examine(self) -> tuple[Finding, ...]:
        return self.inner.examine() if isinstance(self.inner, Examined) else ()

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        return cast("Transactional", self.inner).begin(identity, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        return await cast("Transactional", self.inner).abegin(identity, limit)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        return cast("Transactional", self.inner).ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await cast("Transactional", self.inner).aascertain(identity)

    def migrate(self) -> int:
        return self.inner.migrate()

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()
