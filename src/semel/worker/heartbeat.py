"""Heartbeats: a process that works in the background says that it is there, at its usual rhythm.

Operators see from it how many workers there are, which one leads, and when each was last seen.
Nothing depends on it: a beat that fails is left out.
"""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from semel.core.operations.workers import Beat, WorkerInfo
from semel.errors import StoreError
from semel.runtime.leases import new_fence
from semel.worker.worker import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.guard import Guard

WORKER, EMBEDDED = "worker", "embedded"
"""A process of ``semel worker``; a thread in a process of the application."""
_MISSED: Final = 4
"""How many beats a worker may miss before it counts as gone."""
_SHORTEST: Final = 15.0
"""Seconds that a worker may be silent at least: a round may take a while."""


def version_here() -> str:
    """The version of semel that this process runs."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load

    try:
        return version("semel")
    except PackageNotFoundError:  # from a clone that is not installed
        return "unknown"


class Heartbeat:
    """What one worker says of itself. ``every``: seconds between two beats, more or less."""

    def __init__(self, guard: Guard, role: str, does: Sequence[str], every: float) -> None:
        self._id, self._application, self._role = new_fence().hex(), guard.name, role
        self._does, self._version = ", ".join(does), version_here()
        # It tells machines apart without naming them.
        self._host = sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:12]
        self._lease = int(max(_SHORTEST, every * _MISSED) * 1_000_000)

    def beat(self, *, leading: bool = False, last: bool = False) -> Beat:
        """It is there. ``last``: it ends, and nobody need miss it."""
        texts = self._id, self._application, self._role, self._does, self._host
        info = WorkerInfo(*texts, os.getpid(), self._version, leading)
        return Beat(info, None if last else self._lease)


class HeartbeatLoop:
    """The heartbeat of ``semel worker``, as one of its loops."""

    def __init__(self, guard: Guard, does: Sequence[str], every: float) -> None:
        self._store = guard.backend.awaited
        self._heartbeat = Heartbeat(guard, WORKER, does, every)
        self._every = every

    async def run_once(self) -> Round:
        await self._store().perform(self._heartbeat.beat())
        return Round(0, self._every)

    async def aclose(self) -> None:
        try:
            await self._store().perform(self._heartbeat.beat(last=True))
        except StoreError:
            return  # it is forgotten when its time is over
