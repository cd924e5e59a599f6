"""Every place where a process of the example can die or be stopped, counted and named.

A boundary lies before and after each operation of the store, each step of a transaction, each
request to the provider and each answer. Nothing of this is in semel: a backend is wrapped.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.core.contract import (
    Advance,
    Complete,
    Found,
    Read,
    Release,
    Renew,
    StoreOperation,
    Suspend,
)
from semel.core.frozen import replace

BACKGROUND = ("semel-attendant", "semel-maintenance")
"""Threads of semel's own."""


@dataclass(frozen=True)
class Fate:
    """What befalls a process, and where: by the number of the boundary or by its name."""

    at: int | str | None = None
    sign: int = signal.SIGKILL


class Boundaries:
    """Counts boundaries as they are reached, and sends the process its signal at one of them."""

    def __init__(self, fate: Fate, log: Path, role: str = "") -> None:
        self._fate = fate
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._role = role
        self._lock = threading.Lock()
        self._count = 0
        self._names: Counter[str] = Counter()
        self._met = self._sealed = False
        self.inside = 0
        """How many transactions are open here."""

    def reach(self, when: str, what: str) -> None:
        with self._lock:
            number = self._number()
            self._names[f"{when} {what}"] += 1
            name = f"{when} {what} {self._names[f'{when} {what}']}"
            self._met = self._met or (self._fate.at is not None and self._fate.at in (number, name))
            if self._met and not self._sealed and self._fits():
                self._sealed = True
                line = {"role": self._role, "at": f"{when} {what}", "sign": int(self._fate.sign)}
                os.write(self._log, json.dumps(line).encode() + b"\n")
                # To this very thread, which then does not get one step further; the whole
                # process stops or dies with it.
                signal.pthread_kill(threading.get_ident(), self._fate.sign)

    def _number(self) -> int | None:
        """None in the background: whether a lease was renewed meanwhile must not shift the rest."""
        if threading.current_thread().name.startswith(BACKGROUND):
            return None
        self._count += 1
        return self._count - 1

    def _fits(self) -> bool:
        """A database waits for a process that is stopped in a transaction, so it goes on first."""
        return self._fate.sign != signal.SIGSTOP or not self.inside


class Watched:
    """A store, a transaction or a backend whose every step is a boundary."""

    def __init__(self, inner: Any, at: Boundaries, fenceless: bool) -> None:
        self._inner = inner
        self._at = at
        self._fenceless = fenceless

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    _open = True

    def _over(self) -> None:
        if self._open:
            self._open = False
            self._at.inside -= 1


FENCED = (Advance, Complete, Release, Renew, Suspend)


def _label(op: StoreOperation[Any]) -> str:
    return type(op).__name__


class WatchedStore(Watched):
    def perform(self, op: Any) -> Any:
        self._at.reach("before", _label(op))
        reply = self._inner.perform(self._unfenced(op))
        self._at.reach("after", _label(op))
        return reply

    def _unfenced(self, op: Any) -> Any:
        """The positive control: a write that believes in whatever fence the record has."""
        if self._fenceless and isinstance(op, FENCED):
            found = self._inner.perform(Read(op.identity))
            if isinstance(found, Found):
                return replace(op, fence=found.record.fence)
        return op


class AsyncWatchedStore(Watched):
    async def perform(self, op: Any) -> Any:
        self._at.reach("before", _label(op))
        if self._fenceless and isinstance(op, FENCED):
            found = await self._inner.perform(Read(op.identity))
            if isinstance(found, Found):
                op = replace(op, fence=found.record.fence)
        reply = await self._inner.perform(op)
        self._at.reach("after", _label(op))
        return reply


class WatchedTransaction(WatchedStore):
    def commit(self) -> None:
        self._at.reach("before", "commit")
        self._inner.commit()
        self._over()
        self._at.reach("after", "commit")

    def roll_back(self) -> None:
        self._inner.roll_back()
        self._over()


class AsyncWatchedTransaction(AsyncWatchedStore):
    async def commit(self) -> None:
        self._at.reach("before", "commit")
        await self._inner.commit()
        self._over()
        self._at.reach("after", "commit")

    async def roll_back(self) -> None:
        await self._inner.roll_back()
        self._over()


class WatchedBackend(Watched):
    """Takes a backend's place in its guard."""

    def blocking(self) -> Any:
        return WatchedStore(self._inner.blocking(), self._at, self._fenceless)

    def awaited(self) -> Any:
        return AsyncWatchedStore(self._inner.awaited(), self._at, self._fenceless)

    def on(self, connection: Any) -> Any:
        return WatchedStore(self._inner.on(connection), self._at, self._fenceless)

    def begin(self, identity: Any, limit: float | None = None) -> Any:
        self._at.reach("before", "begin")
        transaction = self._inner.begin(identity, limit)
        return self._begun(transaction, WatchedTransaction)

    async def abegin(self, identity: Any, limit: float | None = None) -> Any:
        self._at.reach("before", "begin")
        transaction = await self._inner.abegin(identity, limit)
        return self._begun(transaction, AsyncWatchedTransaction)

    def _begun(self, transaction: Any, kind: type[Watched]) -> Any:
        if transaction is None:
            return None
        self._at.inside += 1
        self._at.reach("after", "begin")
        return kind(transaction, self._at, self._fenceless)

    # Asked for by `isinstance(backend, Transactional)`, which looks past __getattr__.

    def ascertain(self, identity: Any) -> Any:
        return self._inner.ascertain(identity)

    async def aascertain(self, identity: Any) -> Any:
        return await self._inner.aascertain(identity)
