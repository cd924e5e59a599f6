"""What touches everything in a store: each test on a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from semel.core import operations as ops
from semel.core.records import State
from semel.errors import ConfigurationError
from semel.stores.postgres import PostgresBackend
from tests.stores import contract_audit, contract_maintenance, contract_outbox
from tests.stores.contract import RETENTION, TERMS, new_fence, reach
from tests.stores.harness import EACH_ONCE, OUTBOXES, Harness, emptied, server_of
from tests.waiting import PATIENCE, until


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
    made.perform(ops.Agree(TERMS))
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


class TestAuditing(contract_audit.Auditing): ...


@WITH_OUTBOX
class TestAuditingEffects(contract_audit.AuditingEffects): ...


class TestErasing(contract_audit.Erasing): ...


class TestResealing(contract_audit.Resealing): ...


@WITH_OUTBOX
class TestResealingEffects(contract_audit.ResealingEffects): ...


def test_a_store_says_whether_it_has_an_outbox(
    harness: Harness, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["fresh"]
    assert harness.backend.capabilities.outbox == (name in OUTBOXES)
    if name not in OUTBOXES:
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(ops.Enqueue("key", None, "mail", b""))
        with pytest.raises(ConfigurationError, match="has no outbox"):
            harness.perform(ops.BrowseEffects(ops.Shelf.WAITING, 1))


def test_an_act_that_came_second_leaves_no_entry_however_close_it_was(postgres_url: str) -> None:
    """The second one has seen the record unknown, and waits for the first one's lock."""
    backend = PostgresBackend(postgres_url, timeout=PATIENCE)
    backend.migrate()
    harness = Harness(backend, lambda _: None, 0, "sync")
    identity, fence = reach(harness, State.UNKNOWN)
    first, second = (
        ops.SettleAbsent(identity, fence, new_fence(), RETENTION, ops.Act(name, "was first"))
        for name in ("ann", "eve")
    )
    with psycopg.connect(postgres_url) as mine, psycopg.connect(postgres_url) as looking:
        assert isinstance(backend.on(mine).perform(first), ops.Applied)
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(harness.perform, second)
            looking.autocommit = True
            blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(lambda: waiting.done() or looking.execute(blocked).fetchall())
            assert not waiting.done()
            mine.commit()
            assert isinstance(waiting.result(PATIENCE), ops.Lost)
    (entry,) = harness.perform(ops.BrowseAudit(9)).entries
    assert entry.by == "ann"
    harness.close()
