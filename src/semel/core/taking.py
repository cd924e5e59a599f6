"""A worker's hold on a stored request: take it, and put down what could not be run."""

from __future__ import annotations

from semel.core.contract import (
    Applied,
    Release,
    Renew,
    Resume,
    StoreOperation,
    Suspend,
    Take,
    Written,
)
from semel.core.flow import Flow, Interrupted, ask
from semel.core.model import Case, Fence, Micros, State
from semel.core.policy import Policy
from semel.core.runner import Pursue
from semel.errors import StoreError, StoreUnavailable


def take(case: Case, fence: Fence, policy: Policy) -> Flow[bool]:
    """Hold a pending request, or an operation whose holder is gone; False: another was first."""
    record = case.record
    how = Take if record.state is State.PENDING else Resume
    try:
        written: Written = yield from ask(
            how(record.identity, record.fence, fence, policy.lease_micros)
        )
    except (StoreError, Interrupted) as error:
        surely_not = isinstance(error, StoreUnavailable) and error.applied is False
        if not surely_not and record.state is State.PENDING:
            # Held by nobody, it would lapse, and its outcome would be called unknown.
            put_back = not_run(case, fence, "taking was not answered", 0)
            yield from ask(Pursue(put_back, seen=record.fence))
        raise
    return isinstance(written, Applied)


def not_run(
    case: Case, fence: Fence, reason: str, again_in: Micros | None
) -> StoreOperation[Written]:
    """Nothing was executed: back to the queue; None: it was tried for long enough.

    An operation that was begun is not freed, since it may have acted: its lease is left to lapse.
    """
    record = case.record
    if again_in is None or case.terms is None:
        return turned_away(case, fence, reason)
    if record.state is State.PENDING:
        return Release(record.identity, fence, case.terms.retention, reason, again_in)
    return Renew(record.identity, fence, again_in)


def turned_away(case: Case, fence: Fence, reason: str) -> StoreOperation[Written]:
    """The application would not run it: a dead letter, for a person to look at."""
    return Suspend(case.record.identity, fence, reason, None)
