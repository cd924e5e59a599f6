"""Audit, erasure and encryption on every store; in one colour each, which the plans do not know."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.core.acts import Act
from semel.core.contract import Applied, Lost, SettleAbsent
from semel.core.custody import BrowseAudit
from semel.core.model import State
from semel.stores import open_backend
from tests.stores import contract_custody
from tests.stores.contract import RETENTION, new_fence, reach
from tests.stores.harness import HARNESSES, OUTBOXES, Harness, open_harness, server_of

ONE_COLOUR = [
    name
    for name in HARNESSES
    if name.endswith("-sync") or name.replace("-async", "-sync") not in HARNESSES
]


@pytest.fixture(params=ONE_COLOUR)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    with open_harness(request.param, tmp_path, server_of(request, request.param)) as opened:
        yield opened


class WithOutbox:
    """Only where the store has one."""

    @pytest.fixture(params=[name for name in ONE_COLOUR if name in OUTBOXES])
    def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
        server = server_of(request, request.param)
        with open_harness(request.param, tmp_path, server) as opened:
            yield opened


class TestAuditing(contract_custody.Auditing): ...


class TestAuditingEffects(WithOutbox, contract_custody.AuditingEffects): ...


class TestErasing(contract_custody.Erasing): ...


class TestResealing(contract_custody.Resealing): ...


class TestResealingEffects(WithOutbox, contract_custody.ResealingEffects): ...


def test_an_act_that_came_second_leaves_no_entry_however_close_it_was(postgres_url: str) -> None:
    """The second one has seen the record unknown, and waits for the first one's lock."""
    backend = open_backend(postgres_url)
    backend.migrate()
    harness = Harness(backend, lambda _: None, 0, "sync")
    identity, fence = reach(harness, State.UNKNOWN)
    first, second = (
        SettleAbsent(identity, fence, new_fence(), RETENTION, Act(name, "was first"))
        for name in ("ann", "eve")
    )
    with psycopg.connect(postgres_url) as mine, psycopg.connect(postgres_url) as looking:
        joined: Any = backend
        assert isinstance(joined.on(mine).perform(first), Applied)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(harness.perform, second)
            looking.autocommit = True
            blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not looking.execute(blocked).fetchall():
                assert not waiting.done()
            mine.commit()
            assert isinstance(waiting.result(60), Lost)
    (entry,) = harness.perform(BrowseAudit(9)).entries
    assert entry.by == "ann"
    harness.close()
