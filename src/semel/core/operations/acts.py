"""Acts: what people and evidence do to records, apart from requests.

An operation that takes an `Act` writes it into the audit table in the same atomic step, so there is
no act without its entry. Nothing ever deletes entries: they outlive records and the reaper.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from semel.core.frozen import frozen
from semel.core.texts import one_line
from semel.errors import ConfigurationError

_LONGEST: Final = 500
"""Characters of a reason that are kept: it is for people, and may come from outside."""


class Verb(StrEnum):
    """What was done."""

    SETTLE = "settle"
    """An unknown record was decided by evidence."""
    EVICT = "evict"
    """A settled record was removed."""
    BURY = "bury"
    """An unknown record was given up; its key stays used."""
    FREE = "free"
    """An unknown record was given up, and its key freed."""
    ERASE = "erase"
    """What was kept of a record, or of a tenant, was erased."""
    ROTATE = "rotate"
    """What is stored was encrypted anew."""
    RETRY = "retry"
    """A dead effect is tried again."""
    DROP = "drop"
    """A dead effect was deleted."""
    LOOK = "look"
    """The application's data in a record was looked at: bodies, results of calls."""
    PROPOSE = "propose"
    """An act that needs a second person was proposed."""
    APPROVE = "approve"
    """A second person approved it; what it came to has an entry of its own."""
    DECLINE = "decline"
    """A second person declined it, or the first one withdrew it."""


@frozen
class Act:
    """Who does it, and why."""

    by: str
    reason: str

    def __post_init__(self) -> None:
        if not self.by.strip() or not self.reason.strip():
            raise ConfigurationError("say who does it, and why: by=, reason=")

    @property
    def line(self) -> str:
        """As it is kept with a record."""
        return f"{self.by}: {self.reason}"


def act(by: str, reason: str) -> Act:
    """An act in words that fit one line."""
    return Act(one_line(by)[:_LONGEST], one_line(reason)[:_LONGEST])
