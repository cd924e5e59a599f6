"""Maintenance: what is past its time moves on, what is not settled never goes, one leads."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from semel.core.flow import run
from semel.core.maintenance import ONE_WRITER, PACE, Pace, tend
from semel.core.operations.handler import PauseBetweenLooks
from semel.core.operations.maintenance import Abandon, Lead, Reap, Sweep, Tended
from semel.core.operations.notables import Prune
from semel.core.operations.outbox import Enqueue, NoteEvent
from semel.core.operations.requests import Accept, Agree, Claim, Read
from semel.core.operations.workers import Beat, ListWorkers
from semel.core.records import Fence, Identity, OnLapse, Origin, State
from semel.core.stored import snapshot
from semel.errors import ConfigurationError, StoreUnavailable
from semel.guard import Guard
from semel.stores import open_backend
from semel.telemetry.prometheus import Prometheus
from semel.worker.maintenance import LEADER, EmbeddedMaintenance, Maintenance, pace_for
from semel.worker.worker import counts_note
from tests.ears import listen
from tests.forms import in_proof
from tests.scene import DAY, HOUR, KEY, MINUTE, Scene, fresh_fence
from tests.time_travel import into_the_past
from tests.waiting import PATIENCE, patient, until
from tests.web.faults import FaultyBackend

PROJECT = Path(__file__).parents[2]


def gone(scene: Scene, identity: Identity) -> bool:
    return scene.harness.record(identity) is None


def rounds(scene: Scene, pace: Pace = PACE) -> dict[str, int]:
    """Rounds until there is nothing left to do."""
    counts: dict[str, int] = {}
    while True:
        upkeep = scene.runner.run(tend(pace))
        for name, number in upkeep.counts.items():
            counts[name] = counts.get(name, 0) + number
        if not upkeep.more:
            return counts


def deferred(scene: Scene) -> Identity:
    identity = Identity(fresh_fence() * 2)
    origin = Origin("tern", "POST", "/rides", KEY)
    terms = scene.guard.runtime.plan("*", scene.guard.policy).terms
    scene.harness.perform(Agree(terms))
    counts_note = (identity, fresh_fence(), "r1.x", b"", origin, b"request", HOUR)
    scene.harness.perform(Accept(*counts_note, terms=terms.id))
    return identity


class TestARound:
    def test_leases_that_are_past_lapse_as_they_were_declared(self, scene: Scene) -> None:
        plain, released = scene.held(), scene.held(on_lapse=OnLapse.RELEASE)
        operation = scene.held("made")
        scene.travel(2 * MINUTE)
        alive = scene.held()
        counts = rounds(scene)
        states = [scene.state(each) for each in (plain, released, operation, alive)]
        assert states == [
            State.UNKNOWN,
            State.FAILED_RETRYABLE,
            State.IN_PROGRESS,  # the completer's
            State.IN_PROGRESS,
        ]
        assert counts["lapse"] == 1
        assert counts["lapse, declared release"] == 1

    def test_what_nobody_ran_in_time_is_answered_408(self, scene: Scene) -> None:
        late = deferred(scene)
        scene.travel(2 * HOUR)
        early = deferred(scene)
        assert rounds(scene)["abandon"] == 1
        record = scene.case(late).record
        assert record.state is State.COMPLETED
        kept = snapshot.decode(record.snapshot or b"")
        assert kept.status == 408
        assert json.loads(kept.body or b"")["code"] == "abandoned"
        assert (b"content-type", b"application/problem+json") in kept.headers
        assert scene.state(early) is State.PENDING

    def test_answers_expire_and_are_forgotten_in_the_end(self, scene: Scene) -> None:
        identity, released = scene.completed(), scene.released()
        rounds(scene)
        assert scene.state(identity) is State.COMPLETED
        scene.travel(90 * MINUTE)  # past retention, within the tombstone's time
        rounds(scene)
        assert scene.state(identity) is State.EXPIRED
        assert scene.case(identity).record.snapshot is None
        assert gone(scene, released)
        scene.travel(HOUR)
        rounds(scene)
        assert gone(scene, identity)

    def test_what_is_not_settled_never_goes(self, scene: Scene) -> None:
        unknown, dead = scene.unknown(), scene.unknown(probe_after=None)
        operation = scene.held("made", intent="charged")
        scene.travel(4000 * DAY)
        rounds(scene)
        states = [scene.state(each) for each in (unknown, dead, operation)]
        assert states == [State.UNKNOWN, State.UNKNOWN, State.IN_PROGRESS]

    def test_a_lapse_is_due_to_be_asked_about_at_once(self, scene: Scene) -> None:
        identity = scene.held()
        scene.travel(2 * MINUTE)
        rounds(scene)
        found = scene.recalled(identity)
        assert found.case.due_at is not None
        assert found.case.due_at <= found.now

    def test_events_are_forgotten_when_their_time_is_over(self, scene: Scene) -> None:
        scene.harness.perform(NoteEvent("bank", "evt_1", HOUR))
        scene.travel(2 * HOUR)
        assert rounds(scene)["events"] == 1
        assert not scene.harness.perform(NoteEvent("bank", "evt_1", None)).before

    @pytest.mark.parametrize("batch", [1, 3, 100])
    def test_however_small_the_batches_nothing_is_left_out(self, scene: Scene, batch: int) -> None:
        held, kept = [scene.held() for _ in range(7)], [scene.completed() for _ in range(7)]
        scene.travel(3 * HOUR)
        counts = rounds(scene, Pace(batch, 2, 0))
        assert (counts["lapse"], counts["expire"], counts["forget"]) == (7, 7, 7)
        assert {scene.state(each) for each in held} == {State.UNKNOWN}
        assert all(gone(scene, each) for each in kept)

    def test_a_round_is_bounded(self, quick: Scene) -> None:
        asked: list[Any] = []

        def endless(op: Any) -> Any:
            asked.append(type(op))
            return None if isinstance(op, PauseBetweenLooks) else Tended({"lapse": 10}, True, 0)

        upkeep = run(tend(Pace(10, 3, 0)), endless)
        assert upkeep.more
        steps = [
            [kind, PauseBetweenLooks, kind, PauseBetweenLooks, kind]
            for kind in (Sweep, Abandon, Reap, Prune)
        ]
        assert asked == [step for kind in steps for step in kind]  # between steps others may write


class TestTheLoop:
    async def test_it_tells_what_it_did(
        self, quick: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "semel")
        quick.held()
        quick.travel(2 * MINUTE)
        ear = listen(quick.guard)
        loop = Maintenance(quick.guard, interval=timedelta(seconds=60))
        first, second = await loop.run_once(), await loop.run_once()
        assert (first.done, first.note) == (1, "lapse 1")
        assert (second.done, second.note) == (0, "")
        assert first.next_due_in is not None
        assert 30 <= first.next_due_in <= 60
        assert [event["lapsed"] for event in ear.all("maintenance")] == [1, 0]
        assert (ear.total("lapse"), ear.total("doubt")) == (1, 1)
        lines = [(each.levelno, each.getMessage()) for each in caplog.records]
        assert (logging.INFO, "semel: maintenance: lapse 1") in lines
        assert (logging.DEBUG, "semel: maintenance: nothing to do") in lines

    def test_it_counts_what_waits_for_those_who_listen(self, scene: Scene) -> None:
        scene.held()
        scene.completed()
        scene.unknown(probe_after=HOUR)
        scene.unknown(probe_after=None)
        outbox = scene.guard.backend.capabilities.outbox
        for key in ("one", "two", "three") if outbox else ():
            scene.harness.perform(Enqueue(key, None, "mail", b"{}"))
        ear = listen(scene.guard)
        Maintenance(scene.guard).run_once_blocking(threading.Event())
        counted = ear.one("depths").fields
        records = {"pending": 0, "in_progress": 1, "unknown": 2, "dead": 1}
        effects = {"waiting_effects": 3, "dead_effects": 0}
        assert counted == records | (effects if outbox else dict.fromkeys(effects))

    async def test_a_round_that_was_cut_short_goes_on_soon(self, quick: Scene) -> None:
        for _ in range(5):
            quick.held()
        quick.travel(2 * MINUTE)
        loop = Maintenance(quick.guard, pace=Pace(1, 2, 0))
        first = await loop.run_once()
        assert first.done == 2
        assert first.next_due_in is not None
        assert first.next_due_in < 1

    def test_where_writers_wait_for_each_other_its_steps_are_short(self, quick: Scene) -> None:
        assert pace_for(quick.guard.backend) == PACE
        assert pace_for(open_backend("sqlite:///unused.db")) == ONE_WRITER
        assert ONE_WRITER.batch < PACE.batch
        assert ONE_WRITER.rest > 0  # who waits finds the lock free

    async def test_a_store_that_is_down_is_the_callers_to_wait_for(
        self, quick: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Down:
            async def perform(self, op: Any) -> Any:
                raise StoreUnavailable("down")

        monkeypatch.setattr(quick.guard.backend, "awaited", Down)
        with pytest.raises(StoreUnavailable):
            await Maintenance(quick.guard).run_once()

    def test_it_comes_again_after_a_while(self, quick: Scene) -> None:
        with pytest.raises(ConfigurationError, match="interval"):
            Maintenance(quick.guard, interval=timedelta(0))


class TestEmbedded:
    def test_one_leads_and_the_others_stand_by(self, scene: Scene) -> None:
        leader, other = (
            EmbeddedMaintenance(scene.guard, interval=timedelta(minutes=1)) for _ in range(2)
        )
        identity = scene.held()
        leader.run_once()
        scene.travel(2 * MINUTE)  # the lease of the record is past, the leader's is not
        waiting = other.run_once()
        assert (leader.leading, other.leading) == (True, False)
        assert scene.state(identity) is State.IN_PROGRESS
        assert waiting.next_due_in is not None
        assert waiting.next_due_in > 30  # until the leader's time is up
        assert leader.run_once().done == 1
        assert scene.state(identity) is State.UNKNOWN

    def test_each_is_seen_and_the_leader_is_known(self, scene: Scene) -> None:
        leader, other = (
            EmbeddedMaintenance(scene.guard, interval=timedelta(minutes=1)) for _ in range(2)
        )
        leader.run_once()
        other.run_once()
        seen = scene.harness.perform(ListWorkers(9)).workers
        assert sorted(each.worker.leading for each in seen) == [False, True]
        assert {(each.worker.role, each.worker.does) for each in seen} == {("embedded", "maintain")}
        assert {each.worker.pid for each in seen} == {os.getpid()}
        for each in seen:  # who stands by may come no sooner than the leader's time is up
            assert each.until - each.seen_at >= 4 * MINUTE - scene.harness.slack

    def test_one_that_ends_is_not_missed(self, quick: Scene) -> None:
        embedded = EmbeddedMaintenance(quick.guard, interval=timedelta(minutes=1))
        embedded.start()
        embedded.run_once()
        assert len(quick.harness.perform(ListWorkers(9)).workers) == 1
        embedded.stop()
        assert quick.harness.perform(ListWorkers(9)).workers == ()

    def test_a_heartbeat_that_fails_keeps_nobody_from_a_round(self) -> None:
        backend = FaultyBackend()
        guard = Guard(backend, tenant=None, maintenance=None)
        backend.fail(Beat)
        embedded = EmbeddedMaintenance(guard, interval=timedelta(minutes=1))
        embedded.run_once()
        assert embedded.leading
        assert backend.count(Sweep) == 1

    def test_another_follows_when_the_leaders_time_is_up(self, scene: Scene) -> None:
        one, two = (
            EmbeddedMaintenance(scene.guard, interval=timedelta(seconds=10)) for _ in range(2)
        )
        one.run_once()
        scene.travel(MINUTE)
        two.run_once()
        one.run_once()
        assert (one.leading, two.leading) == (False, True)

    def test_depths_are_told_by_the_leader_alone(self, quick: Scene) -> None:
        """An old count beside the new leader's would raise an alarm for good, or hide one."""
        registries = [CollectorRegistry(), CollectorRegistry()]
        guards = [
            Guard(quick.harness.backend, tenant=None, maintenance=None, on_event=Prometheus(each))
            for each in registries
        ]
        one, two = (EmbeddedMaintenance(each, interval=timedelta(seconds=10)) for each in guards)

        def unknown(registry: CollectorRegistry) -> float | None:
            return registry.get_sample_value("api_idempotency_depth", {"of": "unknown"})

        quick.unknown()
        one.run_once()
        assert [*map(unknown, registries)] == [1, None]
        quick.travel(MINUTE)
        quick.unknown()
        two.run_once()
        one.run_once()
        assert [*map(unknown, registries)] == [None, 2]
        quick.travel(MINUTE)
        one.run_once()
        assert unknown(registries[0]) == 2  # it leads again

    def test_who_stops_takes_its_depths_back(self, quick: Scene) -> None:
        registry = CollectorRegistry()
        guard = Guard(
            quick.harness.backend, tenant=None, maintenance=None, on_event=Prometheus(registry)
        )
        embedded = EmbeddedMaintenance(guard, interval=timedelta(milliseconds=20))

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"api_idempotency_{name}", labels)

        embedded.start()
        until(lambda: value("depth", of="unknown") == 0)
        embedded.stop()
        assert value("depth", of="unknown") is None
        assert value("maintenance_leader") == 0

    def test_without_the_lease_two_would_lead(self, scene: Scene) -> None:
        """The control: the fence alone decides; with the leader's own one stays leader."""
        fence = fresh_fence()
        first = scene.harness.perform(Lead(LEADER, fence, MINUTE))
        rival = scene.harness.perform(Lead(LEADER, fresh_fence(), MINUTE))
        again = scene.harness.perform(Lead(LEADER, fence, MINUTE))
        assert (first.leading, rival.leading, again.leading) == (True, False, True)

    def test_who_stops_hands_over_at_once(self, quick: Scene) -> None:
        one, two = (
            EmbeddedMaintenance(quick.guard, interval=timedelta(seconds=1)) for _ in range(2)
        )
        one.start()
        until(lambda: one.leading)
        one.stop()
        two.run_once()
        assert two.leading

    def test_the_thread_starts_once_works_and_ends(self, quick: Scene) -> None:
        embedded = EmbeddedMaintenance(quick.guard, interval=timedelta(milliseconds=20))
        ear = listen(quick.guard)
        identity = quick.held()
        quick.travel(2 * MINUTE)
        embedded.start()
        embedded.start()
        until(lambda: quick.state(identity) is State.UNKNOWN)
        embedded.stop()
        embedded.stop()
        assert ear.total("maintenance", "lapsed") == 1
        assert [each["leading"] for each in ear.all("leader")] == [True, False]

    def test_who_stops_in_the_middle_of_a_round_need_not_finish_it(self, quick: Scene) -> None:
        for _ in range(3):
            quick.held()
        quick.travel(2 * MINUTE)
        loop = Maintenance(quick.guard, pace=Pace(1, 100, 0))
        stopping = threading.Event()
        stopping.set()
        came = loop.run_once_blocking(stopping)
        assert (came.done, came.note) == (1, "lapse 1")

    def test_the_thread_outlives_a_store_that_is_down(
        self, quick: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        embedded = EmbeddedMaintenance(quick.guard, interval=timedelta(milliseconds=20))
        identity = quick.held()
        quick.travel(2 * MINUTE)
        errors: list[Exception] = [StoreUnavailable("down"), RuntimeError("a surprise")]
        blocking = quick.guard.backend.blocking

        def flaky() -> Any:
            if errors:
                raise errors.pop()
            return blocking()

        monkeypatch.setattr(quick.guard.backend, "blocking", flaky)
        embedded.start()
        until(lambda: not errors and quick.state(identity) is State.UNKNOWN)
        embedded.stop()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────

PROCESS = """
import sys, time
from datetime import timedelta
import semel
from semel.worker.maintenance import EmbeddedMaintenance

guard = semel.Guard(sys.argv[1], tenant=None)
embedded = EmbeddedMaintenance(guard, interval=timedelta(minutes=10))
while True:
    embedded.run_once()
    print("leading" if embedded.leading else "standing by", flush=True)
    time.sleep(0.05)
"""
"""Goes round all the time, instead of when its interval is over."""


class Member:
    """One process with embedded maintenance."""

    def __init__(self, store: str, log: Path) -> None:
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROCESS, store], stdout=out, stderr=out, cwd=PROJECT
            )

    @property
    def has_spoken(self) -> bool:
        return "\n" in self._log.read_text()

    @property
    def leading(self) -> bool:
        text = self._log.read_text()
        assert "Traceback" not in text, text
        return text.endswith("leading\n")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(params=["postgresql", *in_proof("sqlite")])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/semel.db"
    else:
        url = str(request.getfixturevalue("postgres_url"))
    backend = open_backend(url, timeout=PATIENCE)
    backend.migrate()
    backend.close()
    return url


