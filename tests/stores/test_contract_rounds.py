"""What touches everything in a store: each test on a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.core.outbox import BrowseEffects, Enqueue, Shelf
from semel.errors import ConfigurationError
from tests.stores import contract_outbox, contract_upkeep
from tests.stores.harness import EACH_ONCE, OUTBOXES, Harness, open_harness, server_of


@pytest.fixture(params=EACH_ONCE)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with open_harness(request.param, tmp_path, server_of(request, request.param)) as opened:
        yield opened


class TestDuties(contract_upkeep.Duties): ...


class TestBrowsing(contract_upkeep.Browsing): ...


class TestScanning(contract_upkeep.Scanning): ...


class TestCounting(contract_upkeep.Counting): ...


class TestSweeping(contract_upkeep.Sweeping): ...


class TestAbandoning(contract_upkeep.Abandoning): ...


class TestReaping(contract_upkeep.Reaping): ...


class TestLeading(contract_upkeep.Leading): ...


class TestRetiring(contract_upkeep.Retiring): ...


class WithOutbox:
    """Only where the store has one."""

    @pytest.fixture(params=[name for name in EACH_ONCE if name in OUTBOXES])
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
        server = server_of(request, request.param)
        with open_harness(request.param, tmp_path, server) as opened:
            yield opened


class TestTaking(WithOutbox, contract_outbox.Taking): ...


class TestOrdered(WithOutbox, contract_outbox.Ordered): ...


class TestDelivering(WithOutbox, contract_outbox.Delivering): ...


class TestDeadLetters(WithOutbox, contract_outbox.DeadLetters): ...


class TestEvents(contract_outbox.Events): ...


def test_a_store_says_whether_it_has_an_outbox(
    harness: Harness, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["harness"]
    assert harness.backend.capabilities.outbox == (name in OUTBOXES)
    if name not in OUTBOXES:
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(Enqueue("key", None, "mail", b""))
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(BrowseEffects(Shelf.WAITING, 1))
