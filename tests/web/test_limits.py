"""Limits on the way of a request: 429 before the store is asked, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.core.operations.maintenance import Browse
from semel.core.operations.requests import Claim, Read
from semel.core.records import State
from semel.runtime.runtime import SeenKeys
from tests.waiting import PATIENCE, until
from tests.web.client import Reply, new_key
from tests.web.colours import COLOURS, Said, driver, once
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Driver
from tests.web.effects import Effects
from tests.web.faults import FaultyBackend

HOUR = timedelta(hours=1)


def stop_the_clock(guard: semel.Guard, at: float = 1_000.0) -> None:
    """What is granted anew with time is not, however long a test takes."""
    assert guard.runtime.limiter is not None
    guard.runtime.limiter._clock = lambda: at


def few(count: int) -> semel.Rate:
    """So many, and no more while a test runs."""
    return semel.Rate(count, HOUR)


@pytest.fixture(autouse=True)
def no_census(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process knows of its own keys only, however long a test takes."""
    monkeypatch.setattr("semel.worker.maintenance._FIRST_COUNT", HOUR.total_seconds())


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store() -> FaultyBackend:
    return FaultyBackend()


@pytest.fixture
def guards() -> list[semel.Guard]:
    return []


Make = Callable[..., Driver]


@pytest.fixture
def make(
    colour: str,
    store: FaultyBackend,
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
    guards: list[semel.Guard],
) -> Make:
    def build(limits: semel.Limits, handle: Any = None, **options: Any) -> Driver:
        options.setdefault("tenant", lambda request: request.headers.get("x-tenant", "a"))
        guard = make_guard(options.pop("store", store), limits=limits, **options)
        stop_the_clock(guard)
        guards.append(guard)
        return driver(colour, guard, handle or once(effects), runner)

    return build


def new(tenant: str = "a", key: str | None = None) -> Ask:
    headers = (("content-type", "application/json"), ("x-tenant", tenant))
    return Ask(key=key or new_key(), headers=headers)


def records(store: FaultyBackend) -> int:
    return len(store.inner.blocking().perform(Browse(tuple(State), 10_000)).cases)


def test_over_the_rate_of_new_keys_nothing_is_asked_run_or_left_behind(
    make: Make, store: FaultyBackend, effects: Effects, guards: list[semel.Guard]
) -> None:
    send = make(semel.Limits(new_keys=few(3)))
    assert [send(new()).status for _ in range(3)] == [200] * 3
    stop_the_clock(guards[0], 1_000.5)
    asked = len(store.seen)
    late = new()
    for _ in range(5):
        reply = send(late)
        assert (reply.status, reply.code, reply.problem["retryable"]) == (429, "too-fast", True)
        assert reply.one("retry-after") == "1200"
    assert len(store.seen) == asked, "the store was asked"
    assert (len(effects.all()), records(store)) == (3, 3)
    assert send(new("b")).status == 200, "another tenant paid for it"


def test_a_replay_is_no_new_key_whoever_met_it_first(make: Make, effects: Effects) -> None:
    send = make(semel.Limits(new_keys=few(2)))
    elsewhere = make(semel.Limits())  # another process, as far as memory goes
    known = [new() for _ in range(8)]
    for each in known:
        assert elsewhere(each).status == 200
    assert [send(each).replayed for each in known] == [True] * 8
    assert [send(each).replayed for each in known] == [True] * 8
    assert [send(new()).status for _ in range(3)] == [200, 200, 429]
    assert send(known[0]).replayed
    assert len(effects.all()) == 10


def test_refusals_and_replays_are_look_ups(make: Make, effects: Effects) -> None:
    send = make(semel.Limits(lookups=few(4)))
    ask = new()
    assert send(ask).status == 200
    assert [send(ask).status for _ in range(2)] == [200, 200]
    other = Ask(key=ask.key, body=b'{"n": 1}', headers=ask.headers)
    assert [send(other).status for _ in range(3)] == [422, 422, 429]
    assert send(ask).code == "too-fast"
    assert send(new()).status == 200, "a new key is no look-up"
    assert len(effects.all()) == 2


