"""Store operations for workers: who looks after the records, and when they were last seen.

Each process that does work in the background says so at its usual rhythm. Nothing depends on it:
it is for people who want to know whether anybody is there.
"""

from __future__ import annotations

from typing import Final

from semel.core.frozen import value
from semel.core.operations.requests import StoreOperation
from semel.core.records import Micros

WORKER_MEMORY: Final[Micros] = 86_400_000_000
"""How long a worker that fell silent is still listed: a day."""


@value
class WorkerInfo:
    """One worker: a process, in one role.

    ``id``: random, made when it starts. ``does``: its loops, such as ``deliver, run``. ``host``: a
    digest of the machine's name. ``leading``: it is the one of many that does the work.
    """

    id: str
    application: str
    role: str
    does: str
    host: str
    pid: int
    version: str
    leading: bool = False


@value
class WorkerSeen:
    """A worker, when it was last heard of, and until when it should be heard of again."""

    worker: WorkerInfo
    seen_at: Micros
    until: Micros


@value
class WorkersSeen:
    """Workers, those last seen first."""

    workers: tuple[WorkerSeen, ...]
    now: Micros


@value
class Beaten:
    """It is on record."""

    now: Micros


@value
class Beat(StoreOperation[Beaten]):
    """A worker is there, and comes again within ``lease``. None: it ends, and is forgotten."""

    worker: WorkerInfo
    lease: Micros | None


@value
class ListWorkers(StoreOperation[WorkersSeen]):
    """The workers that were last seen."""

    limit: int
