"""The way of every operation of a process's threads: alone, or with others of its kind.

As in an event loop (`awaited_lanes.py`), without a thread of its own: who finds a lane nearly idle
goes at once, alone. Those who come while more is under way wait; when it is done, the first of them
carries all who wait to the server, in one statement, and tells them. A statement that takes long
gives up its place, as soon as one who waits behind it notices.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, cast

from semel.core.operations.requests import StoreOperation
from semel.stores.sql.batch_columns import BIG, Kind
from semel.stores.sql.batching import (
    GRACE,
    LEADERS,
    PATIENCE,
    Again,
    Batch,
    Job,
    Queue,
    Slow,
)
from semel.stores.sql.plans import Rows, Statement
from semel.stores.sql.statement_retry import Verdict

R = TypeVar("R")

_CARRY: Final = object()


class Pool(Protocol):
    """The connections of a process's threads."""

    def perform(self, op: StoreOperation[R], deadline: float, *, doubt: bool = False) -> R: ...

    def execute(self, statement: Statement, deadline: float) -> Rows: ...

    def close(self) -> None: ...


class ThreadJob(Job):
    """Its caller waits for mail: a reply, an error, or the word that it is to carry the others."""

    __slots__ = ("gone", "mail")

    def __init__(self, op: StoreOperation[object], deadline: float, weight: int) -> None:
        super().__init__(op, deadline, weight)
        self.mail: SimpleQueue[object] = SimpleQueue()
        self.gone = False

    def withdrawn(self) -> bool:
        return self.gone

    def answer(self, reply: object) -> None:
        self.mail.put(reply)

    def fail(self, error: Exception) -> None:
        self.mail.put(_Failed(error))

    def send_alone(self, again: Again) -> None:
        self.mail.put(again)


class _Failed:
    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class BlockingLanes:
    """What a backend has for the threads of a process. ``timeout``: of an operation, in seconds."""

    def __init__(
        self,
        pool: Pool,
        kinds: Mapping[type[StoreOperation[Any]], Kind],
        verdict: Verdict,
        timeout: float,
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        lock, slow = threading.Lock(), Slow()
        self._lanes = {
            operation: BlockingLane(kind, pool, verdict, lock, slow)
            for operation, kind in kinds.items()
        }

    def perform(self, op: StoreOperation[R]) -> R:
        deadline = monotonic() + self._timeout
        lane = self._lanes.get(type(op))
        if lane is None:
            return self._pool.perform(op, deadline)
        return lane.perform(op, deadline)

    def close(self) -> None:
        self._pool.close()


class BlockingLane:
    """The operations of one kind. ``lock`` and ``slow`` are those of all lanes."""

    def __init__(
        self, kind: Kind, pool: Pool, verdict: Verdict, lock: threading.Lock, slow: Slow
    ) -> None:
        self._kind = kind
        self._queue = Queue[ThreadJob](kind)
        self._pool = pool
        self._verdict = verdict
        self._lock = lock
        self._slow = slow
        self._holders: dict[Job | Batch[ThreadJob], float] = {}
        """Who is under way, and since when."""
        self._carrier: ThreadJob | None = None
        """Who was told to carry the next batch, and has not begun."""
        self._crowded = False

    def perform(self, op: StoreOperation[R], deadline: float) -> R:
        job = ThreadJob(op, deadline, self._kind.weight(op))
        with self._lock:
            if job.identity in self._slow.identities:
                way = self._alone
            elif self._nearly_idle():
                self._holders[job] = monotonic()
                way = self._lead
            elif job.weight > BIG:
                way = self._alone
            else:
                self._queue.add(job)
                self._stir()
                way = self._follow
        return cast("R", way(job))

    # ── three ways ───────────────────────────────────────────────────────────────────────────────

    def _alone(self, job: ThreadJob) -> object:
        return self._pool.perform(job.op, job.deadline)

    def _lead(self, job: ThreadJob) -> object:
        """Alone, with others gathering behind."""
        try:
            return self._pool.perform(job.op, job.deadline)
        finally:
            self._release(job)

    def _follow(self, job: ThreadJob) -> object:
        """With the next batch."""
        try:
            reply = self._wait(job)
        finally:
            self._leave(job)
        if not isinstance(reply, Again):
            return reply
        with self._lock:
            self._slow.add(job)
        try:
            return self._pool.perform(job.op, job.deadline, doubt=reply.doubt)
        finally:
            with self._lock:
                self._slow.discard(job)

    def _wait(self, job: ThreadJob) -> object:
        while True:
            left = job.deadline + GRACE - monotonic()
            if left <= 0:
                job.expire(self._verdict)
            try:
                said = job.mail.get(timeout=max(0.0, min(left, PATIENCE)))
            except Empty:
                self._pass_by()
                continue
            if isinstance(said, _Failed):
                raise said.error
            if said is not _CARRY:
                return said
            self._carry()

    # ── batches ──────────────────────────────────────────────────────────────────────────────────

    def _carry(self) -> None:
        """Those who wait, to the server and back; who carries them is mostly one of them."""
        with self._lock:
            self._carrier = None
            batch = self._queue.take()
            self._crowded = len(batch) > 1
            if len(batch):
                self._holders[batch] = monotonic()
        try:
            self._attempt(batch)
        except Exception as error:
            batch.fail(error, self._verdict)
        except BaseException:
            batch.send_again(doubt=True)
            raise
        finally:
            self._release(batch)

    def _attempt(self, batch: Batch[ThreadJob]) -> None:
        if len(batch) > 1:
            statement = batch.statement()
            if statement is not None:
                left = batch.deliver(self._pool.execute(statement, batch.deadline))
                with self._lock:
                    self._queue.put_back(left)
            return
        for job in batch:
            try:
                job.answer(self._pool.perform(job.op, job.deadline))
            except Exception as error:
                job.fail(error)

    # ── whose turn it is ─────────────────────────────────────────────────────────────────────────

    def _nearly_idle(self) -> bool:
        return len(self._holders) < LEADERS and not self._queue and not self._crowded

    def _stir(self) -> None:
        """Tell one who waits to carry the others, when nobody is under way. With the lock."""
        if self._holders or self._carrier is not None:
            return
        self._carrier = self._queue.first()
        if self._carrier is not None:
            self._carrier.mail.put(_CARRY)

    def _release(self, holder: Job | Batch[ThreadJob]) -> None:
        with self._lock:
            self._slow.discard(holder)
            self._holders.pop(holder, None)
            self._stir()

    def _pass_by(self) -> None:
        """What takes long gives up its place; who wants one of the same records goes alone."""
        overdue = monotonic() - PATIENCE
        with self._lock:
            for holder in [each for each, since in self._holders.items() if since <= overdue]:
                self._slow.add(holder)
                del self._holders[holder]
            self._stir()

    def _leave(self, job: ThreadJob) -> None:
        """It waits no longer; if it was to carry the others, another does."""
        with self._lock:
            job.gone = True
            if self._carrier is job:
                self._carrier = None
                self._stir()
