"""A worker's hold on a stored request: take it, and put down what could not be run."""

from __future__ import annotations

from semel.core.contract import Applied, Release, Resume, StoreOperation, Suspend, Take, Written
from semel.core.flow import Flow, ask
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
    except StoreError as error:
        surely_not = isinstance(error, StoreUnavailable) and error.applied is False
        if not surely_not and record.state is State.PENDING:
            # Held by nobody, it would lapse, and its outcome would be called unknown.
            yield from ask(Pursue(not_run(case, fence, policy, 0, "taking was not answered")))
        raise
    return isinstance(written, Applied)


def not_run(
    case: Case, fence: Fence, policy: Policy, requeue: Micros, reason: str
) -> StoreOperation[Written]:
    """Nothing was executed: back to the queue, or free for the client's retry to resume."""
    again = requeue if case.record.state is State.PENDING else None
    return Release(case.record.identity, fence, policy.retention_micros, reason, again)


def turned_away(case: Case, fence: Fence, reason: str) -> StoreOperation[Written]:
    """The application would not run it: a dead letter, for a person to look at."""
    return Suspend(case.record.identity, fence, reason, None)
