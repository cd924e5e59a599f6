"""Every place where a process can die or be stopped, counted and named.

A boundary lies before and after each operation of the store, each step of a transaction, each
effect and each answer. Nothing of this is in semel: a backend is wrapped. The wrapper can take a
guard out as well, for the controls (`WITHOUT`).
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import OnLapse, State

WITHOUT = {
    "fence": "a write believes in whatever fence the record has",
    "lapse": "a lease that is past frees its key",
    "durable": "an answer is sent before its record is written",
    "receipt": "a stream flows without its receipt",
}
"""The guards that can be taken out of a store, and what is then so."""

BACKGROUND = ("semel-keeper", "semel-leases", "semel-renews", "semel-maintenance")
"""Threads of semel's own."""


@dataclass(frozen=True)
class Fate:
    """What befalls a process, and where: by the number of the boundary or by its name."""

    at: int | str | None = None
    sign: int = signal.SIGKILL


class Boundaries:
    """Counts boundaries as they are reached, and sends the process its signal at one of them."""

    def __init__(self) -> None:
        self._fate = Fate()
        self._lock = threading.Lock()
        self._count = 0
        self._names: Counter[str] = Counter()
        self._met = self._sealed = False
        self.inside = 0
        """How many transactions are open here, and other things that somebody may wait for."""
        self.postponed: list[ops.Complete] = []
        """What is written only after its answer was sent: without "durable"."""

    def begin(self, fate: Fate, log: Path, role: str) -> Self:
        """From here on, in this process, which is in that role."""
        self._fate = fate
        self._log = appending(log)
        self._refusals = log.with_name("refused.jsonl")
        self._role = role
        return self

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Not to be stopped meanwhile."""
        with self._lock:
            self.inside += 1
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1

    def refused(self, op: ops.StoreOperation[Any]) -> None:
        """A write came too late: note it, for whoever counts the zombies."""
        line = {"pid": os.getpid(), "op": _label(op)}
        os.write(appending(self._refusals), json.dumps(line).encode() + b"\n")

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
        """Others would wait for a process that is stopped in a transaction, so it goes on first."""
        return self._fate.sign != signal.SIGSTOP or not self.inside


def appending(log: Path) -> int:
    """O_APPEND: lines of several processes never mix."""
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


FENCED = (ops.Advance, ops.Complete, ops.Open, ops.Release, ops.Renew, ops.Suspend)


def _label(op: ops.StoreOperation[Any]) -> str:
    return type(op).__name__


class Watched:
    """A store, a transaction or a backend whose every step is a boundary."""

    def __init__(self, inner: Any, at: Boundaries, without: str) -> None:
        self._inner = inner
        self._at = at
        self._without = without

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    _open = True

    def _over(self) -> None:
        if self._open:
            self._open = False
            self._at.inside -= 1

    def _altered(self, op: Any) -> Any:
        """The operation as it is without the guard; what is not to be performed now is no more."""
        if self._without == "lapse" and isinstance(op, ops.Claim):
            return replace(op, on_lapse=OnLapse.RELEASE)
        if self._without == "durable" and isinstance(op, ops.Complete):
            self._at.postponed.append(op)
            return None
        return None if self._without == "receipt" and isinstance(op, ops.Open) else op

    def _believes(self, op: Any) -> bool:
        return self._without == "fence" and isinstance(op, FENCED)

    def _replied(self, op: Any, reply: Any) -> Any:
        if isinstance(reply, ops.Lost) and isinstance(op, FENCED):
            self._at.refused(op)
        self._at.reach("after", _label(op))
        return reply


_PRETENDED = ops.Applied(State.COMPLETED, 0)


def _with_its_fence(op: Any, found: Any) -> Any:
    return replace(op, fence=found.record.fence) if isinstance(found, ops.Found) else op


class WatchedStore(Watched):
    def perform(self, op: Any) -> Any:
        self._at.reach("before", _label(op))
        if (altered := self._altered(op)) is None:
            return self._replied(op, _PRETENDED)
        if self._believes(op):
            altered = _with_its_fence(op, self._inner.perform(ops.Read(op.identity)))
        return self._replied(op, self._inner.perform(altered))


class AsyncWatchedStore(Watched):
    async def perform(self, op: Any) -> Any:
        self._at.reach("before", _label(op))
        if (altered := self._altered(op)) is None:
            return self._replied(op, _PRETENDED)
        if self._believes(op):
            altered = _with_its_fence(op, await self._inner.perform(ops.Read(op.identity)))
        return self._replied(op, await self._inner.perform(altered))


class WatchedTransaction(WatchedStore):
    def _step(self, name: str, *, last: bool = False) -> None:
        self._at.reach("before", name)
        getattr(self._inner, name)()
        if last:
            self._over()
        self._at.reach("after", name)

    def savepoint(self) -> None:
        self._step("savepoint")

    def undo(self) -> None:
        self._step("undo")

    def flush(self) -> None:
        self._step("flush")

    def commit(self) -> None:
        self._step("commit", last=True)

    def roll_back(self) -> None:
        self._step("roll_back", last=True)


class AsyncWatchedTransaction(AsyncWatchedStore):
    async def _step(self, name: str, *, last: bool = False) -> None:
        self._at.reach("before", name)
        await getattr(self._inner, name)()
        if last:
            self._over()
        self._at.reach("after", name)

    async def savepoint(self) -> None:
        await self._step("savepoint")

    async def undo(self) -> None:
        await self._step("undo")

    async def flush(self) -> None:
        await self._step("flush")

    async def commit(self) -> None:
        await self._step("commit", last=True)

    async def roll_back(self) -> None:
        await self._step("roll_back", last=True)


class WatchedBackend(Watched):
    """Takes a backend's place in its guard."""

    def blocking(self) -> Any:
        return WatchedStore(self._inner.blocking(), self._at, self._without)

    def awaited(self) -> Any:
        return AsyncWatchedStore(self._inner.awaited(), self._at, self._without)

    def on(self, connection: Any) -> Any:
        return WatchedStore(self._inner.on(connection), self._at, self._without)

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
        return kind(transaction, self._at, self._without)

    # Asked for by `isinstance(backend, Transactional)`, which looks past __getattr__.

    def ascertain(self, identity: Any) -> Any:
        self._at.reach("before", "ascertain")
        found = self._inner.ascertain(identity)
        self._at.reach("after", "ascertain")
        return found

    async def aascertain(self, identity: Any) -> Any:
        self._at.reach("before", "ascertain")
        found = await self._inner.aascertain(identity)
        self._at.reach("after", "ascertain")
        return found
