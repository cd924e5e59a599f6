"""Parse a Redis URL: where to connect, semel's own options, and what may be printed."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote

from semel.errors import ConfigurationError
from semel.stores.options import count, flag, in_url, seconds, whole

SCHEMES: Final = (
    *("redis", "rediss", "redis+unix", "rediscluster", "redis+sentinel", "rediss+sentinel"),
)
PORT: Final = 6379
SENTINEL_PORT: Final = 26_379


class NodeAddress(NamedTuple):
    """Where a node listens: a host and a port, or the path of a Unix socket and 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Remap: TypeAlias = Mapping[str, str] | Callable[[str, int], tuple[str, int]]
"""From the address that a server announces to the one by which it can be reached."""


@dataclass(frozen=True)
class RedisSettings:
    """All settings of a `RedisBackend`; ``url`` is printable, without the password.

    ``service``: the name that Sentinel has for the primary; the seeds are then Sentinels.
    """

    url: str
    seeds: tuple[NodeAddress, ...]
    cluster: bool
    service: str
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
    server_name: str | None = None
    check_hostname: bool = True
    client_name: str = "semel"
    remap: Remap | None = None
    sentinel_user: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    credentials: Callable[[], Any] | None = field(default=None, repr=False)
    sentinel_credentials: Callable[[], Any] | None = field(default=None, repr=False)
    listeners: list[Callable[[str, str], None]] = field(default_factory=list, repr=False)
    """Who is told that a primary was replaced: its address, and that of the other one."""

    def __post_init__(self) -> None:
        asked = (self.sentinel_user, self.sentinel_password, self.sentinel_credentials)
        if any(asked) and not self.service:
            raise ConfigurationError("sentinel_ options are for redis+sentinel://")
        if self.credentials and (self.user or self.password):
            raise ConfigurationError(
                "credentials= says user and password: leave them out of the URL"
            )
        if self.sentinel_credentials and (self.sentinel_user or self.sentinel_password):
            raise ConfigurationError("sentinel_credentials= goes without sentinel_password")
        if self.wait_replicas and self.wait_timeout >= self.timeout:
            raise ConfigurationError("wait_timeout must be less than timeout, which counts for all")
        if self.key_file and not self.cert_file:
            raise ConfigurationError("key_file= goes with cert_file=")
        if not self.tls and (self.ca_file or self.cert_file or self.server_name):
            raise ConfigurationError(
                "ca_file, cert_file and server_name are for TLS: rediss://, or tls=yes"
            )

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, which checks certificates and host names; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            context.check_hostname = self.check_hostname
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"TLS: a file cannot be used: {error}") from None
        return context

    @property
    def follows(self) -> bool:
        """Others say who the primaries are: the nodes of a cluster, or Sentinels."""
        return self.cluster or bool(self.service)

    def is_sentinel(self, address: NodeAddress) -> bool:
        return bool(self.service) and address in self.seeds

    def reachable(self, address: NodeAddress) -> NodeAddress:
        """Where to connect for an address that a server announced."""
        remap = self.remap
        if remap is None or not address.port:
            return address
        if callable(remap):
            return NodeAddress(*remap(*address))
        found = remap.get(str(address))
        return address if found is None else _address(found, PORT)


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
    service = ""
    if scheme.endswith("+sentinel"):
        seeds, service, db = _sentinels(where)
    else:
        seeds, db = _socket(where) if scheme == "redis+unix" else _hosts(where)
    if len(seeds) > 1 and scheme != "rediscluster" and not service:
        raise ConfigurationError(
            "several hosts are those of a cluster, rediscluster://, or Sentinels, redis+sentinel://"
        )
    if db and scheme == "rediscluster":
        raise ConfigurationError("a Redis cluster has one database only: leave out what follows /")
    own: dict[str, Any] = {"tls": scheme.startswith("rediss")}
    known = {**OPTIONS, **FUNCTIONS}
    own |= {name: read(name, given[name]) for name, read in known.items() if name in given}
    return RedisSettings(
        url=f"{scheme}://{quote(user) + '@' if user else ''}{where}",
        seeds=seeds,
        cluster=scheme == "rediscluster",
        service=service,
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
    return tuple([_address(text, PORT) for text in hosts.split(",")]), number


def _sentinels(where: str) -> tuple[tuple[NodeAddress, ...], str, int]:
    hosts, _, rest = where.partition("/")
    service, _, db = rest.partition("/")
    number = whole(db or "0")
    if not service or number is None:
        raise ConfigurationError(
            "Sentinels are named with the primary they watch, and a database where it is not 0: "
            "redis+sentinel://host:26379,host2:26379/mymaster/0"
        )
    seeds = [_address(text, SENTINEL_PORT) for text in hosts.split(",")]
    return tuple(seeds), unquote(service), number


def _address(text: str, port: int) -> NodeAddress:
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
    if found is None:
        raise ConfigurationError("a Redis URL names hosts as host:port")
    port = int(found[3] or port)
    if not 0 < port < 65_536:
        raise ConfigurationError("a Redis URL names ports from 1 to 65535")
    return NodeAddress(unquote(found[1] or found[2]) or "localhost", port)


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


def _remap(name: str, value: object) -> Remap:
    """In a URL: ``announced:port=reachable:port``, with commas between."""
    if callable(value):
        return cast("Callable[[str, int], tuple[str, int]]", value)
    if isinstance(value, str):
        pairs = [part.partition("=")[::2] for part in value.split(",")]
    elif isinstance(value, Mapping):
        pairs = [(str(key), str(to)) for key, to in cast("Mapping[object, object]", value).items()]
    else:
        raise ConfigurationError(f"{name}={value!r}: expected a mapping of addresses or a function")
    return {str(_address(key, PORT)): str(_address(to, PORT)) for key, to in pairs}


def _secret(name: str, value: object) -> str:
    """Its value is in no message."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name}: expected a text")
    return value


def _function(name: str, value: object) -> Callable[[], Any]:
    if not callable(value):
        raise ConfigurationError(f"{name}= must be a function that returns user and password")
    return value


_FILE: Final = partial(_text, pattern="(?s).+", expected="expected the path of a file")
_WORD: Final = partial(_text, pattern="(?s).+", expected="expected a text")

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
    "server_name": _WORD,
    "check_hostname": flag,
    "client_name": partial(
        _text, pattern="[!-~]{1,64}", expected="up to 64 printable characters without spaces"
    ),
    "remap": _remap,
    "sentinel_user": _WORD,
    "sentinel_password": _secret,
}

FUNCTIONS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "credentials": _function,
    "sentinel_credentials": _function,
}
"""Options that only a program can give."""
