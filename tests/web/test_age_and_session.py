"""Requests that are too old are never run, and a key counts in its own session only."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import semel
from semel.core.policy import Policy
from semel.stores.memory import MemoryBackend
from tests.stores.harness import START, FakeClock
from tests.web.client import new_key
from tests.web.colours import COLOURS, driver, once
from tests.web.conftest import MakeGuard
from tests.web.drive import Ask, Driver
from tests.web.effects import Effects

HOUR = 3_600_000_000
NOW = datetime.fromtimestamp(START / 1_000_000, UTC)
JSON = ("content-type", "application/json")


def uuid7(micros: int, tail: int = 1) -> str:
    """Made at this time."""
    return str(UUID(int=(micros // 1000) << 80 | 0x7 << 76 | 0b10 << 62 | tail))


class World:
    """A guarded application whose store's clock is ours."""

    def __init__(self, colour: str, make: MakeGuard, effects: Effects, runner: Any) -> None:
        self.clock = FakeClock()
        self.effects = effects
        self._store = MemoryBackend(clock=self.clock)
        self._colour, self._make, self._runner = colour, make, runner

    def driver(self, policy: Policy) -> Driver:
        guard = self._make(self._store, policy=policy)
        return driver(self._colour, guard, once(self.effects), self._runner)


@pytest.fixture(params=COLOURS)
def world(
    request: pytest.FixtureRequest,
    make_guard: MakeGuard,
    effects: Effects,
    runner: asyncio.Runner,
) -> World:
    return World(request.param, make_guard, effects, runner)


POLICIES = {
    "ietf": (semel.ietf(), 410),
    "stripe": (semel.stripe(), 200),
    "accepted": (semel.accepted(), 410),
    "payments": (semel.payments(probe=None), 410),
    "hour": (semel.ietf(max_request_age=timedelta(hours=1)), 410),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_key_that_is_older_than_retention_is_not_taken_as_new(world: World, name: str) -> None:
    policy, status = POLICIES[name]
    send = world.driver(policy)
    old = Ask(key=uuid7(START - 25 * HOUR))
    replies = [send(old) for _ in range(2)]
    assert {reply.status for reply in replies} == {status}
    assert len(world.effects.all()) == (1 if status == 200 else 0)
    if status == 410:
        assert {reply.code for reply in replies} == {"key-expired"}
    assert send(Ask(key=uuid7(START - HOUR // 2))).status == 200


def test_an_old_key_never_beats_a_live_record(world: World) -> None:
    send = world.driver(semel.ietf(max_request_age=timedelta(minutes=5)))
    ask = Ask(key=uuid7(START))
    first = send(ask)
    world.clock.travel(23 * HOUR)
    again = send(ask)
    assert (again.status, again.body, again.replayed) == (200, first.body, True)
    assert send(Ask(key=ask.key, body=b'{"n": 1}')).status == 422
    world.clock.travel(2 * HOUR)
    assert send(ask).code == "key-expired"  # its tombstone
    world.clock.travel(24 * HOUR)
    assert send(ask).code == "key-expired"  # nothing is left of it but its own age
    assert len(world.effects.all()) == 1


def test_a_key_from_the_future_is_as_good_as_one_that_tells_nothing(world: World) -> None:
    send = world.driver(semel.ietf())
    ask = Ask(key=uuid7(START + 1_000 * 24 * HOUR))
    first = send(ask)
    assert send(ask).body == first.body
    world.clock.travel(25 * HOUR)
    assert send(ask).code == "key-expired"
    assert len(world.effects.all()) == 1


# ── made_at ───────────────────────────────────────────────────────────────────────────────────────


def signed(request: semel.Request) -> datetime | None:
    """In place of an application's own check of a signature over the time."""
    stated = request.headers.get("x-signed-at")
    return None if stated is None else datetime.fromisoformat(stated)


def sent(at: datetime | None, key: str | None = None) -> Ask:
    stated = () if at is None else (("x-signed-at", at.isoformat()),)
    return Ask(key=key or new_key(), headers=(JSON, *stated))


def test_a_request_that_was_made_too_long_ago_is_not_run(world: World) -> None:
    send = world.driver(semel.ietf(max_request_age=timedelta(minutes=5), made_at=signed))
    fresh, old = NOW - timedelta(minutes=4), NOW - timedelta(minutes=6)
    key = new_key()
    first = send(sent(fresh, key))
    assert first.status == 200
    refused = send(sent(old))
    assert (refused.status, refused.code) == (410, "key-expired")
    world.clock.travel(HOUR)
    assert send(sent(fresh, key)).body == first.body, "a live record is answered at any age"
    assert send(sent(fresh)).code == "key-expired"
    assert len(world.effects.all()) == 1


def test_the_earlier_of_both_times_counts(world: World) -> None:
    send = world.driver(semel.ietf(max_request_age=timedelta(minutes=5), made_at=signed))
    old_key = uuid7(START - HOUR)
    assert send(sent(NOW, old_key)).status == 410
    assert send(sent(NOW - timedelta(hours=1), uuid7(START))).status == 410
    assert send(sent(None)).status == 200
    assert len(world.effects.all()) == 1


@pytest.mark.parametrize("made", [datetime(2026, 1, 1), "yesterday", 5])  # noqa: DTZ001
def test_a_time_that_is_none_runs_nothing(world: World, made: Any) -> None:
    policy = semel.ietf(max_request_age=timedelta(minutes=5), made_at=lambda request: made)
    assert world.driver(policy)().code == "misconfigured"
    assert world.effects.all() == []


def test_made_at_needs_to_know_how_old_is_too_old() -> None:
    with pytest.raises(semel.ConfigurationError, match="max_request_age="):
        semel.ietf(made_at=signed)


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────


def in_session(session: str | None, key: str, token: str = "t1", body: bytes = b"{}") -> Ask:
    bound = () if session is None else (("x-session", session),)
    return Ask(key=key, body=body, headers=(JSON, ("authorization", token), *bound))


BOUND = semel.ietf(session=lambda request: request.headers.get("x-session"))


@pytest.mark.parametrize("other", ["s2", "S1", "s1 ", "", None])
def test_a_key_of_another_session_is_another_key(world: World, other: str | None) -> None:
    send = world.driver(BOUND)
    key = new_key()
    first = send(in_session("s1", key))
    second = send(in_session(other, key))
    assert (second.status, second.replayed) == (200, False)
    assert second.body != first.body
    assert send(in_session("s1", key)).body == first.body
    # Not even a mismatch tells that there is a record in the other one.
    assert send(in_session("s3", key, body=b'{"n": 1}')).status == 200
    assert len(world.effects.all()) == 3


def test_a_refreshed_token_finds_its_record_as_long_as_the_session_is_the_same(
    world: World,
) -> None:
    send = world.driver(BOUND)
    key = new_key()
    first = send(in_session("s1", key, token="t1"))
    again = send(in_session("s1", key, token="t2"))
    assert (again.body, again.replayed) == (first.body, True)


def test_a_session_that_cannot_be_told_runs_nothing(world: World) -> None:
    def broken(request: semel.Request) -> str | None:
        raise TypeError("no session store")

    assert world.driver(semel.ietf(session=broken))().code == "misconfigured"
    number: Any = lambda request: 7  # noqa: E731
    assert world.driver(semel.ietf(session=number))().code == "misconfigured"
    assert world.effects.all() == []
