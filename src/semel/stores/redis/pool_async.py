"""Links and waiting for one event loop.

One link to each node. What is asked in one turn of the loop is written together, and answers are
read by the loop's own callbacks, whether or not anybody still awaits them: a cancelled caller
leaves at once. Nobody waits to be joined by others: under load those whom the last answers woke ask
next, and travel together. Where replicas are waited for, the next convoy leaves when the last one
is acknowledged.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from os import getpid
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis

from semel.core.operations.requests import StoreOperation
from semel.stores.background import keep
from semel.stores.base import CHECK_AGAIN, Finding
from semel.stores.redis.commands import pack
from semel.stores.redis.errors import (
    RedisFault,
    garbled,
    not_connected,
    refused,
    severed,
    timed_out,
)
from semel.stores.redis.handshake import Commands, admit, greet
from semel.stores.redis.keys import Keys, bucket_of
from semel.stores.redis.operation_retry import Attempt, RetryPause, errand
from semel.stores.redis.pipeline import CommandBatch, ReplyQueue, sealed
from semel.stores.redis.plans import ONE_CALL, SingleCall
from semel.stores.redis.settings import NodeAddress, RedisSettings
from semel.stores.redis.topology import PATIENCE, SLOTS_MAP, Topology, nobody

R = TypeVar("R")

CONVOY: Final = 256
"""Parcels that are written together at most."""


class AsyncBatch(CommandBatch):
    """Its sender awaits a future. ``ended``: this link has no more to say to it."""

    __slots__ = ("ended", "future")

    future: asyncio.Future[Any]

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        super().__init__(attempts, deadline)
        self.ended = False

    def land(self, where: NodeAddress) -> None:
        self._end(self.outcomes(where))

    def fail(self, fault: RedisFault) -> None:
        self._end([fault] * len(self._attempts))

    def refuse(self, error: Exception) -> None:
        """Not a fault of the link but of what it was told."""
        if not self.future.done():
            self.future.set_exception(error)

    def waits(self) -> bool:
        return not self.ended and not self.future.done()

    def _end(self, result: list[Any]) -> None:
        self.ended = True
        if not self.future.done():
            self.future.set_result(result)


class FirstTry(AsyncBatch):
    """The first try of an operation that is one call, which nearly always succeeds.

    Its future is that of the operation. After a fault an errand goes on with it.
    """

    __slots__ = ("_one", "_pool", "link", "op")

    def __init__(
        self,
        pool: AsyncRedisPool,
        link: AsyncRedisConnection,
        op: Any,
        one: SingleCall,
        deadline: float,
    ) -> None:
        self._pool, self.link = pool, link
        self.op, self._one = op, one
        self.data = pack(one.ask(op, pool.keys))
        self.deadline = deadline
        self.replies = []
        self.count = 1
        self.sent = self.sealed = self.ended = False

    def bucket(self) -> int:
        return bucket_of(self.op.identity)

    def land(self, where: NodeAddress) -> None:
        reply: Any = self.replies[0]
        if isinstance(reply, hiredis.ReplyError):
            self.fail(refused(reply, where))
        elif not self.future.done():
            try:
                self.future.set_result(self._one.understand(self.op.identity, reply))
            except Exception as error:  # StoreCorrupt, which is this caller's alone
                self.future.set_exception(error)

    def fail(self, fault: RedisFault) -> None:
        if self.waits():
            self.ended = True
            self._pool.go_on(self, fault)


class _Greeting(CommandBatch):
    """Commands of the greeting, in line like any other parcel."""

    __slots__ = ("future",)

    def __init__(self, commands: Commands, future: asyncio.Future[list[Any]]) -> None:
        self.future = future
        self.data = b"".join([pack(command) for command in commands])
        self.replies = []
        self.count = len(commands)
        self.sealed = False

    def land(self, where: NodeAddress) -> None:
        if not self.future.done():
            self.future.set_result(self.replies)

    def fail(self, fault: RedisFault) -> None:
        if not self.future.done():
            self.future.set_exception(fault)


class _Wire(asyncio.Protocol):
    """One connection's side of a link, which by the time it speaks may have another."""

    def __init__(self, link: AsyncRedisConnection) -> None:
        self._link = link

    def data_received(self, data: bytes) -> None:
        if self._link.wire is self:
            self._link.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._link.wire is self:
            self._link.hang_up(severed(True, str(exc) if exc else "the server hung up"))


