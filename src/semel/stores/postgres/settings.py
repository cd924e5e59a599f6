"""Parses a PostgreSQL URL: libpq's options, semel's own, and what may be printed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import quote, unquote, urlencode

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from semel.errors import ConfigurationError
from semel.stores.options import flag, in_url
from semel.stores.postgres.failover import FailoverTimeline
from semel.stores.sql.pooled import ServerSettings, server_options

SCHEMES: Final = ("postgresql://", "postgres://")
OWN: Final = (
    *("pool_size", "timeout", "prepare", "migrate", "max_lifetime", "max_idle", "configure"),
)
_SECRET: Final = ("password", "sslpassword", "oauth_client_secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings(ServerSettings):
    """All options of a `PostgresBackend`."""

    failover: FailoverTimeline = field(repr=False, compare=False)
    prepare: bool | None
    configure: str
    password: Callable[[], str | Awaitable[str]] | None = field(repr=False)


def parse(url: str, options: Mapping[str, object]) -> PostgresSettings:
    """Options given as keywords win over those in the URL."""
    bare, own = _split(url)
    own |= {name: value for name, value in options.items() if value is not None}
    # libpq's own message may quote the part it stumbled over, which may be the password.
    try:
        params = {name: str(value) for name, value in conninfo_to_dict(bare).items()}
    except (ProgrammingError, UnicodeError):
        raise ConfigurationError(
            "libpq cannot read this PostgreSQL URL: check the port and the percent-encoding of "
            "special characters in user, password and options"
        ) from None
    options = server_options(own)
    return PostgresSettings(
        url=_printable(params),
        failover=FailoverTimeline(make_conninfo("", **(_defaults(options["timeout"]) | params))),
        secrets=tuple(value for name in _SECRET if (value := params.get(name))),
        prepare=None if own.get("prepare", "auto") == "auto" else flag("prepare", own["prepare"]),
        configure=str(own.get("configure", "")),
        password=_function(own.get("password")),
        **options,
    )


def _function(given: object) -> Callable[[], str | Awaitable[str]] | None:
    if given is None or callable(given):
        return cast("Callable[[], str | Awaitable[str]] | None", given)
    raise ConfigurationError(
        "password= takes a function that returns the password; a fixed one stands in the URL"
    )


def _split(url: str) -> tuple[str, dict[str, object]]:
    """The URL without semel's own options, and those options."""
    if not url.startswith(SCHEMES):
        raise ConfigurationError("a PostgreSQL URL starts with postgresql://")
    head, _, query = url.partition("?")
    known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    given = in_url(query, (*OWN, *known, "ssl"), "PostgreSQL")
    own: dict[str, object] = {name: given[name] for name in OWN if name in given}
    # libpq reads its own part of the query itself.
    parts = filter(None, query.split("&"))
    theirs = [part for part in parts if unquote(part.partition("=")[0]) not in OWN]
    return (f"{head}?{'&'.join(theirs)}" if theirs else head), own


def _defaults(timeout: float) -> dict[str, str]:
    """Options for libpq where the URL has none: a dead peer is noticed within seconds."""
    return {
        "application_name": "semel",
        "client_encoding": "UTF8",
        # libpq takes whole seconds, and at least two; the deadline proper is kept by the pools.
        "connect_timeout": str(max(2, math.ceil(timeout))),
        "keepalives_idle": "10",
        "keepalives_interval": "3",
        "keepalives_count": "3",
        "tcp_user_timeout": str(math.ceil(timeout * 1000)),
    }


def _printable(params: Mapping[str, str]) -> str:
    rest = {name: value for name, value in params.items() if name not in _SECRET}
    user, database = rest.pop("user", ""), rest.pop("dbname", "")
    where = _authority(rest)
    at = f"{quote(user)}@" if user else ""
    options = f"?{urlencode(rest, safe='/,:')}" if rest else ""
    return f"postgresql://{at}{where}/{quote(database)}{options}"


def _authority(rest: dict[str, str]) -> str:
    """hosts:ports, taken out of ``rest``; socket folders stay there as options."""
    hosts = rest.get("host", "").split(",")
    ports = rest.get("port", "").split(",")
    if not all(hosts) or any(host.startswith(("/", "@")) for host in hosts):
        return ""
    ports = ports * len(hosts) if len(ports) == 1 else ports
    rest.pop("host")
    rest.pop("port", None)
    shown = (f"[{host}]" if ":" in host else host for host in hosts)
    pairs = zip(shown, ports, strict=False)
    return ",".join(f"{host}:{port}" if port else host for host, port in pairs)
