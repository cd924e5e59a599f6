"""Options of a store, as they stand in a URL's query or are given to a backend: checked once."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from semel.errors import ConfigurationError

_WORDS: Final = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def seconds(name: str, value: object) -> float:
    """A duration, more than none."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"{name}={value!r}: expected seconds, more than 0")
    return number


_DIGITS: Final = 19
"""More than any number here has; `int` itself refuses some thousands of them."""


def whole(text: str) -> int | None:
    """The number that plain digits say; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def count(name: str, value: object) -> int:
    """How many, at least one."""
    number = whole(value) if isinstance(value, str) else value
    if type(number) is not int or number < 1:
        raise ConfigurationError(f"{name}={value!r}: expected a whole number, at least 1")
    return number


def flag(name: str, value: object) -> bool:
    """On or off."""
    found = _WORDS.get(value.lower()) if isinstance(value, str) else value
    if type(found) is not bool:
        raise ConfigurationError(f"{name}={value!r}: expected on or off")
    return found
