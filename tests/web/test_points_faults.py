"""Every operation of a ride asked of the store fails once: not done, or done and not answered.

However it fails, the ride is made once and charged once, and in the end there is one answer.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.unknown.evidence import Absent, Happened, Inquiry
from semel.runtime.leases import Lease
from semel.worker.reconciler import Reconciler
from semel.worker.stored_runs import StoredRuns
from tests.forms import in_proof
from tests.stores.harness import server_of
from tests.web.client import Reply
from tests.web.faulty import Faults, FaultyBackend, Mishap
from tests.web.hurry import no_pauses
from tests.web.rides import Rides, rides_on

MANY = 40
"""More than a ride asks of its store."""
ROUNDS = 12


def passing(faults: Faults, held: Callable[[Lease, float], bool]) -> Callable[[Lease, float], bool]:
    """A write that fails is tried again until its lease is over: an outage takes half of it a try.

    On the clock by which this process counts its leases, without a pause. On the real one, a lease
    short enough to wait for is at times too short for the ride.
    """

    def later(lease: Lease, now: float) -> bool:
        outage = faults.at > 0 and faults.lasting
        return held(lease, now + len(faults.hit) * lease.duration / 2 if outage else now)

    return later


PAIRS = (
    *("sqlite-asgi", "postgresql-wsgi", "mysql-asgi"),
    *in_proof("sqlite-wsgi", "postgresql-asgi", "mysql-wsgi"),
)
"""Either colour, on every store."""


@pytest.fixture(params=PAIRS)
def faulty(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runner: asyncio.Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Rides, Faults]]:
    store, colour = request.param.split("-")
    faults = Faults()
    monkeypatch.setattr(Lease, "held", passing(faults, Lease.held))
    no_pauses(monkeypatch)

    def wrap(backend: Any) -> Any:
        return FaultyBackend(backend, faults)

    with rides_on(store, colour, tmp_path, runner, server_of(request, store), wrap=wrap) as rides:

        @rides.guard.probe("charged")
        def probe(inquiry: Inquiry) -> Any:
            """The provider's own books."""
            key = inquiry.downstream_key()
            return Happened({"key": key}) if key in rides.script.charged else Absent(final=True)

        yield rides, faults


def until_final(rides: Rides, runner: asyncio.Runner, key: str) -> Reply:
    """As a client does: again and again, while time and the worker go on."""
    reply = rides.ask(key)
    for _ in range(ROUNDS):
        if reply.status == 201:
            return reply
        rides.later(timedelta(hours=1))
        runner.run(_work(rides))
        reply = rides.ask(key)
    raise AssertionError(f"no final answer: {reply}, {rides.cases()}")


async def _work(rides: Rides) -> None:
    await Reconciler(rides.guard, rides.app).run_once()
    runs = StoredRuns(rides.guard, rides.app)
    await runs.run_once()
    await runs.aclose()


@pytest.mark.parametrize("kind", ["not done", "not answered", "outage"])
def test_a_fault_at_every_step_makes_no_second_ride_and_loses_none(
    faulty: tuple[Rides, Faults], runner: asyncio.Runner, kind: str
) -> None:
    rides, faults = faulty
    steps = 0
    for at in range(1, MANY):
        rides.script.charged.clear()
        mishap: Mishap = "not answered" if kind == "not answered" else "not done"
        faults.set(at, mishap, lasting=kind == "outage")
        key = f"{kind.replace(' ', '-')}-{at:020}"
        rides.ask(key)
        hit = list(faults.hit)
        faults.heal()
        if not hit:
            break
        steps += 1
        first = until_final(rides, runner, key)
        assert until_final(rides, runner, key).body == first.body, hit
        assert len(rides.script.charged) == 1, hit
        assert rides.rows().count("made") == steps, hit
    assert 6 <= steps < MANY - 1


@pytest.mark.parametrize("kind", ["not done", "not answered", "outage"])
def test_a_fault_at_every_step_of_a_resume_frees_nothing_that_has_acted(
    faulty: tuple[Rides, Faults], kind: str
) -> None:
    """Freed, it would be forgotten in time, and a late retry would charge a second time."""
    rides, faults = faulty
    rides.script.calls = ("charged", "mailed")

    def charge(key: str, amount: int) -> str:
        if key in rides.script.charged[:-1] or len(rides.script.charged) > 1:
            raise semel.NotExecuted("the mail server is down")
        return "ok"

    rides.script.charge = charge
    for at in range(1, MANY):
        rides.script.charged.clear()
        key = f"{kind.replace(' ', '-')}-{at:020}"
        rides.ask(key)
        assert state(rides, key) == "in_progress"
        rides.later(timedelta(hours=1))
        mishap: Mishap = "not answered" if kind == "not answered" else "not done"
        faults.set(at, mishap, lasting=kind == "outage")
        rides.ask(key)
        hit = list(faults.hit)
        faults.heal()
        if not hit:
            break
        while rides.guard.runtime.keeper.write_retries:
            rides.guard.runtime.keeper.run_once()
        assert state(rides, key) in ("in_progress", "unknown"), hit
    assert at > 4


def state(rides: Rides, key: str) -> str:
    (case,) = (case for case in rides.cases() if case.origin.key == key)
    return case.record.state.value
