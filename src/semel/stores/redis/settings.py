"""Parse a Redis URL: where to connect, semel's own options, and what may be printed."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from semel.errors import ConfigurationError
from semel.stores.options import count, flag, in_url, seconds, whole

SCHEMES: Final = ("redis", "rediss", "redis+unix", "rediscluster")
PORT: Final = 6379
_PREFIX: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class NodeAddress(NamedTuple):
    """Where a node listens: a host and a port, or the path of a Unix socket and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class RedisSettings:
    """All settings of a `RedisBackend`; ``url`` is printable, without the password."""

    url: str
    seeds: tuple[NodeAddress, ...]
    cluster: bool
    db: int
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    timeout: float = 5.0
    prefix: str = "semel"
    durability: str = "appendonly"
    allow_eviction: bool = False
    wait_replicas: int = 0
    wait_timeout: float = 1.0
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, which checks certificates and host names; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"TLS: a file cannot be used: {error}") from None
        return context


def parse(url: str, options: Mapping[str, object]) -> RedisSettings:
    """The settings of a URL. Options given as keywords win over those in the URL."""
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() not in SCHEMES:
        raise ConfigurationError(f"a Redis URL starts with {', '.join(SCHEMES)} and ://")
    scheme = scheme.lower()
    where, _, query = rest.partition("?")
    user, password, where = _credentials(where)
    given: dict[str, object] = {**in_url(query, OPTIONS, "Redis")}
    given |= {name: value for name, value in options.items() if value is not None}
    seeds, db = _socket(where) if scheme == "redis+unix" else _hosts(where)
    if len(seeds) > 1 and scheme != "rediscluster":
        raise ConfigurationError("several hosts are those of a cluster: rediscluster://")
    if db and scheme == "rediscluster":
        raise ConfigurationError("a Redis cluster has one database only: leave out what follows /")
    own = {name: read(name, given[name]) for name, read in OPTIONS.items() if name in given}
    return RedisSettings(
        url=f"{scheme}://{quote(user) + '@' if user else ''}{where}",
        seeds=seeds,
        cluster=scheme == "rediscluster",
        db=db,
        user=user,
        password=password,
        **_consistent({"tls": scheme == "rediss"} | own),
    )


def _credentials(where: str) -> tuple[str | None, str | None, str]:
    before, found, rest = where.rpartition("@")
    if not found:
        return None, None, where
    user, _, password = before.partition(":")
    return unquote(user) or None, unquote(password) or None, rest


def _hosts(where: str) -> tuple[tuple[NodeAddress, ...], int]:
    hosts, _, db = where.partition("/")
    number = whole(db or "0")
    if number is None:
        raise ConfigurationError("what follows / in a Redis URL is the number of a database")
    return tuple([_address(host) for host in hosts.split(",")]), number


def _address(text: str) -> NodeAddress:
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
    if found is None:
        raise ConfigurationError("a Redis URL names hosts as host:port")
    port = int(found[3] or PORT)
    if not 0 < port < 65_536:
        raise ConfigurationError("a Redis URL names ports from 1 to 65535")
    return NodeAddress(unquote(found[1] or found[2]) or "localhost", port)


def _socket(where: str) -> tuple[tuple[NodeAddress, ...], int]:
    path, _, db = unquote(where).partition("#")
    number = whole(db or "0")
    if not path.startswith("/") or number is None:
        raise ConfigurationError("a socket is named by its path: redis+unix:///run/redis.sock#0")
    return (NodeAddress(path, 0),), number


def _consistent(own: dict[str, Any]) -> dict[str, Any]:
    wait, timeout = own.get("wait_timeout", 1.0), own.get("timeout", 5.0)
    if own.get("wait_replicas") and wait >= timeout:
        raise ConfigurationError("wait_timeout must be less than timeout, which counts for all")
    if own.get("key_file") and not own.get("cert_file"):
        raise ConfigurationError("key_file= goes with cert_file=")
    if not own.get("tls") and any(own.get(name) for name in ("ca_file", "cert_file")):
        raise ConfigurationError("ca_file and cert_file are for TLS: rediss://, or tls=yes")
    return own


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def _prefix(name: str, value: object) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigurationError(f"{name}={value!r}: up to 64 letters, digits, dots, : _ and -")
    return value


def _durability(name: str, value: object) -> str:
    if value not in ("appendonly", "best-effort"):
        raise ConfigurationError(f"{name}={value!r}: expected appendonly or best-effort")
    return str(value)


def _file(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name}={value!r}: expected the path of a file")
    return value


OPTIONS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "timeout": seconds,
    "prefix": _prefix,
    "durability": _durability,
    "allow_eviction": flag,
    "wait_replicas": partial(count, least=0),
    "wait_timeout": seconds,
    "tls": flag,
    "ca_file": _file,
    "cert_file": _file,
    "key_file": _file,
}
