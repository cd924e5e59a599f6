"""The cap on keys that are alive: counted by one process, known to all, on every store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core import maintenance
from semel.core.flow import run
from semel.core.maintenance import digest
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Count, Lead
from semel.core.operations.requests import Claim, FlowOperation, Register
from semel.core.records import Identity, Origin
from semel.runtime.leases import new_fence
from semel.runtime.limits import LimitCost, Limiter, Limits
from semel.stores import open_backend
from semel.stores.base import Backend, performer
from semel.stores.memory import MemoryBackend
from semel.worker.maintenance import TenantCounter
from tests.stores.harness import FakeClock
from tests.waiting import until
from tests.web.client import new_key
from tests.web.conftest import Serve
from tests.web.drive import Ask
from tests.web.faults import FaultyBackend

HOUR = timedelta(hours=1)


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    match request.param:
        case "memory":
            made: Backend = MemoryBackend()
        case "sqlite":
            made = open_backend(f"sqlite:///{tmp_path / 'keys.db'}")
        case "redis":
            url = request.getfixturevalue("valkey").url
            made = open_backend(f"{url}?prefix=tenant_counts-{time.monotonic_ns()}")
        case name:
            fixture = {"postgres": "postgres_url", "mysql": "mariadb_url"}[name]
            made = open_backend(request.getfixturevalue(fixture))
            made.migrate()
    yield made
    made.close()


def fill(backend: Backend, tenant: str, keys: int) -> None:
    store = backend.blocking()
    for _ in range(keys):
        identity = Identity(new_fence() + new_fence())
        origin = Origin(tenant, "POST", "/x", "0123456789abcdef")
        store.perform(Claim(identity, new_fence(), "v1:x", b"", origin, 60_000_000))


def counter(backend: Backend, cap: int = 10) -> tuple[TenantCounter, Limiter]:
    limiter = Limiter(Limits(active_keys=cap))
    guard = semel.Guard(backend, tenant=None, maintenance=None)
    return TenantCounter(guard, limiter, cap, HOUR), limiter


def test_one_counts_and_all_know(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PAGE", 4)
    odd = "zoë \0"
    for tenant, keys in (("full", 10), ("half", 5), ("few", 4), (odd, 10)):
        fill(backend, tenant, keys)
    first, known = counter(backend)
    note = first.run_once()
    named = {digest("full"): 10, digest("half"): 5, digest("zoë \\x00"): 10}
    assert note.active == named
    second, told = counter(backend)
    assert second.run_once().active == named, "the note did not reach the other process"
    for limiter in (known, told):
        over = limiter.charge("full", LimitCost.NEW_KEY)
        assert over is not None
        assert over.code == "too-many-keys"
        assert limiter.charge(odd, LimitCost.NEW_KEY) is not None
        assert limiter.charge("half", LimitCost.NEW_KEY) is None


def test_a_fresh_note_is_not_counted_again_and_an_old_one_is() -> None:
    store = FaultyBackend()
    fill(store, "a", 10)
    counting, _ = counter(store)
    assert counting.run_once().active == {digest("a"): 10}
    assert store.count(Count) == 1
    counting.run_once()
    counter(store)[0].run_once()
    assert store.count(Count) == 1
    fill(store, "a", 5)
    hasty = TenantCounter(counting._guard, Limiter(Limits()), 10, timedelta(microseconds=1))
    assert hasty.run_once().active == {digest("a"): 15}


def test_while_another_counts_nobody_else_does() -> None:
    store = FaultyBackend()
    fill(store, "a", 10)
    store.blocking().perform(Lead("census 10", new_fence(), 60_000_000))
    counting, limiter = counter(store)
    assert counting.run_once().counted_at is None
    assert store.count(Count) == 0
    assert limiter.charge("a", LimitCost.NEW_KEY) is None


def test_a_note_that_is_damaged_is_counted_anew() -> None:
    store = MemoryBackend()
    fill(store, "a", 10)
    store.blocking().perform(Register("~active keys 10", '{"at": "x"'))
    counting, _ = counter(store)
    assert counting.run_once().active == {digest("a"): 10}


def test_more_tenants_than_there_is_room_for_cost_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "ROOM", 40)
    monkeypatch.setattr(maintenance, "PAGE", 20)
    store = MemoryBackend()
    fill(store, "large", 100)
    for number in range(200):
        fill(store, f"small {number}", 1)
    ask = performer(store.blocking())

    def perform(op: FlowOperation[Any]) -> Any:
        return None if isinstance(op, PauseBetweenLooks) else ask(op)

    note = run(maintenance.count_tenants(1), perform)
    assert note.active[digest("large")] == 100
    assert len(note.active) <= 60


@pytest.mark.parametrize("colour", ["asgi", "wsgi"])
def test_a_guard_learns_of_keys_that_others_made_and_lets_new_ones_in_when_they_are_gone(
    serve: Serve, tmp_path: Path
) -> None:
    clock = FakeClock()
    store = MemoryBackend(clock=clock)
    policy = semel.ietf(retention=HOUR, tombstone=timedelta(0))
    send = serve(
        store=store,
        policy=policy,
        limits=semel.Limits(active_keys=5),
        maintenance=timedelta(milliseconds=50),
    )
    assert send(Ask(key=new_key())).status == 200
    fill(store, "", 4)  # by another process
    refused = until(lambda: reply if (reply := send(Ask(key=new_key()))).status == 429 else None)
    assert refused is not None
    assert refused.code == "too-many-keys"
    assert refused.one("retry-after") == "1"
    clock.travel(2 * HOUR // timedelta(microseconds=1))

    def let_in() -> bool:
        clock.travel(1_000_000)  # a count that came before the round of maintenance gets old too
        return send(Ask(key=new_key())).status == 200

    until(let_in)
