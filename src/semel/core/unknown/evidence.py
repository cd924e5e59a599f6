"""Evidence: what a probe, a webhook or an operator can say about an outcome nobody knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from semel.core.frozen import frozen
from semel.core.records import Case, Identity, Micros, Origin
from semel.core.request import keys


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
    epoch: Micros = keys.ONE_LIFE
    """Which life of the key it is: part of its downstream keys."""

    def downstream_key(self, name: str | None = None) -> str:
        """The key that was sent to the provider: of the call in doubt, or of any by its name."""
        name = self.name if name is None else name
        if name is None:
            raise ValueError("which call? say downstream_key('charge'), as the handler did")
        return keys.downstream_key(self.identity, self.epoch, "call", name)


ProbeFunction: TypeAlias = Callable[[Inquiry], Evidence | Awaitable[Evidence]]
"""Asks a provider; plain or a coroutine function."""


def inquiry(identity: Identity, origin: Origin, name: str | None, created_at: Micros) -> Inquiry:
    """About a call of a run that is under way."""
    place = (origin.tenant, origin.method, origin.path)
    return Inquiry(identity, *place, name, created_at, 0, created_at)


def inquiry_about(case: Case, name: str | None) -> Inquiry:
    """About a record that nobody is running."""
    record, origin = case.record, case.origin
    place = (origin.tenant, origin.method, origin.path)
    return Inquiry(record.identity, *place, name, record.created_at, case.tries, epoch_of(case))


def epoch_of(case: Case) -> Micros:
    """Which life of its key a record is.

    A run in a transaction leaves no record behind when it fails: the next try cannot know of it,
    and would send the provider another key for the same payment. There all lives are one.
    """
    atomic = case.terms is not None and case.terms.mode == "atomic"
    return keys.ONE_LIFE if atomic else case.record.created_at
