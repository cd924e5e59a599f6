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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from semel.core.policy import OPTION_NAMES, Enforce, Policy, accepted, acp, ietf, payments, stripe
from semel.core.request.fingerprint import FingerprintRule
from semel.core.request.key_places import BodyField, KeyPlace
from semel.errors import ConfigurationError
from semel.runtime.limits import Limits, Rate
from semel.stores.options import count, duration, flag, word
from semel.web.routes import Route

if TYPE_CHECKING:
    from semel.stores.encryption import Encryption

PREFIX: Final = "SEMEL_"
FILE: Final = "semel.toml"
_NOT_OURS: Final = ("SEMEL_TEST_", "SEMEL_GUARD", "SEMEL_APP")
"""What the project's own tests use, and what tells commands where to find things."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be said about a guard without code."""

    store: str | None = None
    policy: Policy | None = None
    routes: tuple[Route, ...] = ()
    migrate: bool = False
    name: str = ""
    enforce: Enforce = "full"
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    encryption: Encryption | None = None
    limits: Limits | None = None
    replay_cache: timedelta | None = None
    replay_bodies: int = 0
    notables: timedelta | None = timedelta(days=7)
    note_replays: bool = False
    trace_url: str | None = None
    status: str = "/semel/status"
    max_waiters: int = 8
    drain: timedelta = timedelta(seconds=30)
    maintenance: timedelta | None = timedelta(seconds=60)
    breaker: timedelta | None = timedelta(seconds=10)


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force here and now."""
    environ = os.environ if environ is None else environ
    return Settings(**{**_from_file(path, environ), **_from_environment(environ)})


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


def _from_file(path: Path | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = path or (Path(environ["SEMEL_CONFIG"]) if "SEMEL_CONFIG" in environ else None)
    file = named or Path(FILE)
    if named is None and not file.exists():
        return {}
    try:
        parsed = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from error
    settings: dict[str, Any] = {}
    for option, given in parsed.items():
        where = f"{file}: {option}"
        _known(where, option, _IN_FILE)
        settings[option] = _IN_FILE[option](where, given)
    return settings


def _known(where: str, option: str, known: Iterable[str]) -> None:
    if option not in known:
        near = difflib.get_close_matches(option, list(known), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(f"{where} is not a setting of semel{hint}")


# ── values ────────────────────────────────────────────────────────────────────────────────────────


def _text(where: str, given: object) -> str:
    if isinstance(given, str):
        return given
    raise ConfigurationError(f"{where} must be text, not {given!r}")


def _interval(where: str, given: object) -> timedelta | None:
    """A duration, or a word for off."""
    return None if word(given) is False else duration(where, given)


def _rate(where: str, given: object) -> Rate:
    found = _RATE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ConfigurationError(
            f"{where} must be a rate such as '100/s' or '10/5m', not {given!r}"
        )
    return Rate(int(found[1]), duration(where, f"{found[2] or 1}{found[3]}"))


def _list(where: str, given: object) -> list[Any]:
    if not isinstance(given, list):
        raise ConfigurationError(f"{where} must be a list")
    return cast("list[Any]", given)  # type: ignore[redundant-cast]


def _names(where: str, given: object) -> tuple[Any, ...]:
    return tuple(_list(where, given))


def _table(where: str, given: object, known: Collection[str] | None = None) -> dict[str, Any]:
    """A table, with no other options than the ``known`` ones."""
    if type(given) is not dict:
        raise ConfigurationError(f"{where} must be a table")
    table = cast("dict[str, Any]", given)
    if known is not None:
        for option in table:
            _known(f"{where}: {option}", option, known)
    return table


# ── settings of several values ────────────────────────────────────────────────────────────────────


def _secrets(where: str, given: object) -> dict[str, str]:
    return {key_id: _text(where, secret) for key_id, secret in _table(where, given).items()}


def _key_list(where: str, given: object) -> Encryption:
    """``id:key,id:key`` from the environment: the first is the current one."""
    from semel.stores.encryption import Encryption

    words = [word.strip() for word in _text(where, given).split(",")]
    pairs = [word.rpartition(":") for word in words if word != _PLAIN]
    if not pairs or not all(name and colon for name, colon, _ in pairs):
        raise ConfigurationError(f"{where} must be written id:key,id:key, the current one first")
    keys = {name: key for name, _, key in pairs}
    return Encryption(keys, pairs[0][0], accept_plain=_PLAIN in words)


def _encryption(where: str, given: object) -> Encryption:
    """``current``, ``keys`` and, while values from before are there, ``accept_plain``."""
    from semel.stores.encryption import Encryption

    table = _table(where, given, ("current", "keys", _PLAIN))
    keys = _table(f"{where}: keys", table.get("keys"))
    if not all(isinstance(key, str) for key in keys.values()):
        raise ConfigurationError(f"{where}: keys must be text, in base64")  # not shown, not even so
    plain = flag(f"{where}: {_PLAIN}", table.get(_PLAIN, False))
    return Encryption(keys, _text(f"{where}: current", table.get("current")), accept_plain=plain)


def _limits(where: str, given: object) -> Limits:
    table = _table(where, given, _LIMITS)
    return Limits(
        **{option: _LIMITS[option](f"{where}: {option}", table[option]) for option in table}
    )


def _routes(where: str, given: object) -> tuple[Route, ...]:
    routes: list[Route] = []
    for each in _list(where, given):
        table = _table(where, each, ("method", "path", "policy"))
        if "path" not in table or "policy" not in table:
            raise ConfigurationError(f"{where}: each route needs a path and a policy")
        method = _text(f"{where}: method", table.get("method", "POST"))
        path = _text(f"{where}: path", table["path"])
        routes.append(Route(method, path, _policy(where, table["policy"])))
    return tuple(routes)


def _policy(where: str, given: object) -> Policy:
    """``"ietf"``, or a table with its ``kind`` and options."""
    table = {"kind": given} if isinstance(given, str) else dict(_table(where, given))
    kind = _text(f"{where}: kind", table.pop("kind", "ietf"))
    if kind not in _KINDS:
        raise ConfigurationError(f"{where}: {kind!r} is not one of {', '.join(_KINDS)}")
    options: dict[str, Any] = {}
    for option, value in table.items():
        _known(f"{where}: {option}", option, OPTION_NAMES)
        if option not in _OPTIONS:
            raise ConfigurationError(f"{where}: {option} takes a function: set it in code")
        options[option] = _OPTIONS[option](f"{where}: {option}", value)
    if kind == "payments":
        options.setdefault("probe", None)  # a function, which only code can name
    return _KINDS[kind](**options)


def _fingerprint(where: str, given: object) -> FingerprintRule:
    table = _table(where, given, ("include", "exclude"))
    options: dict[str, Any] = {option: _names(where, names) for option, names in table.items()}
    return FingerprintRule(**options)


def _key_from(where: str, given: object) -> tuple[KeyPlace, ...]:
    """A header's name, ``{ body = "/meta/key" }``, or a list of such."""
    places: list[KeyPlace] = []
    for each in _several(given):
        if not isinstance(each, str):
            each = BodyField(_text(f"{where}: body", _table(where, each, ("body",)).get("body")))
        places.append(each)
    return tuple(places)


