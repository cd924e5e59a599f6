"""How many records there are: exact where there are few, a sample with its error where not."""

from __future__ import annotations

from hashlib import sha256

import pytest

from semel.core import operations as ops
from semel.core.records import Fence, Identity, State
from semel.operators import counts
from semel.stores.memory import MemoryBackend
from semel.testing.contract.records import LEASE, RETENTION, claim, complete, new_fence
from semel.testing.contract.terms import terms
from tests.stores.harness import FakeClock

DAY = counts.DAY
ROUTES = {"POST /a": 3, "POST /b": 1}


@pytest.fixture
def filled() -> MemoryBackend:
    """2,000 records, three of four of one route; half of them older than a day."""
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    agreed = [terms(route=route) for route, many in ROUTES.items() for _ in range(many)]
    for each in agreed:
        backend.perform(ops.Agree(each))
    for n in range(2000):
        identity, fence = Identity(sha256(str(n).encode()).digest()), Fence(bytes(16))
        op = claim(identity, fence)
        backend.perform(
            ops.Claim(*(identity, fence, "v1:", b"", op.origin, LEASE), terms=agreed[n % 4].id)
        )
        if n % 2:
            backend.perform(ops.Complete(identity, fence, b"", RETENTION, 1))
        if n == 999:
            clock.travel(2 * DAY)
    return backend


def test_what_is_smaller_than_the_sample_is_counted_exactly(filled: MemoryBackend) -> None:
    now = filled.perform(ops.ListTerms(1)).now
    found = counts.sample(filled, now, size=2001)
    assert found.exact
    assert found.said == "all 2,000 counted"
    assert found.total == counts.Estimate(2000, 0)
    by_route = {(each.route, each.state): each for each in found.groups}
    assert by_route["POST /a", State.IN_PROGRESS].records == counts.Estimate(1000, 0)
    assert by_route["POST /a", State.COMPLETED].records == counts.Estimate(500, 0)
    assert by_route["POST /b", State.COMPLETED].recent == counts.Estimate(250, 0)
    assert found.by_state()[State.COMPLETED].count == 1000
    assert found.by_state()[State.UNKNOWN].count == 0


@pytest.mark.parametrize("start", [0, 1, 77, 128, 200, 254])
def test_a_sample_from_anywhere_is_within_its_error(filled: MemoryBackend, start: int) -> None:
    """The records are the same in every run: this never fails by luck."""
    now = filled.perform(ops.ListTerms(1)).now
    found = counts.sample(filled, now, size=400, start=Identity(bytes([start] * 32)))
    assert found.looked == 400
    assert not found.exact
    assert found.said.startswith("sampled 400 of about ")
    assert abs(found.total.count - 2000) <= 1.5 * found.total.error
    assert 0 < found.total.error <= 220
    assert len(found.groups) == 3
    for each in found.groups:
        whole = 1000 if each.state is State.IN_PROGRESS else 500
        assert abs(each.records.count - whole) <= 1.5 * each.records.error


def test_a_run_that_comes_to_the_end_begins_anew(filled: MemoryBackend) -> None:
    now = filled.perform(ops.ListTerms(1)).now
    found = counts.sample(filled, now, size=400, start=Identity(b"\xff" * 32))
    assert found.looked == 400
    assert abs(found.total.count - 2000) <= 1.5 * found.total.error


def test_an_empty_store_has_none() -> None:
    found = counts.sample(MemoryBackend(), 0)
    assert (found.total, found.groups) == (counts.Estimate(0, 0), ())


def test_what_is_unsettled_is_counted_up_to_a_limit(filled: MemoryBackend) -> None:
    assert counts.unsettled(filled).in_progress.count == 1000
    assert counts.unsettled(filled, 7).in_progress.count == 7
    assert counts.unsettled(filled).lapsed.count == 500
    identity = Identity(sha256(b"0").digest())
    assert isinstance(filled.perform(complete(identity, new_fence())), ops.Lost)
