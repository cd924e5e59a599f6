"""Audit, erasure and encryption on every store; in one colour each, which the plans do not know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from semel.core.operations.acts import Act
from semel.core.operations.audit import BrowseAudit
from semel.core.operations.requests import Agree, Applied, Lost, SettleAbsent
from semel.core.records import State
from semel.stores import open_backend
from tests.stores import contract_audit
from tests.stores.contract import RETENTION, TERMS, new_fence, reach
from tests.stores.harness import HARNESSES, OUTBOXES, Harness, emptied, server_of
from tests.waiting import PATIENCE, until

ONE_COLOUR = [
    name
    for name in HARNESSES
    if name.endswith("-sync") or name.replace("-async", "-sync") not in HARNESSES
]


@pytest.fixture(scope="module", params=ONE_COLOUR)
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
    "fresh", [name for name in ONE_COLOUR if name in OUTBOXES], indirect=True, scope="module"
)
"""Only where the store has one."""


class TestAuditing(contract_audit.Auditing): ...


@WITH_OUTBOX
class TestAuditingEffects(contract_audit.AuditingEffects): ...


class TestErasing(contract_audit.Erasing): ...


class TestResealing(contract_audit.Resealing): ...


@WITH_OUTBOX
class TestResealingEffects(contract_audit.ResealingEffects): ...


def test_an_act_that_came_second_leaves_no_entry_however_close_it_was(postgres_url: str) -> None:
    """The second one has seen the record unknown, and waits for the first one's lock."""
    backend = open_backend(postgres_url, timeout=PATIENCE)
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
            until(lambda: waiting.done() or looking.execute(blocked).fetchall())
            assert not waiting.done()
            mine.commit()
            assert isinstance(waiting.result(PATIENCE), Lost)
    (entry,) = harness.perform(BrowseAudit(9)).entries
    assert entry.by == "ann"
    harness.close()