def _payload_from(where: str, given: object) -> tuple[BodyField, ...]:
    return tuple([BodyField(_text(where, each)) for each in _several(given)])


def _several(given: object) -> list[Any]:
    """A list, or the one thing that is in it."""
    listed: list[Any] = given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]
    return listed


# ── which option is read how ──────────────────────────────────────────────────────────────────────

Reader = Callable[[str, object], Any]

_count: Final = partial(count, least=0)
_PLAIN: Final = "accept_plain"
_RATE: Final = re.compile(r"(\d{1,9})\s*/\s*(\d+(?:\.\d+)?\s*)?(ms|s|m|h|d)")
_KINDS: Final = {
    "ietf": ietf,
    "stripe": stripe,
    "acp": acp,
    "accepted": accepted,
    "payments": payments,
}
_LIMITS: Final[dict[str, Reader]] = {"new_keys": _rate, "lookups": _rate, "active_keys": _count}
_SCALARS: Final[dict[str, Reader]] = {
    **dict.fromkeys(("store", "name", "status", "enforce", "trace_url"), _text),
    **dict.fromkeys(("migrate", "note_replays"), flag),
    **dict.fromkeys(("max_waiters", "replay_bodies"), _count),
    "drain": duration,
    **dict.fromkeys(("maintenance", "replay_cache", "breaker", "notables"), _interval),
    "encryption": _key_list,
}
"""The settings that the environment has."""
_IN_FILE: Final[dict[str, Reader]] = {
    **_SCALARS,
    "secrets": _secrets,
    "policy": _policy,
    "encryption": _encryption,
    "limits": _limits,
    "routes": _routes,
}
_TEXTS: Final = (
    *("key", "personal_data", "safe_methods", "scope", "after_error", "after_doubt"),
    *("after_lapse", "in_flight", "effects", "response", "schema_version", "replay_header"),
    *("mode", "after_retire", "enforce"),
)
_OPTIONS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(("required", "strict"), flag),
    **dict.fromkeys(("mismatch_status", "max_request_body", "max_response_body"), _count),
    **dict.fromkeys(("lease", "max_run", "retention", "tombstone"), duration),
    **dict.fromkeys(("retry_after", "wait", "max_request_age"), duration),
    **dict.fromkeys(("reconcile_after", "give_up_after", "abandon_after"), duration),
    **dict.fromkeys(("methods", "keep", "carry"), _names),
    "fingerprint": _fingerprint,
    "key_from": _key_from,
    "payload_from": _payload_from,
}
"""The policy options that can be written down; the others take functions."""
