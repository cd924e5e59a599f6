"""What a plan makes of its second statement when others come between it and the first."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.core.operations.requests import Applied, Lost, Release, Retake, StoreOperation
from semel.core.records import State
from semel.stores.base import system_clock
from semel.stores.sql.plans import Plan, plan
from semel.stores.sqlite import SqliteBackend
from semel.stores.sqlite.connection import run
from semel.testing.contract.records import MINUTE, claim, new_fence, new_identity
from tests.waiting import PATIENCE


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    opened = SqliteBackend(f"sqlite:///{tmp_path / 'keys.db'}", timeout=PATIENCE)
    opened.migrate()
    yield opened
    opened.close()


def interrupted(path: Path, op: StoreOperation[Any], between: Callable[[], object]) -> Any:
    """Statement by statement, as a server would get them; others come after the first."""

    def steps() -> Plan[Any]:
        rest = plan(op)
        rows = yield next(rest)
        between()
        try:
            while True:
                rows = yield rest.send(rows)
        except StopIteration as end:
            return end.value

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return run(connection, steps(), system_clock())


def test_a_release_that_is_overtaken_by_its_own_late_claim_takes_it_back(
    backend: SqliteBackend, tmp_path: Path
) -> None:
    """Called lost, the key would be held by nobody until it is unknown."""
    identity, fence = new_identity(), new_fence()
    late = claim(identity, fence)
    reply = interrupted(
        tmp_path / "keys.db",
        Release(identity, fence, MINUTE),
        lambda: backend.blocking().perform(late),
    )
    assert isinstance(reply, Applied)
    assert reply.state is State.FAILED_RETRYABLE


def test_a_release_that_is_overtaken_by_its_own_late_retake_takes_it_back(
    backend: SqliteBackend, tmp_path: Path
) -> None:
    identity, seen, fence = new_identity(), new_fence(), new_fence()
    store = backend.blocking()
    store.perform(claim(identity, seen))
    store.perform(Release(identity, seen, MINUTE))
    reply = interrupted(
        tmp_path / "keys.db",
        Release(identity, fence, MINUTE),
        lambda: store.perform(Retake(identity, seen, fence, MINUTE)),
    )
    assert isinstance(reply, Applied)


def test_a_release_that_is_overtaken_by_another_is_lost(
    backend: SqliteBackend, tmp_path: Path
) -> None:
    identity, fence, other = new_identity(), new_fence(), new_fence()
    reply = interrupted(
        tmp_path / "keys.db",
        Release(identity, fence, MINUTE),
        lambda: backend.blocking().perform(claim(identity, other)),
    )
    assert isinstance(reply, Lost)
    assert reply.record is not None
    assert reply.record.fence == other
