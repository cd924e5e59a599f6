"""Connections for one event loop.

One connection to each node serves every task of the loop. What is asked in one turn of the loop is
written together, as one pipeline. No operation waits for others to join it: under load, the tasks
that the last replies woke up ask next, and share a pipeline. Where replicas are waited for, the
next pipeline is written when the last one is acknowledged.

The loop's callbacks read replies whether or not a task still awaits them, so a cancelled task ends
at once. A batch whose task was cancelled before the pipeline was written is left out of it.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from os import getpid
from time import monotonic
from typing import Any, TypeVar

import hiredis

from semel.core.operations.requests import StoreOperation
from semel.stores.background import keep
from semel.stores.base import CHECK_AGAIN, Finding
from semel.stores.redis import errors, operation_retry
from semel.stores.redis.commands import ANY, Keys, RedisCall, bucket_of, pack
from semel.stores.redis.connection import (
    PIPELINE_LIMIT,
    CommandBatch,
    ReplyQueue,
    handshake,
    pipelined,
    refuse_or_warn,
)
from semel.stores.redis.credentials import Login, alogin
from semel.stores.redis.errors import RedisFault
from semel.stores.redis.operation_retry import Attempt, Steps, Topology, operation, refresh
from semel.stores.redis.plans import SINGLE_CALLS, SingleCall
from semel.stores.redis.settings import NodeAddress, RedisSettings

R = TypeVar("R")


class _FutureBatch(CommandBatch):
    """A batch whose task awaits ``future``. The handshake sends such ones; its task has a deadline
    of its own."""

    __slots__ = ("future",)

    future: asyncio.Future[Any]

    def finish(self, outcomes: list[Any]) -> None:
        if not self.future.done():
            self.future.set_result(outcomes)


class AsyncBatch(_FutureBatch):
    """Commands of an operation. ``ended``: this connection has no more replies for it."""

    __slots__ = ("ended",)

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        super().__init__(attempts, deadline)
        self.ended = False

    def waits(self) -> bool:
        return not self.ended and not self.future.done()

    def finish(self, outcomes: list[Any]) -> None:
        self.ended = True
        super().finish(outcomes)


class FirstTry(AsyncBatch):
    """The first try of an operation that is one call; nearly always it succeeds.

    Its future is the operation's own. After a fault, `AsyncRedisPool.retry` goes on.
    """

    __slots__ = ("_pool", "_single", "connection", "op")

    def __init__(
        self,
        pool: AsyncRedisPool,
        connection: AsyncRedisConnection,
        op: Any,
        single: SingleCall,
        deadline: float,
    ) -> None:
        self._pool, self.connection = pool, connection
        self.op, self._single = op, single
        self.data = pack(single.command(op, pool.keys))
        self.deadline = deadline
        self.replies = []
        self.count = 1
        self.sent = self.held = self.ended = False

    def bucket(self) -> int:
        return bucket_of(self.op.identity)

    def deliver(self, address: NodeAddress) -> None:
        reply: Any = self.replies[0]
        if isinstance(reply, hiredis.ReplyError):
            self.fail(errors.from_reply(reply, address))
        elif not self.future.done():
            try:
                self.future.set_result(self._single.parse(self.op.identity, reply))
            except Exception as error:  # StoreCorrupt, which is this caller's alone
                self.future.set_exception(error)

    def fail(self, fault: RedisFault) -> None:
        if self.waits():
            self.ended = True
            self._pool.retry(self, fault)


class _Protocol(asyncio.Protocol):
    """The callbacks of one transport. They do nothing once the connection has another transport."""

    def __init__(self, connection: AsyncRedisConnection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        if self._connection.protocol is self:
            self._connection.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection.protocol is self:
            why = str(exc) if exc else "the server hung up"
            self._connection.disconnect(errors.disconnected(True, why))


class AsyncRedisConnection:
    """One connection, shared by the tasks of a loop; it opens when there is something to send.

    ``_ready``: connected and checked. ``_due``: `_flush` is scheduled. ``_check_at``: when the
    server has to be checked again. ``_expire_at``: when `_timer` fires; one timer serves all.
    """

    def __init__(self, settings: RedisSettings, keys: Keys, address: NodeAddress) -> None:
        self._settings = settings
        self._keys = keys
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._queue: list[AsyncBatch] = []
        self._replies = ReplyQueue(address)
        self._transport: asyncio.Transport | None = None
        self.protocol: _Protocol | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ready = self._due = False
        self._check_at = 0.0
        self._expire_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, batch: AsyncBatch) -> asyncio.Future[Any]:
        batch.future = self._loop.create_future()
        if batch.deadline < self._expire_at:
            self._set_timer(batch.deadline)
        self._queue.append(batch)
        if not self._ready:
            self._start_opening()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._flush)
        return batch.future

    def disconnect(self, fault: RedisFault) -> None:
        """What was sent fails. What is queued goes over the next connection."""
        transport, self._transport, self.protocol = self._transport, None, None
        self._ready = False
        replies, self._replies = self._replies, ReplyQueue(self._address)
        if self._loop.is_closed():
            return  # no task is left to be told
        if transport is not None:
            transport.abort()
        replies.fail(fault)
        self._start_opening()

    def give_up(self, why: str) -> None:
        """Disconnect for good; what is queued fails too."""
        waiting, self._queue = self._queue, []
        self.disconnect(errors.disconnected(True, why))
        if self._opening is not None:
            self._opening.cancel()
        for batch in waiting:
            if batch.waits():
                batch.fail(errors.disconnected(False, why))

    async def drain(self, deadline: float) -> None:
        """Wait until nothing is queued or unanswered."""
        if self._queue or self._replies:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=max(0.0, deadline - monotonic()))

    # ── pipelines ────────────────────────────────────────────────────────────────────────────────

    def _flush(self, checked: bool = False) -> None:
        """Write what is queued as one pipeline; first check the server again where that is due."""
        self._due = False
        transport = self._transport
        if not self._ready or transport is None:
            return
        if self._settings.wait_replicas and self._replies:
            return
        if not checked and monotonic() >= self._check_at:
            if self._queue:
                self._ready = False
                self._start_opening()
            return
        # What was given up before it left is never done.
        batches, self._queue = [each for each in self._queue if each.waits()], []
        if not batches:
            return
        if len(batches) > PIPELINE_LIMIT:
            batches, self._queue = batches[:PIPELINE_LIMIT], batches[PIPELINE_LIMIT:]
        data, wait = pipelined(self._settings, self._keys, batches)
        self._replies.sent(batches, wait)
        transport.write(data)
        if self._queue:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def receive(self, data: bytes) -> None:
        """Take what the server sent."""
        try:
            self._replies.feed(data)
        except hiredis.ProtocolError as error:
            self.disconnect(errors.not_redis(error))
        if self._queue:
            self._schedule_flush()
        elif self._drained and not self._replies and not self._drained.done():
            self._drained.set_result(None)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expire_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._expire)

    def _expire(self) -> None:
        """Fail what was not answered by its deadline, and set the timer for the next deadline.

        A batch that was sent and not answered holds up all that were sent after it, so its
        connection is given up.
        """
        self._expire_at, self._timer = float("inf"), None
        now = monotonic()
        sent = [each for each in self._replies.owed if isinstance(each, AsyncBatch)]
        for batch in [*sent, *self._queue]:
            if batch.deadline > now or not batch.waits():
                continue
            if batch.sent:
                batch.fail(errors.timed_out(True))
                self.disconnect(errors.disconnected(True, "the server is silent"))
            else:
                self._queue.remove(batch)
                batch.fail(errors.timed_out(False))
        left = [each.deadline for each in [*sent, *self._queue] if each.waits()]
        if left:
            self._set_timer(min(left))

    # ── opening ──────────────────────────────────────────────────────────────────────────────────

    def _start_opening(self) -> None:
        if self._queue and self._opening is None:
            self._opening = keep(self._open(self._queue[-1].deadline))

    async def _open(self, deadline: float) -> None:
        """Connect if necessary, check the server, and write what is queued; or fail it all."""
        problem: Exception | None = None
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                who: Login | None = None
                if self._transport is None:
                    sentinel = self._settings.is_sentinel(self._address)
                    who = await alogin(self._settings, sentinel)
                    await self._connect()
                findings = await self._handshake(deadline, who)
            refuse_or_warn(self._address, findings)
        except TimeoutError:
            problem = errors.not_connected(TimeoutError("no answer in time"), self._address)
        except OSError as error:
            problem = errors.not_connected(error, self._address)
        except RedisFault as fault:
            fault.doubt = False  # no operation was sent yet
            problem = fault
        except Exception as error:
            problem = error
        finally:
            self._opening = None
        if problem is None:
            self._check_at = monotonic() + CHECK_AGAIN
            self._ready = True
            self._flush(checked=True)
            return
        waiting, self._queue = self._queue, []
        self.disconnect(errors.disconnected(True, "the link was given up"))
        for batch in waiting:
            if isinstance(problem, RedisFault):
                batch.fail(problem)
            elif not batch.future.done():  # no retry helps: its caller gets the error itself
                batch.future.set_exception(problem)

    async def _connect(self) -> None:
        loop, settings = self._loop, self._settings
        host, port = settings.reachable(self._address)
        protocol = self.protocol = _Protocol(self)
        made: asyncio.Transport
        if not port:
            made, _ = await loop.create_unix_connection(lambda: protocol, host)
        else:
            tls = settings.context
            name = None if tls is None else settings.server_name or host
            made, _ = await loop.create_connection(
                lambda: protocol, host, port, ssl=tls, server_hostname=name
            )
        if self.protocol is not protocol:  # the server hung up already
            made.abort()
            raise errors.disconnected(False)
        self._transport = made

    async def _handshake(self, deadline: float, who: Login | None) -> tuple[Finding, ...]:
        steps = handshake(self._settings, self._keys, self._address, who)
        try:
            commands = next(steps)
            while True:
                if self._transport is None:
                    raise errors.disconnected(False)
                attempts = [Attempt(RedisCall(ANY, command)) for command in commands]
                batch = _FutureBatch(attempts, deadline)
                batch.future = self._loop.create_future()
                self._replies.sent([batch], None)
                self._transport.write(batch.data)
                commands = steps.send(await batch.future)
        except StopIteration as done:
            findings: tuple[Finding, ...] = done.value
            return findings


class AsyncRedisPool:
    """The connections that a `RedisBackend` has in one event loop: one to each node."""

    def __init__(self, settings: RedisSettings, keys: Keys) -> None:
        self._settings = settings
        self.keys = keys
        self.place = getpid(), get_running_loop()
        self.closed = False
        self._timeout = settings.timeout
        self._topology = Topology(settings)
        self._connections: dict[NodeAddress, AsyncRedisConnection] = {}
        self._only: AsyncRedisConnection | None = None
        """The connection to a server that is no cluster."""
        self._refreshing: asyncio.Task[RedisFault | None] | None = None

    def perform(self, op: StoreOperation[R]) -> Awaitable[R]:
        """A future, where the operation is one call and its node is known; else a coroutine."""
        deadline = monotonic() + self._timeout
        single = SINGLE_CALLS.get(type(op))
        if single is not None:
            connection = self._only
            if connection is None:
                keyed: Any = op
                address = self._topology.at(bucket_of(keyed.identity))
                connection = None if address is None else self._connection(address)
            if connection is not None:
                return connection.send(FirstTry(self, connection, op, single, deadline))
        return self._run(operation(op, self.keys, self._topology, deadline), deadline)

    def retry(self, tried: FirstTry, fault: RedisFault) -> None:
        """Go on after a first try that failed. A caller that is cancelled cancels the retries."""
        task = keep(self._retry(tried, fault))
        tried.future.add_done_callback(lambda future: future.cancelled() and task.cancel())

    async def _retry(self, tried: FirstTry, fault: RedisFault) -> None:
        future = tried.future
        try:
            self._heed(tried.connection, [fault])
            steps = operation(tried.op, self.keys, self._topology, tried.deadline, fault)
            reply = await self._run(steps, tried.deadline)
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(reply)

    async def aclose(self) -> None:
        """Wait for what is under way, until its deadline at most, and close every connection."""
        self.closed = True
        deadline = monotonic() + self._settings.timeout
        for connection in list(self._connections.values()):
            await connection.drain(deadline)
        self.abandon()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    def abandon(self) -> None:
        """Close without the loop, which may be closed already."""
        self.closed, self._only = True, None
        while self._connections:
            connection = self._connections.popitem()[1]
            connection.disconnect(errors.disconnected(True, "the store was closed"))

    async def _run(self, steps: Steps[R], deadline: float) -> R:
        """Do what the steps ask for, until they return."""
        result: Any = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, operation_retry.SendBatches):
                    until = step.deadline
                    sends = [self._send(*batch, until) for batch in step.batches.items()]
                    result = [await sends[0]] if len(sends) == 1 else await asyncio.gather(*sends)
                elif isinstance(step, operation_retry.RetryPause):
                    await asyncio.sleep(step.seconds)
                    result = None
                else:
                    result = await self._refresh(deadline)
                step = steps.send(result)
        except StopIteration as done:
            reply: R = done.value
            return reply

    async def _send(
        self, address: NodeAddress, attempts: Sequence[Attempt], deadline: float
    ) -> list[Any]:
        connection = self._connection(address)
        outcomes: list[Any] = await connection.send(AsyncBatch(attempts, deadline))
        self._heed(connection, [each for each in outcomes if isinstance(each, RedisFault)])
        return outcomes

    def _heed(self, connection: AsyncRedisConnection, faults: Sequence[RedisFault]) -> None:
        """Draw conclusions about the connection and the cluster."""
        if any(fault.code == "READONLY" for fault in faults):
            connection.disconnect(errors.disconnected(True, "the server has become a replica"))
        self._topology.suspect(faults)

    def _connection(self, address: NodeAddress) -> AsyncRedisConnection:
        found = self._connections.get(address)
        if found is None:
            found = AsyncRedisConnection(self._settings, self.keys, address)
            self._connections[address] = found
            if not self._topology.follows:
                self._only = found
        return found

    async def _refresh(self, deadline: float) -> RedisFault | None:
        """Refresh the topology. Concurrent callers share one refresh."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = keep(self._run(refresh(self._topology, deadline), deadline))
        fault = await asyncio.shield(self._refreshing)
        for address in [each for each in self._connections if self._topology.replaced(each)]:
            self._connections.pop(address).give_up("the primary was replaced")
        return fault


class AsyncRedisStore:
    """The store for event loops; it uses the pool of the running loop of this process."""

    __slots__ = ("_open", "_pool")

    def __init__(self, open_pool: Callable[[], AsyncRedisPool]) -> None:
        self._open = open_pool
        self._pool: AsyncRedisPool | None = None

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        pool = self._pool
        if pool is None or pool.closed or pool.place != (getpid(), get_running_loop()):
            pool = self._pool = self._open()
        return pool.perform(op)
