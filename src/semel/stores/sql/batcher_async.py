"""The way of every operation of one event loop: alone, or with others of its kind.

Each kind has one lane. Who finds it nearly idle goes at once, alone. Those who arrive while more is
under way queue up and travel together in the next statement; it leaves when the lane is empty and
the loop has run those whom the last answers woke, for they may ask next. A statement that takes
long gives up its place: a locked row or a silent connection holds up nobody who was not in the same
batch.

Who queues up is given a future, and a batch is carried by callbacks: no operation of a batch has a
task, a coroutine or a timer of its own. One timer for the lane looks after all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

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

_A_TICK: Final = 0.001
"""Seconds by which a loop's clock may be behind its timers."""


class Pool(Protocol):
    """The connections of one event loop."""

    async def perform(
        self, op: StoreOperation[R], deadline: float, *, doubt: bool = False
    ) -> R: ...

    def start(self, statement: Statement, deadline: float) -> asyncio.Future[Rows]:
        """Send it, or let it wait for a connection; it goes on when nobody awaits it."""
        ...

    async def aclose(self) -> None: ...

    def abandon(self) -> None: ...


class AwaitedStore:
    """The store for event loops: the lanes of the one that runs."""

    __slots__ = ("_lanes",)

    def __init__(self, lanes: Callable[[], AwaitedLanes]) -> None:
        self._lanes = lanes

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        return self._lanes().perform(op)


class AwaitedJob(Job):
    """Its caller awaits a future."""

    __slots__ = ("future", "lane")

    def __init__(self, op: Any, deadline: float, weight: int, lane: AwaitedLane) -> None:
        self.op = op
        self.identity = op.identity
        self.deadline = deadline
        self.weight = weight
        self.taken = False
        self.lane = lane
        self.future: asyncio.Future[Any] = lane.loop.create_future()

    def withdrawn(self) -> bool:
        return self.future.done()

    def answer(self, reply: object) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def send_alone(self, again: Again) -> None:
        if not self.future.done():
            self.lane.send_alone(self, again)


