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

    def __post_init__(self) -> None:
        if self.wait_replicas and self.wait_timeout >= self.timeout:
            raise ConfigurationError("wait_timeout must be less than timeout, which counts for all")
        if self.key_file and not self.cert_file:
            raise ConfigurationError("key_file= goes with cert_file=")
        if not self.tls and (self.ca_file or self.cert_file):
            raise ConfigurationError("ca_file and cert_file are for TLS: rediss://, or tls=yes")

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
    scheme = scheme.lower()
    if not found or scheme not in SCHEMES:
        raise ConfigurationError(f"a Redis URL starts with {', '.join(SCHEMES)} and ://")
    where, _, query = rest.partition("?")
    login, _, where = where.rpartition("@")
    user, _, password = map(unquote, login.partition(":"))
    given: dict[str, object] = {**in_url(query, OPTIONS, "Redis")}
    given |= {name: value for name, value in options.items() if value is not None}
    seeds, db = _socket(where) if scheme == "redis+unix" else _hosts(where)
    if len(seeds) > 1 and scheme != "rediscluster":
        raise ConfigurationError("several hosts are those of a cluster: rediscluster://")
    if db and scheme == "rediscluster":
        raise ConfigurationError("a Redis cluster has one database only: leave out what follows /")
    own: dict[str, Any] = {"tls": scheme == "rediss"}
    own |= {name: read(name, given[name]) for name, read in OPTIONS.items() if name in given}
    return RedisSettings(
        url=f"{scheme}://{quote(user) + '@' if user else ''}{where}",
        seeds=seeds,
        cluster=scheme == "rediscluster",
        db=db,
        user=user or None,
        password=password or None,
        **own,
    )


def _hosts(where: str) -> tuple[tuple[NodeAddress, ...], int]:
    hosts, _, db = where.partition("/")
    number = whole(db or "0")
    if number is None:
        raise ConfigurationError("what follows / in a Redis URL is the number of a database")
    seeds: list[NodeAddress] = []
    for text in hosts.split(","):
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
        if found is None:
            raise ConfigurationError("a Redis URL names hosts as host:port")
        port = int(found[3] or PORT)
        if not 0 < port < 65_536:
            raise ConfigurationError("a Redis URL names ports from 1 to 65535")
        seeds.append(NodeAddress(unquote(found[1] or found[2]) or "localhost", port))
    return tuple(seeds), number


def _socket(where: str) -> tuple[tuple[NodeAddress, ...], int]:
    path, _, db = unquote(where).partition("#")
    number = whole(db or "0")
    if not path.startswith("/") or number is None:
        raise ConfigurationError("a socket is named by its path: redis+unix:///run/redis.sock#0")
    return (NodeAddress(path, 0),), number


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def _text(name: str, value: object, *, pattern: str, expected: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ConfigurationError(f"{name}={value!r}: {expected}")
    return value


_FILE: Final = partial(_text, pattern="(?s).+", expected="expected the path of a file")

OPTIONS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "timeout": seconds,
    "prefix": partial(
        _text,
        pattern="[A-Za-z0-9._:-]{1,64}",
        expected="up to 64 letters, digits, dots, : _ and -",
    ),
    "durability": partial(
        _text,
        pattern="appendonly|best-effort",
        expected="expected appendonly or best-effort",
    ),
    "allow_eviction": flag,
    "wait_replicas": partial(count, least=0),
    "wait_timeout": seconds,
    "tls": flag,
    "ca_file": _FILE,
    "cert_file": _FILE,
    "key_file": _FILE,
}
