"""What an application registers: who delivers which effect, and who is asked as a probe."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from semel.core.frozen import frozen
from semel.errors import ConfigurationError

DeliverFunction: TypeAlias = Callable[..., Any]
"""Takes a `semel.Delivery`; returns the provider's id for it, or None. May be a coroutine."""

ProbeFunction: TypeAlias = Callable[..., Any]
"""Takes a `semel.Inquiry`; returns Happened, Absent or CannotTell. May be a coroutine."""


@frozen
class Deliverer:
    """Who delivers the effects of one name, and how long it is tried."""

    name: str
    function: DeliverFunction
    tries: int
    first_pause: timedelta
    longest_pause: timedelta
    timeout: timedelta
    keep: timedelta

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(f"effect {self.name!r}: the deliverer must be callable")
        if self.tries < 1:
            raise ConfigurationError(f"effect {self.name!r}: tries= must be at least 1")
        for option in ("first_pause", "longest_pause", "timeout", "keep"):
            if getattr(self, option) <= timedelta(0):
                raise ConfigurationError(f"effect {self.name!r}: {option}= must be above zero")


class Registry:
    """The deliverers and probes that an application has registered at its guard."""

    def __init__(self) -> None:
        self.deliverers: dict[str, Deliverer] = {}
        self.probes: dict[str, ProbeFunction] = {}

    def add_deliverer(self, deliverer: Deliverer) -> None:
        if deliverer.name in self.deliverers:
            raise ConfigurationError(f"effect {deliverer.name!r} has a deliverer already")
        self.deliverers[deliverer.name] = deliverer

    def add_probe(self, name: str, probe: ProbeFunction) -> None:
        if not callable(probe):
            raise ConfigurationError(f"probe {name!r} must be callable")
        if name in self.probes:
            raise ConfigurationError(f"{name!r} has a probe already")
        self.probes[name] = probe
