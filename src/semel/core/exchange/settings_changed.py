"""Whether the keys of a route are still made the way the store remembers."""

from __future__ import annotations

from typing import Final

from semel.core.flow import Flow, ask
from semel.core.operations.requests import Agree, Conflicting, Recorded, Register
from semel.core.policy import Policy
from semel.core.records import Micros
from semel.core.terms import Terms
from semel.errors import SettingsChanged, StoreCorrupt, StoreUnavailable

_HOUR: Final = 3_600_000_000
_WINDOW: Final = "~replay window"
"""No route is called like this."""
_TRIES: Final = 8


def enrol(label: str, policy: Policy, terms: Terms) -> Flow[None]:
    """Record how this route makes identities and fingerprints, or refuse when that has changed.

    A changed recipe would no longer find the keys that are alive, and run their requests again. The
    terms are put on record, too: from now on there may be records that name them.
    """
    recipe, previous = _recipes(policy)
    both = (policy, policy.previous or policy)
    alive = max(each.retention_micros + each.tombstone_micros for each in both)
    reply = yield from ask(Register(label, recipe, previous, alive))
    left = (reply.alive_until or 0) - reply.now
    if isinstance(reply, Conflicting):
        raise SettingsChanged(_conflict(label, recipe, previous, reply.recorded, left))
    if left > 0 and previous != reply.previous:
        raise SettingsChanged(_still_alive(label, reply.previous, left))
    yield from ask(Agree(terms))


def foretold(label: str, policy: Policy, found: Recorded) -> str | None:
    """What `enrol` would refuse these settings with; None where it would take them."""
    recipe, previous = _recipes(policy)
    left = (found.alive_until or 0) - found.now
    if found.recipe is None:
        return None
    if found.recipe == recipe:
        alive = left > 0 and previous != found.previous
        return _still_alive(label, found.previous, left) if alive else None
    if previous == found.recipe and (left <= 0 or found.previous == recipe):
        return None
    return _conflict(label, recipe, previous, found.recipe, left)


def _recipes(policy: Policy) -> tuple[str, str | None]:
    return policy.recipe(), policy.previous.recipe() if policy.previous is not None else None


def _still_alive(label: str, previous: str | None, left: Micros) -> str:
    return (
        f"{label}: keys made with [{previous}] may still be alive; keep previous= set to that "
        f"policy for another {left // _HOUR + 1} hours"
    )


def _conflict(label: str, recipe: str, previous: str | None, recorded: str, left: Micros) -> str:
    if previous == recorded:
        return (
            f"{label}: the settings changed lately, and only one change at a time is looked after; "
            f"wait another {left // _HOUR + 1} hours before the next"
        )
    if left > 0:
        return (
            f"{label}: the settings were changed to [{recorded}] lately, and say [{recipe}] now; "
            "to roll back, set previous= to the policy that they were changed to, so that its keys "
            "are found"
        )
    return (
        f"{label}: keys here were made with [{recorded}], the settings now say [{recipe}]; set "
        "previous= to the old policy so that live keys are found, or name= where another "
        "application shares this store"
    )


def announce(window: Micros) -> Flow[Micros]:
    """Record for how long a process may answer from its memory; the longest there ever was.

    A process says so before it remembers anything; whoever takes an answer out of the world asks
    after that, and so learns of every process that may still repeat it.
    """
    previous: str | None = None
    for _ in range(_TRIES):
        reply = yield from ask(Register(_WINDOW, str(window), previous))
        if not isinstance(reply, Conflicting):
            return window
        previous = reply.recorded
        if not previous.isdecimal():
            raise StoreCorrupt(f"the recorded replay window is no number: {previous!r}")
        if int(previous) >= window:
            return int(previous)
    raise StoreUnavailable("the replay window is being changed by others", applied=False)
