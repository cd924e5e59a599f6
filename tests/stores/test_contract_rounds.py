"""What touches everything in a store: each test on a store of its own, in both colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import contract_outbox, contract_upkeep
from tests.stores.harness import HARNESSES, Harness, open_harness, server_of


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with open_harness(request.param, tmp_path, server_of(request, request.param)) as opened:
        yield opened


class TestDuties(contract_upkeep.Duties): ...


class TestBrowsing(contract_upkeep.Browsing): ...


class TestSweeping(contract_upkeep.Sweeping): ...


class TestAbandoning(contract_upkeep.Abandoning): ...


class TestReaping(contract_upkeep.Reaping): ...


class TestLeading(contract_upkeep.Leading): ...


class TestRetiring(contract_upkeep.Retiring): ...


class TestTaking(contract_outbox.Taking): ...


class TestOrdered(contract_outbox.Ordered): ...


class TestDelivering(contract_outbox.Delivering): ...


class TestDeadLetters(contract_outbox.DeadLetters): ...


class TestEvents(contract_outbox.Events): ...