class AsyncRedisConnection:
    """One connection, shared by the tasks of a loop; it opens when there is something to send."""

    def __init__(self, settings: RedisSettings, keys: Keys, where: NodeAddress) -> None:
        self._settings = settings
        self._keys = keys
        self.where = where
        self._loop = asyncio.get_running_loop()
        self._queue: list[AsyncBatch] = []
        self._line = ReplyQueue(where)
        self._transport: asyncio.Transport | None = None
        self.wire: _Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ready = self._due = False
        self._check_at = 0.0
        self._look_at = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, parcel: AsyncBatch) -> asyncio.Future[Any]:
        parcel.future = self._loop.create_future()
        if parcel.deadline < self._look_at:
            self._look_later(parcel.deadline)
        self._queue.append(parcel)
        if not self._ready:
            self._start()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._leave)
        return parcel.future

    def hang_up(self, fault: RedisFault) -> None:
        """Who was sent is told that the link is gone; who was not is sent over the next one."""
        transport, self._transport, self.wire = self._transport, None, None
        self._ready = False
        line, self._line = self._line, ReplyQueue(self.where)
        if self._loop.is_closed():
            return  # nobody is left to be told
        if transport is not None:
            transport.abort()
        line.fail(fault)
        self._start()

    async def drain(self, deadline: float) -> None:
        """Until nothing is queued or under way."""
        if self._queue or self._line:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=max(0.0, deadline - monotonic()))

    # ── convoys ──────────────────────────────────────────────────────────────────────────────────

    def _stir(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        self._due = False
        if not self._ready or (self._settings.wait_replicas and self._line):
            return
        if monotonic() < self._check_at:
            self._depart()
        elif self._queue:
            self._ready = False  # nothing leaves before the server has answered for itself again
            self._start()

    def _depart(self) -> None:
        if self._transport is None:
            return
        # What was given up before it left is never done.
        convoy, self._queue = [each for each in self._queue if each.waits()], []
        if not convoy:
            return
        if len(convoy) > CONVOY:
            convoy, self._queue = convoy[:CONVOY], convoy[CONVOY:]
        data, seal = sealed(self._settings, self._keys, convoy)
        self._line.ask(convoy, seal)
        self._transport.write(data)
        if self._queue:
            self._stir()

    def _look_later(self, deadline: float) -> None:
        """One timer for all: at the first deadline it is looked who was not answered in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._look)

    def _look(self) -> None:
        self._look_at, self._timer = float("inf"), None
        now = monotonic()
        under_way = [each for each in self._line.waiting() if isinstance(each, AsyncBatch)]
        for parcel in [*under_way, *self._queue]:
            if parcel.deadline <= now and parcel.waits():
                self._expire(parcel)
        left = [each.deadline for each in [*under_way, *self._queue] if each.waits()]
        if left:
            self._look_later(min(left))

    def _expire(self, parcel: AsyncBatch) -> None:
        """Whoever is not answered in time holds up all who asked after it: the link is given up."""
        if parcel.sent:
            parcel.fail(timed_out(True))
            self.hang_up(severed(True, "the server is silent"))
        else:
            self._queue.remove(parcel)
            parcel.fail(timed_out(False))

    # ── asyncio's side ───────────────────────────────────────────────────────────────────────────

    def receive(self, data: bytes) -> None:
        try:
            self._line.feed(data)
        except hiredis.ProtocolError as error:
            self.hang_up(garbled(error))
        if self._queue:
            self._stir()
        elif self._drained and not self._line and not self._drained.done():
            self._drained.set_result(None)

    def _start(self) -> None:
        if self._queue and self._opening is None:
            self._opening = keep(self._open(self._queue[-1].deadline))

    async def _open(self, deadline: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, deadline - monotonic())):
                if self._transport is None:
                    await self._connect()
                findings = await self._converse()
            admit(self._settings, self.where, findings)
            self._check_at = monotonic() + CHECK_AGAIN
            self._ready = True
        except TimeoutError:
            self._give_up(not_connected(TimeoutError("no answer in time"), self.where))
        except OSError as error:
            self._give_up(not_connected(error, self.where))
        except RedisFault as fault:
            fault.doubt = False  # nothing was sent yet but the greeting
            self._give_up(fault)
        except Exception as error:
            self._give_up(error)
        finally:
            self._opening = None
        if self._ready:
            self._depart()
        else:
            self._start()

    async def _connect(self) -> None:
        loop, where = self._loop, self.where
        wire = self.wire = _Wire(self)
        made: asyncio.Transport
        if not where.port:
            made, _ = await loop.create_unix_connection(lambda: wire, where.host)
        else:
            tls = self._settings.context
            host = where.host if tls is not None else None
            made, _ = await loop.create_connection(
                lambda: wire, where.host, where.port, ssl=tls, server_hostname=host
            )
        if self.wire is not wire:  # the server hung up already
            made.abort()
            raise severed(False)
        self._transport = made

    async def _converse(self) -> tuple[Finding, ...]:
        steps = greet(self._settings, self.where)
        try:
            commands = next(steps)
            while True:
                future: asyncio.Future[list[Any]] = self._loop.create_future()
                asked = _Greeting(commands, future)
                if self._transport is None:
                    raise severed(False)
                self._line.ask([asked], None)
                self._transport.write(asked.data)
                commands = steps.send(await future)
        except StopIteration as done:
            findings: tuple[Finding, ...] = done.value
            return findings

    def _give_up(self, error: Exception) -> None:
        waiting, self._queue = self._queue, []
        self.hang_up(severed(True, "the link was given up"))
        for parcel in waiting:
            if isinstance(error, RedisFault):
                parcel.fail(error)
            else:
                parcel.refuse(error)


class AsyncRedisPool:
    """What `RedisBackend` has for each event loop."""

    def __init__(self, settings: RedisSettings, keys: Keys) -> None:
        self._settings = settings
        self.keys = keys
        self.place = getpid(), get_running_loop()
        self.closed = False
        self._timeout = settings.timeout
        self._topology = Topology(settings)
        self._links: dict[NodeAddress, AsyncRedisConnection] = {}
        self._only: AsyncRedisConnection | None = None
        """The link to a server that is no cluster."""
        self._learning: asyncio.Task[RedisFault | None] | None = None

    def perform(self, op: StoreOperation[R]) -> Awaitable[R]:
        """A future where it is one call, and it is known whom to ask; else an errand."""
        deadline = monotonic() + self._timeout
        one = ONE_CALL.get(type(op))
        if one is not None:
            link = self._only or self._link_for(op)
            if link is not None:
                return link.send(FirstTry(self, link, op, one, deadline))
        return self._run_errand(op, deadline)

    def _link_for(self, op: Any) -> AsyncRedisConnection | None:
        where = self._topology.at(bucket_of(op.identity))
        if where is None:
            return None
        link = self._link(where)
        self._only = None if self._topology.cluster else link
        return link

    def go_on(self, tried: FirstTry, fault: RedisFault) -> None:
        """After a first try that failed; who gives up waiting gives up the errand."""
        future = tried.future
        task = keep(self._run_errand(tried.op, tried.deadline, fault, tried.link))
        task.add_done_callback(partial(_tell, future))
        future.add_done_callback(partial(_stop, task))

    async def _run_errand(
        self,
        op: StoreOperation[R],
        deadline: float,
        fault: RedisFault | None = None,
        link: AsyncRedisConnection | None = None,
    ) -> R:
        """``fault``: what the first try over ``link`` came to, where there was one."""
        steps = errand(op, self.keys, cluster=self._topology.cluster)
        outcome: Any = None
        try:
            step = next(steps)
            if fault is not None and link is not None:
                self._heed(link, [fault])
                step = steps.send([fault])
            while True:
                if isinstance(step, RetryPause):
                    await self._pause(step.seconds, deadline)
                    outcome = None
                else:
                    outcome = await self._send(step.attempts, deadline)
                step = steps.send(outcome)
        except StopIteration as done:
            reply: R = done.value
            return reply

    async def aclose(self) -> None:
        """Wait for what is under way, until its deadline at most, and close every link."""
        self.closed = True
        deadline = monotonic() + self._settings.timeout
        for link in list(self._links.values()):
            await link.drain(deadline)
        self.abandon()
        await asyncio.sleep(0)  # for the transports to be told

    def abandon(self) -> None:
        """Close without the loop, which may be closed already."""
        self.closed, self._only = True, None
        while self._links:
            self._links.popitem()[1].hang_up(severed(True, "the store was closed"))

    # ── calls to nodes ───────────────────────────────────────────────────────────────────────────

    async def _send(self, attempts: Sequence[Attempt], deadline: float) -> list[Any]:
        if deadline <= monotonic():
            return [timed_out(False)] * len(attempts)
        if len(attempts) == 1:
            (attempt,) = attempts
            where = attempt.where or await self._at(attempt.call.bucket, deadline)
            if isinstance(where, RedisFault):
                return [where]
            return await self._ask(where, attempts, deadline)
        return await self._scatter(attempts, deadline)

    async def _scatter(self, attempts: Sequence[Attempt], deadline: float) -> list[Any]:
        """One parcel for each node, all at once."""
        outcomes: dict[int, Any] = {}
        groups: dict[NodeAddress, list[int]] = {}
        for number, attempt in enumerate(attempts):
            where = attempt.where or await self._at(attempt.call.bucket, deadline)
            if isinstance(where, RedisFault):
                outcomes[number] = where
            else:
                groups.setdefault(where, []).append(number)
        told = await asyncio.gather(
            *(
                self._ask(where, [attempts[number] for number in numbers], deadline)
                for where, numbers in groups.items()
            )
        )
        for numbers, replies in zip(groups.values(), told, strict=True):
            outcomes |= zip(numbers, replies, strict=True)
        return [outcomes[number] for number in range(len(attempts))]

    async def _ask(
        self, where: NodeAddress, attempts: Sequence[Attempt], deadline: float
    ) -> list[Any]:
        link = self._link(where)
        outcomes: list[Any] = await link.send(AsyncBatch(attempts, deadline))
        self._heed(link, outcomes)
        return outcomes

    def _heed(self, link: AsyncRedisConnection, outcomes: Sequence[Any]) -> None:
        """What faults tell about the link and the cluster."""
        if any(isinstance(each, RedisFault) and each.code == "READONLY" for each in outcomes):
            link.hang_up(severed(True, "the server has become a replica"))
        self._topology.suspect(outcomes)  # also a node so silent that nothing could be sent

    def _link(self, where: NodeAddress) -> AsyncRedisConnection:
        link = self._links.get(where)
        if link is None:
            link = self._links[where] = AsyncRedisConnection(self._settings, self.keys, where)
        return link

    # ── who has what ─────────────────────────────────────────────────────────────────────────────

    async def _at(self, bucket: int, deadline: float) -> NodeAddress | RedisFault:
        where = self._topology.at(bucket)
        if where is None:
            fault = await self._learn(deadline)
            where = self._topology.at(bucket)
            return where or fault or nobody(bucket)
        return where

    async def _pause(self, seconds: float, deadline: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, deadline - monotonic())))
        if self._topology.cluster and deadline > monotonic():
            await self._learn(deadline)

    async def _learn(self, deadline: float) -> RedisFault | None:
        """Those who want to know at once ask together."""
        if self._learning is None or self._learning.done():
            self._learning = keep(self._ask_around(deadline))
        return await asyncio.shield(self._learning)

    async def _ask_around(self, deadline: float) -> RedisFault | None:
        fault: RedisFault | None = None
        for where in self._topology.known():
            patience = min(deadline, monotonic() + PATIENCE)
            (answer,) = await self._ask(where, [Attempt(SLOTS_MAP)], patience)
            if not isinstance(answer, RedisFault):
                self._topology.learn(answer, where)
                return None
            fault = answer
        return fault


def _tell(future: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
    """What an errand came to, unless nobody waits for it."""
    if task.cancelled():
        future.cancel()
    elif error := task.exception():
        if not future.done():
            future.set_exception(error)
    elif not future.done():
        future.set_result(task.result())


def _stop(task: asyncio.Task[Any], future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        task.cancel()


class AsyncRedisStore:
    """The store for event loops: whatever the running one of this process has open."""

    __slots__ = ("_open", "_pool")

    def __init__(self, opened: Callable[[], AsyncRedisPool]) -> None:
        self._open = opened
        self._pool: AsyncRedisPool | None = None

    def perform(self, op: StoreOperation[R], /) -> Awaitable[R]:
        pool = self._pool
        if pool is None or pool.closed or pool.place != (getpid(), get_running_loop()):
            pool = self._pool = self._open()
        return pool.perform(op)
