"""What touches everything in a store: each test on a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from semel.core.operations.outbox import BrowseEffects, Enqueue, Shelf
from semel.core.operations.requests import Agree
from semel.errors import ConfigurationError
from tests.stores import contract_maintenance, contract_outbox
from tests.stores.contract import TERMS
from tests.stores.harness import EACH_ONCE, OUTBOXES, Harness, emptied, server_of


@pytest.fixture(scope="module", params=EACH_ONCE)
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Harness]]:
    folder = tmp_path_factory.mktemp(request.param)
    with emptied(request.param, folder, server_of(request, request.param)) as made:
        yield made


@pytest.fixture
def harness(fresh: Callable[[], Harness]) -> Harness:
    made = fresh()
    made.perform(Agree(TERMS))
    return made


WITH_OUTBOX = pytest.mark.parametrize(
    "fresh", [name for name in EACH_ONCE if name in OUTBOXES], indirect=True, scope="module"
)
"""Only where the store has one."""


class TestDuties(contract_maintenance.Duties): ...


class TestKnownRecords(contract_maintenance.KnownRecords): ...


class TestBrowsing(contract_maintenance.Browsing): ...


class TestScanning(contract_maintenance.Scanning): ...


class TestCounting(contract_maintenance.Counting): ...


class TestSweeping(contract_maintenance.Sweeping): ...


class TestAbandoning(contract_maintenance.Abandoning): ...


class TestReaping(contract_maintenance.Reaping): ...


class TestLeading(contract_maintenance.Leading): ...


class TestRetiring(contract_maintenance.Retiring): ...


@WITH_OUTBOX
class TestTaking(contract_outbox.Taking): ...


@WITH_OUTBOX
class TestOrdered(contract_outbox.Ordered): ...


@WITH_OUTBOX
class TestDelivering(contract_outbox.Delivering): ...


@WITH_OUTBOX
class TestDeadLetters(contract_outbox.DeadLetters): ...


class TestEvents(contract_outbox.Events): ...


def test_a_store_says_whether_it_has_an_outbox(
    harness: Harness, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["fresh"]
    assert harness.backend.capabilities.outbox == (name in OUTBOXES)
    if name not in OUTBOXES:
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(Enqueue("key", None, "mail", b""))
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(BrowseEffects(Shelf.WAITING, 1))