def test_when_the_leader_is_killed_another_takes_over(store: str, tmp_path: Path) -> None:
    guard = Guard(patient(store), tenant=None)
    members = [Member(patient(store), tmp_path / f"log{n}") for n in range(2)]
    try:
        until(lambda: all(each.has_spoken for each in members))
        until(lambda: any(each.leading for each in members))
        leader = next(each for each in members if each.leading)
        (other,) = [each for each in members if each is not leader]
        leader.kill()
        assert not other.leading
        identity = lapsed(guard)
        into_the_past(store, 3600)
        until(lambda: other.leading)
        until(lambda: state(guard, identity) is State.UNKNOWN)
    finally:
        for each in members:
            each.kill()
        guard.close()


def lapsed(guard: Guard) -> Identity:
    """A record whose lease ends, and nobody asks for it again."""
    identity = Identity(os.urandom(32))
    origin = Origin("", "POST", "/payments", KEY)
    claim = Claim(identity, Fence(os.urandom(16)), "r1.x", b"", origin, 1000)
    guard.backend.blocking().perform(claim)
    return identity


def state(guard: Guard, identity: Identity) -> State | None:
    found = guard.backend.blocking().perform(Read(identity))
    record = getattr(found, "record", None)
    return None if record is None else record.state


def test_a_forked_child_gets_a_thread_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    code = f"""
import os, sys, threading
from datetime import timedelta
import semel
from semel.worker.maintenance import EmbeddedMaintenance
guard = semel.Guard({url!r}, tenant=None)
embedded = EmbeddedMaintenance(guard, interval=timedelta(hours=1))
embedded.start()
child = os.fork()
if child == 0:
    assert not [t for t in threading.enumerate() if t.name == "semel-maintenance"]
    embedded.start()
    assert [t for t in threading.enumerate() if t.name == "semel-maintenance"]
    embedded.stop()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=PATIENCE, cwd=PROJECT
    )
    assert done.returncode == 0


def test_counts_are_told_in_order_and_zeros_left_out() -> None:
    assert counts_note({"b": 1, "a": 2, "c": 0}) == "a 2, b 1"
