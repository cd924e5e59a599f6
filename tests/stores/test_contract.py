"""The contract suite on every store, in both colours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.testing.contract import records, work
from tests.stores.harness import EACH_ONCE, HARNESSES, Harness, open_harness, server_of


@pytest.fixture(scope="module", params=HARNESSES)
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    """One per store and colour: tests use keys of their own, so they may share it."""
    folder = tmp_path_factory.mktemp(request.param)
    server = server_of(request, request.param)
    with open_harness(request.param, folder, server) as opened:
        yield opened


@pytest.mark.parametrize("harness", EACH_ONCE, indirect=True, scope="module")
class TestStateTable(records.StateTable):
    """Both colours run the same plans: each store takes one."""


class TestClaims(records.Claims): ...


class TestLives(records.Lives): ...


class TestBytes(records.Bytes): ...


class TestRaces(records.Races): ...


class TestRecipes(records.Recipes): ...


class TestDeferred(work.Deferred): ...


class TestPoints(work.RecoveryPoints): ...


class TestInquiries(work.Inquiries): ...
