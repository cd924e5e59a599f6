"""When operations of a process's threads are sent: alone at once, or in the next batch.

`semel.stores.sql` explains batching. There is no thread for it: callers that queue wait, and when
nothing of their kind is in flight, the first of them sends the batch for all and hands out the
answers. A slow statement gives up its place as soon as a caller behind it notices.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar, cast

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
from semel.stores.sql.pool_sync import ConnectionPool

R = TypeVar("R")

_SEND_BATCH: Final = object()


class ThreadBatchJob(BatchJob):
    """A job whose caller waits for a message: a reply, an error, or the order to send the batch."""

    __slots__ = ("gone", "messages")

    def __init__(self, op: StoreOperation[object], deadline: float, size: int) -> None:
        super().__init__(op, deadline, size)
        self.messages: SimpleQueue[object] = SimpleQueue()
        self.gone = False

    def abandoned(self) -> bool:
        return self.gone

    def tell(self, message: object) -> None:
        self.messages.put(message)


class Batcher:
    """What a backend has for the threads of a process."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self.pool = pool
        lock, slow = threading.Lock(), SlowIdentities()
        self._batchers = {
            operation: KindBatcher(kind, pool, lock, slow) for operation, kind in pool.KINDS.items()
        }

    def perform(self, op: StoreOperation[R]) -> R:
        batcher = self._batchers.get(type(op))
        return (batcher or self.pool).perform(op, self.pool.deadline())


class KindBatcher(KindState[ThreadBatchJob]):
    """The operations of one kind. All kinds share ``lock`` and ``slow``."""

    def __init__(
        self,
        kind: BatchKind,
        pool: ConnectionPool[Any],
        lock: threading.Lock,
        slow: SlowIdentities,
    ) -> None:
        super().__init__(kind, slow)
        self._pool = pool
        self._lock = lock
        self._sender: ThreadBatchJob | None = None
        """Whose caller was told to send the next batch, and has not begun."""

    def perform(self, op: StoreOperation[R], deadline: float) -> R:
        job = ThreadBatchJob(op, deadline, self._kind.size(op))
        queued = at_once = False
        with self._lock:
            if job.identity not in self._slow.identities:
                at_once = self._nearly_idle()
                queued = not at_once and job.size <= MAX_BATCHED
            if at_once:  # others queue behind it
                self._in_flight[job] = monotonic() + SLOW_AFTER
            elif queued:
                self._queue.add(job)
                self._start_next()
        if queued:
            return cast("R", self._perform_in_batch(job))
        try:
            return self._pool.perform(op, deadline)
        finally:
            if at_once:
                self._finish(job)

    def _perform_in_batch(self, job: ThreadBatchJob) -> object:
        """With the next batch; alone where that has no answer."""
        try:
            reply = self._wait(job)
        finally:
            with self._lock:
                job.gone = True
                if self._sender is job:  # another has to send the batch
                    self._sender = None
                    self._start_next()
        if not isinstance(reply, SendAlone):
            return reply
        with self._lock:
            self._slow.add(job)
        try:
            return self._pool.perform(job.op, job.deadline, doubt=reply.doubt)
        finally:
            with self._lock:
                self._slow.discard(job)

    def _wait(self, job: ThreadBatchJob) -> object:
        while True:
            left = job.deadline + GRACE - monotonic()
            if left <= 0:
                job.expire(self._pool.store_error)
            try:
                message = job.messages.get(timeout=max(0.0, min(left, SLOW_AFTER)))
            except Empty:
                with self._lock:
                    self._set_aside_slow(monotonic())
                    self._start_next()
                continue
            if isinstance(message, Exception):
                raise message
            if message is not _SEND_BATCH:
                return message
            self._send_batch()

    def _send_batch(self) -> None:
        """Send what is queued and hand out the answers; the sender is mostly one of the batch."""
        with self._lock:
            self._sender = None
            batch = self._queue.take()
            self._batching = len(batch.jobs) > 1
            if batch.jobs:
                self._in_flight[batch] = monotonic() + SLOW_AFTER
        try:
            self._perform_batch(batch)
        except Exception as error:
            batch.fail(error, self._pool.store_error)
        except BaseException:
            batch.send_each_alone(doubt=True)
            raise
        finally:
            self._finish(batch)

    def _perform_batch(self, batch: Batch[ThreadBatchJob]) -> None:
        if len(batch.jobs) > 1:
            statement = batch.statement()
            if statement is not None:
                unanswered = batch.answer_all(self._pool.execute(statement, batch.deadline))
                with self._lock:
                    self._queue.put_back(unanswered)
            return
        for job in batch.jobs:
            try:
                job.tell(self._pool.perform(job.op, job.deadline))
            except Exception as error:
                job.tell(error)

    def _start_next(self) -> None:
        """Tell one caller to send the batch, when nothing is in flight. Under the lock."""
        if self._in_flight or self._sender is not None:
            return
        self._sender = self._queue.first()
        if self._sender is not None:
            self._sender.tell(_SEND_BATCH)

    def _finish(self, each: BatchJob | Batch[ThreadBatchJob]) -> None:
        with self._lock:
            self._slow.discard(each)
            self._in_flight.pop(each, None)
            self._start_next()
