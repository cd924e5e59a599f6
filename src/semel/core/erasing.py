"""Erasing what is kept of a tenant: page by page, settled records only.

What is unsettled is left, and told: nobody knows what became of it, and to free it would be to let
it happen twice.
"""

from __future__ import annotations

from typing import Final

from semel.core.acts import Act, Verb, act
from semel.core.contract import Applied
from semel.core.custody import Belonging, Erase, Remark
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.model import Identity, State

_SETTLED: Final = (State.COMPLETED, State.FAILED_RETRYABLE, State.EXPIRED)


@frozen
class Erasure:
    """How far an erasure has come. ``left``: unsettled records of the tenant, which were not."""

    erased: int = 0
    left: tuple[Identity, ...] = ()
    after: Identity | None = None
    """Where to go on; None at the end."""


def begin(tenant: str, said: Act) -> Flow[None]:
    """Put it on record before the first record is erased."""
    yield from ask(Remark(Verb.ERASE, act(said.by, f"begun: {said.reason}"), tenant))


def end(tenant: str, said: Act, done: Erasure) -> Flow[None]:
    words = f"{done.erased} records erased, {len(done.left)} unsettled ones left: {said.reason}"
    yield from ask(Remark(Verb.ERASE, act(said.by, words), tenant))


def erase(each: Belonging, said: Act) -> Flow[bool]:
    """One record; False: it is not settled, or was changed by somebody just now."""
    if each.state not in _SETTLED:
        return False
    return isinstance((yield from ask(Erase(each.identity, each.fence, said))), Applied)
