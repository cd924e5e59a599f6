"""What is said first on a link, and what is checked then. No I/O.

Checked on every link, for a server may have been restarted with other settings; and again while
the link is in use, for they can be changed at any time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias

import hiredis

from semel.errors import ConfigurationError
from semel.log import log
from semel.stores.base import Finding
from semel.stores.redis.errors import RedisFault, Remedy, refused
from semel.stores.redis.settings import NodeAddress, RedisSettings

OLDEST: Final = (7, 0)
"""The first to refuse a script on a replica before it runs."""

_SETTINGS: Final = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save")

Commands: TypeAlias = Sequence[tuple[str | int, ...]]
Facts: TypeAlias = dict[str, str]
Greeting: TypeAlias = Generator[Commands, Sequence[Any], tuple[Finding, ...]]


def greet(settings: RedisSettings, where: NodeAddress) -> Greeting:
    """Log in, and look whether this server can be trusted with records."""
    for command in _introduction(settings):
        (said,) = yield [command]
        if isinstance(said, hiredis.ReplyError):
            raise _unwelcome(said, where)
    info, config = yield [("INFO",), ("CONFIG", "GET", *_SETTINGS)]
    for said in (info, config):
        if isinstance(said, hiredis.ReplyError) and str(said).startswith("NOAUTH"):
            raise ConfigurationError(
                f"Redis at {where} asks for a password, and the URL has none: write "
                "redis://:password@host or redis://user:password@host"
            )
    findings = tuple(examine(settings, _info(info), _config(config)))
    return findings


def _introduction(settings: RedisSettings) -> list[tuple[str | int, ...]]:
    said: list[tuple[str | int, ...]] = []
    if settings.password is not None:
        user = () if settings.user is None else (settings.user,)
        said.append(("AUTH", *user, settings.password))
    if settings.db:
        said.append(("SELECT", settings.db))
    return said


def _unwelcome(error: hiredis.ReplyError, where: NodeAddress) -> Exception:
    if str(error).startswith(("LOADING", "MASTERDOWN")):
        return refused(error, where)
    return ConfigurationError(f"Redis at {where} refuses the user, password or database: {error}")


def admit(settings: RedisSettings, where: NodeAddress, findings: Sequence[Finding]) -> None:
    """Refuse what must be, and say the rest, once in a process."""
    for finding in findings:
        if finding.severity == "refused":
            raise RedisFault(f"{where}: {finding.text}", broken=True, code="REFUSED")
        if (where, finding.text) not in _told:
            _told.add((where, finding.text))
            log.warning("semel: Redis at %s: %s", where, finding.text)


_told: set[tuple[NodeAddress, str]] = set()


# ── what is known ─────────────────────────────────────────────────────────────────────────────────


def _info(said: Any) -> Facts:
    """``name:value`` lines; none where INFO is forbidden."""
    if type(said) is not bytes:
        return {}
    pairs = (line.partition(":") for line in said.decode("utf-8", "replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _config(said: Any) -> Facts | None:
    """None where CONFIG is forbidden, as managed servers do."""
    if not isinstance(said, list):
        return None
    words = [word.decode("utf-8", "replace") for word in said]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return dict(zip(words[::2], words[1::2], strict=False))  # pyright: ignore[reportUnknownArgumentType]


def examine(
    settings: RedisSettings, info: Facts, config: Facts | None
) -> Generator[Finding, None, None]:
    """Everything there is to say about a server. CONFIG knows more, INFO is asked where it may."""
    if info.get("role") == "slave" and not settings.cluster:  # there it knows who has what
        raise RedisFault("READONLY this is a replica", Remedy.AGAIN, broken=True, code="READONLY")
    yield from _server(settings, info)
    if settings.cache:
        return
    yield from _eviction(settings, info if config is None else info | config)
    yield from _persistence(settings, info, config)
    yield from _replication(settings, info)


def _server(settings: RedisSettings, info: Facts) -> Generator[Finding, None, None]:
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


def _eviction(settings: RedisSettings, facts: Facts) -> Generator[Finding, None, None]:
    """Nothing of ours has a time to live, so what evicts only such keys evicts none of ours."""
    policy = facts.get("maxmemory-policy") or facts.get("maxmemory_policy")
    if policy is None:
        yield Finding("unchecked", "whether it evicts keys when its memory is full is not known")
    elif policy.startswith("allkeys-") and facts.get("maxmemory", "0") != "0":
        why = f"maxmemory-policy {policy} drops keys when memory is full, and requests run twice"
        if settings.allow_eviction:
            yield Finding("warning", why)
        else:
            yield Finding("refused", f"{why}: set noeviction, or say allow_eviction=yes")


def _persistence(
    settings: RedisSettings, info: Facts, config: Facts | None
) -> Generator[Finding, None, None]:
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


def _replication(settings: RedisSettings, info: Facts) -> Generator[Finding, None, None]:
    replicas = int(info.get("connected_slaves", "0"))
    if settings.wait_replicas > replicas:
        text = f"wait_replicas={settings.wait_replicas}, but {replicas} are connected"
        yield Finding("warning", text)
    elif (replicas or settings.cluster) and not settings.wait_replicas:
        text = "a failover may lose acknowledged keys: wait_replicas=1 makes that rare, and visible"
        yield Finding("warning", text)
