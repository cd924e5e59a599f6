"""What both pools do on a connection: pipelines, whose reply is next, and the handshake. No I/O.

**Pipelines.** A connection answers in the order in which it was asked. Batches that are written
together are a pipeline. Where replicas are waited for, a pipeline ends with a small write and one
WAIT, and no batch of it is delivered before both are answered. The write is needed because WAIT
counts only what its own connection wrote: what another connection wrote, and this one read, must
have reached the replicas too.

**Handshake.** Every new connection checks the server, which may have been restarted with other
settings. A connection in use checks again from time to time, for settings can be changed at any
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeAlias

import hiredis

from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import Finding
from semel.stores.redis.commands import ANY, Command, Keys, pack, script
from semel.stores.redis.credentials import Login
from semel.stores.redis.errors import RedisFault, Remedy, from_reply
from semel.stores.redis.operation_retry import Attempt
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


# ── handshake ─────────────────────────────────────────────────────────────────────────────────────

OLDEST: Final = (7, 0)
"""The first version that refuses a script on a replica before the script runs."""

_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")

Facts: TypeAlias = dict[str, str]
Handshake: TypeAlias = Generator[Sequence[Command], Sequence[Any], tuple[Finding, ...]]


def handshake(
    settings: RedisSettings, keys: Keys, address: NodeAddress, login: Login | None
) -> Handshake:
    """Examine the server; a new connection logs in first. Yields commands, is sent a reply or a
    fault for each.

    ``login``: of a new connection; None: the connection is open, and the server is checked again.
    """
    sentinel = settings.is_sentinel(address)
    if login is not None:
        yield from _log_in(settings, address, login)
    if sentinel:
        return ()
    watched = login is not None and bool(settings.service)
    made = script("primary")
    note: tuple[Command, ...] = ((b"EVAL", made.text, 1, keys.primary, str(address)),)
    info, config, *noted = yield [
        ("INFO",),
        ("CONFIG", "GET", *_SETTINGS),
        *(note if watched else ()),
    ]
    for reply in (info, config):
        if isinstance(reply, RedisFault) and reply.broken:
            raise reply
        if isinstance(reply, RedisFault) and reply.code == "NOAUTH":
            raise ConfigurationError(
                f"Redis at {address} asks for a password, and the URL has none: write "
                "redis://:password@host or redis://user:password@host"
            )
    found = tuple(examine(settings, _info(info), _config(config)))
    return (*found, *(finding for each in noted for finding in _replaced(address, each)))


def _log_in(settings: RedisSettings, address: NodeAddress, login: Login) -> Handshake:
    commands: list[Command] = []
    if login.password is not None:
        user = () if login.user is None else (login.user,)
        commands.append(("AUTH", *user, login.password))
    if settings.db and not settings.is_sentinel(address):
        commands.append(("SELECT", settings.db))
    for command in commands:
        (reply,) = yield [command]
        if not isinstance(reply, RedisFault):
            continue
        if reply.broken or reply.code in ("LOADING", "MASTERDOWN"):
            raise reply
        text = f"Redis at {address} refuses the user, password or database: {reply}"
        if login.renewed:  # it may have ended just now, and the next one is another
            raise RedisFault(text, Remedy.RECONNECT, broken=True, code="AUTH")
        raise ConfigurationError(text)
    (named,) = yield [("CLIENT", "SETNAME", settings.client_name)]
    if isinstance(named, RedisFault) and named.broken:
        raise named  # a server that forbids names is used without one
    return ()


def _replaced(address: NodeAddress, noted: Any) -> Iterator[Finding]:
    """What the note about the primary says."""
    if isinstance(noted, RedisFault):
        yield Finding("unchecked", f"whether another primary was replaced is not known: {noted}")
        return
    changes, changed_at, before = noted
    if changes is not None:
        at = datetime.fromtimestamp(int(changed_at) / 1_000_000, UTC).isoformat(timespec="seconds")
        yield Finding(
            "warning",
            f"a failover replaced the primary ({changes} so far), last seen at {at}: "
            f"{before.decode()} by {address}. What the first had acknowledged and the other never "
            "got is lost, and requests with those keys run again when they are repeated",
        )


def refuse_or_warn(address: NodeAddress, findings: Sequence[Finding]) -> None:
    """Raise a fault for a server that must not be used; log other findings once per process."""
    for finding in findings:
        if finding.severity == "refused":
            raise RedisFault(f"{address}: {finding.text}", broken=True, code="REFUSED")
        if (address, finding.text) not in _logged:
            _logged.add((address, finding.text))
            log.warning("semel: Redis at %s: %s", address, finding.text)


_logged: set[tuple[NodeAddress, str]] = set()


def _info(reply: Any) -> Facts:
    """Parse the ``name:value`` lines of INFO; empty where INFO is forbidden."""
    if type(reply) is not bytes:
        return {}
    pairs = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _config(reply: Any) -> Facts | None:
    """Parse the reply of CONFIG GET; None where CONFIG is forbidden, as on managed servers."""
    if not isinstance(reply, list):
        return None
    words = [word.decode("utf-8", "replace") for word in reply]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return dict(zip(words[::2], words[1::2], strict=False))  # pyright: ignore[reportUnknownArgumentType]


# ── what is wrong with a server ───────────────────────────────────────────────────────────────────


def examine(settings: RedisSettings, info: Facts, config: Facts | None) -> Iterator[Finding]:
    """Everything there is to say about a server. A fact that CONFIG does not tell is read in INFO.

    A replica of a single server is a fault. In a cluster it is useful: it knows the slots.
    """
    if info.get("role") == "slave" and not settings.cluster:
        text = "READONLY this is a replica"
        raise RedisFault(text, Remedy.RECONNECT, broken=True, code="READONLY")
    version = info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not version:
        yield Finding("unchecked", "INFO is forbidden: neither its version nor its role is known")
    elif numbers < OLDEST:
        yield Finding("refused", f"version {version} is too old: 7.0 or newer, or any Valkey")
    if info.get("cluster_enabled") == "1" and not settings.cluster:
        yield Finding("refused", "this is a node of a cluster: use rediscluster://")
    if info.get("cluster_enabled") == "0" and settings.cluster:
        yield Finding("refused", "this is no cluster: use redis://")
    yield from _eviction(settings, info if config is None else info | config)
    yield from _persistence(settings, info, config)
    yield from _replication(settings, info)


def _eviction(settings: RedisSettings, facts: Facts) -> Iterator[Finding]:
    """Only ``allkeys-`` policies matter: no key of ours has a time to live."""
    policy = facts.get("maxmemory-policy") or facts.get("maxmemory_policy")
    if policy is None:
        yield Finding("unchecked", "whether it evicts keys when its memory is full is not known")
    elif policy.startswith("allkeys-") and facts.get("maxmemory", "0") != "0":
        why = f"maxmemory-policy {policy} drops keys when memory is full, and requests run twice"
        if settings.allow_eviction:
            yield Finding("warning", why)
        else:
            yield Finding("refused", f"{why}: set noeviction, or say allow_eviction=yes")


def _persistence(settings: RedisSettings, info: Facts, config: Facts | None) -> Iterator[Finding]:
    known = config or {}
    kept = known.get("appendonly") or {"1": "yes", "0": "no"}.get(info.get("aof_enabled", ""))
    if kept is None:
        yield Finding("unchecked", "whether it keeps anything over a restart is not known")
    elif kept != "yes":
        why = "appendonly is off: a restart loses keys, and their requests run again"
        if settings.durability == "best-effort":
            yield Finding("warning", why)
        else:
            yield Finding("refused", f"{why}: set appendonly yes, or say durability=best-effort")
    elif "appendfsync" not in known:
        yield Finding("unchecked", "CONFIG is forbidden: how often it syncs to disk is not known")
    elif known["appendfsync"] != "always":
        text = "appendfsync is not always: a power cut may lose the last second's keys, or more"
        yield Finding("warning", text)


def _replication(settings: RedisSettings, info: Facts) -> Iterator[Finding]:
    replicas = int(info.get("connected_slaves", "0"))
    if settings.wait_replicas > replicas:
        text = f"wait_replicas={settings.wait_replicas}, but {replicas} are connected"
        yield Finding("warning", text)
    elif 0 < settings.wait_replicas < replicas:
        text = (
            f"wait_replicas={settings.wait_replicas} of {replicas}: a failover may choose one that "
        )
        yield Finding("warning", f"{text}has less, and then lose acknowledged keys")
    elif (replicas or settings.cluster) and not settings.wait_replicas:
        text = "a failover may lose acknowledged keys: wait_replicas=1 makes that rare, and visible"
        yield Finding("warning", text)
