"""Parses a MySQL URL: the server, semel's own options, and what may be printed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from semel.errors import ConfigurationError
from semel.stores.mysql.option_files import encryption, in_file
from semel.stores.options import flag, in_url
from semel.stores.sql.pooled import ServerSettings, server_options

SCHEMES: Final = ("mysql", "mariadb")
PORT: Final = 3306
OWN: Final = ("pool_size", "timeout", "migrate", "durable", "max_lifetime", "max_idle")
SERVER: Final = (
    *("socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify"),
    *("read_default_file", "read_default_group"),
)
VERIFY: Final = ("identity", "ca", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSettings(ServerSettings):
    """All options of a `MysqlBackend`."""

    host: str
    port: int
    socket: str | None
    user: str
    password: str = field(repr=False)
    database: str
    tls: ssl.SSLContext | None
    durable: bool


def parse(url: str, options: Mapping[str, object]) -> MysqlSettings:
    """Options given as keywords win over those in the URL."""
    parts = _split(url)
    asked = in_url(parts.query, (*OWN, *SERVER), "MySQL")
    own: dict[str, object] = {**asked}
    own |= {name: value for name, value in options.items() if value is not None}
    file = _in_file(asked)
    asked = {**{name: file[name] for name in SERVER if name in file}, **asked}
    database = unquote(parts.path.removeprefix("/")) or file.get("database", "")
    if not database or "/" in database:
        raise ConfigurationError("a MySQL URL names a database: mysql://user@host/database")
    password = unquote(parts.password or "") or file.get("password", "")
    return MysqlSettings(
        url=_printable(parts, asked),
        secrets=(password,) if password else (),
        host=parts.hostname or file.get("host") or "localhost",
        port=_port(file) if parts.port is None else parts.port,
        socket=asked.get("socket"),
        user=unquote(parts.username or "") or file.get("user", ""),
        password=password,
        database=database,
        tls=_tls(asked),
        durable=flag("durable", own.get("durable", True)),
        **server_options(own),
    )


def _in_file(asked: Mapping[str, str]) -> dict[str, str]:
    """The options of the file that the URL names; those in the URL itself win over them."""
    path = asked.get("read_default_file")
    if not path:
        return {}
    given = in_file(path, asked.get("read_default_group"))
    tls = encryption(given)
    return given | {name: str(value) for name, value in tls.items() if value}


def _port(file: Mapping[str, str]) -> int:
    try:
        return int(file.get("port", PORT))
    except ValueError:
        raise ConfigurationError("the port in read_default_file is not a number") from None


def _split(url: str) -> SplitResult:
    # What urllib says of a URL that it cannot read may quote it, password and all.
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - refuses what is no port
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in SCHEMES:
        raise ConfigurationError(
            "this MySQL URL cannot be read: expected mysql://user:password@host:port/database, "
            "special characters percent-encoded"
        ) from None
    return parts


def _tls(asked: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS context. The server is verified unless ``ssl_verify`` asks for less."""
    verify = asked.get("ssl_verify", "identity")
    if verify not in VERIFY:
        raise ConfigurationError(f"ssl_verify must be one of {', '.join(VERIFY)}, not {verify!r}")
    given = [name for name in SERVER if name.startswith("ssl_") and name in asked]
    if not flag("ssl", asked.get("ssl", bool(given))):
        return None
    try:
        context = ssl.create_default_context(cafile=asked.get("ssl_ca"))
        if certificate := asked.get("ssl_cert"):
            context.load_cert_chain(certificate, asked.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"{', '.join(given)}: {error}") from error
    context.check_hostname = verify == "identity"
    if verify == "off":
        context.verify_mode = ssl.CERT_NONE
    return context


def _printable(parts: SplitResult, asked: Mapping[str, str]) -> str:
    user = f"{quote(unquote(parts.username))}@" if parts.username else ""
    host = parts.hostname or "localhost"
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    shown = {name: value for name, value in asked.items() if name in SERVER}
    options = f"?{urlencode(shown, safe='/')}" if shown else ""
    return f"{parts.scheme}://{user}{host}{port}{quote(unquote(parts.path))}{options}"
