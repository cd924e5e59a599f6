"""Links and waiting for threads.

One link to each node serves every thread of the process. Who finds it idle writes and reads; those
who come meanwhile queue up and travel together next, and one of them then writes and reads for all.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis

from semel.core.operations.requests import StoreOperation
from semel.stores.base import CHECK_AGAIN, Finding
from semel.stores.redis.commands import pack
from semel.stores.redis.errors import RedisFault, garbled, not_connected, severed, timed_out
from semel.stores.redis.handshake import Commands, admit, greet
from semel.stores.redis.keys import Keys
from semel.stores.redis.operation_retry import Attempt, RetryPause, errand
from semel.stores.redis.pipeline import CommandBatch, ReplyQueue, sealed
from semel.stores.redis.settings import NodeAddress, RedisSettings
from semel.stores.redis.topology import PATIENCE, SLOTS_MAP, Topology, nobody

R = TypeVar("R")

CHUNK: Final = 256 * 1024
CONVOY: Final = 256
"""Parcels that are written together at most."""


class SyncBatch(CommandBatch):
    """Its sender waits for an event: it is answered, or its turn to write."""

    __slots__ = ("appointed", "done", "event", "result")

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        super().__init__(attempts, deadline)
        self.event = threading.Event()
        self.result: list[Any] = []
        self.done = self.appointed = False

    def land(self, where: NodeAddress) -> None:
        self._end(self.outcomes(where))

    def fail(self, fault: RedisFault) -> None:
        self._end([fault] * len(self._attempts))

    def _end(self, result: list[Any]) -> None:
        if not self.done:
            self.result, self.done = result, True
            self.event.set()


class RedisConnection:
    """One connection, shared by threads."""

    def __init__(self, settings: RedisSettings, keys: Keys, where: NodeAddress) -> None:
        self._settings = settings
        self._keys = keys
        self.where = where
        self._lock = threading.Lock()
        self._queue: list[SyncBatch] = []
        self._led = self._stale = self._ending = False
        self._socket: socket.socket | None = None
        self._check_at = 0.0
        self._line = ReplyQueue(where)

    def send(self, parcel: SyncBatch) -> list[Any]:
        """The outcomes, by the parcel's deadline."""
        with self._lock:
            self._queue.append(parcel)
            lead, self._led = not self._led, True
        if not lead:
            lead = self._wait(parcel)
        if lead:
            try:
                self._carry()
            finally:
                self._pass_on()
        return parcel.result

    def close(self) -> None:
        """Now, or when who is at work is done."""
        with self._lock:
            self._ending = True
            if not self._led:
                self._hang_up()

    def renounce(self) -> None:
        """The next one goes over a new connection."""
        self._stale = True

    def _hang_up(self) -> None:
        sock, self._socket = self._socket, None
        self._stale = False
        if sock is not None:
            sock.close()

    # ── whose turn it is ─────────────────────────────────────────────────────────────────────────

    def _wait(self, parcel: SyncBatch) -> bool:
        """Until it is answered; or True: its turn to write."""
        parcel.event.wait(max(0.0, parcel.deadline - monotonic()))
        with self._lock:
            if parcel.done:
                return False
            if parcel.appointed:
                return True
            if parcel in self._queue:
                self._queue.remove(parcel)
            parcel.fail(timed_out(parcel.sent))
            return False

    def _pass_on(self) -> None:
        with self._lock:
            self._led = bool(self._queue)
            if not self._led and self._ending:
                self._hang_up()
            if self._queue:
                self._queue[0].appointed = True
                self._queue[0].event.set()

    def _carry(self) -> None:
        """Everything that is queued, to the server and back."""
        with self._lock:
            convoy, self._queue = self._queue[:CONVOY], self._queue[CONVOY:]
        try:
            self._exchange(convoy, max(parcel.deadline for parcel in convoy))
        except RedisFault as fault:
            self._drop(convoy, fault)
        except BaseException as error:
            # One of many pays for an interrupt, or for a wrong setting; the others must know.
            sent = any(parcel.sent for parcel in convoy)
            self._drop(convoy, severed(sent, f"the link was given up: {type(error).__name__}"))
            raise

    def _drop(self, convoy: Sequence[SyncBatch], fault: RedisFault) -> None:
        self._hang_up()
        self._line = ReplyQueue(self.where)
        for parcel in convoy:
            parcel.fail(fault)

    # ── the wire ─────────────────────────────────────────────────────────────────────────────────

    def _exchange(self, convoy: Sequence[SyncBatch], deadline: float) -> None:
        sock = self._socket
        if sock is None or self._stale or _hung_up(sock):
            self._hang_up()
            self._line = ReplyQueue(self.where)
            sock = self._socket = dial(self._settings, self.where, deadline)
            self._check_at = 0.0
        if monotonic() >= self._check_at:
            self._check(sock, deadline)
        data, seal = sealed(self._settings, self._keys, convoy)
        self._line.ask(convoy, seal)
        _write(sock, data, deadline)
        try:
            while self._line:
                self._line.feed(_read(sock, deadline))
        except hiredis.ProtocolError as error:
            raise garbled(error) from None

    def _check(self, sock: socket.socket, deadline: float) -> None:
        findings = converse(self._settings, self.where, sock, deadline)
        admit(self._settings, self.where, findings)
        self._check_at = monotonic() + CHECK_AGAIN


