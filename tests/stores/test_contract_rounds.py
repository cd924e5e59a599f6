"""What touches everything in a store: each test on a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from semel.core import operations as ops
from semel.core.records import State
from semel.stores.postgres import PostgresBackend
from semel.testing.contract import audit, declared, lists, maintenance, notables, outbox
from semel.testing.contract.records import RETENTION, TERMS, new_fence, reach
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


class TestDuties(maintenance.Duties): ...


class TestKnownRecords(maintenance.KnownRecords): ...


class TestBrowsing(maintenance.Browsing): ...


class TestScanning(maintenance.Scanning): ...


class TestCounting(maintenance.Counting): ...


class TestNewestFirst(lists.NewestFirst): ...


class TestCountingForPeople(lists.CountingForPeople): ...


class TestSweeping(maintenance.Sweeping): ...


class TestAbandoning(maintenance.Abandoning): ...


class TestReaping(maintenance.Reaping): ...


class TestLeading(maintenance.LeaderElection): ...


class TestRetiring(maintenance.Retiring): ...


@WITH_OUTBOX
class TestTaking(outbox.Taking): ...


@WITH_OUTBOX
class TestOrdered(outbox.Ordered): ...


@WITH_OUTBOX
class TestDelivering(outbox.Delivering): ...


@WITH_OUTBOX
class TestDeadLetters(outbox.DeadLetters): ...


@WITH_OUTBOX
class TestNewestEffectsFirst(lists.NewestEffectsFirst): ...


class TestEvents(outbox.ProviderEvents): ...


class TestAuditing(audit.Auditing): ...


@WITH_OUTBOX
class TestAuditingEffects(audit.AuditingEffects): ...


class TestErasing(audit.Erasing): ...


class TestResealing(audit.Resealing): ...


class TestNotables(notables.Notables): ...


class TestHeartbeats(notables.Heartbeats): ...


@WITH_OUTBOX
class TestResealingEffects(audit.ResealingEffects): ...


@WITH_OUTBOX
class TestWithOutbox(declared.WithOutbox): ...


@pytest.mark.parametrize(
    "fresh", [name for name in EACH_ONCE if name not in OUTBOXES], indirect=True, scope="module"
)
class TestWithoutOutbox(declared.WithoutOutbox): ...


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
