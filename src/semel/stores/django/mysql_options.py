"""What Django tells its MySQL driver, as a URL for semel's own: settings, OPTIONS, option file."""

from __future__ import annotations

from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from semel.errors import ConfigurationError

_NAMES: Final = {
    "user": "USER",
    "password": "PASSWORD",
    "host": "HOST",
    "port": "PORT",
    "database": "NAME",
}
_SPELT: Final = {"passwd": "password", "db": "database", "unix_socket": "socket"}
"""Other names that drivers have for the same."""
_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
_MODES: Final[dict[str, dict[str, str]]] = {
    "DISABLED": {"ssl": "off"},
    "PREFERRED": {},
    "REQUIRED": {"ssl": "on", "ssl_verify": "off"},
    "VERIFY_CA": {"ssl": "on", "ssl_verify": "ca"},
    "VERIFY_IDENTITY": {"ssl": "on", "ssl_verify": "identity"},
}


def mysql_url(settings: Mapping[str, Any]) -> str:
    """OPTIONS win over the settings, as in Django, and both over the option file."""
    options: dict[str, Any] = settings["OPTIONS"]
    told = _from_file(options)
    told |= {ours: settings[theirs] for ours, theirs in _NAMES.items() if settings[theirs]}
    told |= {_SPELT.get(name, name): value for name, value in options.items() if value}
    host = str(told.get("host") or "localhost")
    if host.startswith("/"):
        host, told["socket"] = "localhost", host
    user, password, database = (
        quote(str(told.get(name) or ""), safe="") for name in ("user", "password", "database")
    )
    port = f":{told['port']}" if told.get("port") else ""
    asked = {"socket": told.get("socket")} | _encryption(told)
    query = urlencode({name: str(value) for name, value in asked.items() if value}, quote_via=quote)
    where = f"mysql://{user}:{password}@{host}{port}/{database}"
    return f"{where}?{query}" if query else where


def _encryption(told: Mapping[str, Any]) -> dict[str, Any]:
    """What an ``ssl_mode`` demands is done; what is not known may demand more, and is refused."""
    given: Any = told.get("ssl")
    parts = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    files = {name: told.get(name) or parts.get(name.removeprefix("ssl_")) for name in _FILES}
    mode = str(told.get("ssl_mode") or "PREFERRED").upper()
    if mode not in _MODES:
        raise ConfigurationError(f"ssl_mode={mode}: expected one of {', '.join(_MODES)}")
    if mode == "DISABLED":
        return dict(_MODES[mode])
    demanded = dict(_MODES[mode])
    if mode == "REQUIRED" and files["ssl_ca"]:
        demanded["ssl_verify"] = "ca"  # as the server's own clients do
    return files | ({"ssl": "on"} if given else {}) | demanded


def _from_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of ``read_default_file`` that a driver reads, the later over the earlier."""
    named = options.get("read_default_file")
    if not named:
        return {}
    found = RawConfigParser(allow_no_value=True, strict=False)
    try:
        found.read_string(Path(named).expanduser().read_text("utf-8"))
    except (OSError, UnicodeError, Error) as error:
        raise ConfigurationError(f"read_default_file {named}: {type(error).__name__}") from None
    told: dict[str, Any] = {}
    for group in ("client", str(options.get("read_default_group") or "client")):
        if found.has_section(group):
            told |= {_named(name): _unquoted(value) for name, value in found.items(group) if value}
    return told


def _named(name: str) -> str:
    return name.replace("-", "_")


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value
