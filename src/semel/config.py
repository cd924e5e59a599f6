"""Settings from the environment and from a TOML file; the guard and the commands read the same.

The file is the one named by ``SEMEL_CONFIG``, else ``semel.toml`` in the working directory if
there is one. The environment wins over the file. An unknown setting is an error: a misspelt one
must not pass for a setting left at its default.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from semel.core.policy import OPTION_NAMES, Policy, accepted, ietf, payments, stripe
from semel.core.request.fingerprint import FingerprintRule
from semel.errors import ConfigurationError
from semel.runtime.limits import Limits, Rate
from semel.stores.options import count, duration, flag, word
from semel.web.routes import Route

if TYPE_CHECKING:
    from semel.stores.encryption import Encryption

PREFIX: Final = "SEMEL_"
FILE: Final = "semel.toml"
_NOT_OURS: Final = "SEMEL_TEST_"
"""What the project's own tests use."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be said about a guard without code."""

    store: str | None = None
    policy: Policy | None = None
    routes: tuple[Route, ...] = ()
    migrate: bool = False
    name: str = ""
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    encryption: Encryption | None = None
    limits: Limits | None = None
    replay_cache: timedelta | None = None
    replay_bodies: int = 0
    status: str = "/semel/status"
    max_waiters: int = 8
    drain: timedelta = timedelta(seconds=30)
    maintenance: timedelta | None = timedelta(seconds=60)
    breaker: timedelta | None = timedelta(seconds=10)


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force here and now."""
    environ = os.environ if environ is None else environ
    return Settings(**{**_from_file(path, environ), **_from_environment(environ)})


# ── the environment ───────────────────────────────────────────────────────────────────────────────


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable.startswith(_NOT_OURS):
            continue
        option = variable.removeprefix(PREFIX).lower()
        if option != "config":
            _known(variable, option, _SCALARS)
            given[option] = _SCALARS[option](variable, text)
    return given


def _text(where: str, given: object) -> str:
    if isinstance(given, str):
        return given
    raise ConfigurationError(f"{where} must be text, not {given!r}")


def _count(where: str, given: object) -> int:
    return count(where, given, least=0)


def _interval(where: str, given: object) -> timedelta | None:
    """A duration, or a word for off."""
    return None if word(given) is False else duration(where, given)


Reader = Callable[[str, object], Any]

_SCALARS: Final[dict[str, Reader]] = {
    "store": _text,
    "migrate": flag,
    "max_waiters": _count,
    "drain": duration,
    "name": _text,
    "status": _text,
    "maintenance": _interval,
    "replay_cache": _interval,
    "replay_bodies": _count,
    "encryption": lambda where, given: _key_list(where, given),
    "breaker": _interval,
}


def _known(where: str, option: str, known: Iterable[str]) -> None:
    if option not in known:
        near = difflib.get_close_matches(option, list(known), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(f"{where} is not a setting of semel{hint}")


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def _from_file(path: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = path or (Path(environ["SEMEL_CONFIG"]) if "SEMEL_CONFIG" in environ else None)
    file = named or Path(FILE)
    if named is None and not file.exists():
        return {}
    return {option: _read(file, option, given) for option, given in _parsed(file).items()}


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from error


def _read(file: Path, option: str, given: Any) -> Any:
    where = f"{file}: {option}"
    _known(where, option, [setting.name for setting in fields(Settings)])
    match option:
        case "secrets":
            return {key_id: _text(where, secret) for key_id, secret in _table(where, given).items()}
        case "policy":
            return _policy(where, given)
        case "encryption":
            return _encryption(where, _table(where, given))
        case "limits":
            return _limits(where, _table(where, given))
        case "routes":
            return tuple(_route(where, table) for table in _list(where, given))
        case _:
            return _SCALARS[option](where, given)


def _encryption(where: str, table: dict[str, Any]) -> Encryption:
    """``current``, ``keys`` and, while values from before are there, ``accept_plain``."""
    from semel.stores.encryption import Encryption

    for option in table:
        _known(f"{where}: {option}", option, ("current", "keys", "accept_plain"))
    keys = _table(f"{where}: keys", table.get("keys"))
    if not all(isinstance(key, str) for key in keys.values()):
        raise ConfigurationError(f"{where}: keys must be text, in base64")  # not shown, not even so
    plain = flag(f"{where}: accept_plain", table.get("accept_plain", False))
    return Encryption(keys, _text(f"{where}: current", table.get("current")), accept_plain=plain)


def _key_list(where: str, given: object) -> Encryption:
    """``id:key,id:key`` from the environment: the first is the current one."""
    from semel.stores.encryption import Encryption

    words = [word.strip() for word in _text(where, given).split(",")]
    pairs = [word.rpartition(":") for word in words if word != _PLAIN]
    if not pairs or not all(name and colon for name, colon, _ in pairs):
        raise ConfigurationError(f"{where} must be written id:key,id:key, the current one first")
    keys = {name: key for name, _, key in pairs}
    return Encryption(keys, pairs[0][0], accept_plain=_PLAIN in words)


_PLAIN: Final = "accept_plain"


_RATE: Final = re.compile(r"(\d{1,9})\s*/\s*(\d+(?:\.\d+)?\s*)?(ms|s|m|h|d)")


def _rate(where: str, given: object) -> Rate:
    found = _RATE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ConfigurationError(
            f"{where} must be a rate such as '100/s' or '10/5m', not {given!r}"
        )
    return Rate(int(found[1]), duration(where, f"{found[2] or 1}{found[3]}"))


_LIMITS: Final[dict[str, Reader]] = {"new_keys": _rate, "lookups": _rate, "active_keys": _count}


def _limits(where: str, table: dict[str, Any]) -> Limits:
    for option in table:
        _known(f"{where}: {option}", option, _LIMITS)
    read = {option: _LIMITS[option](f"{where}: {option}", it) for option, it in table.items()}
    return Limits(**read)


def _table(where: str, given: Any) -> dict[str, Any]:
    if type(given) is not dict:
        raise ConfigurationError(f"{where} must be a table")
    return cast("dict[str, Any]", given)


def _list(where: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ConfigurationError(f"{where} must be a list")
    return cast("list[Any]", given)  # type: ignore[redundant-cast]


def _route(where: str, given: Any) -> Route:
    table = _table(where, given)
    for option in table:
        _known(f"{where}: {option}", option, ("method", "path", "policy"))
    if "path" not in table or "policy" not in table:
        raise ConfigurationError(f"{where}: each route needs a path and a policy")
    method = _text(f"{where}: method", table.get("method", "POST"))
    return Route(method, _text(f"{where}: path", table["path"]), _policy(where, table["policy"]))


_KINDS: Final = {"ietf": ietf, "stripe": stripe, "accepted": accepted, "payments": payments}
_TEXTS: Final = (
    *(
        "key",
        "personal_data",
        "safe_methods",
        "scope",
        "after_error",
        "after_doubt",
        "after_lapse",
        "in_flight",
    ),
    *("effects", "response", "schema_version", "replay_header", "mode", "after_retire"),
)
_OPTIONS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(("required", "strict"), flag),
    **dict.fromkeys(("mismatch_status", "max_request_body", "max_response_body"), _count),
    **dict.fromkeys(("lease", "max_run", "retention", "tombstone"), duration),
    **dict.fromkeys(("retry_after", "wait", "max_request_age"), duration),
    **dict.fromkeys(("reconcile_after", "give_up_after", "abandon_after"), duration),
}
"""The policy options that can be written down; the others take functions."""


def _policy(where: str, given: Any) -> Policy:
    """``"ietf"``, or a table with its ``kind`` and options."""
    table = {"kind": given} if isinstance(given, str) else _table(where, given)
    kind = _text(f"{where}: kind", table.get("kind", "ietf"))
    if kind not in _KINDS:
        raise ConfigurationError(f"{where}: {kind!r} is not one of {', '.join(_KINDS)}")
    options = {
        option: _option(f"{where}: {option}", option, value)
        for option, value in table.items()
        if option != "kind"
    }
    if kind == "payments":
        options.setdefault("probe", None)  # a function, which only code can name
    return _KINDS[kind](**options)


def _option(where: str, option: str, given: Any) -> Any:
    _known(where, option, OPTION_NAMES)
    match option:
        case "methods" | "keep" | "carry":
            return tuple(_list(where, given))
        case "fingerprint":
            return FingerprintRule(**_fingerprint(where, _table(where, given)))
        case _ if option in _OPTIONS:
            return _OPTIONS[option](where, given)
        case _:
            raise ConfigurationError(f"{where} takes a function: set it in code")


def _fingerprint(where: str, table: dict[str, Any]) -> dict[str, Any]:
    for option in table:
        _known(f"{where}: {option}", option, ("include", "exclude"))
    return {option: tuple(_list(where, names)) for option, names in table.items()}
