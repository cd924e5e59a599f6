"""A worker that is interrupted as it takes a request leaves it to the next."""

import pytest

from semel.core.exchange.deferred import take
from semel.core.flow import Interrupted
from semel.core.operations.handler import Pursue
from semel.core.operations.requests import Release, Take
from semel.core.policy import accepted
from semel.core.records import Case, Fence, Origin, State
from semel.errors import StoreUnavailable
from semel.testing.contract.terms import terms
from tests.core.script import a_record

SEEN, FENCE = Fence(b"s" * 16), Fence(b"f" * 16)


def pending() -> Case:
    record = a_record(State.PENDING, SEEN, leased_until=1)
    return Case(record, Origin("", "POST", "/", "key"), b"request", None, None, 0, 0, terms())


@pytest.mark.parametrize("error", [Interrupted(), StoreUnavailable("no answer")])
def test_what_may_have_been_taken_is_put_back(error: Exception) -> None:
    flow = take(pending(), FENCE, accepted(mode="deferred", required=True))
    assert isinstance(next(flow), Take)
    pursued = flow.throw(error)
    assert isinstance(pursued, Pursue)
    assert isinstance(pursued.op, Release)
    assert (pursued.op.fence, pursued.op.requeue) == (FENCE, 0)
    assert pursued.seen == SEEN
    with pytest.raises(type(error)):
        flow.send(None)


def test_what_surely_was_not_taken_is_left_alone() -> None:
    flow = take(pending(), FENCE, accepted(mode="deferred", required=True))
    next(flow)
    with pytest.raises(StoreUnavailable):
        flow.throw(StoreUnavailable("refused", applied=False))
