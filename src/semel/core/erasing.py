"""Erasing what is kept of a tenant: page by page, settled records only.

What is unsettled is left, and told: nobody knows what became of it, and to free it would be to let
it happen twice.
"""

from __future__ import annotations

from typing import Final

from semel.core.acts import Act, Verb, act
from semel.core.contract import Applied
from semel.core.custody import Erase, ListBelongings, Remark
from semel.core.flow import Flow, ask
from semel.core.frozen import frozen
from semel.core.model import Identity, State

PAGE: Final = 500
"""Records that are looked at in one step."""

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


def step(tenant: str, said: Act, so_far: Erasure) -> Flow[Erasure]:
    """The next page."""
    page = yield from ask(ListBelongings(tenant, PAGE, so_far.after))
    erased, left = so_far.erased, list(so_far.left)
    for each in page.found:
        gone = False
        if each.state in _SETTLED:
            written = yield from ask(Erase(each.identity, each.fence, said))
            gone = isinstance(written, Applied)
        if gone:
            erased += 1
        else:
            left.append(each.identity)
    return Erasure(erased, tuple(left), page.until)