def dial(settings: RedisSettings, where: NodeAddress, deadline: float) -> socket.socket:
    """A connection, encrypted where that is wanted."""
    left, tls = deadline - monotonic(), settings.context
    if left <= 0:
        raise timed_out(False)
    try:
        sock = _connected(where, left)
        return sock if tls is None else _encrypted(sock, tls, where.host)
    except OSError as error:
        raise not_connected(error, where) from None


def _connected(where: NodeAddress, seconds: float) -> socket.socket:
    if where.port:
        sock = socket.create_connection((where.host, where.port), timeout=seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(where.host)
    except BaseException:
        sock.close()
        raise
    return sock


def _encrypted(sock: socket.socket, tls: ssl.SSLContext, host: str) -> socket.socket:
    try:
        return tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def converse(
    settings: RedisSettings, where: NodeAddress, sock: socket.socket, deadline: float
) -> tuple[Finding, ...]:
    """The greeting."""
    reader = hiredis.Reader()
    steps = greet(settings, where)
    try:
        commands = next(steps)
        while True:
            commands = steps.send(_ask(sock, reader, commands, deadline))
    except StopIteration as done:
        findings: tuple[Finding, ...] = done.value
        return findings
    except hiredis.ProtocolError as error:
        raise garbled(error, sent=False) from None
    except RedisFault as fault:
        fault.doubt = False  # nothing was sent yet but the greeting
        raise


def _ask(
    sock: socket.socket, reader: hiredis.Reader, commands: Commands, deadline: float
) -> list[Any]:
    _write(sock, b"".join([pack(command) for command in commands]), deadline)
    replies: list[Any] = []
    while len(replies) < len(commands):
        while (reply := reader.gets()) is False:
            reader.feed(_read(sock, deadline))
        replies.append(reply)
    return replies


def _write(sock: socket.socket, data: bytes, deadline: float) -> None:
    try:
        sock.settimeout(_left(deadline))
        sock.sendall(data)
    except TimeoutError:
        raise timed_out(True) from None
    except OSError as error:
        raise severed(True, _said(error)) from None


def _read(sock: socket.socket, deadline: float) -> bytes:
    try:
        sock.settimeout(_left(deadline))
        data = sock.recv(CHUNK)
    except TimeoutError:
        raise timed_out(True) from None
    except OSError as error:
        raise severed(True, _said(error)) from None
    if not data:
        raise severed(True)
    return data


def _left(deadline: float) -> float:
    """Not 0, which would mean: never wait, and nothing was tried."""
    return max(0.000_1, deadline - monotonic())


def _said(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _hung_up(sock: socket.socket) -> bool:
    """Whether an idle link is of no more use: nothing may come where nothing was asked."""
    sock.settimeout(0.0)
    try:
        sock.recv(1)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError as error:
        return "want" not in type(error).__name__.lower()  # TLS: nothing came
    return True


class RedisPool:
    """What `RedisBackend` has for the threads of a process."""

    def __init__(self, settings: RedisSettings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._topology = Topology(settings)
        self._links: dict[NodeAddress, RedisConnection] = {}
        self._learning = threading.Lock()

    def perform(self, op: StoreOperation[R]) -> R:
        deadline = monotonic() + self._settings.timeout
        steps = errand(op, self._keys, cluster=self._topology.cluster)
        outcome: Any = None
        try:
            step = next(steps)
            while True:
                if isinstance(step, RetryPause):
                    self._pause(step.seconds, deadline)
                    outcome = None
                else:
                    outcome = self._send(step.attempts, deadline)
                step = steps.send(outcome)
        except StopIteration as done:
            reply: R = done.value
            return reply

    def close(self) -> None:
        while self._links:
            self._links.popitem()[1].close()

    def examine(self) -> Iterator[tuple[NodeAddress, Finding]]:
        """What there is to say about every primary, over links of its own."""
        deadline = monotonic() + self._settings.timeout
        if self._topology.cluster:
            self._learn(deadline)
        for where in self._topology.primaries():
            try:
                sock = dial(self._settings, where, deadline)
                with sock:
                    found = converse(self._settings, where, sock, deadline)
            except RedisFault as fault:
                found = (Finding("refused", str(fault)),)
            yield from ((where, finding) for finding in found)

    # ── calls to nodes ───────────────────────────────────────────────────────────────────────────

    def _send(self, attempts: Sequence[Attempt], deadline: float) -> list[Any]:
        if deadline <= monotonic():
            return [timed_out(False)] * len(attempts)
        if len(attempts) == 1:
            (attempt,) = attempts
            where = attempt.where or self._at(attempt.call.bucket, deadline)
            if isinstance(where, RedisFault):
                return [where]
            return self._ask(where, attempts, deadline)
        return self._scatter(attempts, deadline)

    def _scatter(self, attempts: Sequence[Attempt], deadline: float) -> list[Any]:
        """One parcel for each node, one after the other."""
        outcomes: dict[int, Any] = {}
        groups: dict[NodeAddress, list[int]] = {}
        for number, attempt in enumerate(attempts):
            where = attempt.where or self._at(attempt.call.bucket, deadline)
            if isinstance(where, RedisFault):
                outcomes[number] = where
            else:
                groups.setdefault(where, []).append(number)
        for where, numbers in groups.items():
            replies = self._ask(where, [attempts[number] for number in numbers], deadline)
            outcomes |= zip(numbers, replies, strict=True)
        return [outcomes[number] for number in range(len(attempts))]

    def _ask(self, where: NodeAddress, attempts: Sequence[Attempt], deadline: float) -> list[Any]:
        link = self._link(where)
        outcomes = link.send(SyncBatch(attempts, deadline))
        if any(isinstance(each, RedisFault) and each.broken for each in outcomes):
            link.renounce()
            self._topology.suspect(outcomes)
        return outcomes

    def _link(self, where: NodeAddress) -> RedisConnection:
        link = self._links.get(where)
        # setdefault is atomic: of several threads that come first all get the same one.
        return link or self._links.setdefault(
            where, RedisConnection(self._settings, self._keys, where)
        )

    # ── who has what ─────────────────────────────────────────────────────────────────────────────

    def _at(self, bucket: int, deadline: float) -> NodeAddress | RedisFault:
        where = self._topology.at(bucket)
        if where is None:
            fault = self._learn(deadline)
            where = self._topology.at(bucket)
            return where or fault or nobody(bucket)
        return where

    def _pause(self, seconds: float, deadline: float) -> None:
        time.sleep(max(0.0, min(seconds, deadline - monotonic())))
        if self._topology.cluster and deadline > monotonic():
            self._learn(deadline)

    def _learn(self, deadline: float) -> RedisFault | None:
        """One thread at a time; those who waited for it know as well."""
        version = self._topology.version
        if not self._learning.acquire(timeout=max(0.0, deadline - monotonic())):
            return timed_out(False)
        try:
            return self._ask_around(deadline) if self._topology.version == version else None
        finally:
            self._learning.release()

    def _ask_around(self, deadline: float) -> RedisFault | None:
        """Ask one node after the other."""
        fault: RedisFault | None = None
        for where in self._topology.known():
            patience = min(deadline, monotonic() + PATIENCE)
            (answer,) = self._ask(where, [Attempt(SLOTS_MAP)], patience)
            if not isinstance(answer, RedisFault):
                self._topology.learn(answer, where)
                return None
            fault = answer
        return fault
