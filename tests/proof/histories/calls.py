"""One call to a store as it was recorded."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, TypeAlias

from semel.core.frozen import frozen
from semel.core.operations.maintenance import Abandon, Reap, Retire, Sweep
from semel.core.operations.requests import StoreOperation
from semel.core.records import Identity

ROUNDS: Final = (Sweep, Abandon, Reap)
"""They look at every record, and tell how many they changed but not which."""


class Outcome(StrEnum):
    """What the caller knows."""

    TOLD = "told"
    DOUBT = "doubt"
    """No answer came: it may take effect now, at any later time, or never."""
    NOTHING = "nothing"
    """It surely took no effect, and must not take any."""


@frozen
class Call:
    """Times are nanoseconds of the machine's monotonic clock, which all processes share."""

    lane: str
    op: StoreOperation[Any]
    began: int
    ended: int
    outcome: Outcome
    reply: Any = None


History: TypeAlias = list[Call]


def history_of(identity: Identity, calls: list[Call]) -> History:
    """What was done to one key."""
    return sorted((call for call in calls if concerns(call, identity)), key=lambda call: call.began)


def concerns(call: Call, identity: Identity) -> bool:
    if isinstance(call.op, Retire):
        return call.op.resource == identity.hex()
    return isinstance(call.op, ROUNDS) or getattr(call.op, "identity", None) == identity
