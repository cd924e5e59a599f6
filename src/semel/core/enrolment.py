"""Whether the keys of a route are still made the way the store remembers."""

from __future__ import annotations

from semel.core.contract import Conflicting, Register, Registered
from semel.core.flow import Flow, ask
from semel.core.policy import Policy
from semel.errors import RecipeChanged


def enrol(label: str, policy: Policy) -> Flow[None]:
    """Record how this route makes identities and fingerprints, or refuse when that has changed.

    A changed recipe would no longer find the keys that are alive, and run their requests again.
    """
    previous = policy.previous.recipe() if policy.previous is not None else None
    reply = yield from ask(Register(label, policy.recipe(), previous))
    match reply:
        case Conflicting(recorded):
            raise RecipeChanged(
                f"{label}: keys here were made with [{recorded}], the settings now say "
                f"[{policy.recipe()}]; set previous= to the old policy so that live keys are found"
            )
        case Registered(_, changed_at, now) if changed_at is not None and previous is None:
            left = changed_at + policy.retention_micros + policy.tombstone_micros - now
            if left > 0:
                raise RecipeChanged(
                    f"{label}: the settings changed lately; keep previous= for another "
                    f"{left // 3_600_000_000 + 1} hours, until keys made before have run out"
                )
        case Registered():
            pass
