"""The way of every operation of one event loop: alone, or with others of its kind.

Each kind has one lane. Who finds it nearly idle goes at once, alone. Those who arrive while more is
under way queue up and travel together in the next statement; it leaves when the lane is empty and
the loop has run those whom the last answers woke, for they may ask next. A statement that takes
long gives up its place: a locked row or a silent connection holds up nobody who was not in the same
batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from semel.core.contract import StoreOperation
from semel.stores.sql.batches import (
    GRACE,
    LEADERS,
    PATIENCE,
    Again,
    Batch,
    Job,
    Queue,
    Slow,
)
from semel.stores.sql.errand import Verdict
from semel.stores.sql.kinds import Kind
from semel.stores.sql.plans import Rows, Statement

R = TypeVar("R")


class Pool(Protocol):
    """The connections of one event loop."""

    async def perform(
        self, op: StoreOperation[R], deadline: float, *, doubt: bool = False
    ) -> R: ...

    async def execute(self, statement: Statement, deadline: float) -> Rows: ...

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


class AwaitedJob(Job):
    """Its caller awaits a future."""

    __slots__ = ("future",)

    future: asyncio.Future[object]

    def withdrawn(self) -> bool:
        return self.future.done()

    def answer(self, reply: object) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


AwaitedBatch: TypeAlias = Batch[AwaitedJob]


class AwaitedLanes:
    """What a backend has for each event loop. ``timeout``: of an operation, in seconds."""

    def __init__(
        self,
        pool: Pool,
        kinds: Mapping[type[StoreOperation[Any]], Kind],
        verdict: Verdict,
        timeout: float,
    ) -> None:
        self._pool = pool
        self._timeout = timeout
        slow = Slow()
        self._lanes = {
            operation: AwaitedLane(kind, pool, verdict, slow) for operation, kind in kinds.items()
        }

    async def perform(self, op: StoreOperation[R]) -> R:
        deadline = monotonic() + self._timeout
        lane = self._lanes.get(type(op))
        if lane is None:
            return await self._pool.perform(op, deadline)
        return await lane.perform(op, deadline)

    async def aclose(self) -> None:
        """Wait for what is under way, until its deadline at most, and close every connection."""
        deadline = monotonic() + self._timeout
        for lane in self._lanes.values():
            await lane.drain(deadline)
        await self._pool.aclose()

    def abandon(self) -> None:
        self._pool.abandon()


class AwaitedLane:
    """The operations of one kind."""

    def __init__(self, kind: Kind, pool: Pool, verdict: Verdict, slow: Slow) -> None:
        self._kind = kind
        self._queue = Queue[AwaitedJob](kind)
        self._pool = pool
        self._verdict = verdict
        self._slow = slow
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._holders: set[Job | AwaitedBatch] = set()
        self._crowded = False
        self._due = False

    async def perform(self, op: StoreOperation[R], deadline: float) -> R:
        job = AwaitedJob(op, deadline)
        if job.identity in self._slow:
            return await self._pool.perform(op, deadline)
        if self._nearly_idle():
            return await self._lead(op, job)
        cells = self._kind.admit(op)
        if cells is None:
            return await self._pool.perform(op, deadline)
        job.cells = cells
        return await self._follow(op, job)

    async def drain(self, deadline: float) -> None:
        """Until nothing is queued or under way in a batch."""
        while (self._queue or self._running) and monotonic() < deadline:
            if self._running:
                await asyncio.wait(self._running, timeout=max(0.0, deadline - monotonic()))
            await asyncio.sleep(0)

    async def _lead(self, op: StoreOperation[R], job: AwaitedJob) -> R:
        """Alone, with others gathering behind."""
        overdue = self._hold(job)
        try:
            return await self._pool.perform(op, job.deadline)
        finally:
            self._release(job, overdue)

    async def _follow(self, op: StoreOperation[R], job: AwaitedJob) -> R:
        """With the next batch."""
        reply = await self._queued(job)
        if not isinstance(reply, Again):
            return cast("R", reply)
        self._slow.add(job)
        try:
            return await self._pool.perform(op, job.deadline, doubt=reply.doubt)
        finally:
            self._slow.discard(job)

    async def _queued(self, job: AwaitedJob) -> object:
        job.future = self._loop.create_future()
        timer = self._loop.call_later(job.deadline + GRACE - monotonic(), job.expire, self._verdict)
        self._queue.add(job)
        self._stir()
        try:
            return await job.future
        finally:
            timer.cancel()

    # ── batches ──────────────────────────────────────────────────────────────────────────────────

    def _stir(self) -> None:
        if self._queue and not self._holders and not self._due:
            self._due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._due = False
        batch = self._queue.take()
        self._crowded = len(batch) > 1
        if len(batch):
            task = self._loop.create_task(self._carry(batch, self._hold(batch)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry(self, batch: AwaitedBatch, overdue: asyncio.TimerHandle) -> None:
        """One batch to the server and back, whoever still waits for it."""
        try:
            await self._attempt(batch)
        except Exception as error:
            batch.fail(error, self._verdict)
        except BaseException:
            batch.send_again(doubt=True)
            raise
        finally:
            self._release(batch, overdue)

    async def _attempt(self, batch: AwaitedBatch) -> None:
        if len(batch) > 1:
            rows = await self._pool.execute(batch.statement(), batch.deadline)
            self._queue.put_back(batch.deliver(rows))
            return
        (job,) = batch
        try:
            job.answer(await self._pool.perform(job.op, job.deadline))
        except Exception as error:
            job.fail(error)

    # ── whose turn it is ─────────────────────────────────────────────────────────────────────────

    def _nearly_idle(self) -> bool:
        return len(self._holders) < LEADERS and not self._queue and not self._crowded

    def _hold(self, holder: Job | AwaitedBatch) -> asyncio.TimerHandle:
        self._holders.add(holder)
        return self._loop.call_later(PATIENCE, self._pass_by, holder)

    def _pass_by(self, holder: Job | AwaitedBatch) -> None:
        """It takes long: the next may start, and who wants one of the same records goes alone."""
        self._slow.add(holder)
        self._leave(holder)

    def _release(self, holder: Job | AwaitedBatch, overdue: asyncio.TimerHandle) -> None:
        overdue.cancel()
        self._slow.discard(holder)
        self._leave(holder)

    def _leave(self, holder: Job | AwaitedBatch) -> None:
        self._holders.discard(holder)
        self._stir()
