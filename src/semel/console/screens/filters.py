"""Filters that several screens read from the address: ages, times, identities."""

from __future__ import annotations

from datetime import UTC, datetime

from semel.console.requests import ConsoleRefusal
from semel.console.view import identity
from semel.core.records import Identity, Micros
from semel.errors import ConfigurationError
from semel.stores.options import duration


def age(text: str | None) -> Micros | None:
    """A duration such as 90s, 30m or 7d."""
    try:
        return None if text is None else int(duration("", text).total_seconds() * 1_000_000)
    except ConfigurationError:
        raise ConsoleRefusal(400, f"{text!r} is no duration such as 90s, 30m or 7d.") from None


def since(text: str | None, now: Micros) -> Micros | None:
    """A time: how long ago, or an ISO time, in UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return now - (age(text) or 0)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(at.timestamp() * 1_000_000)


def whole_identity(text: str | None) -> Identity | None:
    return None if text is None else identity(text)