def test_answers_from_memory_are_look_ups_too(make: Make) -> None:
    send = make(semel.Limits(lookups=few(3)), replay_cache=timedelta(minutes=1))
    ask = new()
    assert [send(ask).status for _ in range(5)] == [200, 200, 200, 200, 429]


def test_questions_for_the_status_are_look_ups(make: Make, store: FaultyBackend) -> None:
    send = make(semel.Limits(lookups=few(2)))
    headers = (("x-tenant", "a"),)
    ask = Ask("GET", b"/semel/status/" + b"0" * 64, key=None, body=b"", headers=headers)
    assert [send(ask).status for _ in range(3)] == [404, 404, 429]
    asked = len(store.seen)
    assert send(ask).code == "too-fast"
    assert len(store.seen) == asked


def test_a_key_that_was_turned_away_is_not_taken_for_one_that_was_met(
    make: Make, store: FaultyBackend
) -> None:
    send = make(semel.Limits(new_keys=few(1)))
    assert send(new()).status == 200
    ask = new()
    assert [send(ask).status for _ in range(3)] == [429] * 3
    assert store.count(Read) == 0


def test_a_key_thought_to_be_met_pays_when_it_turns_out_to_be_new(
    make: Make, store: FaultyBackend, effects: Effects, guards: list[semel.Guard]
) -> None:
    send = make(semel.Limits(new_keys=few(1)))
    assert send(new()).status == 200
    guards[0].runtime.seen_keys._slots = bytearray(b"\1") * SeenKeys.SLOTS
    reply = send(new())
    assert (reply.status, reply.code) == (429, "too-fast")
    assert store.count(Claim) == 1
    assert (len(effects.all()), records(store)) == (1, 1)


def test_a_retry_of_what_failed_is_a_look_up(make: Make, effects: Effects) -> None:
    statuses = iter([503, 503, 200])

    def handle() -> Said:
        effects.happen("-")
        return Said(b"", next(statuses))

    send = make(semel.Limits(new_keys=few(1), lookups=few(2)), handle)
    ask = new()
    assert [send(ask).status for _ in range(3)] == [503, 503, 200]
    assert send(ask).status == 429
    assert len(effects.all()) == 3


@pytest.mark.parametrize("mode", ["atomic", "deferred"])
def test_every_mode_is_limited(mode: Any, make: Make, tmp_path: Path, effects: Effects) -> None:
    policy = semel.ietf(mode=mode) if mode == "atomic" else semel.accepted(mode=mode, required=True)
    send = make(
        semel.Limits(new_keys=few(2), lookups=few(2)),
        store=f"sqlite:///{tmp_path / 'keys.db'}",
        policy=policy,
    )
    asks = [new() for _ in range(3)]
    statuses = [send(ask).status for ask in asks]
    assert statuses[2] == 429
    assert {200, 202} >= {*statuses[:2]}
    again = [send(asks[0]).status for _ in range(3)]
    assert again == [statuses[0], statuses[0], 429]
    assert len(effects.all()) == (2 if mode == "atomic" else 0)


def test_a_request_that_waits_is_charged_once_and_keeps_its_place(
    make_guard: MakeGuard, effects: Effects, runner: asyncio.Runner
) -> None:
    policy = semel.payments(probe=None, in_flight="wait", wait=timedelta(seconds=PATIENCE))
    guard = make_guard(limits=semel.Limits(new_keys=few(1), lookups=few(1)), policy=policy)
    entered, leave = threading.Event(), threading.Event()

    def handle() -> Said:
        entered.set()
        assert leave.wait(PATIENCE)
        return Said(effects.happen("-").encode())

    send = driver("wsgi", guard, handle, runner)
    ask = new()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, ask)
        assert entered.wait(PATIENCE)
        second = pool.submit(send, ask)
        until(lambda: bool(guard.runtime.keeper.waiters.watches))
        assert send(ask).code == "too-fast"
        leave.set()
        replies: list[Reply] = [first.result(), second.result()]
    assert [reply.status for reply in replies] == [200, 200]
    assert replies[1].replayed
    assert len(effects.all()) == 1


