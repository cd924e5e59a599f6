"""Options as the servers' own clients have them: option files, and how much TLS is demanded."""

from __future__ import annotations

from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import Any, Final, cast

from semel.errors import ConfigurationError

_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")
_MODES: Final[dict[str, dict[str, str]]] = {
    "DISABLED": {"ssl": "off"},
    "PREFERRED": {},
    "REQUIRED": {"ssl": "on", "ssl_verify": "off"},
    "VERIFY_CA": {"ssl": "on", "ssl_verify": "ca"},
    "VERIFY_IDENTITY": {"ssl": "on", "ssl_verify": "identity"},
}


def in_file(path: str, group: str | None = None) -> dict[str, str]:
    """The options of the group ``client``, and over them those of the named group."""
    found = RawConfigParser(allow_no_value=True, strict=False)
    try:
        found.read_string(Path(path).expanduser().read_text("utf-8"))
    except (OSError, UnicodeError, Error) as error:
        raise ConfigurationError(f"read_default_file {path}: {type(error).__name__}") from None
    given: dict[str, str] = {}
    for name in ("client", group or "client"):
        for option, value in found.items(name) if found.has_section(name) else ():
            if value:
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                given[option.replace("-", "_")] = value[1:-1] if quoted else value
    return given


def encryption(given: Mapping[str, Any]) -> dict[str, Any]:
    """The TLS options. An unknown ``ssl_mode`` may demand more than is done here: it is refused."""
    ssl: Any = given.get("ssl")
    parts = cast("dict[str, Any]", ssl) if isinstance(ssl, dict) else {}
    files = {name: given.get(name) or parts.get(name.removeprefix("ssl_")) for name in _FILES}
    mode = str(given.get("ssl_mode") or "PREFERRED").upper()
    if mode not in _MODES:
        raise ConfigurationError(f"ssl_mode={mode}: expected one of {', '.join(_MODES)}")
    demanded = dict(_MODES[mode])
    if mode == "DISABLED":
        return demanded
    if mode == "REQUIRED" and files["ssl_ca"]:
        demanded["ssl_verify"] = "ca"  # as the server's own clients do
    return files | ({"ssl": "on"} if ssl else {}) | demanded
