"""Every shipped alert rule fires in the situation it is for, and all are silent on a good day.

The metrics are those of a real guard to which it happens; only time is not waited for: neither that
between scrapes, nor the store's, nor what a request is said to have taken. What Prometheus would
make of them is worked out by `tests.telemetry.scraped`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import semel
from semel.core.delivery import encode_payload
from semel.core.operations.outbox import Enqueue
from semel.core.operations.requests import Claim, Complete, Read, StoreOperation
from semel.core.records import Identity, Origin
from semel.runtime.leases import new_fence
from semel.stores.memory import MemoryBackend
from semel.telemetry.prometheus import Prometheus
from semel.web import request_events
from semel.worker.deliveries import Deliveries
from semel.worker.maintenance import Maintenance
from tests.stores.harness import FakeClock
from tests.telemetry.scraped import Scraped
from tests.telemetry.test_monitoring import RULES
from tests.waiting import until
from tests.web.client import new_key
from tests.web.faults import Fault, FaultyBackend

MINUTE = 60.0
SECOND = 1_000_000  # microseconds
SHORT = timedelta(milliseconds=100)  # met only by a write that never succeeds
BRIEF = semel.ietf(lease=SHORT, max_run=SHORT, effects="none", after_lapse="release")
ALERTS = {rule["alert"]: rule for rule in RULES}


def cannot_tell(inquiry: semel.Inquiry) -> semel.CannotTell:
    return semel.CannotTell("the provider does not know")


class TimedBackend(FaultyBackend):
    """A store that takes its time over claims, by the watch of whoever measures."""

    def __init__(self, inner: MemoryBackend) -> None:
        super().__init__(inner)
        self.watch_shows = 0.0
        self.claims_take = 0.0
        self.replace: Callable[[str, str], None] = lambda was, now: None
        """Tells the guard that its primary was replaced."""

    def on_failover(self, listener: Callable[[str, str], None]) -> None:
        self.replace = listener

    def before(self, op: StoreOperation[Any]) -> Fault | None:
        self.watch_shows += self.claims_take if isinstance(op, Claim) else 0.0
        return super().before(op)


class Town:
    """An application with its store, its workers, and a Prometheus that looks at it."""

    def __init__(self, patch: pytest.MonkeyPatch, **options: Any) -> None:
        self.clock = FakeClock()
        self.store = TimedBackend(MemoryBackend(clock=self.clock))
        patch.setattr(request_events, "_clock", lambda: self.store.watch_shows)
        self.registry = CollectorRegistry()
        self.guard = self.process(**options)
        self.scraped = Scraped(self.registry)
        self.delivered = True

    def process(self, **options: Any) -> semel.Guard:
        """Another process of the application; it is scraped with the first."""
        told = Prometheus(self.registry, tenants=["ann"])
        options = {"tenant": lambda request: "ann", "maintenance": None, **options}
        guard = semel.Guard(self.store, on_event=told, **options)
        guard.delivers("mail", tries=99)(self._deliver)
        guard.probe("doubt")(cannot_tell)
        return guard

    def _deliver(self, delivery: semel.Delivery) -> None:
        if not self.delivered:
            raise ConnectionRefusedError

    def pay(self, key: str | None = None, times: int = 1, **how: Any) -> None:
        how = {"name": "pay", "tenant": "ann", "payload": 1, **how}
        for _ in range(times):
            with suppress(semel.Refused):
                self.guard.once(key or new_key(), lambda: 1, **how)

    def doubt(self, name: str) -> bytes:
        """A call whose outcome nobody knows."""
        known: list[bytes] = []

        def fail() -> None:
            known.append(semel.operation().identity)
            raise semel.OutcomeUnknown("no answer")

        with suppress(semel.OutcomeUnknown):
            self.guard.once(new_key(), fail, name=name, tenant="ann")
        return known[0]

    def mail(self) -> None:
        op = Enqueue(new_key(), None, "mail", encode_payload({"to": "ann"}))
        self.store.blocking().perform(op)

    def work(self) -> None:
        """A round of what workers do."""
        for loop in (Deliveries(self.guard), Maintenance(self.guard)):
            asyncio.run(loop.run_once())

    def minutes(self, count: int, happens: Callable[[], object] = lambda: None) -> None:
        for _ in range(count):
            happens()
            self.scraped.scrape(MINUTE - 1)

    def good_minute(self) -> None:
        keys = [new_key() for _ in range(3)]
        for key in (*keys, keys[0]):
            self.pay(key)
        self.mail()
        self.work()
        assert self.guard.health().up

    def close(self) -> None:
        self.store.mend()
        self.guard.close()


# ── bad days ──────────────────────────────────────────────────────────────────────────────────────


def store_failing(town: Town) -> None:
    town.store.fail(Claim, mishap="refused")
    town.minutes(8, lambda: town.pay(times=10))


def circuit_open(town: Town) -> None:
    town.store.fail(Claim, mishap="refused")

    def is_open() -> bool:
        town.pay()
        return town.guard.runtime.breaker.circuit == "open"

    until(is_open)
    town.minutes(2)


def store_failover(town: Town) -> None:
    town.minutes(1)
    town.store.replace("one:6379", "two:6379")
    town.minutes(2)


def store_down(town: Town) -> None:
    town.store.fail(Read)
    assert not town.guard.health().up
    town.minutes(2)


def outcome_not_recorded(town: Town) -> None:
    """Once is enough, and nothing of the kind was ever counted before."""
    town.minutes(2, town.good_minute)
    town.store.fail(Complete)
    town.pay(policy=BRIEF, name="brief")
    town.minutes(1)


def dead_letters(town: Town) -> None:
    town.doubt("nobody-can-be-asked")
    town.work()
    town.minutes(6)


def unknown_outcomes(town: Town) -> None:
    for _ in range(11):
        town.doubt("doubt")
    town.work()
    town.minutes(16)


def reconcile_failing(town: Town) -> None:
    identity = Identity(town.doubt("doubt"))
    town.minutes(32, lambda: town.guard.operator().probe_now(identity, by="ann"))


def zombie_keys(town: Town) -> None:
    """A node died, and all its keys are found at once."""
    town.minutes(2, town.good_minute)
    origin = Origin("ann", "POST", "/pay", "a-key-of-a-client")
    for _ in range(6):
        identity = Identity(new_fence() + new_fence())
        town.store.blocking().perform(Claim(identity, new_fence(), "v1:", b"", origin, lease=1))
    town.clock.travel(SECOND)
    town.work()
    town.minutes(1)


def lost_fences(town: Town) -> None:
    town.minutes(2, town.good_minute)
    key, other = new_key(), town.process()
    how: dict[str, Any] = {"name": "brief", "tenant": "ann", "policy": BRIEF}

    def overrun() -> int:
        town.clock.travel(SECOND)
        assert other.once(key, lambda: 2, **how).value == 2
        return 1

    assert town.guard.once(key, overrun, **how).value == 2
    other.close()
    town.minutes(1)


def key_misuse(town: Town) -> None:
    key = new_key()
    town.pay(key)
    town.minutes(21, lambda: town.pay(key, times=3, payload=2))


def duplicates(town: Town) -> None:
    key = new_key()
    town.minutes(21, lambda: town.pay(key, times=70))


def queue_grows(town: Town) -> None:
    for _ in range(1001):
        town.mail()
    asyncio.run(Maintenance(town.guard).run_once())
    town.minutes(11)


def deliveries_failing(town: Town) -> None:
    town.delivered = False

    def a_minute() -> None:
        town.mail()
        town.work()

    town.minutes(21, a_minute)


def no_maintenance(town: Town) -> None:
    town.work()
    town.minutes(21, town.pay)


def slow_store(town: Town) -> None:
    town.minutes(1, town.pay)
    town.store.claims_take = 0.6
    for _ in range(4):
        town.pay()
        town.minutes(4)


def misconfigured(town: Town) -> None:
    """The settings of a route were changed, and the first request comes."""
    town.minutes(2, town.good_minute)
    changed = town.process(policy=semel.ietf(scope="tenant"))
    with suppress(semel.Refused):
        changed.once(new_key(), lambda: 1, name="pay", tenant="ann", payload=1)
    changed.close()
    town.minutes(1)


BAD: dict[str, Callable[[Town], None]] = {
    "SemelStoreFailing": store_failing,
    "SemelCircuitOpen": circuit_open,
    "SemelStoreDown": store_down,
    "SemelStoreFailover": store_failover,
    "SemelOutcomeNotRecorded": outcome_not_recorded,
    "SemelDeadLetters": dead_letters,
    "SemelUnknownOutcomes": unknown_outcomes,
    "SemelReconcileFailing": reconcile_failing,
    "SemelZombieKeys": zombie_keys,
    "SemelLostFences": lost_fences,
    "SemelKeyMisuse": key_misuse,
    "SemelDuplicates": duplicates,
    "SemelQueueGrows": queue_grows,
    "SemelDeliveriesFailing": deliveries_failing,
    "SemelNoMaintenance": no_maintenance,
    "SemelSlowStore": slow_store,
    "SemelMisconfigured": misconfigured,
}


def fired(town: Town) -> set[str]:
    return {name for name, rule in ALERTS.items() if town.scraped.fires(rule)}


@pytest.mark.parametrize("alert", BAD)
def test_an_alert_fires_when_it_must(alert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"breaker": None} if alert == "SemelStoreFailing" else {}
    town = Town(monkeypatch, **options)
    BAD[alert](town)
    assert town.scraped.fires(ALERTS[alert]), sorted(fired(town))
    town.close()


def test_every_alert_has_its_bad_day() -> None:
    assert BAD.keys() == ALERTS.keys()


def test_on_a_good_day_none_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(monkeypatch)
    for _ in range(4):
        town.minutes(8, town.good_minute)
        assert fired(town) == set()
    town.close()
