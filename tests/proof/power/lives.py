"""What happens to keys: lives of every kind, from several threads at once, and maintenance."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from semel.core import operations as ops
from semel.core.records import Fence, Identity, OnLapse, State
from semel.stores.sqlite import SqliteBackend
from semel.testing.contract.records import (
    ACT,
    LEASE,
    ORIGIN,
    PATIENCE,
    REQUEST,
    RETENTION,
    TOMBSTONE,
)
from tests.proof.power.books import Books, Promise
from tests.stores.harness import FakeClock

THREADS: Final = 4
LARGE: Final = 50_000


class Person:
    """Asks the store, one thing after the other, about keys that nobody else has."""

    def __init__(self, backend: SqliteBackend, books: Books, dice: random.Random) -> None:
        self._backend = backend
        self._store = backend.blocking()
        self._books = books
        self._dice = dice

    def live(self) -> None:
        life = self._dice.choice(self.lives)
        life(self, Identity(self._dice.randbytes(32)))

    def _fence(self) -> Fence:
        return Fence(self._dice.randbytes(16))

    def _ask(
        self,
        op: ops.StoreOperation[Any],
        identity: Identity,
        state: State,
        fence: Fence,
        snapshot: bytes | None = None,
    ) -> None:
        promise = Promise(identity, state, fence, snapshot)
        with self._books.act(type(op).__name__, identity, promise):
            reply = self._store.perform(op)
        assert isinstance(reply, ops.Claimed | ops.Accepted | ops.Applied), reply

    def _claim(self, identity: Identity, on_lapse: OnLapse = OnLapse.UNKNOWN) -> Fence:
        fence = self._fence()
        op = ops.Claim(identity, fence, "v1:abc", b"\0fields", ORIGIN, LEASE, on_lapse)
        self._ask(op, identity, State.IN_PROGRESS, fence)
        return fence

    def _complete(self, identity: Identity, fence: Fence, size: int | None = None) -> None:
        snapshot = self._dice.randbytes(self._dice.randint(10, 900) if size is None else size)
        op = ops.Complete(identity, fence, snapshot, RETENTION, TOMBSTONE)
        self._ask(op, identity, State.COMPLETED, fence, snapshot)

    # ── lives ────────────────────────────────────────────────────────────────────────────────────

    def paid(self, identity: Identity) -> None:
        fence = self._claim(identity)
        self._complete(identity, fence)
        with self._books.act("Claim again", identity):
            op = ops.Claim(identity, self._fence(), "v1:abc", b"\0fields", ORIGIN, LEASE)
            assert isinstance(self._store.perform(op), ops.Found)

    def large(self, identity: Identity) -> None:
        self._complete(identity, self._claim(identity), LARGE)

    def stopped(self, identity: Identity) -> None:
        self._claim(identity, self._dice.choice(list(OnLapse)))

    def refused(self, identity: Identity) -> None:
        seen, fence = self._claim(identity), self._fence()
        op = ops.Release(identity, seen, RETENTION, "refused")
        self._ask(op, identity, State.FAILED_RETRYABLE, seen)
        if self._dice.random() < 0.7:
            self._ask(ops.Retake(identity, seen, fence, LEASE), identity, State.IN_PROGRESS, fence)
            self._complete(identity, fence)

    def doubtful(self, identity: Identity) -> None:
        seen, fence = self._claim(identity), self._fence()
        self._ask(ops.Suspend(identity, seen, "timed out"), identity, State.UNKNOWN, seen)
        match self._dice.randrange(4):
            case 0:
                happened = ops.SettleHappened(
                    identity, seen, fence, b"it", RETENTION, TOMBSTONE, ACT
                )
                self._ask(happened, identity, State.COMPLETED, fence, b"it")
            case 1:
                absent = ops.SettleAbsent(identity, seen, fence, RETENTION, ACT)
                self._ask(absent, identity, State.FAILED_RETRYABLE, fence)
            case 2:
                buried = ops.EvictUnknown(identity, seen, fence, TOMBSTONE, ACT)
                self._ask(buried, identity, State.EXPIRED, fence)
            case _:
                pass

    def deferred(self, identity: Identity) -> None:
        seen, fence = self._fence(), self._fence()
        op = ops.Accept(identity, seen, "v1:abc", b"\0fields", ORIGIN, REQUEST, PATIENCE)
        self._ask(op, identity, State.PENDING, seen)
        if self._dice.random() < 0.7:
            self._ask(ops.Take(identity, seen, fence, LEASE), identity, State.IN_PROGRESS, fence)
            self._complete(identity, fence)

    def stepwise(self, identity: Identity) -> None:
        fence = self._claim(identity, OnLapse.RESUME)
        for _ in range(self._dice.randint(1, 4)):
            journal = self._dice.randbytes(self._dice.randint(10, 300))
            self._ask(ops.Advance(identity, fence, journal), identity, State.IN_PROGRESS, fence)
        self._ask(ops.Renew(identity, fence, LEASE), identity, State.IN_PROGRESS, fence)
        if self._dice.random() < 0.7:
            self._complete(identity, fence)

    def streamed(self, identity: Identity) -> None:
        fence = self._claim(identity)
        self._ask(ops.Open(identity, fence, b"open receipt"), identity, State.IN_PROGRESS, fence)
        self._complete(identity, fence)

    def evicted(self, identity: Identity) -> None:
        fence = self._claim(identity)
        self._complete(identity, fence)
        with self._books.act("Evict", identity):
            assert isinstance(self._store.perform(ops.Evict(identity, fence, ACT)), ops.Applied)

    def atomic(self, identity: Identity) -> None:
        """The application's row, the record and the effect: all of them or none."""
        fence, snapshot = self._fence(), self._dice.randbytes(200)
        promise = Promise(identity, State.COMPLETED, fence, snapshot)
        transaction = self._backend.begin(identity)
        assert transaction is not None
        with self._books.act("transaction", identity, promise):
            claim = ops.Claim(identity, fence, "v1:abc", b"\0fields", ORIGIN, LEASE)
            assert isinstance(transaction.perform(claim), ops.Claimed)
            transaction.savepoint()
            row = (identity, self._dice.randbytes(self._dice.randint(5, 6_000)))
            transaction.connection.execute("INSERT INTO ride VALUES (?, ?)", row)
            effect = ops.Enqueue(f"effect of {identity.hex()}", identity, "mail", b"payload")
            assert transaction.perform(effect).applied
            complete = ops.Complete(identity, fence, snapshot, RETENTION, TOMBSTONE)
            assert isinstance(transaction.perform(complete), ops.Applied)
            transaction.commit()

    def undone(self, identity: Identity) -> None:
        """Rolled back: nothing of it may ever be seen."""
        transaction = self._backend.begin(identity)
        assert transaction is not None
        with self._books.act("rolled back", identity):
            claim = ops.Claim(identity, self._fence(), "v1:abc", b"\0fields", ORIGIN, LEASE)
            transaction.perform(claim)
            row = (identity, self._dice.randbytes(6_000))
            transaction.connection.execute("INSERT INTO ride VALUES (?, ?)", row)
            transaction.roll_back()

    lives: tuple[Callable[[Person, Identity], None], ...] = (
        *(paid, paid, paid, atomic, atomic, stepwise, refused, doubtful, deferred, stopped),
        *(large, streamed, evicted, undone),
    )


