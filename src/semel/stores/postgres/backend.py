"""What a ``postgresql://`` URL names."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar, overload

import psycopg

from semel.core.contract import Found, NoRecord, StoreOperation
from semel.core.model import Identity
from semel.stores.base import AsyncStore, AsyncTransaction, Capabilities, Store, Transaction
from semel.stores.holds import Holds
from semel.stores.postgres import migration
from semel.stores.postgres.awaited import AwaitedPool
from semel.stores.postgres.blocking import BlockingPool
from semel.stores.postgres.faults import verdict
from semel.stores.postgres.joined import AsyncJoinedStore, JoinedStore
from semel.stores.postgres.kinds import KINDS
from semel.stores.postgres.settings import parse
from semel.stores.postgres.transactions import TransactionPool
from semel.stores.postgres.transactions_awaited import AwaitedTransactions
from semel.stores.sql.awaited_lanes import AwaitedLanes
from semel.stores.sql.blocking_lanes import BlockingLanes

R = TypeVar("R")
_Pool = TypeVar("_Pool", bound="_Abandonable")

_Place: TypeAlias = tuple[int, asyncio.AbstractEventLoop]

CAPABILITIES: Final = Capabilities(durable=True, shared=True, transactions=True)


class PostgresBackend:
    """Records in PostgreSQL.

    pool_size: connections per process, and per event loop (10); as many again for transactions.
    timeout: how long an operation may take in all before `StoreUnavailable`; seconds (5).
    prepare: prepared statements; by default unless a pooler is noticed.
    migrate: bring the schema up to date on first use (off).

    Each may also stand in the URL's query, beside libpq's own options.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int | None = None,
        timeout: timedelta | float | None = None,
        prepare: bool | None = None,
        migrate: bool | None = None,
    ) -> None:
        options = {
            "pool_size": pool_size,
            "timeout": timeout,
            "prepare": prepare,
            "migrate": migrate,
        }
        self._settings = parse(url, options)
        # Keyed by process, so that a forked child finds nothing of its parent's. No lock, which a
        # fork could copy while it is held: dict.setdefault is atomic.
        self._blocking: dict[int, BlockingLanes] = {}
        self._awaited: dict[_Place, AwaitedLanes] = {}
        self._transactions: dict[int, TransactionPool] = {}
        self._awaited_transactions: dict[_Place, AwaitedTransactions] = {}
        self._holds = Holds()

    def __repr__(self) -> str:
        return f"PostgresBackend({self.url!r})"

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def blocking(self) -> Store:
        return _Blocking(self)

    def awaited(self) -> AsyncStore:
        return _Awaited(self)

    @overload
    def on(self, connection: psycopg.Connection[Any]) -> Store: ...

    @overload
    def on(self, connection: psycopg.AsyncConnection[Any]) -> AsyncStore: ...

    def on(
        self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
    ) -> Store | AsyncStore:
        """The same store inside the caller's own transaction, in the colour of the connection."""
        if isinstance(connection, psycopg.AsyncConnection):
            return AsyncJoinedStore(connection)
        return JoinedStore(connection)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────

    def begin(self, identity: Identity | None, limit: float | None = None) -> Transaction | None:
        """A transaction on the store's database; None when another one has the identity's lock.

        Its isolation level is READ COMMITTED: what follows the lock must see what came before it.
        """
        hold = self._holds.take(identity)
        return None if hold is None else self.transaction_pool().begin(identity, hold, limit)

    async def abegin(
        self, identity: Identity | None, limit: float | None = None
    ) -> AsyncTransaction | None:
        hold = self._holds.take(identity)
        if hold is None:
            return None
        return await self.awaited_transactions().begin(identity, hold, limit)

    def ascertain(self, identity: Identity) -> Found | NoRecord:
        """What a commit in doubt came to; StoreUnavailable while it is still under way."""
        return self.transaction_pool().ascertain(identity)

    async def aascertain(self, identity: Identity) -> Found | NoRecord:
        return await self.awaited_transactions().ascertain(identity)

    def migrate(self) -> int:
        return migration.migrate(self._settings)

    def close(self) -> None:
        if pool := self._blocking.pop(os.getpid(), None):
            pool.close()
        if transactions := self._transactions.pop(os.getpid(), None):
            transactions.close()

    async def aclose(self) -> None:
        if pool := self._awaited.pop(_place(), None):
            await pool.aclose()
        if transactions := self._awaited_transactions.pop(_place(), None):
            await transactions.aclose()

    def blocking_lanes(self) -> BlockingLanes:
        pid = os.getpid()
        lanes = self._blocking.get(pid)
        if lanes is None:
            pool, timeout = BlockingPool(self._settings), self._settings.timeout
            lanes = self._blocking.setdefault(pid, BlockingLanes(pool, KINDS, verdict, timeout))
        return lanes

    def awaited_lanes(self) -> AwaitedLanes:
        place = _place()
        lanes = self._awaited.get(place)
        if lanes is None:
            _tidy(self._awaited)
            pool, timeout = AwaitedPool(self._settings), self._settings.timeout
            lanes = self._awaited.setdefault(place, AwaitedLanes(pool, KINDS, verdict, timeout))
        return lanes

    def transaction_pool(self) -> TransactionPool:
        pid = os.getpid()
        pool = self._transactions.get(pid)
        return pool or self._transactions.setdefault(pid, TransactionPool(self._settings))

    def awaited_transactions(self) -> AwaitedTransactions:
        place = _place()
        pool = self._awaited_transactions.get(place)
        if pool is None:
            _tidy(self._awaited_transactions)
            made = AwaitedTransactions(self._settings)
            pool = self._awaited_transactions.setdefault(place, made)
        return pool


def _place() -> _Place:
    return os.getpid(), asyncio.get_running_loop()


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


def _tidy(pools: dict[_Place, _Pool]) -> None:
    """After loops that ended without closing what they had opened."""
    for other in [key for key in list(pools) if key[1].is_closed()]:
        if forgotten := pools.pop(other, None):
            forgotten.abandon()


class _Blocking:
    __slots__ = ("_backend",)

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend = backend

    def perform(self, op: StoreOperation[R], /) -> R:
        return self._backend.blocking_lanes().perform(op)


class _Awaited:
    __slots__ = ("_backend",)

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend = backend

    async def perform(self, op: StoreOperation[R], /) -> R:
        return await self._backend.awaited_lanes().perform(op)
