"""Audit, erasure and encryption on every store, in both colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import contract_custody
from tests.stores.harness import HARNESSES, OUTBOXES, Harness, open_harness, server_of


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with open_harness(request.param, tmp_path, server_of(request, request.param)) as opened:
        yield opened


class WithOutbox:
    """Only where the store has one."""

    @pytest.fixture(params=OUTBOXES)
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
        server = server_of(request, request.param)
        with open_harness(request.param, tmp_path, server) as opened:
            yield opened


class TestAuditing(contract_custody.Auditing): ...


class TestAuditingEffects(WithOutbox, contract_custody.AuditingEffects): ...


class TestErasing(contract_custody.Erasing): ...


class TestResealing(contract_custody.Resealing): ...


class TestResealingEffects(WithOutbox, contract_custody.ResealingEffects): ...
