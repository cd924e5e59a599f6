"""Every place where a process can die or be stopped, counted and named.

A boundary lies before and after each operation of the store, each step of a transaction, each
effect and each answer. `semel.testing.watched` tells of them; here a signal is sent at one. The
stores can be had without one of their guards as well, for the controls (`WITHOUT`).
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
from typing import Any, Self, cast

from semel.core import operations as ops
from semel.core.frozen import replace
from semel.core.records import OnLapse, State
from semel.testing import watched
from semel.testing.watched import Step, WatchedSteps, in_background

WITHOUT = {
    "fence": "a write believes in whatever fence the record has",
    "lapse": "a lease that is past frees its key",
    "durable": "an answer is sent before its record is written",
    "receipt": "a stream flows without its receipt",
}
"""The guards that can be taken out of a store, and what is then so."""


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
        self.without = ""
        """The guard that is taken out of the store."""
        self._open: set[WatchedSteps] = set()
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

    def before(self, step: Step) -> None:
        self.reach("before", step.name)

    def after(self, step: Step, reply: object) -> None:
        within = step.within
        if within is not None and step.name == "begin":
            self._open.add(within)
            self.inside += 1
        elif within in self._open and step.name in ("commit", "roll_back"):
            self._open.discard(within)
            self.inside -= 1
        if isinstance(reply, ops.Lost) and isinstance(step.op, FENCED):
            self._note_refusal(step)
        self.reach("after", step.name)

    def _note_refusal(self, step: Step) -> None:
        """A write came too late: note it, for whoever counts the zombies."""
        line = {"pid": os.getpid(), "op": step.name}
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
        if in_background():
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


def _without(store: WatchedSteps) -> str:
    """The guard that is taken out."""
    boundaries: Any = store.watcher
    return str(boundaries.without)


def _altered(store: WatchedSteps, op: Any) -> Any:
    """The operation as it is without the guard; what is not to be performed now is no more."""
    boundaries, without = cast("Boundaries", store.watcher), _without(store)
    if without == "lapse" and isinstance(op, ops.Claim):
        return replace(op, on_lapse=OnLapse.RELEASE)
    if without == "durable" and isinstance(op, ops.Complete):
        boundaries.postponed.append(op)
        return None
    return None if without == "receipt" and isinstance(op, ops.Open) else op


def _believes(store: WatchedSteps, op: Any) -> bool:
    return _without(store) == "fence" and isinstance(op, FENCED)


_PRETENDED = ops.Applied(State.COMPLETED, 0)


def _with_its_fence(op: Any, found: Any) -> Any:
    return replace(op, fence=found.record.fence) if isinstance(found, ops.Found) else op


class _Store(watched.WatchedStore):
    def ask(self, op: Any) -> Any:
        if (altered := _altered(self, op)) is None:
            return _PRETENDED
        if _believes(self, op):
            altered = _with_its_fence(op, super().ask(ops.Read(op.identity)))
        return super().ask(altered)


class _AsyncStore(watched.AsyncWatchedStore):
    async def ask(self, op: Any) -> Any:
        if (altered := _altered(self, op)) is None:
            return _PRETENDED
        if _believes(self, op):
            altered = _with_its_fence(op, await super().ask(ops.Read(op.identity)))
        return await super().ask(altered)


class _Transaction(_Store, watched.WatchedTransaction): ...


class _AsyncTransaction(_AsyncStore, watched.AsyncWatchedTransaction): ...


class WatchedBackend(watched.WatchedBackend):
    """Takes a backend's place in its guard; ``without`` one of the guards."""

    stores = (_Store, _AsyncStore)
    transactions = (_Transaction, _AsyncTransaction)

    def __init__(self, inner: Any, at: Boundaries, without: str) -> None:
        super().__init__(inner, at)
        at.without = without
