"""Values of options: in a store's URL, as keywords, in the environment and in the file.

All four use the same parsers and the same words. If one place accepted a word that another does
not, somebody would believe that an option is set.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection
from datetime import timedelta
from typing import Final
from urllib.parse import unquote

from semel.errors import ConfigurationError

_WORDS: Final = {
    **dict.fromkeys(("on", "yes", "true", "1"), True),
    **dict.fromkeys(("off", "no", "false", "0"), False),
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DIGITS: Final = 19
"""More than any number here has. `int` raises for texts of some thousand digits."""


def in_url(query: str, known: Collection[str], store: str) -> dict[str, str]:
    """The options in the query of a store's URL. An unknown one is refused."""
    given: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        given[unquote(name)] = unquote(value)
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"unknown option {name!r} of a {store} store: known are {', '.join(known)}"
            )
    return given


def word(value: object) -> bool | None:
    """The value of a word for on or off; None for anything else."""
    found = _WORDS.get(value.lower()) if isinstance(value, str) else value
    return found if isinstance(found, bool) else None


def flag(name: str, value: object) -> bool:
    """On or off."""
    found = word(value)
    if found is None:
        raise ConfigurationError(f"{name} must be on or off, not {value!r}")
    return found


def whole(text: str) -> int | None:
    """The number that plain digits write; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def count(name: str, value: object, least: int = 1) -> int:
    """A whole number, at least ``least``."""
    number = whole(value) if isinstance(value, str) else value
    if type(number) is not int or number < least:
        raise ConfigurationError(f"{name} must be a whole number, at least {least}, not {value!r}")
    return number


def duration(name: str, value: object) -> timedelta:
    """``30s``, ``1.5h``, ``7d``; a number needs its unit."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    try:
        if isinstance(value, timedelta):
            return value
        if found is not None:
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError:
        pass
    raise ConfigurationError(f"{name} must be a duration such as '30s' or '7d', not {value!r}")


def seconds(name: str, value: object) -> float:
    """A duration above zero; a number without a unit is seconds."""
    number = None
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            number = float(value)
    except ValueError:
        number = None
    except OverflowError:
        number = math.inf
    if number is None:
        number = duration(name, value).total_seconds()
    if not 0 < number < threading.TIMEOUT_MAX:
        raise ConfigurationError(f"{name} must be a duration above 0, not {value!r}")
    return number
