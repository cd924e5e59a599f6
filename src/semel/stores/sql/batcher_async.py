"""When operations of one event loop are sent: alone at once, or in the next batch of their kind.

`semel.stores.sql` explains batching. In an event loop a queued caller gets a future, and callbacks
carry the batch: no operation of a batch has a task, a coroutine or a timer of its own. One timer of
the kind serves all its deadlines. The next batch leaves one turn of the loop after the last answer,
because the callers that were just answered may ask next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

from semel.core.operations.requests import StoreOperation
from semel.stores.sql.batches import (
    GRACE,
    MAX_BATCHED,
    SLOW_AFTER,
    Batch,
    BatchJob,
    BatchKind,
    KindState,
    SendAlone,
    SlowIdentities,
)
from semel.stores.sql.pool_async import AsyncConnectionPool
from semel.stores.sql.rows import Rows

R = TypeVar("R")

_A_TICK: Final = 0.001
"""Seconds by which a loop's clock may be behind its timers."""


class AsyncBatchJob(BatchJob):
    """A job whose caller awaits a future."""

    __slots__ = ("batcher", "future")

    def __init__(self, op: Any, deadline: float, size: int, batcher: AsyncKindBatcher) -> None:
        # Without super(): one is made for every operation under load.
        self.op = op
        self.identity = op.identity
        self.deadline = deadline
        self.size = size
        self.taken = False
        self.batcher = batcher
        self.future: asyncio.Future[Any] = batcher.loop.create_future()

    def abandoned(self) -> bool:
        return self.future.done()

    def tell(self, message: object) -> None:
        if self.future.done():
            return
        if isinstance(message, SendAlone):
            self.batcher.send_alone(self, doubt=message.doubt, slow=True)
        elif isinstance(message, BaseException):
            self.future.set_exception(message)
        else:
            self.future.set_result(message)


AsyncBatch: TypeAlias = Batch[AsyncBatchJob]


