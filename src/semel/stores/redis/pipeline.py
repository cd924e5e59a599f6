"""Commands on one connection, and which reply belongs to whom. No I/O.

A connection answers in the order in which it was asked. Batches that are written together are a
pipeline. Where replicas are waited for, a pipeline ends with a small write and one WAIT, and no
batch of it is delivered before both are answered. The write is needed because WAIT counts only what
its own connection wrote: what another connection wrote, and this one read, must have reached the
replicas too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import hiredis

from semel.stores.redis.errors import RedisFault, Remedy, from_reply
from semel.stores.redis.keys import Keys
from semel.stores.redis.operation_retry import Attempt
from semel.stores.redis.scripts import ANY, pack
from semel.stores.redis.settings import NodeAddress, RedisSettings

PIPELINE_LIMIT: Final = 256
"""The most batches that are written together."""


class CommandBatch:
    """The commands that one operation sends to one node at once; subclasses add how it is awaited.

    ``replies`` holds what has come so far of ``count``. ``sent``: written, so it may be applied.
    ``held``: a `ReplicaWait` follows and delivers it.
    """

    __slots__ = ("_attempts", "count", "data", "deadline", "held", "replies", "sent")

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        self._attempts = attempts
        self.data = b"".join([attempt.packed() for attempt in attempts])
        self.deadline = deadline
        self.replies: list[Any] = []
        self.count = len(attempts) + sum(attempt.asking for attempt in attempts)
        self.sent = self.held = False

    def bucket(self) -> int:
        """One of the buckets that it is about."""
        return self._attempts[0].call.bucket

    def deliver(self, address: NodeAddress) -> None:
        """All replies are there: a reply or a fault for each attempt; ASKING's own is skipped."""
        replies = iter(self.replies)
        outcomes: list[Any] = []
        for attempt in self._attempts:
            if attempt.asking:
                next(replies)
            reply = next(replies)
            if isinstance(reply, hiredis.ReplyError):
                reply = from_reply(reply, address)
                reply.address = reply.address or (address if attempt.asking else None)
            outcomes.append(reply)
        self.finish(outcomes)

    def fail(self, fault: RedisFault) -> None:
        """No reply comes any more."""
        self.finish([fault] * len(self._attempts))

    def finish(self, outcomes: list[Any]) -> None:
        """Wake up whoever waits for it, once."""
        raise NotImplementedError


class ReplicaWait:
    """The end of a pipeline: its batches are delivered when enough replicas have them."""

    __slots__ = ("_batches", "_wanted", "replies")

    count: ClassVar = 2
    held: ClassVar = False

    def __init__(self, batches: Sequence[CommandBatch], wanted: int) -> None:
        self._batches = batches
        self._wanted = wanted
        self.replies: list[Any] = []

    def deliver(self, address: NodeAddress) -> None:
        wrote, acknowledged = self.replies
        if isinstance(wrote, hiredis.ReplyError):  # the slot has moved; the calls will find it
            text = str(from_reply(wrote, address))
            self.fail(RedisFault(text, Remedy.RECONNECT, doubt=True, code="WAIT"))
        elif type(acknowledged) is not int or acknowledged < self._wanted:
            text = f"{acknowledged} of {self._wanted} replicas have it"
            self.fail(RedisFault(text, doubt=True, code="WAIT"))
        else:
            for batch in self._batches:
                batch.deliver(address)

    def fail(self, fault: RedisFault) -> None:
        for batch in self._batches:
            batch.fail(fault)


def pipelined(
    settings: RedisSettings, keys: Keys, batches: Sequence[CommandBatch]
) -> tuple[bytes, ReplicaWait | None]:
    """The bytes of a pipeline, and its `ReplicaWait` where replicas are waited for."""
    data = b"".join([batch.data for batch in batches])
    if not settings.wait_replicas:
        return data, None
    bucket = next((each for batch in batches if (each := batch.bucket()) != ANY), ANY)
    if bucket == ANY:
        return data, None
    millis = max(1, int(settings.wait_timeout * 1000))
    write = pack((b"SET", keys.pulse(bucket), b""))
    wait = pack((b"WAIT", settings.wait_replicas, millis))
    return data + write + wait, ReplicaWait(batches, settings.wait_replicas)


class ReplyQueue:
    """The batches that a connection still owes replies, first sent first."""

    def __init__(self, address: NodeAddress) -> None:
        self._address = address
        self._reader = hiredis.Reader()
        self.owed: deque[CommandBatch | ReplicaWait] = deque()

    def __bool__(self) -> bool:
        return bool(self.owed)

    def sent(self, batches: Sequence[CommandBatch], wait: ReplicaWait | None) -> None:
        """These were written, or are about to be: from now on they may be applied."""
        for batch in batches:
            batch.sent = True
            batch.held = wait is not None
        self.owed.extend(batches)
        if wait is not None:
            self.owed.append(wait)

    def feed(self, data: bytes) -> None:
        """Deliver what came. Raises `hiredis.ProtocolError` for what no Redis would send."""
        owed, gets = self.owed, self._reader.gets
        self._reader.feed(data)
        while (reply := gets()) is not False:
            if not owed:
                raise hiredis.ProtocolError("an answer that nobody asked for")
            first = owed[0]
            first.replies.append(reply)
            if len(first.replies) == first.count:
                owed.popleft()
                if not first.held:
                    first.deliver(self._address)

    def fail(self, fault: RedisFault) -> None:
        """The connection is gone: everything that is owed fails."""
        while self.owed:
            first = self.owed.popleft()
            if not first.held:
                first.fail(fault)