AwaitedBatch: TypeAlias = Batch[AwaitedJob]
Holder: TypeAlias = Job | AwaitedBatch


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

    def perform(self, op: StoreOperation[R]) -> Awaitable[R]:
        deadline = monotonic() + self._timeout
        lane = self._lanes.get(type(op))
        return (lane or self._pool).perform(op, deadline)

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
        self.loop = asyncio.get_running_loop()
        self._running: set[asyncio.Future[Any]] = set()
        """What nobody else holds on to."""
        self._sent: set[AwaitedBatch] = set()
        self._holders: dict[Holder, float] = {}
        """Who is under way, and until when it holds up others, by the clock of the loop."""
        self._crowded = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = inf

    def perform(self, op: Any, deadline: float) -> Awaitable[Any]:
        if op.identity in self._slow.identities:
            return self._pool.perform(op, deadline)
        if not self._crowded and self._nearly_idle():
            return self._lead(op, deadline)
        weight = self._kind.weight(op)
        if weight > BIG:
            return self._pool.perform(op, deadline)
        job = AwaitedJob(op, deadline, weight, self)
        self._queue.add(job)
        if deadline < self._look_at:
            self._look_by(deadline + GRACE)
        if not self._holders and not self._due:
            self._stir()
        return job.future

    async def drain(self, deadline: float) -> None:
        """Until nothing is queued or under way in a batch."""
        while (self._queue or self._running) and monotonic() < deadline:
            if self._running:
                await asyncio.wait(self._running, timeout=max(0.0, deadline - monotonic()))
            await asyncio.sleep(0)

    # ── alone ────────────────────────────────────────────────────────────────────────────────────

    async def _lead(self, op: Any, deadline: float) -> Any:
        """With others gathering behind; unless others came first since it was asked for."""
        if not self._nearly_idle():
            return await self.perform(op, deadline)
        leader = Job(op, deadline)
        self._hold(leader)
        try:
            return await self._pool.perform(op, deadline)
        finally:
            self._release(leader)

    def send_alone(self, job: AwaitedJob, again: Again) -> None:
        """After a batch that did not answer it. Until it is answered, its record is a slow one."""
        self._slow.add(job)
        self._carry_alone(job, again.doubt)

    def _carry_alone(self, job: AwaitedJob, doubt: bool) -> None:
        """In a task, which ends when the caller leaves: what was not handed over is not done."""
        task = self.loop.create_task(self._pool.perform(job.op, job.deadline, doubt=doubt))
        self._running.add(task)
        task.add_done_callback(partial(self._came_alone, job))
        job.future.add_done_callback(partial(_leave, task))

    def _came_alone(self, job: AwaitedJob, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._release(job)
        if task.cancelled():
            job.future.cancel()
        elif error := task.exception():
            job.fail(cast("Exception", error))
        else:
            job.answer(task.result())

    # ── batches ──────────────────────────────────────────────────────────────────────────────────

    def _stir(self) -> None:
        if self._queue and not self._holders and not self._due:
            self._due = True
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        self._due = False
        batch = self._queue.take()
        self._crowded = len(batch) > 1
        if self._crowded:
            self._carry(batch)
        else:
            for job in batch:
                self._hold(job)
                self._carry_alone(job, doubt=False)

    def _carry(self, batch: AwaitedBatch) -> None:
        """One batch to the server and back, whoever still waits for it."""
        try:
            statement = batch.statement()
            if statement is None:
                self._stir()
                return
            answer = self._pool.start(statement, batch.deadline)
        except Exception as error:
            batch.fail(error, self._verdict)
            self._stir()
            return
        self._hold(batch)
        self._sent.add(batch)
        self._running.add(answer)
        answer.add_done_callback(partial(self._came, batch))

    def _came(self, batch: AwaitedBatch, answer: asyncio.Future[Rows]) -> None:
        self._running.discard(answer)
        self._sent.discard(batch)
        try:
            self._queue.put_back(batch.deliver(answer.result()))
        except asyncio.CancelledError:
            batch.send_again(doubt=True)
        except Exception as error:
            batch.fail(error, self._verdict)
        finally:
            self._release(batch)

    # ── whose turn it is, and whose time is up ───────────────────────────────────────────────────

    def _nearly_idle(self) -> bool:
        return not self._crowded and len(self._holders) < LEADERS and not self._queue

    def _hold(self, holder: Holder) -> None:
        until = self.loop.time() + PATIENCE
        self._holders[holder] = until
        self._look_by(until)

    def _release(self, holder: Holder) -> None:
        self._slow.discard(holder)
        self._holders.pop(holder, None)
        self._stir()

    def _look_by(self, when: float) -> None:
        """Set the one timer of the lane, unless it is set for earlier."""
        if when < self._look_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(when, self._look)
            self._look_at = when

    def _look(self) -> None:
        """Look after all that is under way, and see when to look again."""
        self._timer, self._look_at = None, inf
        now = self.loop.time() + _A_TICK
        self._pass_by(now)
        self._expire(now - GRACE)
        self._stir()
        waiting = [job for batch in self._sent for job in batch if not job.withdrawn()]
        if first := self._queue.first():
            waiting.append(first)
        times = [*self._holders.values(), *(job.deadline + GRACE for job in waiting)]
        if times:
            self._look_by(min(times))

    def _pass_by(self, now: float) -> None:
        """What takes long: the next may start, and who wants one of the same records goes alone."""
        for holder in [each for each, until in self._holders.items() if until <= now]:
            self._slow.add(holder)
            del self._holders[holder]

    def _expire(self, before: float) -> None:
        """Callers whose time was up ``before``, in the queue and in batches."""
        late = self._queue.overdue(before)
        late += [job for batch in self._sent for job in batch if job.deadline <= before]
        for job in late:
            if not job.withdrawn():
                job.expire(self._verdict)


def _leave(task: asyncio.Task[Any], future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        task.cancel()
