"""Connections for the threads of a process.

One connection to each node serves every thread. A thread that finds it idle leads: it writes and
reads. Threads that come meanwhile queue up; their batches are the next pipeline, and the first of
them leads for all. What the queue holds has not left: a thread whose time is up takes its batch out
of it, so the operation is never done.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis

from semel.core.operations.requests import StoreOperation
from semel.stores.base import CHECK_AGAIN, Finding
from semel.stores.redis import errors, operation_retry
from semel.stores.redis.commands import ANY, Keys, RedisCall
from semel.stores.redis.connection import (
    PIPELINE_LIMIT,
    CommandBatch,
    ReplyQueue,
    handshake,
    pipelined,
    refuse_or_warn,
)
from semel.stores.redis.credentials import login
from semel.stores.redis.errors import RedisFault
from semel.stores.redis.operation_retry import Attempt, Steps, Topology, operation, refresh
from semel.stores.redis.settings import NodeAddress, RedisSettings

R = TypeVar("R")

CHUNK: Final = 256 * 1024


class SyncBatch(CommandBatch):
    """Its thread waits for ``event``: it is answered (``done``), or has to lead (``leads``)."""

    __slots__ = ("done", "event", "leads", "outcomes")

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        super().__init__(attempts, deadline)
        self.event = threading.Event()
        self.outcomes: list[Any] = []
        self.done = self.leads = False

    def finish(self, outcomes: list[Any]) -> None:
        if not self.done:
            self.outcomes, self.done = outcomes, True
            self.event.set()


class RedisConnection:
    """One connection, shared by threads; it opens when there is something to send.

    ``_led``: some thread leads. ``stale``: the next pipeline goes over a new connection.
    """

    def __init__(self, settings: RedisSettings, keys: Keys, address: NodeAddress) -> None:
        self._settings = settings
        self._keys = keys
        self._address = address
        self._lock = threading.Lock()
        self._queue: list[SyncBatch] = []
        self._led = self._closing = self.stale = False
        self._socket: socket.socket | None = None
        self._check_at = 0.0
        self._replies = ReplyQueue(address)

    def send(self, batch: SyncBatch) -> list[Any]:
        """Return its outcomes, by its deadline."""
        with self._lock:
            self._queue.append(batch)
            lead, self._led = not self._led, True
        if lead or self._wait(batch):
            try:
                self._lead()
            finally:
                with self._lock:
                    self._pass_on()
        return batch.outcomes

    def close(self) -> None:
        """Close now, or when the thread that leads is done."""
        with self._lock:
            self._closing = True
            if not self._led:
                self._disconnect()

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        self.stale = False
        self._replies = ReplyQueue(self._address)
        if sock is not None:
            sock.close()

    # ── who leads ────────────────────────────────────────────────────────────────────────────────

    def _pass_on(self) -> None:
        """Nobody leads any more: the first that waits leads next. With the lock."""
        self._led = bool(self._queue)
        if self._led:
            self._queue[0].leads = True
            self._queue[0].event.set()
        elif self._closing:
            self._disconnect()

    def _wait(self, batch: SyncBatch) -> bool:
        """Wait until the batch is answered or its time is up; True: its thread has to lead."""
        try:
            batch.event.wait(max(0.0, batch.deadline - monotonic()))
        except BaseException:  # interrupted: nobody would lead where this one is chosen to
            with self._lock:
                if batch in self._queue:
                    self._queue.remove(batch)
                if batch.leads:
                    self._pass_on()
            raise
        with self._lock:
            if batch.done:
                return False
            if batch.leads:
                return True
            if batch in self._queue:
                self._queue.remove(batch)
            batch.fail(errors.timed_out(batch.sent))
            return False

    def _lead(self) -> None:
        """Write what is queued as one pipeline, and read all its replies."""
        with self._lock:
            batches, self._queue = self._queue[:PIPELINE_LIMIT], self._queue[PIPELINE_LIMIT:]
        try:
            self._exchange(batches, max(batch.deadline for batch in batches))
        except BaseException as error:
            fault = error
            if not isinstance(fault, RedisFault):  # one thread gets the error; tell the others
                sent = any(batch.sent for batch in batches)
                fault = errors.disconnected(sent, f"the link was given up: {type(error).__name__}")
            self._disconnect()
            for batch in batches:
                batch.fail(fault)
            if fault is not error:
                raise

    def _exchange(self, batches: Sequence[SyncBatch], deadline: float) -> None:
        sock = self._socket
        if sock is None or self.stale or _is_closed(sock):
            self._disconnect()
            sock = self._socket = open_socket(self._settings, self._address, deadline)
            self._check(sock, deadline, new=True)
        elif monotonic() >= self._check_at:
            self._check(sock, deadline)
        data, wait = pipelined(self._settings, self._keys, batches)
        self._replies.sent(batches, wait)
        _transfer(sock, data, self._replies, deadline)

    def _check(self, sock: socket.socket, deadline: float, *, new: bool = False) -> None:
        place = (self._settings, self._keys, self._address)
        refuse_or_warn(self._address, run_handshake(*place, sock, deadline, new=new))
        self._check_at = monotonic() + CHECK_AGAIN


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────


def open_socket(settings: RedisSettings, address: NodeAddress, deadline: float) -> socket.socket:
    """Connect, with TLS where that is set."""
    left, tls = deadline - monotonic(), settings.context
    host, port = settings.reachable(address)
    if left <= 0:
        raise errors.timed_out(False)
    sock: socket.socket | None = None
    try:
        if port:
            sock = socket.create_connection((host, port), timeout=left)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(left)
            sock.connect(host)
        name = settings.server_name or host
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=name)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, OSError):
            raise errors.not_connected(error, address) from None
        raise


def run_handshake(
    settings: RedisSettings,
    keys: Keys,
    address: NodeAddress,
    sock: socket.socket,
    deadline: float,
    *,
    new: bool,
) -> tuple[Finding, ...]:
    """Do what `handshake` asks for. No fault leaves a doubt: no operation was sent yet."""
    who = login(settings, settings.is_sentinel(address)) if new else None
    steps = handshake(settings, keys, address, who)
    try:
        commands = next(steps)
        while True:
            attempts = [Attempt(RedisCall(ANY, command)) for command in commands]
            batch, queue = SyncBatch(attempts, deadline), ReplyQueue(address)
            queue.sent([batch], None)
            _transfer(sock, batch.data, queue, deadline)
            commands = steps.send(batch.outcomes)
    except StopIteration as done:
        findings: tuple[Finding, ...] = done.value
        return findings
    except RedisFault as fault:
        fault.doubt = False
        raise


def _transfer(sock: socket.socket, data: bytes, replies: ReplyQueue, deadline: float) -> None:
    """Write, and read until all replies are there."""
    try:
        sock.settimeout(max(0.000_1, deadline - monotonic()))  # 0 would mean: do not block
        sock.sendall(data)
        while replies:
            sock.settimeout(max(0.000_1, deadline - monotonic()))
            received = sock.recv(CHUNK)
            if not received:
                raise errors.disconnected(True)
            replies.feed(received)
    except TimeoutError:
        raise errors.timed_out(True) from None
    except OSError as error:
        raise errors.disconnected(True, error.strerror or type(error).__name__) from None
    except hiredis.ProtocolError as error:
        raise errors.not_redis(error) from None


def _is_closed(sock: socket.socket) -> bool:
    """Whether an idle connection is closed, or holds data that nobody asked for."""
    sock.settimeout(0.0)
    try:
        sock.recv(1)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError as error:
        return "want" not in type(error).__name__.lower()  # SSLWantReadError: nothing came
    return True


class RedisPool:
    """The connections that a `RedisBackend` has in one process: one to each node."""

    def __init__(self, settings: RedisSettings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._topology = Topology(settings)
        self._connections: dict[NodeAddress, RedisConnection] = {}
        self._refreshing = threading.Lock()

    def perform(self, op: StoreOperation[R]) -> R:
        deadline = monotonic() + self._settings.timeout
        return self._run(operation(op, self._keys, self._topology, deadline), deadline)

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def examine(self) -> Iterator[tuple[NodeAddress, Finding]]:
        """What there is to say about every primary, over connections of its own."""
        deadline = monotonic() + self._settings.timeout
        fault = self._refresh(deadline) if self._topology.follows else None
        if fault is not None:
            yield self._topology.seeds[0], Finding("refused", str(fault))
        for address in self._topology.primaries():
            try:
                with open_socket(self._settings, address, deadline) as sock:
                    place = (self._settings, self._keys, address)
                    found = run_handshake(*place, sock, deadline, new=True)
            except RedisFault as fault:
                found = (Finding("refused", str(fault)),)
            yield from ((address, finding) for finding in found)

    def _run(self, steps: Steps[R], deadline: float) -> R:
        """Do what the steps ask for, until they return."""
        result: Any = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, operation_retry.SendBatches):
                    until = step.deadline
                    result = [self._send(*batch, until) for batch in step.batches.items()]
                elif isinstance(step, operation_retry.RetryPause):
                    time.sleep(step.seconds)
                    result = None
                else:
                    result = self._refresh(deadline)
                step = steps.send(result)
        except StopIteration as done:
            reply: R = done.value
            return reply

    def _send(
        self, address: NodeAddress, attempts: Sequence[Attempt], deadline: float
    ) -> list[Any]:
        connection = self._connections.get(address)
        if connection is None:
            # setdefault is atomic: threads that come at once get the same connection.
            made = RedisConnection(self._settings, self._keys, address)
            connection = self._connections.setdefault(address, made)
        outcomes = connection.send(SyncBatch(attempts, deadline))
        if self._topology.replaced(address):
            outcomes = [errors.disconnected(True, "the primary was replaced")] * len(attempts)
        if faults := [each for each in outcomes if isinstance(each, RedisFault)]:
            self._topology.suspect(faults)
            if any(fault.broken for fault in faults):
                connection.stale = True
        return outcomes

    def _refresh(self, deadline: float) -> RedisFault | None:
        """Refresh the topology. Threads that wait for another one's refresh use its result."""
        version = self._topology.version
        if not self._refreshing.acquire(timeout=max(0.0, deadline - monotonic())):
            return errors.timed_out(False)
        try:
            if self._topology.version != version:
                return None
            fault = self._run(refresh(self._topology, deadline), deadline)
            for address in [each for each in self._connections if self._topology.replaced(each)]:
                self._connections.pop(address).close()
            return fault
        finally:
            self._refreshing.release()