def test_a_function_is_limited_and_says_when_to_come_again(make_guard: MakeGuard) -> None:
    guard = make_guard(limits=semel.Limits(new_keys=few(1)))
    stop_the_clock(guard)
    assert guard.once(new_key(), lambda: 1, name="job").value == 1
    stop_the_clock(guard, 1_000.5)
    with pytest.raises(semel.Refused) as refused:
        guard.once(new_key(), lambda: 2, name="job")
    assert (refused.value.code, refused.value.retryable) == ("too-fast", True)
    assert refused.value.retry_after == 3600


def test_at_the_cap_no_new_key_is_taken_and_known_ones_are_answered(
    make: Make, store: FaultyBackend
) -> None:
    send = make(semel.Limits(active_keys=3))
    asks = [new() for _ in range(4)]
    replies = [send(ask) for ask in asks]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert (replies[3].code, records(store)) == ("too-many-keys", 3)
    assert send(asks[0]).replayed
    assert send(new("b")).status == 200


def test_at_the_cap_a_key_is_answered_by_a_process_that_has_never_met_it(
    make: Make, store: FaultyBackend, effects: Effects
) -> None:
    """After a deployment no process has met any key: that must not take answers away."""
    before = make(semel.Limits(active_keys=3))
    asks = [new() for _ in range(3)]
    assert [before(ask).status for ask in asks] == [200] * 3
    after = make(semel.Limits(active_keys=3))
    assert [after(new()).status for _ in range(3)] == [200] * 3  # as far as it knows
    claims = store.count(Claim)
    assert [after(ask).replayed for ask in asks] == [True] * 3
    assert after(new()).code == "too-many-keys"
    assert store.count(Claim) == claims
    assert len(effects.all()) == records(store) == 6


def test_at_the_cap_looking_for_a_key_is_a_look_up(make: Make, store: FaultyBackend) -> None:
    send = make(semel.Limits(active_keys=1, lookups=few(2)))
    assert send(new()).status == 200
    assert [send(new()).code for _ in range(2)] == ["too-many-keys"] * 2
    asked = len(store.seen)
    assert send(new()).code == "too-fast"
    assert len(store.seen) == asked


@pytest.mark.parametrize("mode", ["atomic", "deferred"])
def test_every_mode_keeps_to_the_cap_and_answers_what_is_there(
    mode: Any, make: Make, tmp_path: Path, effects: Effects
) -> None:
    policy = semel.ietf(mode=mode) if mode == "atomic" else semel.accepted(mode=mode, required=True)
    how = {"store": f"sqlite:///{tmp_path / 'keys.db'}", "policy": policy}
    known = new()
    first = make(semel.Limits(active_keys=1), **how)(known).status
    assert first in (200, 202)
    send = make(semel.Limits(active_keys=1), **how)
    assert send(new()).status == first
    assert send(known).status == first
    assert send(new()).code == "too-many-keys"
    assert len(effects.all()) == (2 if mode == "atomic" else 0)


def test_at_the_cap_a_function_is_answered_too(make_guard: MakeGuard, store: FaultyBackend) -> None:
    key, cap = new_key(), semel.Limits(active_keys=1)
    assert make_guard(store, limits=cap).once(key, lambda: 1, name="job").value == 1
    guard = make_guard(store, limits=cap)
    assert guard.once(new_key(), lambda: 2, name="job").value == 2
    assert guard.once(key, lambda: 3, name="job").value == 1
    with pytest.raises(semel.Refused, match="too-many-keys"):
        guard.once(new_key(), lambda: 4, name="job")


@pytest.mark.parametrize("limits", [5, {"new_keys": 5}])
def test_what_is_no_limits_is_refused(limits: Any) -> None:
    with pytest.raises(semel.ConfigurationError, match="limits="):
        semel.Guard("memory://", tenant=None, limits=limits)
