"""Evidence: what a probe, a webhook or an operator can say about an outcome nobody knows."""

from __future__ import annotations

from typing import Any, TypeAlias

from semel.core import keys
from semel.core.frozen import frozen
from semel.core.model import Identity, Micros, Origin


@frozen
class Happened:
    """It took effect.

    ``result``: for an operation's call, what the call would have returned (JSON); for a plain
    handler a `semel.Response`, or whatever the route's ``render=`` makes one of. Without either, a
    receipt with ``provider_id`` is kept.
    """

    result: Any = None
    provider_id: str | None = None


@frozen
class Absent:
    """It did not take effect.

    ``final``: and no longer can, but for a retry's own call. Say so only where the provider takes
    our downstream key once: then a holder that was stopped and still sends, and a retry, have one
    effect between them. That some time has passed is never final. If the probe *voided* the key
    there, no retry can use it again: say that it happened, with a result that tells so.
    """

    final: bool = False


@frozen
class CannotTell:
    """Ask again later."""

    reason: str = ""


Evidence: TypeAlias = Happened | Absent | CannotTell


@frozen
class Inquiry:
    """What a probe is asked: did this take effect?"""

    identity: Identity
    tenant: str
    method: str
    path: str
    name: str | None
    """The operation's call, or the effect, in doubt; None: the whole handler."""
    created_at: Micros
    tries: int = 0

    def downstream_key(self, name: str | None = None) -> str:
        """The key that was sent to the provider: of the call in doubt, or of any by its name."""
        name = self.name if name is None else name
        if name is None:
            raise ValueError("which call? say downstream_key('charge'), as the handler did")
        return keys.downstream_key(self.identity, name)


def inquiry(
    identity: Identity, origin: Origin, name: str | None, created_at: Micros, tries: int = 0
) -> Inquiry:
    return Inquiry(identity, origin.tenant, origin.method, origin.path, name, created_at, tries)
