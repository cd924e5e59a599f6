"""Who uses the console, and what they may do.

An `Operator` (`semel.operators`) does the work on records. A `ConsoleUser` is the person who asks
for it: what the application's ``authorize`` function returns. The audit has the name that they are
logged in with; nobody types it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from typing import Any, Final, TypeAlias

from semel.core.frozen import frozen
from semel.core.records import Request
from semel.errors import ConfigurationError

LONGEST_NAME: Final = 200


class Role(StrEnum):
    """What a person may do. Each role may do what the ones before it may."""

    VIEWER = "viewer"
    """Reads; a database role that can only read is enough."""
    OPERATOR = "operator"
    """Asks probes, settles, gives up, retries and drops effects."""
    CUSTODIAN = "custodian"
    """Frees keys, erases, looks into stored bodies."""

    def includes(self, other: Role) -> bool:
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER: Final = tuple(Role)


@frozen
class ConsoleUser:
    """A person who is logged in, and their roles: ``ConsoleUser("ada", ["operator"])``."""

    name: str
    roles: Iterable[str]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError("a ConsoleUser has a name: the audit says who did what")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            said = f"the name of a ConsoleUser is one line of at most {LONGEST_NAME} characters"
            raise ConfigurationError(said)
        given = (self.roles,) if isinstance(self.roles, str) else tuple(self.roles)
        unknown = [role for role in given if role not in _ORDER]
        if unknown:
            known = ", ".join(_ORDER)
            raise ConfigurationError(f"{unknown[0]!r} is no role of the console: {known}")
        object.__setattr__(self, "roles", frozenset(map(Role, given)))

    def may(self, role: Role) -> bool:
        """Whether one of its roles is this one, or includes it."""
        return any(Role(mine).includes(role) for mine in self.roles)

    @property
    def highest(self) -> Role | None:
        """The role that includes its others; None: it has none, and may not even read."""
        return max(map(Role, self.roles), key=_ORDER.index, default=None)


Authorize: TypeAlias = Callable[[Request], ConsoleUser | Awaitable[ConsoleUser | None] | None]
"""Says who sends a request; None: nobody who may use the console."""


def checked(returned: Any) -> ConsoleUser | None:
    """What ``authorize`` has returned, if that is an answer. Anything else is refused."""
    if returned is None or isinstance(returned, ConsoleUser):
        return returned
    raise ConfigurationError(
        f"authorize= returns semel.console.ConsoleUser or None, not {type(returned).__name__}"
    )