class Town:
    """One store and the people around it, for some rounds."""

    def __init__(self, path: Path, books: Books, dice: random.Random, clock: FakeClock) -> None:
        self._path = path
        self._books = books
        self._dice = dice
        self._clock = clock
        self._backend = SqliteBackend(f"sqlite:///{path}", timeout=60, clock=clock)

    def found(self) -> None:
        """The application's own table."""
        transaction = self._backend.begin(None)
        assert transaction is not None
        transaction.connection.execute("CREATE TABLE IF NOT EXISTS ride (identity BLOB, note BLOB)")
        transaction.commit()

    def round(self, lives: int, interlude: str) -> None:
        """A reader that stays keeps the log from being begun anew."""
        reader = (
            sqlite3.connect(self._path, isolation_level=None) if "reader" in interlude else None
        )
        if reader is not None:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM semel_record").fetchone()
        self._live(lives)
        self._maintain()
        if reader is not None:
            reader.close()
        if "close" in interlude:
            self.close()
        elif "checkpoint" in interlude:
            self._checkpoint(interlude.split()[-1])

    def _begin_reading(self) -> sqlite3.Connection:
        """A reader that stays keeps the log from being begun anew."""
        reader = sqlite3.connect(self._path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM semel_record").fetchone()
        return reader

    def _live(self, lives: int) -> None:
        """All threads are there before one begins, so that commits are shared."""
        barrier = threading.Barrier(THREADS)
        seeds = [self._dice.random() for _ in range(THREADS)]

        def live(seed: float) -> None:
            person = Person(self._backend, self._books, random.Random(seed))
            barrier.wait(60)
            for _ in range(lives // THREADS):
                person.live()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(live, seeds))

    def _maintain(self) -> None:
        store, act = self._backend.blocking(), self._books.act
        fence = Fence(self._dice.randbytes(16))
        with act("Lead"):
            store.perform(ops.Lead("maintenance", fence, LEASE))
        with act("NoteEvent"):
            store.perform(ops.NoteEvent(f"source {self._dice.random()}", "event", RETENTION))
        with act("TakeEffects"):
            effects = store.perform(ops.TakeEffects(fence, ("mail",), 20, LEASE)).effects
        for effect in effects[:10]:
            with act("MarkDelivered"):
                store.perform(ops.MarkDelivered(effect.key, fence, "provider's", RETENTION))
        self._clock.travel(LEASE * self._dice.choice((1, 1, 40)))
        with act("Sweep"):
            store.perform(ops.Sweep(50))
        with act("Abandon"):
            store.perform(ops.Abandon(50, b"408"))
        with act("Reap"):
            store.perform(ops.Reap(50))

    def _checkpoint(self, mode: str) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        connection.close()

    def close(self) -> None:
        self._books.close()
        self._backend.close()
