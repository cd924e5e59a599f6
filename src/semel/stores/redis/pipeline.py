"""Calls of one errand to one node, and the order of answers on a link. No I/O.

A link answers in the order it was asked. Parcels that are written together are a convoy. Where
replicas are waited for, a convoy ends with a seal: a small write and one WAIT for all of it, before
which nobody is answered. The write is there because WAIT counts only what its own link wrote: what
another link wrote, and this one read, must have reached the replicas too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import hiredis

from semel.stores.redis.commands import pack
from semel.stores.redis.errors import RedisFault, Remedy, not_replicated, refused
from semel.stores.redis.keys import Keys
from semel.stores.redis.operation_retry import Attempt
from semel.stores.redis.plans import ANY
from semel.stores.redis.settings import NodeAddress, RedisSettings


class CommandBatch:
    """What an errand sends to one node at once; each colour adds how its sender waits.

    ``replies`` has what came so far of ``count``. ``sealed``: a `ReplicaWait` follows and lands it.
    """

    __slots__ = ("_attempts", "count", "data", "deadline", "replies", "sealed", "sent")

    def __init__(self, attempts: Sequence[Attempt], deadline: float) -> None:
        self._attempts = attempts
        self.data = b"".join([attempt.packed() for attempt in attempts])
        self.deadline = deadline
        self.replies: list[Any] = []
        self.count = len(attempts) + sum(attempt.asking for attempt in attempts)
        self.sent = False
        self.sealed = False

    def bucket(self) -> int:
        """One of those that it asks."""
        return self._attempts[0].call.bucket

    def outcomes(self, where: NodeAddress) -> list[Any]:
        """A reply or a fault for each attempt; what ASKING was answered is left out."""
        replies = iter(self.replies)
        found: list[Any] = []
        for attempt in self._attempts:
            if attempt.asking:
                next(replies)
            reply = next(replies)
            if isinstance(reply, hiredis.ReplyError):
                reply = refused(reply, where)
                reply.address = reply.address or (where if attempt.asking else None)
            found.append(reply)
        return found

    def land(self, where: NodeAddress) -> None:
        """It is answered."""
        raise NotImplementedError

    def fail(self, fault: RedisFault) -> None:
        """None of it is answered."""
        raise NotImplementedError


class ReplicaWait:
    """The end of a convoy: its parcels land when enough replicas have them."""

    __slots__ = ("_parcels", "_wanted", "replies")

    count: ClassVar = 2
    sealed: ClassVar = False

    def __init__(self, parcels: Sequence[CommandBatch], wanted: int) -> None:
        self._parcels = parcels
        self._wanted = wanted
        self.replies: list[Any] = []

    def land(self, where: NodeAddress) -> None:
        wrote, acknowledged = self.replies
        if isinstance(wrote, hiredis.ReplyError):
            # The slot has moved: sent again, the calls find where to.
            self.fail(RedisFault(str(refused(wrote, where)), Remedy.AGAIN, doubt=True, code="WAIT"))
        elif type(acknowledged) is not int or acknowledged < self._wanted:
            self.fail(not_replicated(acknowledged, self._wanted))
        else:
            for parcel in self._parcels:
                parcel.land(where)

    def fail(self, fault: RedisFault) -> None:
        for parcel in self._parcels:
            parcel.fail(fault)


def sealed(
    settings: RedisSettings, keys: Keys, convoy: Sequence[CommandBatch]
) -> tuple[bytes, ReplicaWait | None]:
    """What is written for a convoy; the seal where replicas are waited for."""
    data = b"".join([parcel.data for parcel in convoy])
    if not settings.wait_replicas:
        return data, None
    bucket = next((each for parcel in convoy if (each := parcel.bucket()) != ANY), ANY)
    if bucket == ANY:
        return data, None
    return data + _sealing(settings, keys, bucket), ReplicaWait(convoy, settings.wait_replicas)


def _sealing(settings: RedisSettings, keys: Keys, bucket: int) -> bytes:
    """What a `ReplicaWait` is answered for."""
    millis = max(1, int(settings.wait_timeout * 1000))
    wait = pack((b"WAIT", settings.wait_replicas, millis))
    return pack((b"SET", keys.pulse(bucket), b"")) + wait


class ReplyQueue:
    """Who is answered next on a link."""

    def __init__(self, where: NodeAddress) -> None:
        self._where = where
        self._reader = hiredis.Reader()
        self._asked: deque[CommandBatch | ReplicaWait] = deque()

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, parcels: Sequence[CommandBatch], seal: ReplicaWait | None) -> None:
        for parcel in parcels:
            parcel.sent = True
            parcel.sealed = seal is not None
        self._asked.extend(parcels)
        if seal is not None:
            self._asked.append(seal)

    def waiting(self) -> list[CommandBatch | ReplicaWait]:
        """All who were asked and have no answer yet."""
        return list(self._asked)

    def feed(self, data: bytes) -> None:
        """What came from the server; raises `hiredis.ProtocolError` for what is none of its."""
        asked, gets = self._asked, self._reader.gets
        self._reader.feed(data)
        while (reply := gets()) is not False:
            if not asked:
                raise hiredis.ProtocolError("an answer that nobody asked for")
            first = asked[0]
            first.replies.append(reply)
            if len(first.replies) == first.count:
                asked.popleft()
                if not first.sealed:
                    first.land(self._where)

    def fail(self, fault: RedisFault) -> None:
        """The link is gone, with everybody who waited."""
        while self._asked:
            waiting = self._asked.popleft()
            if not waiting.sealed:
                waiting.fail(fault)
