"""The first commands on a connection, and the checks of the server. No I/O.

Every new connection checks, for the server may have been restarted with other settings. A
connection in use checks again from time to time, for settings can be changed at any time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, TypeAlias

from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import Finding
from semel.stores.redis.errors import RedisFault, Remedy
from semel.stores.redis.scripts import Command
from semel.stores.redis.settings import NodeAddress, RedisSettings

OLDEST: Final = (7, 0)
"""The first version that refuses a script on a replica before the script runs."""

_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")

Facts: TypeAlias = dict[str, str]
Handshake: TypeAlias = Generator[Sequence[Command], Sequence[Any], tuple[Finding, ...]]


def handshake(settings: RedisSettings, address: NodeAddress) -> Handshake:
    """Log in, and examine the server. Yields commands, is sent a reply or a fault for each."""
    first: list[Command] = []
    if settings.password is not None:
        user = () if settings.user is None else (settings.user,)
        first.append(("AUTH", *user, settings.password))
    if settings.db:
        first.append(("SELECT", settings.db))
    for command in first:
        (reply,) = yield [command]
        if isinstance(reply, RedisFault):
            if reply.broken or reply.code in ("LOADING", "MASTERDOWN"):
                raise reply
            raise ConfigurationError(
                f"Redis at {address} refuses the user, password or database: {reply}"
            )
    info, config = yield [("INFO",), ("CONFIG", "GET", *_SETTINGS)]
    for reply in (info, config):
        if isinstance(reply, RedisFault) and reply.broken:
            raise reply
        if isinstance(reply, RedisFault) and reply.code == "NOAUTH":
            raise ConfigurationError(
                f"Redis at {address} asks for a password, and the URL has none: write "
                "redis://:password@host or redis://user:password@host"
            )
    return tuple(examine(settings, _info(info), _config(config)))


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
    elif (replicas or settings.cluster) and not settings.wait_replicas:
        text = "a failover may lose acknowledged keys: wait_replicas=1 makes that rare, and visible"
        yield Finding("warning", text)
