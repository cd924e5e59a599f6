"""A worker that is interrupted as it takes a request leaves it to the next."""

import pytest

from semel.core.contract import Release, Take
from semel.core.flow import Interrupted
from semel.core.model import Case, Fence, Identity, OnLapse, Origin, Record, State
from semel.core.policy import accepted
from semel.core.runner import Pursue
from semel.core.taking import take
from semel.errors import StoreUnavailable

IDENTITY, SEEN, FENCE = Identity(bytes(32)), Fence(b"s" * 16), Fence(b"f" * 16)


def pending() -> Case:
    record = Record(
        identity=IDENTITY,
        state=State.PENDING,
        fence=SEEN,
        fingerprint="v1.raw.sha256.x",
        fields=b"",
        on_lapse=OnLapse.UNKNOWN,
        created_at=0,
        leased_until=1,
        expires_at=None,
        forget_at=None,
        snapshot=None,
        reason=None,
    )
    return Case(record, Origin("", "POST", "/", "key"), b"request", None, None, 0, 0)


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