class AsyncBatcher:
    """What a backend has for each event loop."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self.pool = pool
        slow = SlowIdentities()
        self._batchers = {
            operation: AsyncKindBatcher(kind, pool, slow) for operation, kind in pool.KINDS.items()
        }

    def perform(self, op: StoreOperation[R]) -> Awaitable[R]:
        batcher = self._batchers.get(type(op))
        return (batcher or self.pool).perform(op, self.pool.deadline())

    async def aclose(self) -> None:
        """Wait for what is in flight, until its deadline at most, and close every connection."""
        deadline = self.pool.deadline()
        for batcher in self._batchers.values():
            await batcher.drain(deadline)
        await self.pool.aclose()

    def abandon(self) -> None:
        self.pool.abandon()


class AsyncKindBatcher(KindState[AsyncBatchJob]):
    """The operations of one kind."""

    def __init__(
        self, kind: BatchKind, pool: AsyncConnectionPool[Any], slow: SlowIdentities
    ) -> None:
        super().__init__(kind, slow)
        self._pool = pool
        self.loop = asyncio.get_running_loop()
        self._running: set[asyncio.Future[Any]] = set()
        """Tasks and futures that nobody else holds on to."""
        self._sent: set[AsyncBatch] = set()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def perform(self, op: Any, deadline: float) -> Awaitable[Any]:
        if op.identity in self._slow.identities:
            return self._pool.perform(op, deadline)
        if not self._batching and self._nearly_idle():
            return self._perform_at_once(op, deadline)
        size = self._kind.size(op)
        if size > MAX_BATCHED:
            return self._pool.perform(op, deadline)
        job = AsyncBatchJob(op, deadline, size, self)
        self._queue.add(job)
        if deadline < self._timer_at:
            self._set_timer(deadline + GRACE)
        if not self._in_flight and not self._scheduled:
            self._start_next()
        return job.future

    async def drain(self, deadline: float) -> None:
        """Wait until nothing is queued or in flight in a batch."""
        while (self._queue or self._running) and monotonic() < deadline:
            if self._running:
                await asyncio.wait(self._running, timeout=max(0.0, deadline - monotonic()))
            await asyncio.sleep(0)

    async def _perform_at_once(self, op: Any, deadline: float) -> Any:
        """Alone, while others queue behind it; unless others came first since it was asked for."""
        if not self._nearly_idle():
            return await self.perform(op, deadline)
        single = BatchJob(op, deadline)
        self._begin(single)
        try:
            return await self._pool.perform(op, deadline)
        finally:
            self._finish(single)

    # ── jobs that are sent alone, and batches ────────────────────────────────────────────────────

    def send_alone(self, job: AsyncBatchJob, *, doubt: bool, slow: bool) -> None:
        """In a task, which ends when the caller leaves: what was not sent is then not done.

        ``slow``: a batch did not answer it; until it is answered, its identity is slow.
        """
        if slow:
            self._slow.add(job)
        task = self.loop.create_task(self._pool.perform(job.op, job.deadline, doubt=doubt))
        self._running.add(task)
        task.add_done_callback(partial(self._single_done, job))
        job.future.add_done_callback(lambda future: future.cancelled() and task.cancel())

    def _single_done(self, job: AsyncBatchJob, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._finish(job)
        if task.cancelled():
            job.future.cancel()
        else:
            job.tell(task.exception() or task.result())

    def _start_next(self) -> None:
        if self._queue and not self._in_flight and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._scheduled = False
        batch = self._queue.take()
        self._batching = len(batch.jobs) > 1
        if self._batching:
            self._send_batch(batch)
        else:
            for job in batch.jobs:
                self._begin(job)
                self.send_alone(job, doubt=False, slow=False)

    def _send_batch(self, batch: AsyncBatch) -> None:
        try:
            statement = batch.statement()
            if statement is None:
                self._start_next()
                return
            answer = self._pool.start(statement, batch.deadline)
        except Exception as error:
            batch.fail(error, self._pool.store_error)
            self._start_next()
            return
        self._begin(batch)
        self._sent.add(batch)
        self._running.add(answer)
        answer.add_done_callback(partial(self._batch_done, batch))

    def _batch_done(self, batch: AsyncBatch, answer: asyncio.Future[Rows]) -> None:
        self._running.discard(answer)
        self._sent.discard(batch)
        try:
            self._queue.put_back(batch.answer_all(answer.result()))
        except asyncio.CancelledError:
            batch.send_each_alone(doubt=True)
        except Exception as error:
            batch.fail(error, self._pool.store_error)
        finally:
            self._finish(batch)

    # ── what is in flight, and whose time is up ──────────────────────────────────────────────────

    def _begin(self, each: BatchJob | AsyncBatch) -> None:
        until = self.loop.time() + SLOW_AFTER
        self._in_flight[each] = until
        self._set_timer(until)

    def _finish(self, each: BatchJob | AsyncBatch) -> None:
        self._slow.discard(each)
        self._in_flight.pop(each, None)
        self._start_next()

    def _set_timer(self, when: float) -> None:
        """Set the one timer of this kind, unless it is set for earlier."""
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, self._on_timer)
            self._timer_at = when

    def _on_timer(self) -> None:
        """Set slow statements aside, expire callers in the queue and in batches, set the timer."""
        self._timer, self._timer_at = None, inf
        now = self.loop.time() + _A_TICK
        self._set_aside_slow(now)
        late = self._queue.take_overdue(now - GRACE)
        late += [job for batch in self._sent for job in batch.jobs if job.deadline <= now - GRACE]
        for job in late:
            if not job.abandoned():
                job.expire(self._pool.store_error)
        self._start_next()
        waiting = [job for batch in self._sent for job in batch.jobs if not job.abandoned()]
        if first := self._queue.first():
            waiting.append(first)
        times = [*self._in_flight.values(), *(job.deadline + GRACE for job in waiting)]
        if times:
            self._set_timer(min(times))
